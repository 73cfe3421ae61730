"""The device's part on Flower: one call for the ClientApp, which answers every message."""

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
"""Flower's code of an error without a kind."""


def train_on_device(
    message: Message, *, model: Any, loss: Loss, data: Rows, ledger: Ledger | None = None
) -> Message:
    """Answer a message of `AdaDPSStrategy`: train ``model`` on the device's own ``data``.

    The first message asks for a dry run on synthetic rows: its answer says that this device is
    ready, or what in its code or configuration has to be mended, and nothing of its rows. ``data``
    are examples, or a function that reads them and the configuration (`node_setting`).

    ``ledger`` is one of the device's own, for devices that add noise and do not trust the server:
    every answer is paid for there first, and refused when its budget is spent. What goes wrong is
    logged on the device alone: the server hears that there is no answer. Where devices add noise it
    does not learn that either, and receives noise: whether someone's rows can be used is private.
    """
    if is_preview(message.content):
        found = _tried(message, model, loss, data, ledger)
        return Message(refusal_or_ready(found), reply_to=message)
    try:
        task, scale = read_question(message.content, model)
        if ledger is not None:
            pay_on_device(ledger, task)
        update = _trained(task, scale, model, loss, data)
        return Message(answer(update), reply_to=message)
    except Exception:
        LOG.exception("This device gives no answer.")
        return Message(Error(DEVICE_FAILED, "no answer"), reply_to=message)


def node_setting(context: Context, name: str) -> Any:
    """A value of the node's configuration, or an error that the dry run tells the server.

    Its text has names of the configuration and no values.
    """
    settings = context.node_config
    if name not in settings:
        found = ", ".join(repr(one) for one in sorted(settings)) or "none"
        raise SettingError(
            f"Expected '{name}' in the configuration of this node, found {found}. Start the "
            f'SuperNode with --node-config "{name}=...".'
        )
    return settings[name]


def _tried(
    message: Message, model: Any, loss: Loss, data: Rows, ledger: Ledger | None
) -> Refusal | None:
    try:
        preview = read_preview(message.content)
    except Exception as problem:
        return Refusal.because(problem)
    return dry_run(preview, model, loss, data, ledger=ledger)


def _trained(
    task: Task, scale: Params | None, model: Any, loss: Loss, data: Rows
) -> dict[str, Part]:
    try:
        own = data() if callable(data) else data
        return local_update(task, model, loss, own, scale=scale)
    except Exception:
        if not task.noise:
            raise  # to a sum that the server noises, no answer and zero are the same
        LOG.exception("This device answers zero, since its rows cannot be used.")
        return empty_update(task, model)
