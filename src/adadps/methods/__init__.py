"""Side information, stages, and the methods that are chains of them."""
