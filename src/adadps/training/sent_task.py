"""What workers are sent: copies of model, loss and method, and rows through shared memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from typing import Any

from adadps.data.examples import Examples
from adadps.data.identity import Identities
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.errors import ContractError, DataError
from adadps.training.evaluation import Evaluation
from adadps.training.worker_process import WorkerTask


class CopyingPickler(pickle.Pickler):
    """Copies tensors, as into a file; hashes of rows are sent to workers and to nobody else."""

    def reducer_override(self, held: Any) -> Any:
        """Send hashes of rows, which are not pickled elsewhere."""
        if type(held) is Identities:
            return Identities, (held._hashes,)
        return NotImplemented


class SharingPickler(ForkingPickler):
    """Moves tensors into shared memory, where all workers read them."""

    reducer_override = CopyingPickler.reducer_override


@dataclass(frozen=True)
class SentTask:
    """The task in bytes, and the rows, which are made ready for each worker by itself."""

    task: bytes
    rows: tuple[Examples, tuple[Evaluation, ...]]

    @classmethod
    def of(cls, task: WorkerTask, data: Examples, evaluate: Sequence[Evaluation]) -> SentTask:
        """Pickle the task; what cannot be pickled is refused by its name."""
        options = task.options
        others = {name: value for name, value in options.items() if name != "method"}
        for what, part in {
            "model": task.model,
            "loss": task.loss,
            "method": options["method"],
            "options": others,
        }.items():
            _pickled(part, what, CopyingPickler)
        return cls(_pickled(task, "task", CopyingPickler), (data, tuple(evaluate)))

    @declared_read(DeclaredRead.PROCESSES)
    def shared_rows(self) -> bytes:
        """Return a message for one worker by which it finds the rows in shared memory."""
        data, evaluate = self.rows
        for evaluation in evaluate:
            _pickled(evaluation.metrics, f"metrics of '{evaluation.name}'", CopyingPickler)
        return _pickled((data, evaluate), "data", SharingPickler)


def _pickled(part: Any, what: str, pickler: Callable[..., pickle.Pickler]) -> bytes:
    found = BytesIO()
    try:
        pickler(found, pickle.HIGHEST_PROTOCOL).dump(part)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ContractError(
            f"Expected a {what} that can be sent to local processes, found one that cannot: "
            f"{error}. Define its functions and classes at the top level of a module (no lambda, "
            "no function within a function), or start the script with torchrun, where nothing has "
            "to be sent."
        ) from error
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"Expected room for the {what} in shared memory, found: {error}. Allow more of it (in "
            "a container, --shm-size), or start the script with torchrun, where each process has "
            "its rows in its own memory."
        ) from error
    return found.getvalue()
