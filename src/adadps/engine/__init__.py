"""Per-example gradients, secure noise, and the weights that it is added to."""
