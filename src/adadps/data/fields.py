"""Examples of several tensors (tokens and a mask, two images), and how a model is called with them.

A model gets the tensors by position if they came as a tuple, and by name if they came as a mapping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.data.sparse_rows import SparseRows
from adadps.errors import DataError

Arguments = tuple[tuple[Tensor, ...], dict[str, Tensor]]
"""What a model is called with: by position, and by name."""


@dataclass(frozen=True)
class Fields:
    """Several tensors, each with one example along its first axis; ``names`` if they have names.

    >>> held = Fields((torch.zeros(3, 2), torch.ones(3)), ("tokens", "mask"))
    >>> len(held), len(held.take(torch.tensor([2])))
    (3, 1)
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, rows: Tensor) -> Fields:
        """Return the given rows, in the given order."""
        return self.each(lambda tensor: tensor[rows.to(tensor.device)])

    def to(self, device: torch.device) -> Fields:
        """Return the same on another device."""
        return self.each(lambda tensor: tensor.to(device))

    def each(self, change: Callable[[Tensor], Tensor]) -> Fields:
        """Return the same fields with each tensor changed."""
        return Fields(tuple(map(change, self.tensors)), self.names)

    def followed_by(self, other: Fields) -> Fields:
        """Return the rows of both, one set after the other."""
        pairs = zip(self.tensors, other.tensors, strict=True)
        return Fields(tuple(torch.cat([one, two.to(one)]) for one, two in pairs), self.names)

    def form(self) -> str:
        """Describe one row."""
        names = self.names or [f"input {place}" for place in range(1, len(self.tensors) + 1)]
        return ", ".join(
            f"{name} of shape {tuple(tensor.shape[1:])} and {tensor.dtype}"
            for name, tensor in zip(names, self.tensors, strict=True)
        )


Rows = Tensor | SparseRows
"""One input per example: a dense tensor, or sparse rows."""

Features = Rows | Fields
"""One example along the first axis: a dense tensor, sparse rows, or several tensors."""


def one_input(features: Features) -> Rows:
    """Return features that are one tensor or sparse rows, and refuse several inputs.

    >>> one_input(torch.zeros(1))
    tensor([0.])
    """
    if isinstance(features, Fields):
        raise DataError(
            f"Expected one tensor or sparse rows as features, found several inputs "
            f"({features.form()}). What was asked for reads features one by one; give it the input "
            "that is meant, or leave it out."
        )
    return features


def replaced(features: Features, rows: Tensor, stand_in: Features) -> Features:
    """Return features with the only row of ``stand_in`` in place of the marked ``rows``.

    >>> replaced(torch.tensor([[1.0], [9.0]]), torch.tensor([False, True]), torch.zeros(1, 1))
    tensor([[1.],
            [0.]])
    """

    def without(held: Tensor, other: Tensor) -> Tensor:
        return torch.where(rows.view(-1, *[1] * (held.ndim - 1)), other.to(held), held)

    if isinstance(features, Fields):
        assert isinstance(stand_in, Fields)
        pairs = zip(features.tensors, stand_in.tensors, strict=True)
        return Fields(tuple(without(*pair) for pair in pairs), features.names)
    assert isinstance(features, Tensor)
    assert isinstance(stand_in, Tensor)
    return without(features, stand_in)


def arguments(features: Features, dtype: torch.dtype) -> Arguments:
    """Return what a model is called with: dense rows, floating-point ones in this precision.

    >>> arguments(Fields((torch.zeros(1, 2),), ("mask",)), torch.float64)
    ((), {'mask': tensor([[0., 0.]], dtype=torch.float64)})
    """

    def converted(rows: Tensor) -> Tensor:
        return rows.to(dtype) if rows.is_floating_point() else rows

    if isinstance(features, Fields):
        held = tuple(map(converted, features.tensors))
        if features.names is None:
            return held, {}
        return (), dict(zip(features.names, held, strict=True))
    return (converted(features.to_dense() if isinstance(features, SparseRows) else features),), {}
