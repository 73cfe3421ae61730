"""Examples, tables, users, provenance, and the data that comes with the package."""
