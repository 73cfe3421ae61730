"""Dry runs: each device first tries the task on synthetic rows, before anything is paid.

A model that does not fit the loss, a data loader instead of examples, or a misspelt key in a node's
configuration would fail in every round on every device, and every round is paid for. So a device
receives everything but the weights, trains on made-up rows, and answers that it is ready, or why it
is not.

A refusal is about code and configuration, never about rows. It contains the text of our own errors,
but only the class of any other exception. Rows that cannot be read do not show: the device then
makes up rows of the kind that the server declared, or says that it is ready. One case is in
between: a function that reads rows and raises one of `CODE_ERRORS`, as a misspelt key does. The
class of the exception is then reported, but it counts only if no device at all is ready, since rows
might have caused it.
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
from adadps.training.federated.answers import checked_update
from adadps.training.federated.client import local_update
from adadps.training.federated.task import Task

LOG = logging.getLogger("adadps.device")
"""The device's own log. Tracebacks go only there."""

CODE_ERRORS = (LookupError, NameError, ImportError, AttributeError, TypeError)
"""The exceptions that mistakes in code and configuration usually raise."""

Rows = Examples | Callable[[], Examples]
"""The rows of a device, or a function that reads them."""


@dataclass(frozen=True)
class Preview:
    """What a device receives before the first round: everything public except the weights.

    ``weights`` holds the shapes of the model's whole state by name, ``trained`` the names of the
    trained parameters, and ``kind`` the kind of rows, if the server has declared it.
    """

    task: Task
    weights: Mapping[str, tuple[int, ...]]
    trained: frozenset[str]
    kind: RowKind | None = None

    @property
    def no_rows(self) -> Examples | None:
        """Examples of the declared kind without any rows; None if no kind is declared."""
        return None if self.kind is None else self.kind.no_examples()

    @classmethod
    def of(cls, model: nn.Module, task: Task, kind: RowKind | None = None) -> Preview:
        """Return the preview of a task for this model."""
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        return cls(task, shapes, frozenset(_trainable(model)), kind)


@dataclass(frozen=True)
class Refusal:
    """Why a device cannot take part. ``while_reading`` says that its rows might be the cause."""

    text: str
    while_reading: bool = False

    @classmethod
    def because(cls, problem: Exception, *, while_reading: bool = False) -> Refusal:
        """Quote the text of our own errors, but only the class of others, which may quote rows."""
        LOG.error("This device cannot do the task.", exc_info=problem)
        own = isinstance(problem, AdadpsError)
        return cls(str(problem) if own else type(problem).__name__, while_reading)


def dry_run(
    preview: Preview, model: nn.Module, loss: Loss, data: Rows, *, ledger: Ledger | None = None
) -> Refusal | None:
    """Train on synthetic rows like ``data``; return None if that works, else why it does not.

    Only the kind and shape of ``data`` are used. If ``data`` is a function, it is called, because
    it may read the configuration too. Nothing is charged to ``ledger``.
    """
    held: Any = None
    is_read = True
    try:
        held = data() if callable(data) else data
    except SettingError as problem:
        return Refusal.because(problem)
    except CODE_ERRORS as problem:
        return Refusal.because(problem, while_reading=True)
    except Exception:
        LOG.exception("The rows of this device cannot be read. The server is not told.")
        is_read = False
    try:
        no_rows = without_rows(held) if is_read else preview.no_rows
        _require_same_model(preview, model)
        _require_payable(preview.task, ledger)
        if no_rows is not None:
            _train(preview, model, loss, no_rows)
    except Exception as problem:
        return Refusal.because(problem)
    return None


def _train(preview: Preview, model: nn.Module, loss: Loss, no_rows: Examples) -> None:
    """Compute one update on synthetic rows, and check that the server would accept it."""
    synthetic = objective(model, loss, no_rows).synthetic
    update = local_update(preview.task, model, loss, synthetic)
    params = _trainable(model)
    axes = {name: table_axis(model, name) for name in params}
    if checked_update(update, params, math.inf, axes) is None:
        raise ModelError(
            "Expected an update with finite numbers for every trained parameter, found something "
            "else on synthetic rows. Train in float32 with parameters that the loss depends on."
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
            "Expected a task in which devices add noise, since this device has its own budget, "
            "found one in which the server adds it: an answer without noise fits no budget. "
            "Choose `by_each_device()` or `in_shares(...)`, or leave out the device's ledger."
        )


def _trainable(model: nn.Module) -> Params:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


MAX_CHARACTERS, MAX_TEXTS = 600, 5
"""How many characters of a refusal are shown, and how many different refusals."""


def refusing(answers: Mapping[int, Refusal | None]) -> dict[int, Refusal]:
    """Return the refusals that count.

    Refusals that rows may have caused count only if no device is ready. In that case the run would
    end in its first round without any result.
    """
    ready = any(answer is None for answer in answers.values())
    return {
        node: answer
        for node, answer in answers.items()
        if answer is not None and not (ready and answer.while_reading)
    }


def require_ready(answers: Mapping[int, Refusal | None], *, asked: int | None = None) -> None:
    """Refuse to begin if a device refuses, or if all devices that were ``asked`` are silent.

    >>> require_ready({1: None, 2: None})
    >>> require_ready({7: Refusal("Expected a key, found none."), 8: None})
    Traceback (most recent call last):
    adadps.errors.DeviceError: Expected devices that can do the task, found that 1 of 2 cannot: \
Expected a key, found none. (node 7). No round was paid. Fix the app or the configuration of \
these nodes, and start again. The tracebacks are in their own logs.
    """
    found, count = refusing(answers), max(len(answers), asked or 0)
    if found:
        raise DeviceError(
            f"Expected devices that can do the task, found that {len(found)} of {count} cannot: "
            f"{described(found)}. No round was paid. Fix the app or the configuration of these "
            "nodes, and start again. The tracebacks are in their own logs."
        )
    if count and not answers:
        raise DeviceError(
            f"Expected an answer to the dry run from at least one device, found none of {count}. "
            "No round was paid. Look at the log of a device, check that it has the same version of "
            "adadps, or give devices more time."
        )


def described(refusals: Mapping[int, Refusal]) -> str:
    """Return each different text once, with some of the nodes that sent it.

    The texts come from devices that need not be trusted, so each is cut and shown on one line.
    """
    nodes: dict[str, list[int]] = {}
    for node, refusal in sorted(refusals.items()):
        nodes.setdefault(_on_one_line(refusal.text), []).append(node)
    shown = [f"{text} ({_listed(sent_by)})" for text, sent_by in list(nodes.items())[:MAX_TEXTS]]
    more = len(nodes) - len(shown)
    return "; ".join([*shown, *([f"and {more} other texts"] if more else [])])


def _on_one_line(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}..."


def _listed(nodes: list[int]) -> str:
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    named = ", ".join(str(node) for node in nodes[:3])
    return f"{len(nodes)} nodes: {named}{', ...' if len(nodes) > 3 else ''}"
