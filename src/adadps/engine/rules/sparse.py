"""Tables of weights with one row per word: only the rows of words that occur are touched.

A linear layer on bags of words and an `EmbeddingBag` give g_i = a_i b_iᵀ with a sparse a_i, a count
for each word of example i; an `Embedding` gives one row for each position. Repeated words of one
example are added up first, then squared. All reads of D and all sums follow the touched rows; a
shift M, which moves every row, makes the sum dense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from adadps.data.sparse_rows import SparseColumns, SparseRows, require_within, scratch
from adadps.engine.rules.gradients import LeafMap
from adadps.engine.rules.outer import bounded, with_offset
from adadps.tensors import kernels as compiled
from adadps.tensors import token_loops
from adadps.tensors.loops import in_main_memory, run_in_parts
from adadps.tensors.squares import (
    CANCELLED,
    DOUBLE,
    largest_of,
    normalised_square,
    rounding_of,
    sums_of_squares,
    unit_squares,
)
from adadps.tensors.sums import Factors, RowSparse, rows_of


@dataclass(frozen=True)
class SparseOuter:
    """g_i = a_i b_iᵀ for sparse rows a; the words lie along ``axis`` of the parameter."""

    inputs: SparseRows
    output_gradients: Tensor
    axis: int

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Return Σ_k a_ik² ‖D_k ∘ b_i‖², plus the terms of a shift."""
        b, by_word, full = self.output_gradients, [], None
        for factor in leaf_map.factors:
            words_first = factor.movedim(self.axis, 0)
            if words_first.shape[1] == 1:
                by_word.append(factor)
            elif words_first.shape[0] == 1:
                b = b.double() * words_first
            else:
                full = factor
        squares = self._without_shift(by_word, b, full)
        if leaf_map.offset is None:
            return squares
        return self._with_shift(squares, leaf_map, leaf_map.offset)

    def weighted(self, weights: Tensor) -> RowSparse:
        """Return Σ_i w_i a_ik b_i for every word k that occurs."""
        columns, b = self.inputs.by_column, self.output_gradients
        shape = (self.inputs.width, b.shape[1])
        whole = shape if self.axis == 0 else (shape[1], shape[0])
        if in_main_memory(b):
            return FactoredRows(columns, weights, b, whole, self.axis)
        summed = columns.times(b.double() * weights.unsqueeze(1))
        return RowSparse(columns.columns, summed, whole, self.axis)

    def take(self, rows: Tensor) -> SparseOuter:
        """Return the gradients of some of the examples."""
        return SparseOuter(self.inputs.take(rows), self.output_gradients[rows], self.axis)

    def _without_shift(self, by_word: list[Tensor], b: Tensor, full: Tensor | None) -> Tensor:
        a = self.inputs
        words = a.offsets.diff().double()  # per example: no neighbour may enter its norm
        if full is None and len(by_word) <= 1:
            lengths = a.squared_lengths(*by_word)
            rounding = 1 + DOUBLE * (words + b.shape[1] + 16)
            return sums_of_squares(b, None) * lengths * rounding
        for factor in by_word:
            a = _times_by_word(a, factor.flatten())
        if full is None:
            rounding = 1 + DOUBLE * (words + b.shape[1] + 16)
            return sums_of_squares(b, None) * a.squared_lengths() * rounding
        words_first = full.movedim(self.axis, 0)
        if in_main_memory(words_first) and in_main_memory(b):
            return _compiled_squares(a, b, words_first, largest_of(full))
        a, b = a.map_values(torch.Tensor.double), b.double()
        squared, largest = normalised_square(full)
        size = a.row_largest()
        unit = a.with_values(a.values / size.clamp_min(1e-300)[a.rows])
        b_unit, b_size = unit_squares(b, None, squared.dtype)
        sums = unit.map_values(torch.square).times(squared.movedim(self.axis, 0))
        relative = (sums * b_unit).sum(1).double()
        rounding = rounding_of(squared.dtype) * (words + b.shape[1] + 16)
        return bounded(relative, rounding, words * b.shape[1], size * b_size * largest)

    def _with_shift(self, squares: Tensor, leaf_map: LeafMap, offset: Tensor) -> Tensor:
        a, b = self.inputs.map_values(torch.Tensor.double), self.output_gradients.double()
        rows, touched = self._touched(a)
        cross = rows_of(offset, rows, self.axis)
        for factor in leaf_map.factors:
            cross = cross * rows_of(factor, rows, self.axis)
        inner = (b * touched.times(cross)).sum(1)
        sizes = (b.abs() * touched.map_values(torch.abs).times(cross.abs())).sum(1)
        return with_offset(squares, inner, sizes, offset)

    def _touched(self, a: SparseRows) -> tuple[Tensor, SparseRows]:
        """The words that occur, and the rows with columns renumbered among them."""
        columns = self.inputs.by_column
        words = columns.columns
        return words, SparseRows(a.offsets, columns.places, a.values, len(words))


