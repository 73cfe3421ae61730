"""Trials of a tuning: what they share, how they are checked before payment, and how they run."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from dp_accounting import DpEvent
from torch import Tensor, nn

from adadps.accounting.epsilon import grouping_of, unit_of
from adadps.accounting.events import is_free
from adadps.accounting.ledger import MemoryLedger
from adadps.accounting.samplers import Sampler
from adadps.data.examples import Examples
from adadps.data.fields import Features, Fields
from adadps.data.sparse_rows import SparseRows
from adadps.engine.losses import Loss
from adadps.engine.noise.randomness import Randomness
from adadps.engine.passes.validation import objective
from adadps.errors import BudgetError, ContractError, DataError, OrderError
from adadps.methods.stages.chain import Chain
from adadps.report.result import Result
from adadps.training.calibration import require_parts
from adadps.training.evaluation import Evaluation
from adadps.training.fit import fit
from adadps.training.tuning.price import PlannedTrial, Setting, plan_trial
from adadps.training.tuning.score import Score, tolerant
from adadps.types import Accountant, Unit

Make = Callable[[dict[str, Any]], tuple[nn.Module, Chain]]
"""make(setting) returns a new model and the method to train it; it depends on nothing else."""


@dataclass(frozen=True)
class Finished:
    """A trial that has been trained and scored; the value is None if the model diverged."""

    trial: PlannedTrial
    result: Result
    value: float | None


class FreshModels:
    """Remembers the trainable weights of earlier models for as long as they are in use.

    >>> layer = nn.Linear(2, 1)
    >>> models = FreshModels()
    >>> models.require_fresh(layer)
    >>> models.require_fresh(nn.Linear(2, 1))
    >>> models.require_fresh(nn.Sequential(layer))
    Traceback (most recent call last):
    adadps.errors.ContractError: Expected a new model for every trial, found weights ...
    """

    def __init__(self) -> None:
        self._seen: list[weakref.ref[Tensor]] = []

    def require_fresh(self, model: nn.Module) -> None:
        """Refuse a model that shares trainable weights with an earlier one."""
        self._seen = [held for held in self._seen if held() is not None]
        known = {_place(tensor) for held in self._seen if (tensor := held()) is not None}
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        if any(_place(weight) in known for weight in trained if weight.numel()):
            raise ContractError(
                "Expected a new model for every trial, found weights of an earlier one: one trial "
                "would continue another. Build the model inside `make`, or copy it there."
            )
        self._seen += [weakref.ref(weight) for weight in trained]


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What all trials of a tuning have in common."""

    make: Make
    loss: Loss
    data: Examples
    score: Score
    sampler: Sampler
    steps: int
    evaluate: tuple[Evaluation, ...]
    delta: float
    randomness: Randomness
    physical_batch_size: int | None
    assumed_public: tuple[str, ...]
    models: FreshModels = field(default_factory=FreshModels)

    def methods(self, settings: list[Setting]) -> list[Chain]:
        """Return the method of every setting; refuse what cannot be trained or scored.

        `make` is called twice with the same seed, and must return the same model and method both
        times. If a model continues from the previous one, or depends on the number of calls, the
        trials are not independent.
        """
        methods = []
        with torch.random.fork_rng(devices=[]):
            for setting in settings:
                torch.manual_seed(0)
                model, method = self._made(setting)
                torch.manual_seed(0)
                again, same_method = self._made(setting)
                if str(method) != str(same_method) or not _same_weights(model, again):
                    raise ContractError(
                        "Expected `make` to depend only on the setting and on torch's generator, "
                        "found another model or method on its second call. Build a new model in "
                        "`make`, and draw its weights with torch. Nothing was paid."
                    )
                if method.is_open:
                    raise OrderError(
                        "Expected a clip norm and a noise multiplier in every setting, found "
                        f"{method.release}. Give both to `privatize(...)`; `calibrate_tuning` "
                        "finds the noise for a budget. Nothing was paid."
                    )
                require_parts(method, self.data)
                self._require_trainable(model)
                methods.append(method)
        self._require_one_unit(methods)
        return methods

    def _require_one_unit(self, methods: list[Chain]) -> None:
        """Refuse mixed units: one total for all trials is a claim about one kind of unit."""
        units = list(dict.fromkeys(unit_of(method) for method in methods))
        if len(units) > 1:
            raise ContractError(
                f"Expected settings that all protect the same unit, found {', '.join(units)}. Tune "
                "them separately. Nothing was paid."
            )
        if units != [Unit.EXAMPLE.value] and not is_free(self.score.event):
            raise ContractError(
                f"Expected a score on public or held-out data where the unit is a {units[0]}, "
                "found one whose price is for a single example. Use `highest` or `lowest`. Nothing "
                "was paid."
            )

    def accountants(self, methods: list[Chain]) -> list[Accountant]:
        """Return the accountants that can price all methods, the preferred one first."""
        each = [self.sampler.accountants(grouping_of(method)) for method in methods]
        return [one for one in each[0] if all(one in fitting for fitting in each)]

    def plan(self, setting: Setting, method: Chain, accountant: Accountant) -> PlannedTrial:
        """Compute the price of a trial."""
        return plan_trial(
            setting,
            method,
            sampler=self.sampler,
            steps=self.steps,
            accountant=accountant,
            score=self.score,
            mark=self.randomness.mark,
        )

    def perform(self, trial: PlannedTrial, accountant: Accountant) -> Finished:
        """Train and score a trial that is paid for."""
        model, method = self._made(trial.setting)
        again = self.plan(trial.setting, method, accountant)
        planned = (repr(trial.event), trial.reasons, str(trial.method))
        if (repr(again.event), again.reasons, str(method)) != planned:
            raise ContractError(
                "Expected `make` to return the same method for the same setting, found another "
                "one. Let it depend only on the setting."
            )
        result = fit(
            model,
            self.loss,
            self.data,
            method=method,
            sampler=self.sampler,
            steps=self.steps,
            evaluate=[tolerant(one) for one in self.evaluations()],
            progress=False,
            settings=dict(trial.setting),
            delta=self.delta,
            accountant=accountant,
            ledger=PrepaidLedger(trial.allowance),
            randomness=self.randomness,
            physical_batch_size=self.physical_batch_size,
            assumed_public=self.assumed_public,
        )
        value = self.score.value(result, model, self.randomness)
        return Finished(trial, result, value if math.isfinite(value) else None)

    def better(self, best: Finished | None, other: Finished) -> Finished:
        """Return the better of two trials, or the first if they tie; a diverged one is worst."""
        return other if best is None or self._rank(other) > self._rank(best) else best

    def evaluations(self) -> list[Evaluation]:
        """Return the evaluations made in every trial; the one that decides comes last."""
        others = [one for one in self.evaluate if one is not self.score.evaluation]
        return [*others, *([self.score.evaluation] if self.score.evaluation else [])]

    def _rank(self, finished: Finished) -> float:
        return -math.inf if finished.value is None else self.score.sign * finished.value

    def _made(self, setting: Setting) -> tuple[nn.Module, Chain]:
        made: Any = self.make(dict(setting))
        is_pair = isinstance(made, tuple) and len(made) == 2
        if not (is_pair and isinstance(made[0], nn.Module) and isinstance(made[1], Chain)):
            raise ContractError(
                "Expected `make` to return a model and a method, found "
                f"{type(made).__qualname__}. Return e.g. `(nn.Linear(9, 2), dp_sgd(...))`."
            )
        self.models.require_fresh(made[0])
        return made[0], made[1]

    def _require_trainable(self, model: nn.Module) -> None:
        held = objective(model, self.loss, self.data)
        for looked in (self.score.examples, *(one.examples for one in self.evaluate)):
            try:
                outputs = held.outputs(held.params(), _a_row_like(looked.features))
            except (IndexError, RuntimeError) as error:
                raise DataError(
                    "Expected evaluation data that fits the model, found some that it refuses: "
                    f"{error}. Prepare it like the training data. Nothing was paid."
                ) from error
            if looked is self.score.examples and self.score.evaluation is None:
                _require_one_answer(outputs)


