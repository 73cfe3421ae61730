"""What travels between server and device, as Flower's records.

A message has the weights (a whole state dict), the task, and D = 1/A if there is one. An answer has
an update for every parameter; of a table of words, rows and where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from adadps.federated.task import Task
from adadps.gradients.local import Part
from adadps.row_sparse import RowSparse
from adadps.types import Params

WEIGHTS, CONFIG = "arrays", "config"  # as Flower's own strategies call them
TASK, SCALE = "adadps.task", "adadps.scale"
UPDATE, ROWS, AXES = "adadps.update", "adadps.rows", "adadps.axes"


def question(
    model: nn.Module, task: Task, scale: Params | None, config: Mapping[str, Any]
) -> RecordDict:
    """What a device is sent."""
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
    """Load the weights into ``model``, and return what to do."""
    model.load_state_dict(records[WEIGHTS].to_torch_state_dict())
    scale = _tensors(records[SCALE]) if SCALE in records else None
    return Task.from_settings(dict(records[TASK])), scale


def answer(update: Mapping[str, Part]) -> RecordDict:
    """What a device sends back: its update, and nothing else."""
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
    """The update, to be checked; None where it cannot even be read, whatever the reason."""
    try:
        values = _tensors(records[UPDATE])
        rows = _tensors(records[ROWS]) if ROWS in records else {}
        return {
            name: RowSparse(rows[name], value, tuple(params[name].shape), int(records[AXES][name]))
            if name in rows
            else value
            for name, value in values.items()
        }
    except Exception:  # bytes from anywhere: a round must not end on them
        return None


def _arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord(
        {name: Array(value.detach().cpu().contiguous().numpy()) for name, value in tensors.items()}
    )


def _tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}
