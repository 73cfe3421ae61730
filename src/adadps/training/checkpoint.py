"""Checkpoints: what a run needs to resume after its process is gone, written whole or not at all.

::

    FOLDER/step-00000400/tensors.safetensors    weights with all their noise, states of the method
    FOLDER/step-00000400/checkpoint.json        run, plan, position, what the ledger must hold
    FOLDER/ledger                               unless the run has a ledger elsewhere

There are no clocks of late noise, no state of a generator and no batch in it: those would show
which examples were drawn when. A run that is resumed draws batches and noise afresh.

The states of a method's stages are encoded as JSON and tensors (`pack`). A custom stage whose state
holds anything else is refused before the first step. `adadps.training.saved_checkpoint` reads what
was written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from adadps.engine.group import ALONE, Group, Meeting
from adadps.engine.waist import Weights
from adadps.errors import ContractError, DataError, SettingError, require
from adadps.files import new_folder, remove_abandoned, remove_folder
from adadps.methods.side.noisy import PendingMeasurement
from adadps.methods.side.public import GradientMoments
from adadps.methods.side.source import Transform
from adadps.methods.side.whitening import WhiteningState
from adadps.report.result import Measurement, copy_weights, save_tensors
from adadps.tensors.sums import Params
from adadps.training.describe import frozen_part_of

FORMAT = 1
LEDGER = "ledger"
_STEP = re.compile(r"step-[0-9]{8,}")
TENSORS, CONTENT = "tensors.safetensors", "checkpoint.json"
FEATURE_WEIGHTS = "feature_weights"


@dataclass(frozen=True)
class Checkpoint:
    """A run after ``taken`` steps. ``states`` is None until the first step can be taken."""

    run: str
    plan: str
    ledger: str
    frozen: str
    planned: int
    taken: int
    paid: int
    marks: tuple[str, ...]
    history: tuple[Measurement, ...]
    params: Params = field(repr=False)
    feature_weights: Tensor | None = field(default=None, repr=False)
    states: Any = field(default=None, repr=False)
    state_tensors: Params = field(default_factory=dict, repr=False)

    @property
    def begun(self) -> bool:
        """Was side information read, and the method's state made of it?"""
        return self.states is not None

    def require_same(self, *, plan: str, steps: int, ledger: str, frozen: str) -> None:
        """Refuse to resume with another plan, ledger or frozen weights."""
        if self.plan != plan:
            raise ContractError(
                f"Expected the plan of run {self.run}, whose checkpoint is there ({self.planned} "
                f"steps; hash {self.plan[:12]}), found another ({steps} steps; {plan[:12]}). "
                "Resume with the same method, sampler, steps, accountant and side information, or "
                "choose another folder."
            )
        if self.ledger != ledger:
            raise ContractError(
                f"Expected the ledger on which run {self.run} began, found another one. Give that "
                "ledger: a new one, or one in memory, does not know what was spent."
            )
        if self.frozen != frozen:
            raise DataError(
                f"Expected the frozen weights, buffers and facts assumed public with which run "
                f"{self.run} began, found other ones. Build the model as it was; load what it had "
                "loaded, and declare what was declared (columns, classes, bounds, examples)."
            )

    def require_paid(self, paid: int) -> None:
        """Refuse a ledger on which charges of this run are missing."""
        if paid < self.paid:
            raise ContractError(
                f"Expected a ledger with the {self.paid} charges that run {self.run} had made at "
                f"its checkpoint, found {paid}. Give the ledger of that run: an old copy would "
                "forget what was spent."
            )

    def put_into(self, params: Params) -> None:
        """Copy the weights into a model's parameters."""
        copy_weights(self.params, params)

    def feature_weights_on(self, device: torch.device) -> Tensor | None:
        """Return the weights of re-weighted features, checked and on ``device``."""
        if self.feature_weights is None:
            return None
        weights = self.feature_weights.to(device)
        if weights.ndim != 1 or not weights.is_floating_point():
            raise DataError(
                f"Expected weights of features in one axis, found {tuple(weights.shape)} of "
                f"{weights.dtype}. Restore a copy of the checkpoint."
            )
        return weights


