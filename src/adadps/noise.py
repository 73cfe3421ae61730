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
from typing import NoReturn

import numpy as np
import torch
from randomgen import AESCounter
from torch import Tensor
from torch.autograd.graph import increment_version

from adadps.normals import BLOCK, Array, Normals, process
from adadps.types import require

REPRODUCIBLE_MARK = "reproducible, not private: the noise comes from a known seed"


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
        total = total.detach()
        _check_out(out, total)
        noised = _mechanism(total, standard_deviation, grid_width)
        if noised is None and out is None:
            return total.double()
        if isinstance(standard_deviation, Tensor) or _lines(total, total) is None:
            total = total.contiguous()
        released = torch.empty_like(total, dtype=torch.float64) if out is None else out.detach()
        lines = _lines(total, released)
        if noised is None:
            released.copy_(total)
        elif lines is None:
            alike = torch.empty_like(total, dtype=torch.float64)
            self.release(
                total, standard_deviation=standard_deviation, grid_width=grid_width, out=alike
            )
            released.copy_(alike)
        else:
            line, target = lines
            self._in_blocks(line, lambda at, z: target[at].copy_(noised(z, line[at], at.start)))
        return released if out is None else out

    def release_into(
        self, weights: Tensor, total: Tensor, *, standard_deviation: float, factor: float
    ) -> None:
        """``weights += factor · release(total)`` in place, where factor · release is in float64."""
        weights, total = weights.detach(), total.detach()
        _check_shape("weights", weights, total)
        noised = _mechanism(total, standard_deviation, None, factor)
        lines = _lines(total, weights)
        if noised is None or lines is None:
            released = self.release(total, standard_deviation=standard_deviation) * factor
            weights.add_(released.to(weights.device))
        else:
            line, target = lines
            self._in_blocks(line, lambda at, z: _add(target[at], noised(z, line[at], at.start)))
            if not weights.is_inference():
                increment_version(weights)  # for graphs that hold the old weights

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
        parts that stay in cache, from several threads.
        """
        table, width = table.detach(), math.prod(table.shape[1:])
        a_block = BLOCK // max(1, width)
        if table.device.type != "cpu" or a_block == 0:
            released = self.release(
                values(slice(None)), standard_deviation=standard_deviation, grid_width=grid_width
            )
            table.index_copy_(0, rows, released.to(table.dtype))
            return
        deviations = standard_deviation.view(-1, *[1] * (table.dim() - 1))
        some_without = bool((standard_deviation == 0).any())

        def use(start: int, drawn: Array) -> None:
            first = start // BLOCK * a_block
            part = slice(first, first + len(drawn) // max(1, width))
            held, spread = values(part), deviations[part]
            z = torch.from_numpy(drawn[: held.numel()]).view(held.shape)
            released = _noised(z, held, spread, grid_width)
            if some_without:
                released = torch.where(spread == 0, held, released)
            table.index_copy_(0, rows[part], released.to(table.dtype))

        blocks, rest = divmod(len(rows), a_block)
        self._own().noise.draw(blocks * BLOCK + rest * width, use)

    def _in_blocks(self, line: Tensor, use: Callable[[slice, Tensor], object]) -> None:
        """Fresh normals for each part of ``line``, on its device."""
        if line.device.type != "cpu":
            use(slice(0, len(line)), self.normal((len(line),)).to(line.device))
            return
        self._own().noise.draw(
            len(line),
            lambda start, z: use(slice(start, start + len(z)), torch.from_numpy(z)),
        )


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

_Noised = Callable[[Tensor, Tensor, int], Tensor]  # normals, part of the sum, where it begins


def _noised(
    released: Tensor, total: Tensor, deviation: float | Tensor, width: float, factor: float = 1.0
) -> Tensor:
    """factor · g · rint((S + s·z) / g), where ``released`` comes with z.

    g is a power of two: to multiply by it, or by 1/g, is exact.
    """
    released.mul_(deviation).add_(total)
    return released.mul_(1 / width).round_().mul_(width * factor)


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
    width = grid(deviation) if width is None else width
    return lambda z, part, _start: _noised(z, part, deviation, width, factor)


def _row_by_row(total: Tensor, deviations: Tensor, width: float | None) -> _Noised:
    require(
        width is not None,
        "a grid_width together with a standard_deviation for each row",
        width,
        "All rows share one public grid: give its width.",
    )
    require(
        total.dim() > 0 and deviations.shape == total.shape[:1],
        "one standard_deviation for each row of the sum",
        f"shapes {tuple(deviations.shape)} and {tuple(total.shape)}",
        "Give a number, or a tensor as long as the first axis.",
    )
    deviations = deviations.detach().to(total.device, torch.float64)
    require(
        bool(((deviations >= 0) & (deviations < math.inf)).all()),
        "standard deviations of 0 or more, and finite",
        "others",
        "Use 0 for a row that gets no noise.",
    )
    assert width is not None
    public_width, entries = width, max(1, math.prod(total.shape[1:]))
    some_without = bool((deviations == 0).any())

    def noised(z: Tensor, part: Tensor, start: int) -> Tensor:
        first, stop = start // entries, start + len(z)
        rows = deviations[first : -(-stop // entries)].unsqueeze(1).expand(-1, entries)
        spread = rows.reshape(-1)[start - first * entries : stop - first * entries]
        released = _noised(z, part, spread, public_width)
        return torch.where(spread == 0, part, released) if some_without else released

    return noised


def _add(weights: Tensor, change: Tensor) -> None:
    """weights += change in float64. Numpy casts as it goes; torch would copy both first."""
    if weights.dtype is torch.float32 and weights.device.type == "cpu":
        written = weights.numpy()
        np.add(written, change.numpy(), out=written, casting="same_kind")
    else:
        weights.add_(change)


# --- tensors as one line of numbers ---


def _lines(total: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
    """Both tensors as they lie in memory, if they lie there in one piece and in the same order."""
    if total.device != target.device:
        return None
    if not (total.is_contiguous() and target.is_contiguous()):
        slowest_first = sorted(range(total.dim()), key=lambda axis: -total.stride()[axis])
        total, target = total.permute(slowest_first), target.permute(slowest_first)
        if not (total.is_contiguous() and target.is_contiguous()):
            return None
    return total.view(-1), target.view(-1)


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
