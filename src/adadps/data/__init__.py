"""Examples in memory, text features, and the data that comes with the package."""
