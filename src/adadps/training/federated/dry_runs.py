"""A device tries the task on synthetic rows when it first hears of it, before anything is paid.

A model or a loss that do not fit, a loader instead of examples, a misspelt key of a node's
configuration: each would fail at every round on every device, and every round is paid for. So a
device receives everything but the weights, trains on made-up rows, and answers that it is ready, or
why it is not.

A refusal is about code and configuration, never about rows. It has our own error text, and of any
other exception the class alone. Rows that cannot be read do not show: the device then makes up rows
of the kind that the server has declared, or says that it is ready. One case is between the two: a
function that reads rows and ends in an exception of `OF_CODE`, as a misspelt key does. Its class is
told, and counts only where no device at all is ready, since rows might have raised it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from adadps.accounting.ledger import Ledger
from adadps.data.examples import Examples
from adadps.data.row_kind import RowKind, without_rows
from adadps.engine.local import table_axis
from adadps.engine.losses import Loss
from adadps.engine.passes.validation import objective
from adadps.errors import AdadpsError, ContractError, DeviceError, ModelError, SettingError
from adadps.tensors.sums import Params
from adadps.training.federated.answers import sound
from adadps.training.federated.client import local_update
from adadps.training.federated.task import Task

LOG = logging.getLogger("adadps.device")
"""The log of the device itself, where tracebacks stay."""

OF_CODE = (LookupError, NameError, ImportError, AttributeError, TypeError)
"""What mistakes in code and configuration raise."""

Rows = Examples | Callable[[], Examples]
"""The rows of a device, or a function that reads them."""


@dataclass(frozen=True)
class Preview:
    """What a device receives before the first round: all that is public except the weights.

    ``weights`` are the shapes of the model's whole state by name, ``trained`` the names of the
    parameters that an update has, ``kind`` is that of the rows if the server has declared it.
    """

    task: Task
    weights: Mapping[str, tuple[int, ...]]
    trained: frozenset[str]
    kind: RowKind | None = None

    @property
    def nobody(self) -> Examples | None:
        """No rows, of the declared kind."""
        return None if self.kind is None else self.kind.no_examples()

    @classmethod
    def of(cls, model: nn.Module, task: Task, kind: RowKind | None = None) -> Preview:
        """The preview of a task for this model."""
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        return cls(task, shapes, frozenset(_trainable(model)), kind)


@dataclass(frozen=True)
class Refusal:
    """Why a device cannot take part. ``while_reading``: its rows might have to do with it."""

    text: str
    while_reading: bool = False

    @classmethod
    def because(cls, problem: Exception, *, while_reading: bool = False) -> Refusal:
        """Our own text, else the class alone: other texts may quote anything."""
        LOG.error("This device cannot do the task.", exc_info=problem)
        own = isinstance(problem, AdadpsError)
        return cls(str(problem) if own else type(problem).__name__, while_reading)


def dry_run(
    preview: Preview, model: nn.Module, loss: Loss, data: Rows, *, ledger: Ledger | None = None
) -> Refusal | None:
    """Train on synthetic rows of the kind of ``data``: None if that works, else why it does not.

    Of rows that are given only kind and shape are looked at. A function that reads rows is called,
    for it reads the configuration as well. Nothing is paid on ``ledger``.
    """
    held: Any = None
    is_read = True
    try:
        held = data() if callable(data) else data
    except SettingError as problem:
        return Refusal.because(problem)
    except OF_CODE as problem:
        return Refusal.because(problem, while_reading=True)
    except Exception:
        LOG.exception("The rows of this device cannot be read. The server is not told.")
        is_read = False
    try:
        nobody = without_rows(held) if is_read else preview.nobody
        _require_same_model(preview, model)
        _require_payable(preview.task, ledger)
        if nobody is not None:
            _train(preview, model, loss, nobody)
    except Exception as problem:
        return Refusal.because(problem)
    return None


def _train(preview: Preview, model: nn.Module, loss: Loss, nobody: Examples) -> None:
    """One update on synthetic rows, which the server would take."""
    synthetic = objective(model, loss, nobody).synthetic
    update = local_update(preview.task, model, loss, synthetic)
    params = _trainable(model)
    axes = {name: table_axis(model, name) for name in params}
    if sound(update, params, math.inf, axes) is None:
        raise ModelError(
            "Expected an update with finite numbers for every trained parameter, found another one "
            "on synthetic rows. Train in float32 with parameters that the loss depends on."
        )


def _require_same_model(preview: Preview, model: nn.Module) -> None:
    own = Preview.of(model, preview.task)
    if (own.weights, own.trained) == (preview.weights, preview.trained):
        return
    differing = sorted(
        name
        for name in own.weights.keys() | preview.weights.keys()
        if own.weights.get(name) != preview.weights.get(name)
        or (name in own.trained) != (name in preview.trained)
    )
    raise ModelError(
        "Expected the server's model on the device, found one that differs in the name, the shape "
        f"or requires_grad of {', '.join(differing[:5])}. Build the same model on both sides."
    )


def _require_payable(task: Task, ledger: Ledger | None) -> None:
    if ledger is not None and ledger.budget is not None and not task.noise:
        raise ContractError(
            "Expected a task in which devices add noise, since this device keeps a budget of its "
            "own, found one in which the server adds it: no answer without noise fits a budget. "
            "Choose `by_each_device()` or `in_shares(...)`, or leave the ledger of the device out."
        )


def _trainable(model: nn.Module) -> Params:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


LONGEST, MOST = 600, 5
"""Characters of a refusal, and different refusals, that are shown."""


def refusing(answers: Mapping[int, Refusal | None]) -> dict[int, Refusal]:
    """The refusals that count.

    Refusals that rows may have caused count only if no device is ready: then the run would end
    at its first round, with nothing to show for it.
    """
    ready = any(answer is None for answer in answers.values())
    return {
        node: answer
        for node, answer in answers.items()
        if answer is not None and not (ready and answer.while_reading)
    }


def require_ready(answers: Mapping[int, Refusal | None], *, asked: int | None = None) -> None:
    """Refuse to begin where devices refuse, or where all that were ``asked`` are silent.

    >>> require_ready({1: None, 2: None})
    >>> require_ready({7: Refusal("Expected a key, found none."), 8: None})
    Traceback (most recent call last):
    adadps.errors.DeviceError: Expected devices that can do the task, found that 1 of 2 cannot: \
