"""A table of words that is also the output layer: its gradients are measured, not built.

Row ``tokens_s`` of the gradient gets c_s from the table, and b_t a_tᵀ is added by the output layer:

    ‖G‖² = ‖Σ_s e(tokens_s) c_sᵀ‖² + ‖Σ_t b_t a_tᵀ‖² + 2 Σ_st b_t[tokens_s] ⟨c_s, a_t⟩.

So a large vocabulary costs no more than the output layer alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.engine.rules.gradients import LeafMap, TiedGradients
from adadps.engine.rules.outer import CHUNK, OverTime, split
from adadps.engine.rules.sparse import TokenRows
from adadps.tensors.squares import DOUBLE
from adadps.tensors.sums import dense


@dataclass(frozen=True)
class TiedTable:
    """The gradients of a weight as a table, and as an output layer over time."""

    words: TokenRows
    products: OverTime

    @property
    def uses(self) -> tuple[TokenRows, OverTime]:
        """Return both uses of the weight."""
        return self.words, self.products

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Measure both uses and their inner product; a full D is applied to built gradients."""
        _, _, full = split(leaf_map)
        if full is not None or leaf_map.offset is not None:
            return TiedGradients(self.uses, len(self.products.inputs)).squares(leaf_map)
        apart = self.words.squares(leaf_map) + self.products.squares(leaf_map)
        inner, bound = self._inner(leaf_map)
        return (apart + 2 * inner).clamp_min(0) + 2 * bound

    def _inner(self, leaf_map: LeafMap) -> tuple[Tensor, Tensor]:
        """The inner products of both uses, and what rounding may have changed them by."""
        (count, time, width), length = self.products.inputs.shape, self.words.tokens.shape[1]
        piece = max(1, CHUNK // self.products.output_gradients[0].numel())
        each = torch.split(torch.arange(count), piece)
        found = [self._inner_of(rows, leaf_map) for rows in each]
        inner, sizes = (torch.cat(part) for part in zip(*found, strict=True))
        return inner, DOUBLE * (width + time * length + 16) * sizes

    def _inner_of(self, rows: Tensor, leaf_map: LeafMap) -> tuple[Tensor, Tensor]:
        by_output, by_input, _ = split(leaf_map)
        tokens, c = self.words.tokens[rows], self.words.output_gradients[rows].double()
        a, b = self.products.inputs[rows].double(), self.products.output_gradients[rows]
        if by_input is not None:
            a, c = a * by_input, c * by_input
        places = tokens.unsqueeze(1).expand(-1, b.shape[1], -1)
        at_words = b.gather(2, places).double()  # examples × times × words
        if by_output is not None:
            factors = by_output.expand(1, b.shape[2])[0][tokens].unsqueeze(1)
            at_words = at_words * factors.square()
        inner = (at_words * (a @ c.mT)).sum((1, 2))
        lengths = torch.linalg.vector_norm(a, dim=2), torch.linalg.vector_norm(c, dim=2)
        sizes = (at_words.abs() * lengths[0].unsqueeze(2) * lengths[1].unsqueeze(1)).sum((1, 2))
        return inner, sizes

    def weighted(self, weights: Tensor) -> Tensor:
        """Σ_i w_i g_i over both uses."""
        total = dense(self.products.weighted(weights))
        words = self.words.weighted(weights)
        return total.index_add_(0, words.rows, words.values)

    def take(self, rows: Tensor) -> TiedTable:
        """Return the gradients of some of the examples."""
        return TiedTable(self.words.take(rows), self.products.take(rows))
