"""The messages between server and device, as Flower's records.

Before the first round, a message contains a preview (everything but the weights), and its answer
says that the device is ready, or why it is not. In a round, a message contains the weights (a whole
state dict), the task, and D = 1/A if there is one. Its answer contains an update for every
parameter; for a table of words, it may contain only some rows and their indices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from torch import Tensor, nn

from adadps.data.row_kind import RowKind, shape_of, shape_text
from adadps.engine.local import Part
from adadps.errors import ModelError
from adadps.tensors.sums import Params, RowSparse
from adadps.training.federated.dry_runs import Preview, Refusal
from adadps.training.federated.task import Task

WEIGHTS, CONFIG = "arrays", "config"  # as Flower's own strategies call them
TASK, SCALE = "adadps.task", "adadps.scale"
PREVIEW, KIND, READY = "adadps.preview", "adadps.kind", "adadps.ready"
UPDATE, ROWS, AXES = "adadps.update", "adadps.rows", "adadps.axes"


@dataclass(frozen=True)
class Readiness:
    """The answer of a device to a preview; ``refusal`` is None if the device is ready."""

    refusal: Refusal | None


def preview_question(preview: Preview, config: Mapping[str, Any]) -> RecordDict:
    """Return the message that asks a device for its dry run."""
    names = sorted(preview.weights)
    shapes = [shape_text(preview.weights[name]) for name in names]
    told = {"names": names, "shapes": shapes, "trained": sorted(preview.trained)}
    records = RecordDict(
        {
            CONFIG: ConfigRecord(dict(config)),
            TASK: ConfigRecord(preview.task.as_settings()),
            PREVIEW: ConfigRecord(told),
        }
    )
    if preview.kind is not None:
        records[KIND] = ConfigRecord(preview.kind.as_settings())
    return records


def is_preview(records: RecordDict) -> bool:
    """Return whether this message asks for a dry run."""
    return PREVIEW in records


def read_preview(records: RecordDict) -> Preview:
    """Read the preview that was sent, and check it."""
    told = records[PREVIEW]
    shapes = map(shape_of, told["shapes"])
    return Preview(
        Task.from_settings(dict(records[TASK])),
        dict(zip(told["names"], shapes, strict=True)),
        frozenset(told["trained"]),
        RowKind.from_settings(dict(records[KIND])) if KIND in records else None,
    )


def refusal_or_ready(refusal: Refusal | None) -> RecordDict:
    """Return a device's answer to a preview; an empty text means that it is ready."""
    found = refusal or Refusal("")
    said = {"refusal": found.text, "while-reading": found.while_reading}
    return RecordDict({READY: ConfigRecord(said)})


def read_readiness(reply: Message) -> Readiness | None:
    """Read a device's answer to a preview; return None if it is missing or cannot be read.

    If the app fails outside our call, Flower sends the text of the exception, which may quote rows.
    Only the class of the exception is read.
    """
    if reply.has_error():
        return _of_flower(reply.error.code, str(reply.error.reason))
    try:
        said = reply.content[READY]
        text, while_reading = str(said["refusal"]), bool(said["while-reading"])
    except Exception:  # a device may send anything
        return None
    return Readiness(Refusal(text, while_reading) if text else None)


def _of_flower(code: int, reason: str) -> Readiness | None:
    if code == ErrorCode.LOAD_CLIENT_APP_EXCEPTION:
        return Readiness(Refusal("the ClientApp cannot be loaded", while_reading=True))
    named = re.match(r"<class '(?:\w+\.)*(\w+)'>", reason)
    if code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION and named:
        return Readiness(Refusal(f"{named[1]} in the ClientApp", while_reading=True))
    return None


def question(
    model: nn.Module, task: Task, scale: Params | None, config: Mapping[str, Any]
) -> RecordDict:
    """Return the message that asks a device to train."""
    records = RecordDict(
        {
            WEIGHTS: ArrayRecord(model.state_dict()),
            CONFIG: ConfigRecord(dict(config)),
            TASK: ConfigRecord(task.as_settings()),
        }
    )
    if scale is not None:
        records[SCALE] = _arrays(scale)
    return records


def read_question(records: RecordDict, model: nn.Module) -> tuple[Task, Params | None]:
    """Load the weights into ``model``, and return the task and the scale."""
    try:
        model.load_state_dict(records[WEIGHTS].to_torch_state_dict())
    except RuntimeError:
        raise ModelError(
            "Expected the server's model on the device, found one with other names or shapes of "
            "weights. Build the same model on both sides."
        ) from None
    scale = _tensors(records[SCALE]) if SCALE in records else None
    return Task.from_settings(dict(records[TASK])), scale


def answer(update: Mapping[str, Part]) -> RecordDict:
    """Return the answer of a device: its update, and nothing else."""
    tables = {name: part for name, part in update.items() if isinstance(part, RowSparse)}
    values = {
        name: part.values if isinstance(part, RowSparse) else part for name, part in update.items()
    }
    records = RecordDict({UPDATE: _arrays(values)})
    if tables:
        records[ROWS] = _arrays({name: part.rows for name, part in tables.items()})
        records[AXES] = ConfigRecord({name: part.axis for name, part in tables.items()})
    return records


def read_answer(records: RecordDict, params: Params) -> dict[str, Part] | None:
    """Read an update, which is not checked yet; return None if it cannot be read at all."""
    try:
        values = _tensors(records[UPDATE])
        rows = _tensors(records[ROWS]) if ROWS in records else {}
        return {
            name: RowSparse(rows[name], value, tuple(params[name].shape), int(records[AXES][name]))
            if name in rows
            else value
            for name, value in values.items()
        }
    except Exception:  # a device may send any bytes, and must not end the round by that
        return None


def _arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord(
        {name: Array(value.detach().cpu().contiguous().numpy()) for name, value in tensors.items()}
    )


def _tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}
