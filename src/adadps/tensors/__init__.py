"""Tensors that are mostly zero, sums of outer products, compiled loops, threads; no privacy."""
