"""Experiments around adadps: the paper's tables, benchmarks, named data sets."""