@dataclass(frozen=True)
class Checkpoints:
    """A folder for the checkpoints of one run, the newest of which is kept.

    ``every`` is in steps; the default is a fiftieth of the run.

    >>> Checkpoints("reviews-run", every=100).is_due(taken=300, planned=1000)
    True
    """

    folder: str | Path
    every: int | None = None

    def __post_init__(self) -> None:
        every = self.every
        fits = every is None or (isinstance(every, int) and every >= 1)
        require(fits, "a whole number every >= 1", every, "It is a number of steps.")

    def is_due(self, taken: int, planned: int) -> bool:
        """Is a checkpoint due after ``taken`` of ``planned`` steps?"""
        every = self.every or max(1, planned // 50)
        return taken == planned or taken % every == 0

    @property
    def ledger(self) -> Path:
        """Where the ledger of the run lies, unless it has one elsewhere."""
        return Path(self.folder) / LEDGER

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, or None in a new folder."""
        try:
            found = self._steps()
        except OSError as error:
            raise DataError(
                f"Expected a folder of checkpoints at {self.folder}, found: {error}. Choose "
                "another one."
            ) from error
        if not found:
            return None
        from adadps.training.saved_checkpoint import read_checkpoint

        return read_checkpoint(found[-1])

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; then remove older ones, and drafts of processes that are gone."""
        older = self._steps()
        target = Path(self.folder) / f"step-{checkpoint.taken:08d}"
        if older and number_of(older[-1]) >= checkpoint.taken:
            raise DataError(
                f"Expected to be alone in {self.folder}, found {older[-1].name}, which another "
                "process has written meanwhile. Resume a run once at a time."
            )
        with new_folder(target) as draft:
            _write(draft, checkpoint)
        self._remove(older)

    def remove(self) -> None:
        """Remove all checkpoints, and nothing else that may be in the folder."""
        self._remove(self._steps())

    def _remove(self, steps: list[Path]) -> None:
        for folder in steps:
            remove_folder(folder, (CONTENT, TENSORS))
        if Path(self.folder).is_dir():
            remove_abandoned(Path(self.folder), _STEP, (CONTENT, TENSORS))

    def _steps(self) -> list[Path]:
        folder = Path(self.folder)
        if folder.exists() and not folder.is_dir():
            raise DataError(
                f"Expected a folder for checkpoints, found a file at {folder}. Choose another name."
            )
        found = folder.iterdir() if folder.exists() else ()
        return sorted((path for path in found if _is_checkpoint(path)), key=number_of)


def _is_checkpoint(path: Path) -> bool:
    """Does the folder have our name and our files? Any other folder is left alone."""
    named = _STEP.fullmatch(path.name) is not None
    return named and any((path / name).is_file() for name in (CONTENT, TENSORS))


def number_of(folder: Path) -> int:
    """Return the number of steps in a checkpoint's name."""
    return int(folder.name[5:])


def tensors_of(checkpoint: Checkpoint) -> Params:
    """Return all tensors of a checkpoint by their names in its file."""
    parts = {"weights": checkpoint.params, "states": checkpoint.state_tensors}
    tensors = {
        f"{part}/{name}": value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for part, held in parts.items()
        for name, value in held.items()
    }
    if checkpoint.feature_weights is not None:
        tensors[FEATURE_WEIGHTS] = checkpoint.feature_weights.detach().cpu().contiguous()
    return tensors


def content_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return everything else in a checkpoint, ready for JSON."""
    return {
        "format": FORMAT,
        "run": checkpoint.run,
        "plan": checkpoint.plan,
        "ledger": checkpoint.ledger,
        "frozen": checkpoint.frozen,
        "planned": checkpoint.planned,
        "taken": checkpoint.taken,
        "paid": checkpoint.paid,
        "marks": list(checkpoint.marks),
        "history": [_plain(entry) for entry in checkpoint.history],
        "states": checkpoint.states,
    }


def _write(draft: Path, checkpoint: Checkpoint) -> None:
    file, content = draft / TENSORS, content_of(checkpoint)
    save_tensors(tensors_of(checkpoint), file)
    content["digest"] = digest_of(content, file)
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    (draft / CONTENT).write_text(text + "\n", encoding="utf-8")


def digest_of(content: dict[str, Any], file: Path) -> str:
    """SHA-256 of the content, and of tensors that all carry their noise: against accidents."""
    with file.open("rb") as tensors:
        sha = hashlib.file_digest(tensors, "sha256")
    sha.update(json.dumps(content, sort_keys=True).encode())
    return sha.hexdigest()


def _plain(entry: Measurement) -> dict[str, Any]:
    value = entry.value if math.isfinite(entry.value) else None
    return asdict(entry) | {"value": value}


class RunFolder:
    """The checkpoints of one run while it lasts; false if the run writes none.

    In a group the first process reads and writes them, and tells the others what it has found.
    """

    def __init__(self, checkpoints: Checkpoints | str | Path | None, group: Group = ALONE) -> None:
        self.checkpoints = _as_checkpoints(checkpoints)
        self._group = group
        self.found = self._latest() if self.checkpoints else None
        self._last_written = self.found.taken if self.found else 0

    def __bool__(self) -> bool:
        return self.checkpoints is not None

    def _latest(self) -> Checkpoint | None:
        assert self.checkpoints is not None
        latest = self.checkpoints.latest
        if self._group.is_alone:
            return latest()
        from adadps.training.saved_checkpoint import from_bytes, to_bytes

        def found() -> bytes:
            held = latest()
            return b"" if held is None else to_bytes(held)

        told = self._group.tell_bytes(Meeting.CHECKPOINT, found)
        return from_bytes(told) if told else None

    @property
    def ledger(self) -> Path | None:
        """Where the ledger of a run with checkpoints lies, unless it has one elsewhere."""
        return self.checkpoints.ledger if self.checkpoints else None

    def is_due(self, taken: int, planned: int) -> bool:
        """Is a checkpoint due after ``taken`` steps that has not been written yet?"""
        if self.checkpoints is None or not self.is_behind(taken):
            return False
        return self.checkpoints.is_due(taken, planned)

    def is_behind(self, taken: int) -> bool:
        """Were steps taken since the last checkpoint?"""
        return self.checkpoints is not None and taken != self._last_written

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, if the run writes any."""
        if self.checkpoints is not None:
            if self._group.is_first:
                self.checkpoints.write(checkpoint)
            self._last_written = checkpoint.taken


def _as_checkpoints(checkpoints: Checkpoints | str | Path | None) -> Checkpoints | None:
    """Accept a folder by its path alone."""
    if checkpoints is None or isinstance(checkpoints, Checkpoints):
        return checkpoints
    if not isinstance(checkpoints, str | Path):
        raise SettingError(
            f"Expected a folder for checkpoints, found {type(checkpoints).__name__}. Give its "
            "path, or `Checkpoints(path, every=...)`."
        )
    return Checkpoints(checkpoints)


RECORDS: dict[str, Any] = {
    kind.__name__: kind for kind in (GradientMoments, PendingMeasurement, Transform, WhiteningState)
}


def pack(state: Any, weights: Params) -> tuple[Any, Params]:
    """Encode a state as JSON, and return its tensors by the names used in the JSON.

    Where a state is the weights themselves, the JSON holds only a reference to them.

    >>> pack((None, {"m": torch.zeros(2)}), {})
    ({'tuple': [None, {'mapping': {'m': {'tensor': '0'}}}]}, {'0': tensor([0., 0.])})
    """
    packed = _Packing(weights)
    return packed.of(state), packed.tensors


class _Packing:
    def __init__(self, weights: Params) -> None:
        self.tensors: Params = {}
        self._weights = weights
        self._names: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """Encode any part of a state as JSON."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if value is None or isinstance(value, int | str):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        return self._of_parts(value)

    def _of_parts(self, value: Any) -> Any:
        if self._is_weights(value):
            return {"weights": True}
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return {"mapping": {name: self.of(inner) for name, inner in value.items()}}
        if type(value) is tuple:
            return {"tuple": [self.of(inner) for inner in value]}
        if isinstance(value, tuple(RECORDS.values())):
            names = [field.name for field in fields(cast(Any, value))]
            return {type(value).__name__: {name: self.of(getattr(value, name)) for name in names}}
        raise ContractError(
            "Expected states of tensors, numbers, mappings and tuples, which a checkpoint can "
            f"hold, found {type(value).__qualname__}. Build the state of your stage from those, or "
            "train without checkpoints."
        )

    def _tensor(self, tensor: Tensor) -> Any:
        if id(tensor) not in self._names:
            name = str(len(self.tensors))
            by_feature = tensor.ndim == 2 and not tensor.is_contiguous()
            self.tensors[name] = tensor.T if by_feature else tensor
            self._names[id(tensor)] = {"by_feature": name} if by_feature else {"tensor": name}
        return self._names[id(tensor)]

    def _is_weights(self, value: Any) -> bool:
        return (
            isinstance(value, dict)
            and bool(value)
            and value.keys() == self._weights.keys()
            and all(value[name] is held for name, held in self._weights.items())
        )


# --- what is stored of the weights ---


class HeldWhole(ABC):
    """Weights and states, whole in this process, as a run stores and compares them.

    `adadps.training.sharded_stepper` does both otherwise, where each process holds a shard.
    """

    model: nn.Module
    group: Group
    weights: Weights
    states: tuple[Any, ...]
    own_params: Params

    @property
    @abstractmethod
    def params(self) -> Params:
        """The trainable parameters with all their noise."""

    @property
    @abstractmethod
    def given_params(self) -> Params:
        """The weights that evaluations and results show."""

    @property
    def whole_form(self) -> Params:
        """Tensors with the shapes of the parameters."""
        return self.own_params

    @property
    def evaluated_params(self) -> Params:
        """What an evaluation runs the model with."""
        return self.given_params

    @property
    def common_states(self) -> Any:
        """The states that all processes hold alike."""
        return self.states

    def digest(self) -> str:
        """Hash what all processes hold alike of the weights."""
        return self.weights.digest()

    def frozen_part(self, assumed_public: Iterable[str]) -> str:
        """Hash what the run may not change."""
        return frozen_part_of(self.model, assumed_public)

    def load(self, held: Checkpoint) -> None:
        """Take over the weights of a checkpoint."""
        held.put_into(self.own_params)

    def packed(self) -> tuple[Params, Any, Params]:
        """Return weights, states and the states' tensors for a checkpoint."""
        return self.params, *pack(self.states, self.own_params)
