"""Secret states for the default generators of torch, numpy and Python.

Whatever draws while private rows are seen (dropout, a transform with chance) must not draw from a
seed that others may know.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

Bytes = Callable[[int], bytes]
"""Returns this many bytes from a secure source."""

_NUMPY: Any = np.random

_WORDS = 624
"""State words of the Mersenne twister of torch and Python."""


@contextmanager
def secret_generators(secret: Bytes, device: torch.device) -> Iterator[None]:
    """Give the default generators secret states, and restore their states afterwards."""
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    numpys_own, of_numpy = _NUMPY.get_bit_generator(), _NUMPY.get_state(legacy=False)
    accelerator = None if device.type == "cpu" else torch.get_device_module(device)
    of_device = accelerator.get_rng_state(device) if accelerator else None
    try:
        torch.set_rng_state(_twister_state(secret(4 * _WORDS)))
        _NUMPY.set_bit_generator(np.random.PCG64(int.from_bytes(secret(16))))
        words = _words(secret(4 * _WORDS)).tolist()
        random.setstate((3, (*words, _WORDS), None))
        if accelerator:
            accelerator.set_rng_state(_secret_seed(of_device, secret), device)
        yield
    finally:
        torch.set_rng_state(of_torch)
        _NUMPY.set_bit_generator(numpys_own)
        _NUMPY.set_state(of_numpy)
        random.setstate(of_python)
        if accelerator:
            accelerator.set_rng_state(of_device, device)


def _words(held: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.frombuffer(held, dtype=np.uint32)


def _twister_state(held: bytes) -> torch.Tensor:
    """A state of torch's generator with these words, all of which are mixed at the next draw."""
    state = _fresh_state().clone()
    whole = state.numpy()
    start = _words_start()
    whole[start : start + 8 * _WORDS] = _words(held).astype(np.uint64).view(np.uint8)
    return state


@cache
def _fresh_state() -> torch.Tensor:
    """The state of a generator that has drawn nothing: its next draw mixes all words first."""
    return torch.Generator().get_state()


@cache
def _words_start() -> int:
    """Where the words begin, found by their content: the first is the seed, as in MT19937."""
    seed = 0x2B7E1516
    state = torch.Generator().manual_seed(seed).get_state().numpy()
    expected, words = [], seed
    for index in range(1, 5):
        expected.append(words)
        words = (1812433253 * (words ^ (words >> 30)) + index) & 0xFFFFFFFF
    found = state.tobytes().find(np.array(expected, np.uint64).tobytes())
    if found < 0:
        raise RuntimeError(
            "Expected the Mersenne twister as torch's generator on the CPU, found another one. "
            "Install a version of torch that this package allows."
        )
    return found


def _secret_seed(like: Any, secret: Bytes) -> torch.Tensor:
    """The state of an accelerator's counter-based generator, which begins with its 64-bit seed."""
    state: torch.Tensor = like.clone()
    state.view(torch.uint8)[:8] = torch.frombuffer(bytearray(secret(8)), dtype=torch.uint8)
    return state
