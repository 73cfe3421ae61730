"""Fuzzing: mutated files, arrays and command lines, each reproducible from a seed and a number.

The law for every input: success, or an error of our own; on the command line an exit code of 0, 1
or 2 with a message and no traceback; and nothing half-made is left.
"""
