"""Linear layers: gradients as outer products that are never formed.

With input a_i and output gradient b_i the gradient of example i is g_i = b_i a_iᵀ, and

    ‖D ∘ g_i + M‖² = (b_i²)ᵀ (D ∘ D) (a_i²) + 2 b_iᵀ (D ∘ M) a_i + ‖M‖²,
    Σ_i w_i g_i = (w · b)ᵀ a.

For D = u vᵀ the first term is ‖u ∘ b_i‖² ‖v ∘ a_i‖². If the layer sees several positions t of an
example, g_i = Σ_t b_t a_tᵀ: then with D = u vᵀ

    ‖D ∘ g_i‖² = Σ_{t,s} ⟨u ∘ b_t, u ∘ b_s⟩ ⟨v ∘ a_t, v ∘ a_s⟩,

and otherwise g_i is built, a few examples at a time. The form with fewer operations is used.

Squares may come out too large by rounding, but never too small: a norm that is computed too small
would let a clipped gradient exceed C. So every computed square is raised by a bound on its own
rounding. The widest sums run in single precision, on values divided by their largest: then nothing
overflows, a term that underflows is below `TINY`, and a sum of n positive terms is off by at most
about n roundings. Rows in main memory are measured by compiled loops, without a copy in float64;
rows on other devices by torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from adadps.tensors.kernels.compiled import compiled, compiled_in_any_order
from adadps.tensors.sums import OuterSum, in_main_memory

if TYPE_CHECKING:
    from adadps.engine.rules.gradients import LeafMap

CHUNK = 2**23
"""This many numbers are held at once where per-example gradients are built."""

Measure = Callable[[Tensor, Tensor, "LeafMap"], Tensor]


@dataclass(frozen=True)
class Outer:
    """g_i = b_i a_iᵀ for inputs a (examples × in) and output gradients b (examples × out)."""

    inputs: Tensor
    output_gradients: Tensor

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Return ‖D ∘ g_i + M‖² by the closed form."""
        by_output, by_input, full = split(leaf_map)
        a, b = (self.inputs, by_input), (self.output_gradients, by_output)
        squares = scaled_squares(*a, *b, full)
        if leaf_map.offset is None:
            return squares
        return self._with_shift(squares, leaf_map, leaf_map.offset)

    def _with_shift(self, squares: Tensor, leaf_map: LeafMap, offset: Tensor) -> Tensor:
        a, b = self.inputs.double(), self.output_gradients.double()
        cross = leaf_map.product((b.shape[1], a.shape[1]), a.device) * offset
        inner = (b * (a @ cross.T)).sum(1)
        sizes = (b.abs() * (a.abs() @ cross.abs().T)).sum(1)
        return with_offset(squares, inner, sizes, offset)

    def weighted(self, weights: Tensor) -> OuterSum:
        """Return (w · b)ᵀ a."""
        return OuterSum(self.output_gradients.double() * weights.unsqueeze(1), self.inputs)

    def take(self, rows: Tensor) -> Outer:
        """Return the gradients of some of the examples."""
        return Outer(self.inputs[rows], self.output_gradients[rows])


