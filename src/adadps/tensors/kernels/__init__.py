"""Inner loops, compiled when they are first used: each is one pass over memory, without torch.

They work on arrays in main memory; tensors on other devices are computed by torch. Loops with one
user live beside it (`adadps.engine.rules.squares`, `adadps.engine.noise`).
"""
