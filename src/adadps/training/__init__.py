"""Runs: paid for step by step, kept in checkpoints, tuned, and federated."""