Expected a key, found none. (node 7). No round was paid. Fix the app or the configuration of \
these nodes, whose own logs have the tracebacks, and start again.
    """
    found, count = refusing(answers), max(len(answers), asked or 0)
    if found:
        raise DeviceError(
            f"Expected devices that can do the task, found that {len(found)} of {count} cannot: "
            f"{described(found)}. No round was paid. Fix the app or the configuration of these "
            "nodes, whose own logs have the tracebacks, and start again."
        )
    if count and not answers:
        raise DeviceError(
            f"Expected an answer to the dry run from at least one device, found none of {count}. "
            "No round was paid. Look at the log of a device, and that it has the same version of "
            "adadps; or give devices more time."
        )


def described(refusals: Mapping[int, Refusal]) -> str:
    """Every different text once, with some of the nodes that have sent it.

    A text comes from a device that may be anybody's: it is cut, and shown on one line.
    """
    nodes: dict[str, list[int]] = {}
    for node, refusal in sorted(refusals.items()):
        nodes.setdefault(_on_one_line(refusal.text), []).append(node)
    shown = [f"{text} ({_some(sent_by)})" for text, sent_by in list(nodes.items())[:MOST]]
    more = len(nodes) - len(shown)
    return "; ".join([*shown, *([f"and {more} other texts"] if more else [])])


def _on_one_line(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def _some(nodes: list[int]) -> str:
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    named = ", ".join(str(node) for node in nodes[:3])
    return f"{len(nodes)} nodes: {named}{', ...' if len(nodes) > 3 else ''}"
