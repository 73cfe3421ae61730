"""Examples, tables, users, text features, provenance, and the data that comes with the package."""