@dataclass(frozen=True)
class OverTime:
    """g_i = Σ_t b_t a_tᵀ for inputs (examples × time × in), gradients (examples × time × out)."""

    inputs: Tensor
    output_gradients: Tensor

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Measure by inner products of positions, or by gradients built a few at a time."""
        (_, time, width), outputs = self.inputs.shape, self.output_gradients.shape[2]
        _, _, full = split(leaf_map)
        of_pairs, of_gradients = time * time * (width + outputs), time * width * outputs
        if full is None and leaf_map.offset is None and of_pairs <= of_gradients:
            return self._in_pieces(_by_positions, time * time, leaf_map)
        return self._in_pieces(_by_gradients, width * outputs, leaf_map)

    def weighted(self, weights: Tensor) -> OuterSum:
        """Return (w · b)ᵀ a over all positions of all examples."""
        b = self.output_gradients.double() * weights.view(-1, 1, 1)
        return OuterSum(b.flatten(0, 1), self.inputs.flatten(0, 1))

    def take(self, rows: Tensor) -> OverTime:
        """Return the gradients of some of the examples."""
        return OverTime(self.inputs[rows], self.output_gradients[rows])

    def _in_pieces(self, measure: Measure, numbers: int, leaf_map: LeafMap) -> Tensor:
        size = max(1, CHUNK // numbers)
        pieces = zip(
            torch.split(self.inputs, size), torch.split(self.output_gradients, size), strict=True
        )
        return torch.cat([measure(a.double(), b.double(), leaf_map) for a, b in pieces])


def scaled_squares(
    a: Tensor,
    by_input: Tensor | None,
    b: Tensor,
    by_output: Tensor | None,
    full: Tensor | None,
) -> Tensor:
    """Σ_jk b_j² D_jk² a_k² for every example; a factor of D that is missing is 1."""
    if full is None:
        rounding = 1 + DOUBLE * (a.shape[1] + b.shape[1] + 16)
        return sums_of_squares(b, by_output) * sums_of_squares(a, by_input) * rounding
    squared, largest = normalised_square(full)
    a_unit, a_size = unit_squares(a, by_input, squared.dtype)
    b_unit, b_size = unit_squares(b, by_output, squared.dtype)
    relative = inner_products(a_unit @ squared.T, b_unit)
    rounding = rounding_of(squared.dtype) * (sum(full.shape) + 16)
    return bounded(relative, rounding, full.numel(), a_size * b_size * largest)


def bounded(
    relative: Tensor, rounding: float | Tensor, terms: int | Tensor, size: Tensor
) -> Tensor:
    """Undo the division by ``size``, and add all that rounding may have taken away."""
    return (relative * (1 + rounding) + TINY * terms) * size.square()


def with_offset(squares: Tensor, inner: Tensor, sizes: Tensor, offset: Tensor) -> Tensor:
    """‖D ∘ g‖² + 2⟨D ∘ g, M⟩ + ‖M‖²; the terms can cancel, so a bound on rounding is added."""
    constant = offset.square().sum()
    rounding = DOUBLE * offset.numel() * (squares + 2 * sizes + constant)
    return squares + 2 * inner + constant + rounding


def split(leaf_map: LeafMap) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Split D for a matrix into a row vector by output, one by input, and a full matrix."""
    by_output = by_input = full = None
    for factor in leaf_map.factors:
        if factor.shape[0] == 1:
            by_input = factor.double() if by_input is None else by_input * factor
        elif factor.shape[1] == 1:
            by_output = factor.T.double() if by_output is None else by_output * factor.T
        else:
            full = factor
    return by_output, by_input, full


def _by_positions(a: Tensor, b: Tensor, leaf_map: LeafMap) -> Tensor:
    by_output, by_input, _ = split(leaf_map)
    a = a if by_input is None else a * by_input
    b = b if by_output is None else b * by_output
    of_inputs, of_outputs = a @ a.mT, b @ b.mT
    terms = of_inputs * of_outputs
    sizes = _lengths(a) * _lengths(b)
    length = a.shape[1] ** 2 + a.shape[2] + b.shape[2]
    return terms.sum((1, 2)).clamp_min(0) + DOUBLE * length * sizes.sum(1).square()


def _by_gradients(a: Tensor, b: Tensor, leaf_map: LeafMap) -> Tensor:
    gradients = b.mT @ a
    diagonal = leaf_map.product(tuple(gradients.shape[1:]), a.device)
    sizes = (_lengths(a) * _lengths(b)).sum(1) * diagonal.abs().max()
    exact = _lengths(leaf_map.apply(gradients).flatten(1))
    return (exact + CANCELLED * sizes).square()


