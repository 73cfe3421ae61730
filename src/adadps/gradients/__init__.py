"""Per-unit gradients: the narrow waist and its engines."""
