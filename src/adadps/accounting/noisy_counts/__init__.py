"""Levels, classes and bounds that nobody has declared: counted on private data, noised, paid for.

The mathematics is in docs/decisions/paid-levels.md.
"""
