"""How each kind of layer gives norms and clipped sums of per-example gradients."""
