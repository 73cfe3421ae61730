"""What models return: one tensor, or several in a tuple, a mapping or a dataclass.

Whatever it is, the loss gets it whole and picks what it reads. Beside tensors with one row per
example a model may return others (a table of positions, its own mean loss): those do not belong to
examples, and are left out where outputs of several batches are joined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


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
