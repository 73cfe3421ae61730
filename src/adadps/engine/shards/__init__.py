"""Weights of which each process holds some rows, and layers that are gathered as they run."""