def _a_row_like(features: Features) -> Features:
    """Return a row of zeros of this form: data behind a private score is not read unpaid."""
    if isinstance(features, SparseRows):
        none = torch.zeros(2, dtype=torch.int64)
        return SparseRows(none, none[:0], torch.zeros(0), features.width)
    if isinstance(features, Fields):
        return features.each(lambda tensor: tensor.new_zeros(1, *tensor.shape[1:]))
    return torch.zeros((1, *features.shape[1:]), dtype=features.dtype, device=features.device)


def _require_one_answer(outputs: Tensor) -> None:
    if outputs.ndim != 2:
        raise DataError(
            "Expected one row of scores per example for a private accuracy, found outputs of shape "
            f"{tuple(outputs.shape)} for one example. Nothing was paid."
        )


def _same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=False)
    same = one.state_dict().keys() == other.state_dict().keys()
    return same and all(torch.equal(a, b) for a, b in pairs)


def _place(tensor: Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


class PrepaidLedger(MemoryLedger):
    """Authorises the events that were paid for, as often as they were paid, and no others.

    >>> from dp_accounting import GaussianDpEvent
    >>> from adadps.types import Accountant, Relation
    >>> ledger = PrepaidLedger([(GaussianDpEvent(2.0), 1)])
    >>> ledger.open("trial", Relation.ADD_OR_REMOVE_ONE, Accountant.RDP)
    >>> ledger.authorise(GaussianDpEvent(2.0))
    >>> ledger.authorise(GaussianDpEvent(2.0))
    Traceback (most recent call last):
    adadps.errors.BudgetError: Expected a charge that the tuning has paid for, found ...
    """

    def __init__(self, allowance: Sequence[tuple[DpEvent, int]]) -> None:
        super().__init__()
        self._allowed: dict[str, int] = {}
        for event, count in allowance:
            self._allowed[repr(event)] = self._allowed.get(repr(event), 0) + count

    def authorise(
        self, event: DpEvent, *, run: str | None = None, ahead: int = 1, at_once: int = 1
    ) -> None:
        """Authorise ``event`` if it was paid for and not used yet."""
        if not is_free(event):
            left = self._allowed.get(repr(event), 0)
            if left == 0:
                raise BudgetError(
                    f"Expected a charge that the tuning has paid for, found an extra {event}. "
                    "Let `make` depend only on its setting, and do not extend a trial."
                )
            self._allowed[repr(event)] = left - 1
        super().authorise(event, run=run, ahead=ahead, at_once=at_once)
