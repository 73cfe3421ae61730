"""Several tensors per example: what a model is given, what it returns, and what it can read.

A model gets the tensors by position if they came as a tuple, and by name if they came as a mapping.
It returns one tensor, or several in a tuple, a mapping or a dataclass. Whatever it is, the loss
gets it whole and picks what it reads. Beside tensors with one row per example a model may return
others (a table of positions, its own mean loss): those do not belong to examples, and are left out
where outputs of several batches are joined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

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


# --- what a model returns ---


def each_tensor(change: Callable[[Tensor], Any], outputs: Any) -> Any:
    """Return outputs of the same form, with every tensor changed.

    >>> each_tensor(lambda tensor: tensor + 1, {"logits": torch.zeros(1), "cache": None})
    {'logits': tensor([1.]), 'cache': None}
    """
    if isinstance(outputs, Tensor):
        return change(outputs)
    if _is_plain_dataclass(outputs):
        held = {f.name: getattr(outputs, f.name) for f in dataclasses.fields(outputs) if f.init}
        changed = {name: each_tensor(change, value) for name, value in held.items()}
        return dataclasses.replace(outputs, **changed)
    leaves, form = tree_flatten(outputs, _is_plain_dataclass)
    if len(leaves) == 1 and leaves[0] is outputs:  # nothing that torch can look into
        return outputs
    return tree_unflatten([each_tensor(change, leaf) for leaf in leaves], form)


def tensors_of(outputs: Any) -> list[Tensor]:
    """Return all tensors in what a model returned.

    >>> len(tensors_of((torch.zeros(1), [torch.ones(2), "text"])))
    2
    """
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    each_tensor(note, outputs)
    return found


def of_examples(outputs: Any, rows: int) -> Any:
    """Return outputs without the tensors that do not have one row per example.

    >>> of_examples((torch.zeros(3, 2), torch.tensor(0.5)), 3)[1] is None
    True
    """
    if isinstance(outputs, Tensor):
        return outputs
    return each_tensor(lambda tensor: tensor if _has_rows(tensor, rows) else None, outputs)


def joined(parts: Sequence[Any]) -> Any:
    """Return the outputs of several batches, one after the other, as those of one batch."""
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    if len(parts) == 1:
        return parts[0]
    each = [iter(tensors_of(part)) for part in parts]
    return each_tensor(lambda _: torch.cat([next(tensors) for tensors in each]), parts[0])


def rows_of(outputs: Any, rows: slice) -> Any:
    """Return some rows of outputs that were made `of_examples`."""
    return each_tensor(lambda tensor: tensor[rows], outputs)


def _has_rows(tensor: Tensor, rows: int) -> bool:
    return tensor.ndim > 0 and len(tensor) == rows


def _is_plain_dataclass(held: Any) -> bool:
    """A dataclass of the user's; mappings that are dataclasses, too, are known to torch."""
    is_instance = dataclasses.is_dataclass(held) and not isinstance(held, type)
    return is_instance and not isinstance(held, Mapping)


# --- which integers a model can read: words that have a row in a table, and classes ---

ANY = 2**62
"""The size of a table that does not exist: any integer fits."""


@dataclass(frozen=True)
class Ranges:
    """For each place of each input of integers the rows of its table; the number of classes."""

    sizes: tuple[Tensor, ...]
    classes: int | None
    ignored: int
    """A target that stands for none."""

    def of_features(self, features: Features) -> Tensor:
        """Mark the rows whose integers have a row in their table."""
        fits = [
            _in_every_place((held >= 0) & (held < sizes.to(held.device)))
            for held, sizes in zip(integers_of(features), self.sizes, strict=True)
            if bool((sizes < ANY).any())
        ]
        rows = len(features)
        return torch.stack(fits).all(0) if fits else torch.ones(rows, dtype=torch.bool)

    def of_targets(self, targets: Tensor) -> Tensor:
        """Mark the rows whose targets are classes, or are ignored."""
        if self.classes is None:
            return torch.ones(len(targets), dtype=torch.bool, device=targets.device)
        fits = (targets >= 0) & (targets < self.classes) | (targets == self.ignored)
        return _in_every_place(fits)

    def hold(self, features: Features, targets: Tensor) -> Tensor:
        """Mark the rows that the model and the loss can read."""
        fits = self.of_targets(targets)
        return fits & self.of_features(features).to(fits.device)


def _in_every_place(fits: Tensor) -> Tensor:
    return fits.flatten(1).all(1) if fits.ndim > 1 else fits


def integers_of(features: Features) -> list[Tensor]:
    """Return the inputs that may be words of a table."""
    tensors = features.tensors if isinstance(features, Fields) else (features,)
    return [
        tensor
        for tensor in tensors
        if isinstance(tensor, Tensor)
        and not (tensor.is_floating_point() or tensor.dtype is torch.bool)
    ]
