"""The device's part on Flower: one function that answers every message to the ClientApp."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Error, Message

from adadps.accounting.ledger import Ledger
from adadps.engine.local import Part
from adadps.engine.losses import Loss
from adadps.errors import SettingError
from adadps.tensors.sums import Params
from adadps.training.federated.client import empty_update, local_update, pay_on_device
from adadps.training.federated.dry_runs import LOG, Refusal, Rows, dry_run
from adadps.training.federated.records import (
    answer,
    is_preview,
    read_preview,
    read_question,
    refusal_or_ready,
)
from adadps.training.federated.task import Task

DEVICE_FAILED = 0
"""Flower's code for an error of unspecified kind."""


def train_on_device(
    message: Message, *, model: Any, loss: Loss, data: Rows, ledger: Ledger | None = None
) -> Message:
    """Answer a message of `AdaDPSStrategy`: train ``model`` on the device's own ``data``.

    The first message asks for a dry run on synthetic rows. The answer says that this device is
    ready, or what must be fixed in its code or configuration; it says nothing about its rows.
    ``data`` is examples, or a function that reads them and the configuration (`node_setting`).

    ``ledger`` is the device's own ledger, for devices that add noise and do not trust the server.
    Every answer is first charged there, and refused when the budget is spent. Errors are logged
    only on the device: the server learns only that there is no answer. Where devices add noise, it
    does not learn even that if the rows cannot be used, but receives noise: whether a user's rows
    can be used is private.
    """
    if is_preview(message.content):
        found = _dry_run(message, model, loss, data, ledger)
        return Message(refusal_or_ready(found), reply_to=message)
    try:
        task, scale = read_question(message.content, model)
        if ledger is not None:
            pay_on_device(ledger, task)
        update = _update(task, scale, model, loss, data)
        return Message(answer(update), reply_to=message)
    except Exception:
        LOG.exception("This device gives no answer.")
        return Message(Error(DEVICE_FAILED, "no answer"), reply_to=message)


def node_setting(context: Context, name: str) -> Any:
    """Return a value of the node's configuration, or raise an error that the server is told.

    The text of the error contains names from the configuration and no values.
    """
    settings = context.node_config
    if name not in settings:
        found = ", ".join(repr(one) for one in sorted(settings)) or "none"
        raise SettingError(
            f"Expected '{name}' in the configuration of this node, found {found}. Start the "
            f'SuperNode with --node-config "{name}=...".'
        )
    return settings[name]


def _dry_run(
    message: Message, model: Any, loss: Loss, data: Rows, ledger: Ledger | None
) -> Refusal | None:
    try:
        preview = read_preview(message.content)
    except Exception as problem:
        return Refusal.because(problem)
    return dry_run(preview, model, loss, data, ledger=ledger)


def _update(
    task: Task, scale: Params | None, model: Any, loss: Loss, data: Rows
) -> dict[str, Part]:
    try:
        own = data() if callable(data) else data
        return local_update(task, model, loss, own, scale=scale)
    except Exception:
        if not task.noise:
            raise  # to a sum that the server noises, no answer and zero are the same
        LOG.exception("This device answers with zero and noise, since its rows cannot be used.")
        return empty_update(task, model)
