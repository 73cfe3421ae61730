"""Levels, classes and bounds that were not declared, counted on private data with noise.

A run pays for its counts before they are made. docs/decisions/paid-levels.md has the mathematics.
"""