def _lengths(vectors: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths


Answer = TypeVar("Answer")

SINGLE = 2.0**-23
"""Twice the rounding error of one operation in float32."""

DOUBLE = 2.0**-52
"""Twice the rounding error of one operation in float64."""

TINY = 1e-37
"""More than underflow can take from one term in float32."""

LARGE = 2**16
"""From this many entries of D, speed matters more than the last digits of a norm."""

CANCELLED = 2.0**-26
"""The least that is assumed to remain of terms that cancel, as a multiple of the terms.

Then a clipped gradient has terms of at most 2²⁶ C, whose rounding in a sum is about 1e-8 C.
"""


def rounding_of(dtype: torch.dtype) -> float:
    """Return twice the rounding error of one operation in ``dtype``."""
    return SINGLE if dtype == torch.float32 else DOUBLE


# --- rows ---


def sums_of_squares(rows: Tensor, factors: Tensor | None) -> Tensor:
    """Return Σ_j (f_j x_ij)² in float64 for every row; ``factors`` has shape (1, columns)."""
    if not in_main_memory(rows):
        scaled = rows.double() if factors is None else rows.double() * factors
        return scaled.square().sum(1)
    found = torch.empty(len(rows), dtype=torch.float64)
    _sums_of_squares(rows.detach().numpy(), _line(factors, rows), found.numpy())
    return found


def unit_squares(rows: Tensor, factors: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the squares of scaled rows, each divided by its largest entry, and that entry."""
    if in_main_memory(rows):
        squares, sizes = torch.empty(rows.shape, dtype=dtype), torch.empty(len(rows)).double()
        _unit_squares(rows.detach().numpy(), _line(factors, rows), sizes.numpy(), squares.numpy())
        return squares, sizes
    scaled = rows.double() if factors is None else rows.double() * factors
    size = scaled.abs().amax(1) if rows.shape[1] else scaled.new_zeros(len(rows))
    scale = size.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(1)
    return (scaled / scale).square().to(dtype), size


def inner_products(one: Tensor, other: Tensor) -> Tensor:
    """Return Σ_j one_ij other_ij in float64."""
    if not (in_main_memory(one) and in_main_memory(other)):
        return (one.double() * other).sum(1)
    found = torch.empty(len(one), dtype=torch.float64)
    _inner_products(one.detach().numpy(), other.detach().numpy(), found.numpy())
    return found


_NOTHING = np.empty(0)


def _line(factors: Tensor | None, rows: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if factors is None:
        return _NOTHING
    wide = factors.detach().double().expand(1, rows.shape[1])
    return np.ascontiguousarray(wide.view(-1).numpy() if wide.is_contiguous() else wide[0].numpy())


@compiled_in_any_order
def _sums_of_squares(rows: Any, factors: Any, out: Any) -> None:
    """out_i = Σ_j (f_j x_ij)² in float64; without entries, f is 1."""
    width = rows.shape[1]
    for i in range(len(rows)):
        line, total = rows[i], 0.0
        if len(factors):
            for j in range(width):
                scaled = factors[j] * line[j]
                total += scaled * scaled
        else:
            for j in range(width):
                number = np.float64(line[j])
                total += number * number
        out[i] = total


@compiled
def _unit_squares(rows: Any, factors: Any, sizes: Any, out: Any) -> None:
    """out_ij = (f_j x_ij / size_i)², where size_i is the largest of |f_j x_ij|."""
    width = rows.shape[1]
    scaled = np.empty(width)
    for i in range(len(rows)):
        line, target = rows[i], out[i]
        for j in range(width):
            scaled[j] = line[j]
        if len(factors):
            for j in range(width):
                scaled[j] *= factors[j]
        largest = 0.0
        for j in range(width):
            largest = max(largest, abs(scaled[j]))
        sizes[i] = largest
        inverse = 1.0 / largest if largest > 0 else 0.0
        for j in range(width):
            unit = scaled[j] * inverse
            target[j] = unit * unit


@compiled_in_any_order
def _inner_products(one: Any, other: Any, out: Any) -> None:
    """out_i = Σ_j one_ij other_ij in float64."""
    for i in range(len(one)):
        total, left, right = 0.0, one[i], other[i]
        for j in range(one.shape[1]):
            total += np.float64(left[j]) * right[j]
        out[i] = total


# --- squares of D, computed once per tensor ---


class TensorCache(Generic[Answer]):
    """One cached result per tensor, dropped when the tensor is written to or freed.

    >>> import torch
    >>> cache, tensor = TensorCache[str](), torch.ones(2)
    >>> cache.put(tensor, "all ones")
    'all ones'
    >>> cache.get(tensor), cache.get(tensor.mul_(2))
    ('all ones', None)
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Tensor], int, Answer]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, tensor: Tensor) -> Answer | None:
        """Return the result cached for ``tensor`` as it is now, or None."""
        held = self._held.get(id(tensor))
        if held is None or held[0]() is not tensor or held[1] != tensor._version:
            return None
        return held[2]

    def put(self, tensor: Tensor, answer: Answer) -> Answer:
        """Cache ``answer`` for ``tensor``, and return it."""
        key = id(tensor)
        forget = weakref.ref(tensor, lambda _: self._held.pop(key, None))
        self._held[key] = (forget, tensor._version, answer)
        return answer


_squares = TensorCache[tuple[Tensor, float]]()
_largest = TensorCache[float]()


def normalised_square(diagonal: Tensor) -> tuple[Tensor, float]:
    """Return (D / max D)², in the memory layout of D, and max D; computed once per tensor D.

    It is in float32 where that pays, see `sum_dtype`.
    """
    cached = _squares.get(diagonal)
    dtype = sum_dtype(diagonal)
    if cached is not None and cached[0].dtype == dtype:
        return cached
    largest = largest_of(diagonal)
    squared = torch.empty_like(diagonal, dtype=dtype)
    if dtype in (diagonal.dtype, torch.float64):
        squared.copy_(diagonal).div_(largest).square_()
    else:  # D may lie outside the range of float32
        torch.div(diagonal, largest, out=squared).square_()
    return _squares.put(diagonal, (squared, largest))


def largest_of(diagonal: Tensor) -> float:
    """Return max |D|, computed once per tensor D."""
    cached = _largest.get(diagonal)
    if cached is not None:
        return cached
    return _largest.put(diagonal, max(abs(float(end)) for end in torch.aminmax(diagonal)))


def sum_dtype(diagonal: Tensor) -> torch.dtype:
    """Return float32 for a large D, if products of float32 matrices are exact to float32.

    Otherwise return float64, which costs little on a small D.
    """
    exact = torch.get_float32_matmul_precision() == "highest"
    if exact and diagonal.numel() >= LARGE and not torch.is_autocast_enabled(diagonal.device.type):
        return torch.float32
    return torch.float64
