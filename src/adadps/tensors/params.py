"""Tensors by the name of their parameter."""

from __future__ import annotations

from torch import Tensor

from adadps.tensors.outer_sum import OuterSum
from adadps.tensors.row_sparse import RowSparse

Params = dict[str, Tensor]
"""One tensor for each trainable parameter, by its name in the model."""

Sum = Tensor | RowSparse | OuterSum
"""A sum of gradients: whole, of a table of words only the touched rows, or not multiplied out."""

Sums = dict[str, Sum]
"""A sum of gradients for each trainable parameter."""
