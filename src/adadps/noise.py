"""Randomness that privacy can stand on.

*Secure.* Batches and noise come from an AES counter generator that the operating system seeds.
*Full tails.* Noise is drawn and added in float64 (a float64 ziggurat reaches past 8σ; torch's
float32 normal stops at 5.77σ). *On a grid.* A released value is

    g · rint((S + s·z) / g),    g = 2^(⌊log2 s⌋ - 10),    z ~ N(0, 1),

where s is the noise's public standard deviation: every released value lies on the same public
lattice, whatever the low bits of S were. This is an argument against the attacks of Mironov (2012)
and Haney et al. (2022), not a proof; see docs/decisions/floating-point.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import torch
from randomgen import AESCounter
from torch import Tensor

REPRODUCIBLE_MARK = "reproducible, not private: the noise comes from a known seed"


class Randomness:
    """The one source of private draws: batches (`generator`) and noise (`release`).

    Make it with `secure` or `reproducible_not_private`. After a fork the child draws afresh.
    """

    def __init__(self, seeds: Callable[[], list[int]], mark: str | None) -> None:
        self._seeds = seeds
        self.mark = mark
        self._start()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Expected one owner of this randomness, found an attempt to copy it. A copy would "
            "repeat its noise: make a new one."
        )

    def _start(self) -> None:
        self._process = os.getpid()
        sampling, noise = self._seeds()
        self._sampling = np.random.Generator(AESCounter(sampling))
        self._noise = np.random.Generator(AESCounter(noise))

    def _fresh_after_fork(self) -> None:
        if self._process != os.getpid():
            self._seeds = _system_seeds
            self._start()

    @property
    def generator(self) -> np.random.Generator:
        """Generator for sampling batches and group labels."""
        self._fresh_after_fork()
        return self._sampling

    def normal(self, size: tuple[int, ...]) -> Tensor:
        """Independent standard normals in float64, on the CPU."""
        self._fresh_after_fork()
        return torch.from_numpy(np.asarray(self._noise.standard_normal(size)))

    def release(self, total: Tensor, *, standard_deviation: float) -> Tensor:
        """``total`` plus Gaussian noise, in float64, on the public grid."""
        if standard_deviation == 0:
            return total.double()
        released = self.normal(tuple(total.shape)).to(total.device)
        released.mul_(standard_deviation).add_(total)
        width = grid(standard_deviation)
        return released.div_(width).round_().mul_(width)


def secure() -> Randomness:
    """Randomness seeded by the operating system: the default everywhere.

    >>> secure().mark is None
    True
    """
    return Randomness(_system_seeds, None)


def reproducible_not_private(seed: int) -> Randomness:
    """Randomness from a known seed. Whoever knows the seed can subtract the noise.

    Every result made with it is marked as not private.

    >>> a, b = (reproducible_not_private(1).normal((2,)) for _ in range(2))
    >>> bool((a == b).all())
    True
    """
    words = np.random.SeedSequence(seed).generate_state(4, np.uint64)
    seeds = [int(words[0]) << 64 | int(words[1]), int(words[2]) << 64 | int(words[3])]
    return Randomness(lambda: seeds, REPRODUCIBLE_MARK)


def grid(standard_deviation: float) -> float:
    """Width of the public grid for noise of this standard deviation.

    >>> grid(1.0) == grid(1.9) == 2.0**-10
    True
    """
    return math.ldexp(1.0, math.frexp(standard_deviation)[1] - 1 - 10)


def _system_seeds() -> list[int]:
    return [int.from_bytes(os.urandom(16)), int.from_bytes(os.urandom(16))]