@dataclass(frozen=True)
class TokenRows:
    """The gradient of an embedding: row ``tokens[i, t]`` receives ``output_gradients[i, t]``.

    The last ``wordless`` examples have no tokens, and no gradient.
    """

    tokens: Tensor
    output_gradients: Tensor
    words: int
    wordless: int = 0

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Add up repeated words of each example, and square the sums."""
        if self._in_main_memory() and leaf_map.offset is None and len(leaf_map.factors) <= 1:
            return self._compiled_squares(leaf_map)
        size, width = self.output_gradients.shape[0], self.output_gradients.shape[2]
        example = torch.arange(size, device=self.tokens.device).unsqueeze(1)
        keys, place = torch.unique(example * self.words + self.tokens, return_inverse=True)
        b = self.output_gradients.double().flatten(0, 1)
        rows = b.new_zeros(len(keys), width).index_add_(0, place.flatten(), b)
        terms = b.new_zeros(len(keys), width).index_add_(0, place.flatten(), b.abs())
        words, owners = keys % self.words, keys // self.words
        for factor in leaf_map.factors:
            here = rows_of(factor, words, 0)
            rows, terms = rows * here, terms * here
        squares = rows.new_zeros(size + self.wordless)
        size_of_terms = squares.index_add(0, owners, terms.square().sum(1)).sqrt()
        if leaf_map.offset is None:
            squares.index_add_(0, owners, rows.square().sum(1))
        else:
            squares = shifted_rows(squares, owners, rows, leaf_map.offset, words)
        return (squares.sqrt() + CANCELLED * size_of_terms).square()

    def weighted(self, weights: Tensor) -> RowSparse:
        """Return Σ_i w_i g_i on the rows of words that occur."""
        if self._in_main_memory():
            given = (self.tokens.numpy(), self.output_gradients.numpy(), weights.double().numpy())
            words, total = map(torch.from_numpy, token_loops.weighted(*given, self.words))
            return RowSparse(words, total, (self.words, total.shape[1]))
        b = self.output_gradients.double() * weights[: len(self.tokens)].view(-1, 1, 1)
        found, place = torch.unique(self.tokens, return_inverse=True)
        rows = b.new_zeros(len(found), b.shape[2])
        rows.index_add_(0, place.flatten(), b.flatten(0, 1))
        return RowSparse(found, rows, (self.words, b.shape[2]))

    def _in_main_memory(self) -> bool:
        tokens = self.tokens
        ready = tokens.device.type == "cpu" and tokens.dtype == torch.int64
        return ready and tokens.is_contiguous() and in_main_memory(self.output_gradients)

    def _compiled_squares(self, leaf_map: LeafMap) -> Tensor:
        count, length, width = self.output_gradients.shape
        factor = leaf_map.factors[0].double() if leaf_map.factors else torch.ones(1, 1).double()
        squares = torch.zeros(count + self.wordless, dtype=torch.float64)
        sizes = torch.zeros_like(squares)
        given = (self.tokens, self.output_gradients, factor.contiguous(), squares, sizes)
        tokens, rows, diagonal, out, of_terms = (tensor.numpy() for tensor in given)

        def measure(part: slice) -> None:
            ends = (part.start, part.stop)
            token_loops.squares(ends, tokens, rows, self.words, diagonal, out, of_terms)

        run_in_parts(count, measure, work=count * length * width)
        return (squares.sqrt() + CANCELLED * sizes.sqrt()).square()

    def take(self, rows: Tensor) -> TokenRows:
        """Return the gradients of some of the examples, those without tokens last."""
        kept = rows[rows < len(self.tokens)]
        wordless = len(rows) - len(kept)
        return TokenRows(self.tokens[kept], self.output_gradients[kept], self.words, wordless)

    def without_last(self, count: int) -> TokenRows:
        """Return the same without the tokens of the last ``count`` examples."""
        kept = slice(0, len(self.tokens) - count)
        return TokenRows(self.tokens[kept], self.output_gradients[kept], self.words, count)


def shifted_rows(
    squares: Tensor, owners: Tensor, rows: Tensor, offset: Tensor, words: Tensor
) -> Tensor:
    """Add squares of touched rows with their shift, and of the shift alone on all others."""
    here = offset[words]
    change = (rows + here).square().sum(1) - here.square().sum(1)
    constant = offset.square().sum()
    sizes = ((rows + here).square() + here.square()).sum(1)
    terms = squares.index_add(0, owners, sizes) + constant
    return squares.index_add(0, owners, change) + constant + DOUBLE * offset.numel() * terms


def _times_by_word(a: SparseRows, vector: Tensor) -> SparseRows:
    factor = vector if len(vector) == 1 else vector[a.columns]
    return a.with_values(a.values.double() * factor)


def _compiled_squares(a: SparseRows, b: Tensor, full: Tensor, largest: float) -> Tensor:
    found = torch.empty(len(a), dtype=torch.float64)
    given = (a.offsets, a.columns, a.values, b.detach(), full)
    arrays = [tensor.numpy() for tensor in given]

    def measure(part: slice) -> None:
        compiled.squares((part.start, part.stop), *arrays, largest, DOUBLE, found.numpy())

    run_in_parts(len(a), measure, work=len(a.columns) * b.shape[1])
    return found


class FactoredRows(RowSparse):
    """D_k ∘ Σ_i w_i a_ik b_i for the words k that occur, in float64.

    Multiplied out, the sum over a batch is as large as the rows that it touches, while a, w, b and
    D exist already. So pending updates are stored as these factors.
    """

    def __init__(
        self,
        columns: SparseColumns,
        weights: Tensor,
        matrix: Tensor,
        shape: tuple[int, ...],
        axis: int,
    ) -> None:
        self.rows, self.shape, self.axis = columns.columns, shape, axis
        self._columns, self._weights, self._matrix = columns, weights.double(), matrix.detach()
        self._diagonals: tuple[Tensor, ...] = ()
        self._values = None

    @property
    def values(self) -> Tensor:
        """One row per word, multiplied out once."""
        if self._values is None:
            self._values = self._columns.times(self._matrix.double() * self._weights.unsqueeze(1))
            for diagonal in self._diagonals:
                super().times_(diagonal)
        return self._values

    def times_(self, diagonal: Tensor) -> Self:
        """Multiply by D when the rows are multiplied out."""
        if self._values is not None:
            return super().times_(diagonal)
        self._diagonals = (*self._diagonals, diagonal)
        return self

    def factors(self) -> Factors:
        """Return the factors themselves, unless they were multiplied out."""
        if self._values is not None:
            return super().factors()
        columns = self._columns
        shares = columns.values.double() * self._weights[columns.rows]
        return Factors(
            columns.offsets.numpy(), columns.rows.numpy(), shares.numpy(), self._matrix,
            self._diagonals,
        )  # fmt: skip


def as_bags(tokens: Tensor, layer: nn.EmbeddingBag) -> SparseRows:
    """Return the counts of words in each row of tokens, divided by the bag's size for a mean."""
    require_within(tokens, layer.num_embeddings)
    if tokens.device.type == "cpu":
        padding = -1 if layer.padding_idx is None else layer.padding_idx
        found = compiled.bags(
            tokens.numpy(), padding, layer.mode == "mean", scratch(layer.num_embeddings)
        )
        offsets, columns, values = map(torch.from_numpy, found)
        dtype = torch.float64 if layer.weight.dtype == torch.float64 else torch.float32
        return SparseRows(offsets, columns, values.to(dtype), layer.num_embeddings)
    size, length = tokens.shape
    example = torch.arange(size, device=tokens.device).unsqueeze(1)
    counted = tokens != layer.padding_idx if layer.padding_idx is not None else None
    keys = example * layer.num_embeddings + tokens
    kept = keys.flatten() if counted is None else keys[counted]
    keys, counts = torch.unique(kept, return_counts=True)
    owners = keys // layer.num_embeddings
    values = counts.to(layer.weight.dtype)
    if layer.mode == "mean":
        sizes = (
            values.new_zeros(size).index_add_(0, owners, values)
            if counted is not None
            else (values.new_full((size,), length))
        )
        values = values / sizes[owners]
    offsets = torch.searchsorted(owners, torch.arange(size + 1, device=tokens.device))
    return SparseRows(offsets, keys % layer.num_embeddings, values, layer.num_embeddings)
