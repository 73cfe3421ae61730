"""Checkpoints: what a run needs to resume after its process is gone, written whole or not at all.

::

    FOLDER/step-00000400/tensors.safetensors    weights with all their noise, states of the method
    FOLDER/step-00000400/checkpoint.json        run, plan, position, what the ledger must hold
    FOLDER/ledger                               unless the run has a ledger elsewhere

There are no clocks of late noise, no state of a generator and no batch in it: those would show
which examples were drawn when. A run that is resumed draws batches and noise afresh.

The states of a method's stages are encoded as JSON and tensors. Decoding executes nothing: a state
consists of None, numbers, strings, tensors, mappings, tuples, and the records of side information.
A custom stage whose state holds anything else is refused before the first step.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from adadps.errors import ContractError, DataError, SettingError, require
from adadps.files import new_folder, remove_abandoned, remove_folder
from adadps.methods.side.noisy import PendingMeasurement
from adadps.methods.side.public import GradientMoments
from adadps.methods.side.source import Transform
from adadps.report.result import Measurement, copy_weights, save_tensors
from adadps.tensors.sums import Params

FORMAT = 1
LEDGER = "ledger"
_STEP = re.compile(r"step-[0-9]{8,}")
_TENSORS, _CONTENT = "tensors.safetensors", "checkpoint.json"
_FEATURE_WEIGHTS = "feature_weights"
_OTHERS = "Delete that folder to begin anew; what was paid stays on the ledger."


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
        return _read(found[-1]) if found else None

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; then remove older ones, and drafts of processes that are gone."""
        older = self._steps()
        target = Path(self.folder) / f"step-{checkpoint.taken:08d}"
        if older and _number(older[-1]) >= checkpoint.taken:
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
            remove_folder(folder, (_CONTENT, _TENSORS))
        if Path(self.folder).is_dir():
            remove_abandoned(Path(self.folder), _STEP, (_CONTENT, _TENSORS))

    def _steps(self) -> list[Path]:
        folder = Path(self.folder)
        if folder.exists() and not folder.is_dir():
            raise DataError(
                f"Expected a folder for checkpoints, found a file at {folder}. Choose another name."
            )
        found = folder.iterdir() if folder.exists() else ()
        return sorted((path for path in found if _is_checkpoint(path)), key=_number)


def _is_checkpoint(path: Path) -> bool:
    """Does the folder have our name and our files? Any other folder is left alone."""
    named = _STEP.fullmatch(path.name) is not None
    return named and any((path / name).is_file() for name in (_CONTENT, _TENSORS))


def _number(folder: Path) -> int:
    return int(folder.name[5:])


def _write(draft: Path, checkpoint: Checkpoint) -> None:
    parts = {"weights": checkpoint.params, "states": checkpoint.state_tensors}
    tensors = {
        f"{part}/{name}": value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for part, held in parts.items()
        for name, value in held.items()
    }
    if checkpoint.feature_weights is not None:
        tensors[_FEATURE_WEIGHTS] = checkpoint.feature_weights.detach().cpu().contiguous()
    file = draft / _TENSORS
    save_tensors(tensors, file)
    content = {
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
    content["digest"] = _digest(content, file)
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    (draft / _CONTENT).write_text(text + "\n", encoding="utf-8")


def _read(folder: Path) -> Checkpoint:
    try:
        held = json.loads((folder / _CONTENT).read_text(encoding="utf-8"))
        if held["format"] != FORMAT:
            raise DataError(
                f"Expected a checkpoint of format {FORMAT}, found {held['format']} in {folder}. "
                "Resume with the version of adadps that wrote it."
            )
        file = folder / _TENSORS
        if held.pop("digest") != _digest(held, file):
            raise DataError(
                f"Expected the checkpoint that was written to {folder}, found a changed one. "
                f"Restore a copy. {_OTHERS}"
            )
        if held["taken"] != _number(folder):
            raise DataError(
                f"Expected a checkpoint after the steps in its name, found {held['taken']} in "
                f"{folder}. Give the folder its name back."
            )
        tensors = load_file(file)
        return Checkpoint(
            run=_checked(held["run"], str),
            plan=_checked(held["plan"], str),
            ledger=_checked(held["ledger"], str),
            frozen=_checked(held["frozen"], str),
            planned=_count(held["planned"]),
            taken=_count(held["taken"], most=held["planned"]),
            paid=_count(held["paid"]),
            marks=tuple(_checked(mark, str) for mark in _checked(held["marks"], list)),
            history=tuple(_measurement(entry) for entry in _checked(held["history"], list)),
            params=_part(tensors, "weights/"),
            feature_weights=tensors.get(_FEATURE_WEIGHTS),
            states=held["states"],
            state_tensors=_part(tensors, "states/"),
        )
    except DataError:
        raise
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        OverflowError,
        SafetensorError,
    ) as error:
        raise DataError(
            f"Expected a whole checkpoint in {folder}, found something unreadable "
            f"({type(error).__name__}: {error}). Restore a copy. {_OTHERS}"
        ) from error


def _digest(content: dict[str, Any], file: Path) -> str:
    """SHA-256 of the content, and of tensors that all carry their noise: against accidents."""
    with file.open("rb") as tensors:
        sha = hashlib.file_digest(tensors, "sha256")
    sha.update(json.dumps(content, sort_keys=True).encode())
    return sha.hexdigest()


