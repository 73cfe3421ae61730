"""What a run leaves behind: weights, history, and an honest statement about privacy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from adadps.data.examples import as_features
from adadps.engine.objective import predict
from adadps.errors import DataError
from adadps.files.strict_json import parse_json
from adadps.files.writing import new_folder
from adadps.report.card import card_of, write_card
from adadps.report.card.sections import digits
from adadps.report.result_soundness import UnsoundError, require_sound
from adadps.tensors.params import Params

FORMAT = 1
RESULT_FILE, WEIGHTS_FILE = "result.json", "weights.safetensors"
RESTORE = "Restore the folder from a copy: to train again would spend epsilon again."
CHECK_OR_RESTORE = f"Check the path, or r{RESTORE[1:]}"
FEATURE_WEIGHTS = "adadps.feature_weights"


@dataclass(frozen=True)
class Measurement:
    """One number on data that is declared public or held out."""

    step: int
    epoch: float
    data: str
    declared: str
    metric: str
    value: float


@dataclass(frozen=True)
class PrivacyStatement:
    """What may be said about the privacy of a run.

    ``epsilon`` is infinite unless every reason against it is absent; ``mechanism_epsilon`` is what
    the mechanism alone would give, and None where it has no finite value. ``tuning_trials`` is how
    many settings were tried on private data; their cost is part of epsilon only where ``tuning``
    says what was tried and looked at (`adadps.tune`).
    ``steps_paid`` is what epsilon is the price of: more than ``steps`` where a run was resumed; of
    a tuning it is the best trial's.
    ``charges`` are the events of which epsilon is composed, each with how often the ledger was
    charged with it; None of a tuning, and in results of versions that did not record them.
    ``claim`` says what epsilon is where it is not the price of this run.
    ``measured`` is what was found out about the private data with noise before the first step, and
    what it cost: levels, classes and bounds that nobody had declared.
    """

    epsilon: float
    mechanism_epsilon: float | None
    delta: float
    accountant: str
    relation: str
    unit: str
    clip_norm: float
    noise_multiplier: float
    steps: int
    sampler: dict[str, Any]
    steps_paid: int | None = None
    tuning_trials: int | None = None
    not_private_because: tuple[str, ...] = ()
    assumed_public: tuple[str, ...] = ()
    tuning: dict[str, Any] | None = None
    charges: tuple[dict[str, Any], ...] | None = None
    claim: str | None = None
    measured: tuple[str, ...] = ()

    @property
    def private(self) -> bool:
        """Is there a finite epsilon?"""
        return math.isfinite(self.epsilon)

    def __str__(self) -> str:
        if not self.private:
            return "NOT PRIVATE (ε = ∞): " + "; ".join(self.not_private_because)
        return (
            f"ε = {digits(self.epsilon)} at δ = {self.delta:.3g} ({self.accountant.upper()}, "
            f"{self.relation}, per {self.unit}{self._tuned()}{self._claimed()})"
        )

    def _claimed(self) -> str:
        return f"; {self.claim}" if self.claim else ""

    def _tuned(self) -> str:
        return f"; {self.tuning['trials']} included" if self.tuning else ""


@dataclass(frozen=True)
class Result:
    """A finished run. Save it with `save`, read it back with `load_result`.

    ``public_facts`` is what a report tells of the run beside its privacy: number of parameters,
    learning rates, spread of public side information (`adadps.training.describe`).
    """

    privacy: PrivacyStatement
    method: str
    side_information: tuple[dict[str, str | None], ...]
    settings: dict[str, Any]
    history: tuple[Measurement, ...]
    params: Params = field(repr=False)
    feature_weights: Tensor | None = field(default=None, repr=False)
    debug: tuple[dict[str, float], ...] = ()
    public_facts: dict[str, Any] = field(default_factory=dict)

    def last(self, metric: str, data: str | None = None) -> float:
        """The last recorded value of ``metric``."""
        for entry in reversed(self.history):
            if entry.metric == metric and data in (None, entry.data):
                return entry.value
        known = sorted({f"{entry.metric} on {entry.data}" for entry in self.history})
        raise DataError(
            f"Expected a recorded metric, found '{metric}'. Recorded: {', '.join(known) or 'none'}."
        )

    def restore(self, model: nn.Module) -> nn.Module:
        """Put the trained weights into ``model``."""
        copy_weights(
            self.params, {name: p for name, p in model.named_parameters() if p.requires_grad}
        )
        return model

    def outputs(self, model: nn.Module, features: Any) -> Tensor:
        """Outputs of ``model`` with the trained weights, through the trained feature weights."""
        return predict(self.restore(model), as_features(features), self.feature_weights)

    def save(self, folder: str | Path) -> Path:
        """Write weights, ``result.json`` and the privacy card into a new folder, all or nothing."""
        target = Path(folder)
        with new_folder(target) as draft:
            self.write_into(draft)
        return target

    def write_into(self, draft: Path) -> None:
        """Write the same files into a folder that is being made, under the name it will have."""
        tensors = {name: value.contiguous().cpu() for name, value in self.params.items()}
        if self.feature_weights is not None:
            tensors[FEATURE_WEIGHTS] = self.feature_weights.contiguous().cpu()
        save_tensors(tensors, draft / WEIGHTS_FILE)
        described = self.describe()
        try:
            text = json.dumps(described, indent=2, allow_nan=False, ensure_ascii=False)
        except TypeError as error:
            raise DataError(
                f"Expected settings of numbers, texts and lists, found: {error}. Put their names "
                "into the settings instead."
            ) from error
        (draft / RESULT_FILE).write_text(text + "\n", encoding="utf-8")
        write_card(card_of(described), draft)

    def describe(self) -> dict[str, Any]:
        """Everything but the weights, ready for JSON; infinite numbers become null."""
        return {
            "format": FORMAT,
            "private": self.privacy.private,
            "privacy": _finite(asdict(self.privacy)),
            "method": self.method,
            "side_information": list(self.side_information),
            "settings": _finite(self.settings),
            "history": [_finite(asdict(entry)) for entry in self.history],
            "debug": [_finite(entry) for entry in self.debug],
            "public_facts": _finite(self.public_facts),
        }


def copy_weights(held: Params, params: Mapping[str, Tensor]) -> None:
    """Copy weights into a model's parameters of the same names and shapes."""
    found = {name: tuple(value.shape) for name, value in held.items()}
    expected = {name: tuple(value.shape) for name, value in params.items()}
    if found != expected:
        raise DataError(
            f"Expected weights of shapes {expected}, found {found}. Build the model as it was when "
            "its training began."
        )
    with torch.no_grad():
        for name, value in held.items():
            params[name].copy_(value)


