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

import math
import os
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from randomgen import AESCounter
from torch import Tensor
from torch.autograd.graph import increment_version

from adadps.errors import SettingError
from adadps.normals import BLOCK, Array, Normals, process
from adadps.types import require

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
        noised = _mechanism(total, standard_deviation, grid_width)
        if noised is None:
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
            target[part] = noised(z, line[part], start)

        self._own().noise.draw(len(line), put)
        return released.to(total.device) if out is None else out

    def release_into(
        self, weights: Tensor, total: Tensor, *, standard_deviation: float, factor: float
    ) -> None:
        """``weights += factor · release(total)`` in place, where factor · release is in float64."""
        _check_shape("weights", weights, total)
        noised = _mechanism(total, standard_deviation, None, factor)
        lines = None if noised is None else _lines(_ready(total), weights)
        if noised is None or lines is None:
            released = self.release(total, standard_deviation=standard_deviation) * factor
            weights.detach().add_(released.to(weights.device))
            return
        line, target = lines

        def add(start: int, z: Array) -> None:
            part = target[start : start + len(z)]
            change = noised(z, line[start : start + len(z)], start)
            changed, written = torch.from_numpy(change), torch.from_numpy(part)
            written.copy_(changed.add_(written.to(changed.dtype)))  # the sum is in float64, too

        self._own().noise.draw(len(line), add)
        if not weights.is_inference():
            increment_version(weights)  # a graph that holds the old weights must notice

    def release_rows(
        self,
        table: Tensor,
        rows: Tensor,
        values: Callable[[slice], Tensor],
        *,
        standard_deviation: Tensor,
        grid_width: float,
    ) -> None:
        """Write g · rint((S + s·z) / g) into ``rows`` of ``table``, with one s a row.

        ``values`` gives S for a part of the rows, in a float64 tensor of its own: it is called for
        parts that stay in cache. Rows with s = 0 are not rounded.
        """
        table, entries = table.detach(), max(1, math.prod(table.shape[1:]))
        in_a_block = BLOCK // entries
        if table.device.type != "cpu" or in_a_block == 0:
            released = self.release(
                values(slice(None)), standard_deviation=standard_deviation, grid_width=grid_width
            )
            table.index_copy_(0, rows, released.to(table.dtype))
            return
        some_without = bool((standard_deviation == 0).any())

        def put(start: int, drawn: Array) -> None:
            first = start // BLOCK * in_a_block
            part = slice(first, first + len(drawn) // entries)
            total = values(part)
            deviation = standard_deviation[part].view(-1, *[1] * (total.dim() - 1))
            z = torch.from_numpy(drawn[: total.numel()]).view(total.shape)
            torch.addcmul(total, z, deviation, out=z)
            z.mul_(1 / grid_width).round_().mul_(grid_width)
            released = torch.where(deviation == 0, total, z) if some_without else z
            table.index_copy_(0, rows[part], released.to(table.dtype))

        blocks, rest = divmod(len(rows), in_a_block)
        self._own().noise.draw(blocks * BLOCK + rest * entries, put)


class _Streams:
    """The streams of one process: one for batches, one for noise."""

    def __init__(self, keys: tuple[int, bytes]) -> None:
        self.process = process()
        seed, key = keys
        self.sampling = np.random.Generator(AESCounter(seed))
        self.noise = Normals(key)


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

_Noised = Callable[[Array, Line, int], Array]  # of normals, a part of the sum, and its place


def _noised(
    released: Array, total: Line, deviation: float | Array, width: float, factor: float
) -> Array:
    """factor · g · rint((S + s·z) / g), where ``released`` comes with z.

    g is a power of two: to multiply by it, or by 1/g, is exact.
    """
    z = torch.from_numpy(released)  # torch shares each operation among its threads
    spread = deviation if isinstance(deviation, float | int) else torch.from_numpy(deviation)
    summed = torch.from_numpy(total).to(z.dtype)
    if isinstance(spread, Tensor):
        torch.addcmul(summed, z, spread, out=z)
    else:
        torch.add(summed, z, alpha=spread, out=z)
    z.mul_(1 / width).round_().mul_(width * factor)
    return released


def _mechanism(
    total: Tensor, deviation: float | Tensor, width: float | None, factor: float = 1.0
) -> _Noised | None:
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
    require(
        0 <= deviation < math.inf,
        "a standard_deviation of 0 or more, and finite",
        deviation,
        "It is noise_multiplier times clip_norm.",
    )
    if deviation == 0:
        return None
    public = grid(deviation) if width is None else width
    return lambda z, part, _start: _noised(z, part, deviation, public, factor)


def _row_by_row(total: Tensor, deviation: Tensor, width: float | None) -> _Noised:
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

    def noised(z: Array, part: Line, start: int) -> Array:
        stop = start + len(z)
        first, last = start // entries, -(-stop // entries)
        rows = deviations[first:last]
        spread = np.repeat(rows, entries)[start - first * entries : stop - first * entries]
        released = _noised(z, part, spread, width, 1.0)
        if not rows.all():
            np.copyto(released, part, where=spread == 0)
        return released

    return noised


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


def _write(out: Tensor, values: Tensor) -> Tensor:
    out.detach().copy_(values)
    return out


def _check_shape(name: str, tensor: Tensor, total: Tensor) -> None:
    require(
        tensor.shape == total.shape,
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