def _part(tensors: Mapping[str, Tensor], prefix: str) -> Params:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _plain(entry: Measurement) -> dict[str, Any]:
    value = entry.value if math.isfinite(entry.value) else None
    return asdict(entry) | {"value": value}


def _measurement(entry: dict[str, Any]) -> Measurement:
    value = math.nan if entry["value"] is None else _checked(entry["value"], float, int)
    return Measurement(**{**entry, "value": value})


def _checked(value: Any, *kinds: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"expected {kinds[0].__name__}, found {type(value).__name__}")
    return value


def _count(value: Any, most: int = 2**62) -> int:
    count = _checked(value, int)
    if not 0 <= count <= most:
        raise ValueError(f"expected a count, found {count}")
    return int(count)


class RunFolder:
    """The checkpoints of one run while it lasts; false if the run writes none."""

    def __init__(self, checkpoints: Checkpoints | str | Path | None) -> None:
        self.checkpoints = _as_checkpoints(checkpoints)
        self.found = self.checkpoints.latest() if self.checkpoints else None
        self._last_written = self.found.taken if self.found else 0

    def __bool__(self) -> bool:
        return self.checkpoints is not None

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


_RECORDS: dict[str, Any] = {
    kind.__name__: kind for kind in (GradientMoments, PendingMeasurement, Transform)
}


def pack(state: Any, weights: Params) -> tuple[Any, Params]:
    """Encode a state as JSON, and return its tensors by the names used in the JSON.

    Where a state is the weights themselves, the JSON holds only a reference to them.

    >>> pack((None, {"m": torch.zeros(2)}), {})
    ({'tuple': [None, {'mapping': {'m': {'tensor': '0'}}}]}, {'0': tensor([0., 0.])})
    """
    packed = _Packing(weights)
    return packed.of(state), packed.tensors


def unpack(packed: Any, tensors: Mapping[str, Tensor], weights: Params) -> Any:
    """Decode the state that `pack` was given, on the device of the weights.

    >>> unpack(*pack((1.5, None), {}), {})
    (1.5, None)
    """
    try:
        return _unpacked(packed, tensors, weights)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(
            "Expected the state of a method as this version writes it, found something else "
            f"({type(error).__name__}: {error}). Use the version of adadps that wrote it."
        ) from error


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
        if isinstance(value, tuple(_RECORDS.values())):
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


def _unpacked(packed: Any, tensors: Mapping[str, Tensor], weights: Params) -> Any:
    if not isinstance(packed, dict):
        return packed
    ((kind, held),) = packed.items()
    if kind == "weights":
        return weights
    if kind in {"tensor", "by_feature"}:
        device = next(iter(weights.values())).device if weights else torch.device("cpu")
        tensor = tensors[held].to(device)
        return tensor.T if kind == "by_feature" else tensor
    if kind == "tuple":
        return tuple(_unpacked(inner, tensors, weights) for inner in held)
    inner = {name: _unpacked(value, tensors, weights) for name, value in held.items()}
    return inner if kind == "mapping" else _RECORDS[kind](**inner)


def require_like(state: Any, first: Any, weights: Params) -> None:
    """Refuse a state that cannot have evolved from ``first``, the method's initial state."""
    if not _is_like(state, first, weights):
        raise DataError(
            "Expected the state of this method, found that of another method, or a modified one. "
            "Restore a copy of the checkpoint, or begin a new run in another folder."
        )


def _is_like(state: Any, first: Any, weights: Params) -> bool:
    if isinstance(state, Transform):  # the state of side information after it was read
        return _is_transform(state, weights)
    if isinstance(first, dict):
        same = isinstance(state, dict) and state.keys() == first.keys()
        return same and all(_is_like(state[name], first[name], weights) for name in first)
    if isinstance(first, tuple):
        same = isinstance(state, tuple) and len(state) == len(first)
        return same and all(
            _is_like(one, other, weights) for one, other in zip(state, first, strict=True)
        )
    if isinstance(first, tuple(_RECORDS.values())):
        names = [field.name for field in fields(cast(Any, first))]
        return type(state) is type(first) and all(
            _is_like(getattr(state, name), getattr(first, name), weights) for name in names
        )
    return _is_like_leaf(state, first)


def _is_like_leaf(state: Any, first: Any) -> bool:
    if isinstance(first, Tensor):
        same = isinstance(state, Tensor) and state.dtype == first.dtype
        return same and state.shape == first.shape
    if isinstance(first, bool | str) or first is None:
        return type(state) is type(first)
    return isinstance(state, int | float) and not isinstance(state, bool)


def _is_transform(state: Transform, weights: Params) -> bool:
    number = isinstance(state.beta, int | float) and isinstance(state.lent, bool)
    parts = [state.scale] + ([] if state.mean is None else [state.mean])
    return number and all(
        isinstance(part, dict)
        and part.keys() == weights.keys()
        and all(_broadcasts(value, weights[name]) for name, value in part.items())
        for part in parts
    )


def _broadcasts(value: Any, weight: Tensor) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.ndim == weight.ndim
        and all(own in (1, whole) for own, whole in zip(value.shape, weight.shape, strict=True))
    )
