"""Randomness that privacy can stand on.

*Secure.* Batches and noise come from AES in counter mode with keys from the operating system.
*Full tails.* Noise is drawn and added in float64 and reaches past 9σ (torch's float32 normal stops
at 5.77σ). *On a grid.* A released value is

    g · rint((S + s·z) / g),    g = 2^(⌊log2 s⌋ - 10),    z ~ N(0, 1),

where s is the noise's public standard deviation: every released value lies on the same public
lattice, whatever the low bits of S were. This is an argument against the attacks of Mironov (2012)
and Haney et al. (2022), not a proof; see docs/decisions/floating-point.md.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from randomgen import AESCounter
from torch import Tensor
from torch.autograd.graph import increment_version

from adadps.engine.noise.normals import Array, Normals
from adadps.errors import ContractError, SettingError, require
from adadps.tensors import threads
from adadps.tensors.kernels.noise import add_noised, noised, noised_rows
from adadps.tensors.outer_sum import OuterSum, dense
from adadps.tensors.threads import process

REPRODUCIBLE_MARK = "reproducible, not private: the noise comes from a known seed"

Line = npt.NDArray[Any]
"""A tensor's memory as one line of float32 or float64."""


class Randomness:
    """The one source of private draws: batches (`generator`) and noise (`release`).

    Make it with `secure` or `reproducible_not_private`. After a fork the child draws afresh.
    """

    def __init__(self, keys: tuple[int, bytes], mark: str | None) -> None:
        self.mark = mark
        self._streams = _Streams(keys)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Expected one owner of this randomness, found an attempt to copy it. A copy would "
            "repeat its noise: make a new one."
        )

    def require_fresh(self) -> None:
        """Refuse a seed, for a run that is resumed."""
        if self.mark:
            raise ContractError(
                "Expected fresh randomness for a run that is resumed, found a seed, with which it "
                "would draw the same batches and the same noise again. Leave the seed out, or "
                "begin a new run."
            )

    def _own(self) -> _Streams:
        """The streams of this process; they are replaced at once, so that none is a parent's."""
        streams = self._streams
        if streams.process != process():
            self._streams = streams = _Streams(_system_keys())
        return streams

    @property
    def generator(self) -> np.random.Generator:
        """Generator for sampling batches and group labels."""
        return self._own().sampling

    def bytes(self, count: int) -> bytes:
        """Secret bytes, for the chance inside a model; from a stream of their own."""
        return self._own().chance.bytes(count)

    def normal(self, size: tuple[int, ...]) -> Tensor:
        """Independent standard normals in float64, on the CPU."""
        drawn = np.empty(math.prod(size))

        def keep(start: int, values: Array) -> None:
            drawn[start : start + len(values)] = values

        self._own().noise.draw(len(drawn), keep)
        return torch.from_numpy(drawn).view(size)

    def release(
        self,
        total: Tensor,
        *,
        standard_deviation: float | Tensor,
        grid_width: float | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """``total`` plus Gaussian noise, g · rint((S + s·z) / g), in float64 on the public grid.

        s is one number, or a number for each row of ``total`` and then with the public width g.
        What has deviation 0 stays as it is. ``out`` may be ``total`` itself.
        """
        _check_out(out, total)
        mechanism = _mechanism(total, standard_deviation, grid_width)
        if mechanism is None:
            return total.detach().double() if out is None else _write(out, total)
        source = _ready(total, in_order=isinstance(standard_deviation, Tensor))
        released = torch.empty_like(source, dtype=torch.float64) if out is None else out
        lines = _lines(source, released)
        if lines is None:  # out lies in memory in another way, or on another device
            fresh = self.release(
                total, standard_deviation=standard_deviation, grid_width=grid_width
            )
            return _write(released, fresh)
        line, target = lines

        def put(start: int, z: Array) -> None:
            part = slice(start, start + len(z))
            mechanism(line[part], z, start, target[part])

        self._own().noise.draw(len(line), put)
        return released.to(total.device) if out is None else out

    def release_into(
        self,
        changes: Sequence[tuple[Tensor, Tensor | OuterSum]],
        *,
        standard_deviation: float,
        factor: float,
    ) -> None:
        """``weights += factor · release(total)`` in place, for all pairs of weights and total.

        The product is in float64. All of them together keep all threads busy.
        """
        _require_deviation(standard_deviation)
        together: list[_Part] = []
        for weights, total in changes:
            _check_shape("weights", weights, total)
            part = None if standard_deviation == 0 else _part(total, weights)
            if part is None:
                released = self.release(dense(total), standard_deviation=standard_deviation)
                weights.detach().add_((released * factor).to(weights.device))
            else:
                together.append(part)
        if not together:
            return
        bounds = np.cumsum([0, *(part.size for part in together)]).tolist()
        width = grid(standard_deviation)

        def add(start: int, z: Array) -> None:
            for part, (first, last) in zip(together, pairwise(bounds), strict=True):
                low, high = max(start, first), min(start + len(z), last)
                if low < high:
                    arrays = part.of(low - first, high - first)
                    normals = z[low - start : high - start]
                    add_noised(*arrays, normals, standard_deviation, width, factor)

        with threads.torch_alone():
            self._own().noise.draw(bounds[-1], add)
        for weights, _ in changes:
            if not weights.is_inference():
                increment_version(weights)  # a graph that holds the old weights must notice

    def draw(self, count: int, use: Callable[[int, Array], object]) -> None:
        """Give ``count`` fresh normals to ``use(start, values)`` piece by piece, see `Normals`."""
        self._own().noise.draw(count, use)


class _Streams:
    """The streams of one process: for batches, for noise, and for the chance inside a model."""

    def __init__(self, keys: tuple[int, bytes]) -> None:
        self.process = process()
        seed, key = keys
        self.sampling = np.random.Generator(AESCounter(seed))
        self.noise = Normals(key)
        further = hashlib.blake2b(key, digest_size=16, person=b"chance").digest()
        self.chance = np.random.Generator(AESCounter(int.from_bytes(further)))


def secure() -> Randomness:
    """Randomness with keys from the operating system: the default everywhere.

    >>> secure().mark is None
    True
    """
    return Randomness(_system_keys(), None)


def reproducible_not_private(seed: int) -> Randomness:
    """Randomness from a known seed. Whoever knows the seed can subtract the noise.

    Every result made with it is marked as not private.

    >>> a, b = (reproducible_not_private(1).normal((2,)) for _ in range(2))
    >>> bool((a == b).all())
    True
    """
    words = np.random.SeedSequence(seed).generate_state(6, np.uint64)
    keys = int(words[0]) << 64 | int(words[1]), words[2:].astype("<u8").tobytes()
    return Randomness(keys, REPRODUCIBLE_MARK)


def grid(standard_deviation: float) -> float:
    """Width of the public grid for noise of this standard deviation.

    >>> grid(1.0) == grid(1.9) == 2.0**-10
    True
    """
    return math.ldexp(1.0, math.frexp(standard_deviation)[1] - 1 - 10)


def _system_keys() -> tuple[int, bytes]:
    return int.from_bytes(os.urandom(16)), os.urandom(32)


# --- the mechanism, on one part of a sum ---

_Mechanism = Callable[[Line, Array, int, Line], None]
"""Noises a part of a sum with these normals; the part begins at a place, and goes somewhere."""


def _mechanism(total: Tensor, deviation: float | Tensor, width: float | None) -> _Mechanism | None:
    """How parts of ``total`` are noised; None where there is no noise at all."""
    if width is not None:
        require(
            width > 0 and math.frexp(width)[0] == 0.5,
            "a grid_width that is a power of two",
            width,
            "Take grid(s) of the smallest public standard deviation s.",
        )
    if isinstance(deviation, Tensor):
        return _row_by_row(total, deviation, width)
    _require_deviation(deviation)
    if deviation == 0:
        return None
    s, g = float(deviation), grid(deviation) if width is None else width
    return lambda part, z, _start, out: noised(part, z, s, g, 1.0, out)


def _require_deviation(deviation: float) -> None:
    require(
        0 <= deviation < math.inf,
        "a standard_deviation of 0 or more, and finite",
        deviation,
        "It is noise_multiplier times clip_norm.",
    )


def _row_by_row(total: Tensor, deviation: Tensor, width: float | None) -> _Mechanism:
    require(
        total.dim() > 0 and deviation.shape == total.shape[:1],
        "one standard_deviation for each row of the sum",
        f"shapes {tuple(deviation.shape)} and {tuple(total.shape)}",
        "Give a number, or a tensor as long as the first axis.",
    )
    if width is None:
        raise SettingError(
            "Expected a grid_width together with a standard_deviation for each row, found none. "
            "All rows share one public grid: give its width."
        )
    deviations, entries = deviation.detach().cpu().double().numpy(), math.prod(total.shape[1:])
    require(
        bool(((deviations >= 0) & (deviations < math.inf)).all()),
        "standard deviations of 0 or more, and finite",
        "others",
        "Use 0 for a row that gets no noise.",
    )
    return lambda part, z, start, out: noised_rows(part, z, start, entries, deviations, width, out)


# --- tensors as lines of numbers ---


def _ready(total: Tensor, *, in_order: bool = False) -> Tensor:
    """``total`` on the CPU, in a type that numpy has, and in one piece; row by row if asked for."""
    total = total.detach().cpu()
    if total.dtype not in _LINED_UP:
        total = total.double()
    if not total.is_contiguous() and (in_order or _lines(total, total) is None):
        total = total.contiguous()
    return total


_LINED_UP = (torch.float32, torch.float64)


def _lines(source: Tensor, target: Tensor) -> tuple[Line, Line] | None:
    """Both as they lie in memory, if that is in one piece and in the same order of axes."""
    target = target.detach()
    if target.device.type != "cpu" or target.dtype not in _LINED_UP:
        return None
    if not (source.is_contiguous() and target.is_contiguous()):
        slowest_first = sorted(range(source.dim()), key=lambda axis: -source.stride()[axis])
        source, target = source.permute(slowest_first), target.permute(slowest_first)
        if not (source.is_contiguous() and target.is_contiguous()):
            return None
    return source.view(-1).numpy(), target.view(-1).numpy()


_NOTHING: Line = np.empty(0)


@dataclass(frozen=True)
class _Part:
    """A tensor of weights, and how to get any part of it, of the sum, and of D."""

    size: int
    of: Callable[[int, int], tuple[Line, Line, Line]]


def _part(total: Tensor | OuterSum, weights: Tensor) -> _Part | None:
    """None if weights and sum lie in memory in different ways."""
    size = weights.numel()
    if isinstance(total, Tensor):
        lines = _lines(_ready(total), weights)
        if lines is None:
            return None
        line, target = lines
        return _Part(size, lambda start, stop: (target[start:stop], line[start:stop], _NOTHING))
    if not total.lies_like(weights.detach()):
        return None
    target = weights.detach().view(-1).numpy()
    full = _NOTHING if total.full is None else total.full.detach().view(-1).numpy()

    def part(start: int, stop: int) -> tuple[Line, Line, Line]:
        return target[start:stop], total.entries(start, stop).numpy(), full[start:stop]

    return _Part(size, part)


def _write(out: Tensor, values: Tensor) -> Tensor:
    out.detach().copy_(values)
    return out


def _check_shape(name: str, tensor: Tensor, total: Tensor | OuterSum) -> None:
    require(
        tuple(tensor.shape) == tuple(total.shape),
        f"{name} in the shape {tuple(total.shape)} of the sum",
        tuple(tensor.shape),
        "Noise is added entry by entry.",
    )


def _check_out(out: Tensor | None, total: Tensor) -> None:
    if out is not None:
        _check_shape("out", out, total)
        require(
            out.dtype is torch.float64,
            "out in float64",
            out.dtype,
            "Noise is released in float64: round afterwards.",
        )
