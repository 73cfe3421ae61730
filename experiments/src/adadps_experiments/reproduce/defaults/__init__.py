"""Default settings beside tuned ones."""
