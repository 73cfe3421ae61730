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
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import torch
from randomgen import AESCounter
from torch import Tensor
from torch.autograd.graph import increment_version

from adadps.engine.group import Group, Meeting
from adadps.engine.noise.normals import Array, Normals
from adadps.errors import ContractError, SettingError, require
from adadps.files import process
from adadps.tensors.loops import compiled_as_written
from adadps.tensors.sums import AlignedSum, Line, OuterSum, as_lines, dense, on_cpu

REPRODUCIBLE_MARK = "reproducible, not private: the noise comes from a known seed"

SMALLEST_DEVIATION = 1e-150
"""Noise with a smaller standard deviation is refused: its square underflows."""


class Randomness:
    """The one source of private draws: batches (`generator`) and noise (`release`).

    Make it with `secure` or `reproducible_not_private`. After a fork the child draws from new keys.
    """

    def __init__(
        self, keys: tuple[int, bytes], mark: str | None, noise_key: bytes | None = None
    ) -> None:
        self.mark = mark
        self._streams = _Streams(keys, noise_key)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Expected one owner of this randomness, found an attempt to copy it. A copy would "
            "repeat its noise: create another one."
        )

    def shared_by(self, group: Group) -> Randomness:
        """Return randomness with the same noise in all processes of a group, and own samples.

        The first process makes a fresh key of the noise and sends it to the others. Where weights
        are sharded, each makes its own of it. Batches, and draws inside a model, come from keys
        that no other process has.
        """
        if group.is_alone:
            return self
        fresh = self.bytes if self.mark else os.urandom
        noise_key = group.noise_key(group.tell_bytes(Meeting.KEY, lambda: fresh(32)))
        salt = group.rank.to_bytes(8)
        own = hashlib.blake2b(fresh(48), digest_size=48, salt=salt, person=b"a process").digest()
        return Randomness((int.from_bytes(own[:16]), own[16:]), self.mark, noise_key)

    @property
    def position(self) -> int:
        """How many normals were drawn so far."""
        return self._own().noise.drawn

    def require_fresh(self) -> None:
        """Refuse a known seed for a run that is resumed."""
        if self.mark:
            raise ContractError(
                "Expected fresh randomness for a run that is resumed, found a seed, with which it "
                "would draw the same batches and the same noise again. Leave the seed out, or "
                "start a new run."
            )

    def _own(self) -> _Streams:
        """The streams of this process, replaced all at once after a fork: none is a parent's."""
        streams = self._streams
        if streams.process != process():
            self._streams = streams = _Streams(_system_keys())
        return streams

    @property
    def generator(self) -> np.random.Generator:
        """The generator for sampling batches and group labels."""
        return self._own().sampling

    def bytes(self, count: int) -> bytes:
        """Return secret bytes for draws inside a model, such as dropout, from a separate stream."""
        return self._own().model_draws.bytes(count)

    def normal(self, size: tuple[int, ...]) -> Tensor:
        """Return independent standard normals in float64, on the CPU."""
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
        """Return ``total`` plus Gaussian noise, g · rint((S + s·z) / g), in float64.

        s is one number, or one per row of ``total``; then ``grid_width`` must give the public width
        g. Entries with deviation 0 stay as they are. ``out`` may be ``total`` itself.
        """
        _check_out(out, total)
        mechanism = _mechanism(total, standard_deviation, grid_width)
        if mechanism is None:
            return total.detach().double() if out is None else _write(out, total)
        source = on_cpu(total, in_order=isinstance(standard_deviation, Tensor))
        released = torch.empty_like(source, dtype=torch.float64) if out is None else out
        lines = as_lines(source, released)
        if lines is None:  # out has another memory layout, or is on another device
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

        The product is in float64. All pairs are noised together, which keeps all threads busy.
        """
        _require_deviation(standard_deviation)
        aligned: list[AlignedSum] = []
        for weights, total in changes:
            _check_shape("weights", weights, total)
            held = None if standard_deviation == 0 else AlignedSum.of(total, weights)
            if held is None:
                released = self.release(dense(total), standard_deviation=standard_deviation)
                weights.detach().add_((released * factor).to(weights.device))
            else:
                aligned.append(held)
        if not aligned:
            return
        bounds = np.cumsum([0, *(held.size for held in aligned)]).tolist()
        width = grid(standard_deviation)

        def prepare(start: int, stop: int) -> Callable[[int, Array], None]:
            """Multiply out the sums of a run, and return what adds them with their noise."""
            held: list[tuple[int, int, tuple[Line, Line, Line]]] = []
            for one, (first, last) in zip(aligned, pairwise(bounds), strict=True):
                low, high = max(start, first), min(stop, last)
                if low < high:
                    held.append((low, high, one.part(low - first, high - first)))

            def add(begin: int, z: Array) -> None:
                for low, high, (weights, total, full) in held:
                    here = slice(max(begin - low, 0), min(begin + len(z), high) - low)
                    if here.start < here.stop:
                        normals = z[low + here.start - begin : low + here.stop - begin]
                        arrays = weights[here], total[here], full[here]
                        _add_noised(*arrays, normals, standard_deviation, width, factor)

            return add

        self._own().noise.draw_in_runs(bounds[-1], prepare)
        for weights, _ in changes:
            if not weights.is_inference():
                increment_version(weights)  # a graph that holds the old weights must notice

    def draw(self, count: int, use: Callable[[int, Array], object]) -> None:
        """Pass ``count`` fresh normals to ``use(start, values)`` piece by piece, see `Normals`."""
        self._own().noise.draw(count, use)


class _Streams:
    """The streams of one process: for batches, for noise, and for draws inside a model."""

    def __init__(self, keys: tuple[int, bytes], noise_key: bytes | None = None) -> None:
        self.process = process()
        seed, key = keys
        self.sampling = np.random.Generator(AESCounter(seed))
        self.noise = Normals(noise_key or key)
        further = hashlib.blake2b(key, digest_size=16, person=b"chance").digest()
        self.model_draws = np.random.Generator(AESCounter(int.from_bytes(further)))


def secure() -> Randomness:
    """Return randomness with keys from the operating system: the default everywhere.

    >>> secure().mark is None
    True
    """
    return Randomness(_system_keys(), None)


def reproducible_not_private(seed: int) -> Randomness:
    """Return randomness from a known seed. Anyone who knows the seed can subtract the noise.

    Every result made with it is marked as not private.

    >>> a, b = (reproducible_not_private(1).normal((2,)) for _ in range(2))
    >>> bool((a == b).all())
    True
    """
    words = np.random.SeedSequence(seed).generate_state(6, np.uint64)
    keys = int(words[0]) << 64 | int(words[1]), words[2:].astype("<u8").tobytes()
    return Randomness(keys, REPRODUCIBLE_MARK)


def grid(standard_deviation: float) -> float:
    """Return the width of the public grid for noise of this standard deviation.

    >>> grid(1.0) == grid(1.9) == 2.0**-10
    True
    """
    return math.ldexp(1.0, math.frexp(standard_deviation)[1] - 1 - 10)


def _system_keys() -> tuple[int, bytes]:
    return int.from_bytes(os.urandom(16)), os.urandom(32)


# --- the mechanism, on one part of a sum ---

_Mechanism = Callable[[Line, Array, int, Line], None]
"""mechanism(part, normals, start, out) noises the part of a sum that begins at entry ``start``."""


def _mechanism(total: Tensor, deviation: float | Tensor, width: float | None) -> _Mechanism | None:
    """How parts of ``total`` are noised; None if there is no noise at all."""
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
    return lambda part, z, _start, out: _noised(part, z, s, g, 1.0, out)


def _require_deviation(deviation: float) -> None:
    if not 0 <= deviation < math.inf:
        raise SettingError(
            f"Expected a standard_deviation of 0 or more, and finite, found {deviation}. It is "
            "noise_multiplier times clip_norm."
        )


def _row_by_row(total: Tensor, deviation: Tensor, width: float | None) -> _Mechanism:
    require(
        total.dim() > 0 and deviation.shape == total.shape[:1],
        "one standard_deviation for each row of the sum",
        f"shapes {tuple(deviation.shape)} and {tuple(total.shape)}",
        "Give one number, or a tensor as long as the first axis.",
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
    return lambda part, z, start, out: _noised_rows(part, z, start, entries, deviations, width, out)


@compiled_as_written
def _noised(total: Any, z: Any, deviation: float, width: float, factor: float, out: Any) -> None:
    """out = factor · g · rint((S + s·z) / g); g is a power of two, so that 1/g is exact."""
    inverse, back = 1.0 / width, width * factor
    for i in range(len(z)):
        out[i] = np.rint((total[i] + deviation * z[i]) * inverse) * back


@compiled_as_written
def _add_noised(
    weights: Any, total: Any, full: Any, z: Any, deviation: float, width: float, factor: float
) -> None:
    """weights += factor · g · rint((D ∘ S + s·z) / g), rounded once; D is 1 without entries."""
    inverse, back = 1.0 / width, width * factor
    if len(full):
        for i in range(len(z)):
            scaled = np.float64(total[i]) * full[i]
            change = np.rint((scaled + deviation * z[i]) * inverse) * back
            weights[i] = weights[i] + change
    else:
        for i in range(len(z)):
            change = np.rint((total[i] + deviation * z[i]) * inverse) * back
            weights[i] = weights[i] + change


@compiled_as_written
def _noised_rows(
    total: Any, z: Any, start: int, row_width: int, deviations: Any, width: float, out: Any
) -> None:
    """g · rint((S + s·z) / g) from entry ``start`` on, one s per row; s = 0 rounds nothing."""
    inverse = 1.0 / width
    done = 0
    while done < len(z):
        row, column = (start + done) // row_width, (start + done) % row_width
        stop = min(len(z), done + row_width - column)
        deviation = deviations[row]
        if deviation == 0:
            for i in range(done, stop):
                out[i] = total[i]
        else:
            for i in range(done, stop):
                out[i] = np.rint((total[i] + deviation * z[i]) * inverse) * width
        done = stop


# --- arguments ---


def _write(out: Tensor, values: Tensor) -> Tensor:
    out.detach().copy_(values)
    return out


def _check_shape(name: str, tensor: Tensor, total: Tensor | OuterSum) -> None:
    if tuple(tensor.shape) != tuple(total.shape):
        raise SettingError(
            f"Expected {name} in the shape {tuple(total.shape)} of the sum, found "
            f"{tuple(tensor.shape)}. Noise is added entry by entry."
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
