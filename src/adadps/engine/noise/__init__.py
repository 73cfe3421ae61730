"""Secure noise, drawn at once or late, when a row is next read."""
