"""Which nodes are asked in a round, and which answers count.

A run declares n users, and its sampler draws among n *places*, no matter who is connected. Each
connected node takes one place, and an empty place gives no answer. So each node is asked with the
probability that is accounted for, b/n, and a round need not wait for absent nodes:

- *Poisson*, *fixed size*: places are assigned anew in each round; the draw does not depend on it.
- *Shuffled*: places are assigned when an epoch begins and kept until it ends, so that no node is
  asked twice. A node that joins later, or returns as a new node, takes part from the next epoch on.

If more nodes are connected than users were declared, the run refuses before any node is asked.

Whatever a device sends, the round takes place as it was accounted for. An answer counts as missing
if it is not finite, has the wrong names or shapes, or has too large a norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadps.accounting.samplers import Rows, Sampler
from adadps.engine.local import Part
from adadps.errors import ContractError
from adadps.tensors.sums import Params, RowSparse
from adadps.training.federated.task import Task

NOISE_MARGIN = 40.0
"""The norm of N(0, 1) noise in any dimension d exceeds √d + 40 with probability at most e^-800."""

FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

ENTRIES_AT_ONCE = 2**24
"""Answers are summed in pieces of about this many entries."""


def largest_honest_norm(task: Task, params: Params) -> float:
    """Return the largest norm of an honest answer that carries noise: C + sC (√d + 40).

    If the server adds the noise, no such bound is needed: every answer is clipped at C here,
    whatever its device has done. An answer that carries noise cannot be clipped at C, because the
    noise alone is about s√d times as long as C, and only its direction would survive. The device
    made the answer private by clipping before the noise. So a bound here serves only the model: it
    drops what no honest device sends. Honest answers are unchanged, so the sum has no bias.

    >>> task = Task(lr=1.0, batch_size=1, epochs=1, most=1, clip_norm=2.0, noise=0.5)
    >>> largest_honest_norm(task, {"weight": torch.zeros(10, 10)})
    52.0
    """
    if not task.noise:
        return math.inf
    entries = sum(value.numel() for value in params.values())
    return task.clip_norm * (1 + task.noise * (math.sqrt(entries) + NOISE_MARGIN))


def checked_update(
    update: Any, params: Params, most: float, axes: Mapping[str, int]
) -> dict[str, Part] | None:
    """Return the update if its names and shapes fit and its numbers are finite, else None.

    Sparse rows along another axis than that of their table become a dense table: the form in which
    one device answers must not change how the answers of others are summed.

    >>> params = {"weight": torch.zeros(2)}
    >>> checked_update({"weight": torch.ones(2)}, params, math.inf, {"weight": 0})
    {'weight': tensor([1., 1.])}
    >>> checked_update({"weight": torch.ones(3)}, params, math.inf, {}) is None
    True
    """
    if not isinstance(update, Mapping) or set(update) != set(params):
        return None
    kept: dict[str, Part] = {}
    square = 0.0
    for name, like in params.items():
        part = update[name]
        fits = _fits_rows(part, like) if isinstance(part, RowSparse) else _fits(part, like.shape)
        if not fits:
            return None
        square += float(_values(part).double().square().sum())
        kept[name] = _on(_along(part, axes[name]), like.device)
    return kept if math.sqrt(square) <= most else None


def grouped_by_form(answers: Sequence[Mapping[str, Part]]) -> list[list[Mapping[str, Part]]]:
    """Return the answers in pieces that each have one form and fit in modest memory."""
    forms: dict[tuple[bool, ...], list[Mapping[str, Part]]] = {}
    for answer in answers:
        form = tuple(isinstance(part, RowSparse) for part in answer.values())
        forms.setdefault(form, []).append(answer)
    pieces = []
    for same in forms.values():
        room = -1
        for answer in same:
            size = sum(_values(part).numel() for part in answer.values())
            if size > room:
                pieces.append([answer])
                room = ENTRIES_AT_ONCE
            else:
                pieces[-1].append(answer)
            room -= size
    return pieces


def _along(part: Part, axis: int) -> Part:
    return part.to_dense() if isinstance(part, RowSparse) and part.axis != axis else part


def _values(part: Part) -> Tensor:
    return part.values if isinstance(part, RowSparse) else part


def _fits(part: Any, shape: tuple[int, ...]) -> bool:
    return (
        isinstance(part, Tensor)
        and part.layout is torch.strided
        and part.dtype in FLOAT_TYPES
        and not part.is_meta
        and tuple(part.shape) == tuple(shape)
        and bool(torch.isfinite(part).all())
    )


def _fits_rows(part: RowSparse, like: Tensor) -> bool:
    """Return whether these are distinct rows of the table, with one finite slice each."""
    rows = part.rows
    if part.axis not in range(like.ndim) or tuple(part.shape) != tuple(like.shape):
        return False
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.ndim != 1:
        return False
    size = like.shape[part.axis]
    inside = bool(((rows >= 0) & (rows < size)).all())
    others = like.movedim(part.axis, 0).shape[1:]
    distinct = len(torch.unique(rows)) == len(rows)
    return inside and distinct and _fits(part.values, (len(rows), *others))


def _on(part: Part, device: torch.device) -> Part:
    if isinstance(part, RowSparse):
        return RowSparse(part.rows.to(device), part.values.to(device), part.shape, part.axis)
    return part.to(device)


class Cohorts:
    """Draws the cohorts of successive rounds."""

    def __init__(self, sampler: Sampler, rng: np.random.Generator) -> None:
        self._declared = sampler.examples
        self._draws = sampler.batches(sampler.examples, rng)
        self._epoch = sampler.steps_per_epoch
        self._drawn = 0
        self._places: tuple[int, ...] | None = None

    def next(self) -> Rows:
        """Draw the places of the next round."""
        if self._drawn % self._epoch == 0:
            self._places = None
        self._drawn += 1
        return next(self._draws)

    def members(self, drawn: Rows, nodes: Iterable[int]) -> tuple[int, ...]:
        """Return the nodes at the drawn places that are connected now."""
        connected = tuple(sorted(set(nodes)))
        if len(connected) > self._declared:
            raise ContractError(
                f"Expected at most the {self._declared} declared users, found {len(connected)} "
                "connected nodes. Begin a run that declares that many; no node was asked."
            )
        if self._places is None:
            self._places = connected
        there = frozenset(connected)
        taken = (self._places[place] for place in drawn if place < len(self._places))
        return tuple(node for node in taken if node in there)
