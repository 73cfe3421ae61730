"""Inner loops, compiled when they are first used: each is one pass over memory, without torch.

They work on arrays in main memory; what lies on another device is computed by torch.
"""
