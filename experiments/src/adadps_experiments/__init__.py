"""Experiments with adadps: the paper's tables, benchmarks, named data sets."""
