"""The result of a run: weights, metrics, and its privacy statement."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from adadps.data.examples import as_features
from adadps.engine.objective import predict
from adadps.errors import DataError
from adadps.files import new_folder
from adadps.report.card import card_of, write_card
from adadps.report.card.rendering import digits
from adadps.tensors.sums import Params

FORMAT = 1
RESULT_FILE, WEIGHTS_FILE = "result.json", "weights.safetensors"
FEATURE_WEIGHTS = "adadps.feature_weights"
WHOLE_BUDGET_CLAIM = (
    "epsilon is the whole budget of the ledger, because other runs were charged to it before this "
    "one; it holds with 2 delta, if one was begun after looking at another"
)


@dataclass(frozen=True)
class Measurement:
    """One metric on data that is declared public or held out."""

    step: int
    epoch: float
    data: str
    declared: str
    metric: str
    value: float


@dataclass(frozen=True)
class PrivacyStatement:
    """What may be claimed about the privacy of a run.

    ``epsilon`` is infinite if there is any reason against it in ``not_private_because``;
    ``mechanism_epsilon`` is the epsilon of the mechanism alone, and None where it is not finite.
    ``tuning_trials`` is the number of settings that were tried on private data; their cost is part
    of epsilon only where ``tuning`` records the trials (`adadps.tune`).
    ``steps_paid`` is the number of steps that epsilon pays for: more than ``steps`` where a run was
    resumed, and that of the best trial for a tuning.
    ``charges`` are the events that epsilon is composed of, each with its count on the ledger; None
    for a tuning, and in results of versions that did not record them.
    ``claim`` says what epsilon is, where it is not the price of this run.
    ``measured`` lists what was learnt about the private data with noise before the first step, and
    its price: levels, classes and bounds that were not declared.
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
        """Whether epsilon is finite."""
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
    """A finished run. Save it with `save`, and read it back with `load_result`.

    ``public_facts`` is what a report shows besides privacy: the number of parameters, learning
    rates, and the spread of public side information (`adadps.training.describe`).
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
        """Return the last recorded value of ``metric``."""
        for entry in reversed(self.history):
            if entry.metric == metric and data in (None, entry.data):
                return entry.value
        known = sorted({f"{entry.metric} on {entry.data}" for entry in self.history})
        raise DataError(
            f"Expected a recorded metric, found '{metric}'. Recorded: {', '.join(known) or 'none'}."
        )

    def restore(self, model: nn.Module) -> nn.Module:
        """Copy the trained weights into ``model`` and return it."""
        copy_weights(
            self.params, {name: p for name, p in model.named_parameters() if p.requires_grad}
        )
        return model

    def outputs(self, model: nn.Module, features: Any) -> Any:
        """Return the outputs of ``model`` with the trained weights and feature weights."""
        return predict(self.restore(model), as_features(features), self.feature_weights)

    def claiming(self, epsilon: float, *, steps_paid: int | None) -> Result:
        """Return this result with ``epsilon``, the whole budget of a ledger with several runs.

        The price of this run alone is kept in the settings. The charges are dropped: they are not
        what such an epsilon is the price of.
        """
        own = self.privacy
        if not own.private:
            return self
        privacy = replace(
            own,
            epsilon=max(epsilon, own.epsilon),
            steps_paid=steps_paid,
            charges=None,
            claim=WHOLE_BUDGET_CLAIM,
        )
        claim = {"claim": WHOLE_BUDGET_CLAIM, "epsilon_of_this_run": own.epsilon}
        return replace(self, privacy=privacy, settings={**self.settings, **claim})

    def save(self, folder: str | Path) -> Path:
        """Write weights, ``result.json`` and the privacy card into a new folder, all or nothing."""
        target = Path(folder)
        with new_folder(target) as draft:
            self.write_into(draft)
        return target

    def write_into(self, draft: Path) -> None:
        """Write the same files into a folder that is being created under its final name."""
        tensors = {name: value.contiguous().cpu() for name, value in self.params.items()}
        if self.feature_weights is not None:
            tensors[FEATURE_WEIGHTS] = self.feature_weights.contiguous().cpu()
        save_tensors(tensors, draft / WEIGHTS_FILE)
        self.write_statement(draft)

    def write_statement(self, draft: Path) -> None:
        """Write ``result.json`` and the privacy card, but no weights."""
        described = self.describe()
        try:
            text = json.dumps(described, indent=2, allow_nan=False, ensure_ascii=False)
        except TypeError as error:
            raise DataError(
                f"Expected settings of numbers, strings and lists, found: {error}. Use names in "
                "place of objects."
            ) from error
        (draft / RESULT_FILE).write_text(text + "\n", encoding="utf-8")
        write_card(card_of(described), draft)

    def describe(self) -> dict[str, Any]:
        """Return everything but the weights, ready for JSON; infinite numbers become null."""
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
    require_shapes(held, params)
    with torch.no_grad():
        for name, value in held.items():
            params[name].copy_(value)


def require_shapes(held: Params, params: Mapping[str, Tensor]) -> None:
    """Refuse weights of other names or shapes than the parameters."""
    found = {name: tuple(value.shape) for name, value in held.items()}
    expected = {name: tuple(value.shape) for name, value in params.items()}
    if found != expected:
        raise DataError(
            f"Expected weights of shapes {expected}, found {found}. Build the model with the "
            "architecture that was trained."
        )


def save_tensors(tensors: Params, file: Path) -> None:
    """Write tensors to a file, or raise our own error."""
    try:
        save_file(tensors, file)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"Expected to write {file}, found: {error}. Check the free disk space and that the "
            "folder is writable; nothing was overwritten."
        ) from error


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