def save_tensors(tensors: Params, file: Path) -> None:
    """Write tensors, or say in our words why it cannot be."""
    try:
        save_file(tensors, file)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"Expected to write {file}, found: {error}. Check the space on the disk, and that the "
            "folder can be written to; nothing was overwritten."
        ) from error


def load_result(folder: str | Path) -> Result:
    """Read a saved result; nothing in it is executed."""
    held = read_json(folder, RESULT_FILE)
    file, weights = Path(folder) / RESULT_FILE, Path(folder) / WEIGHTS_FILE
    found = held.get("format") if isinstance(held, dict) else None
    if found != FORMAT:
        raise of_another_format(f"a result of format {FORMAT}", file, found)
    try:
        tensors = load_file(weights)
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"Expected weights in {weights}, found {_why(error)}. {RESTORE}") from error
    try:
        return _result_of(held, tensors)
    except UnsoundError as error:
        raise DataError(
            f"Expected {error.expected} in {file}, found {error.found}. {RESTORE}"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"Expected the entries of a saved result in {file}, found others. {RESTORE}"
        ) from error


def read_json(folder: str | Path, name: str) -> Any:
    """The content of a file of a saved model; an error names the file and says how to mend it."""
    try:
        file = Path(folder) / name
        return parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        there, cure = "no such folder", "Check the path."
        if file.parent.exists():
            there, cure = "no such file", CHECK_OR_RESTORE
        raise DataError(f"Expected a saved model with {file}, found {there}. {cure}") from error
    except (OSError, ValueError) as error:  # our own errors, encodings, names with a NUL byte
        raise DataError(
            f"Expected JSON in {folder}/{name}, found {_why(error)}. {RESTORE}"
        ) from error


def of_another_format(expected: str, file: Path, found: Any) -> DataError:
    """What is said about a file of another version, or of another program."""
    if found is None:
        return DataError(
            f"Expected {expected} in {file}, found a file of something else. {CHECK_OR_RESTORE}"
        )
    return DataError(
        f"Expected {expected} in {file}, found format {found!r}. Read it with the version of "
        "adadps that wrote it."
    )


def _why(error: Exception) -> str:
    """Why a file cannot be read, in a few words."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, NotADirectoryError | IsADirectoryError | PermissionError):
        return "something that cannot be read as a file"
    return "something else: it is damaged, or of another program"


def _result_of(held: dict[str, Any], tensors: Params) -> Result:
    require_sound(held)
    privacy = dict(held["privacy"])
    for name in ("epsilon", "clip_norm"):
        privacy[name] = math.inf if privacy[name] is None else privacy[name]
    for name in ("not_private_because", "assumed_public", "measured"):
        privacy[name] = tuple(privacy.get(name, ()))
    if privacy.get("charges") is not None:
        privacy["charges"] = tuple(privacy["charges"])
    feature_weights = tensors.pop(FEATURE_WEIGHTS, None)
    return Result(
        privacy=PrivacyStatement(**privacy),
        method=held["method"],
        side_information=tuple(held["side_information"]),
        settings=held["settings"],
        history=tuple(Measurement(**_with_nan(entry)) for entry in held["history"]),
        params=tensors,
        feature_weights=feature_weights,
        debug=tuple(held["debug"]),
        public_facts=held.get("public_facts", {}),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _with_nan(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "value": math.nan if entry["value"] is None else entry["value"]}
