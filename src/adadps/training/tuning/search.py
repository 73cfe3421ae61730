"""`tune`: check that all trials fit the budget, run them, and keep the best."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import torch
from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, epsilon_of, unit_of
from adadps.accounting.events import composed, default_delta, require_delta, require_small_delta
from adadps.accounting.ledger import Ledger, RunFacts
from adadps.accounting.samplers import Sampler
from adadps.data.examples import Examples
from adadps.data.provenance import declared
from adadps.engine.losses import Loss
from adadps.engine.noise.randomness import Randomness, secure
from adadps.errors import BudgetError, ContractError, NoTrialError
from adadps.training.describe import sampling_of, side_information_of
from adadps.training.evaluation import Evaluation
from adadps.training.payment import ledger_for
from adadps.training.processes import require_alone
from adadps.training.progress import progress_bar
from adadps.training.tuning.outcome import TuningResult
from adadps.training.tuning.price import PlannedTrial, Setting, settings_of
from adadps.training.tuning.score import Score, looked_at
from adadps.training.tuning.selection import FixedGrid, PrivateSelection
from adadps.training.tuning.trial import Finished, Make, Trials
from adadps.types import Accountant

Table = list[dict[str, Any]]


class TuneOptions(TypedDict, total=False):
    """The options of a tuning that have defaults."""

    delta: float | None
    accountant: Accountant | None
    budget: Budget | None
    ledger: Ledger | None
    randomness: Randomness | None
    physical_batch_size: int | None
    assumed_public: Iterable[str]


def tune(
    make: Make,
    loss: Loss,
    data: Examples,
    *,
    grid: Sequence[Setting] | Mapping[str, Sequence[Any]],
    score: Score,
    selection: FixedGrid | PrivateSelection,
    sampler: Sampler,
    steps: int | None = None,
    epochs: float | None = None,
    evaluate: Sequence[Evaluation] = (),
    progress: bool | None = None,
    **options: Unpack[TuneOptions],
) -> TuningResult:
    """Train with several settings, keep the best, and report what all trials cost together.

    ``make(setting)`` returns a new model and a method. ``grid`` is a list of settings, or lists of
    values by name, all combinations of which are settings. ``selection`` is `fixed_grid()` or
    `private_selection(...)`; the latter reveals neither the other trials nor their number. A
    total that does not fit the budget is refused with a `BudgetError` before anything is drawn.

    >>> from torch import nn
    >>> from adadps import accuracy, dp_sgd, examples, on_public, poisson, privatize
    >>> from adadps.engine.losses import cross_entropy
    >>> from adadps.training.tuning import fixed_grid, highest
    >>> features, labels = torch.randn(150, 3), torch.arange(150) % 2
    >>> def make(setting):
    ...     noise = privatize(clip_norm=1.0, noise_multiplier=5.0)
    ...     return nn.Linear(3, 2), dp_sgd(noise, lr=setting["lr"])
    >>> pilot = on_public("pilot", features[100:], labels[100:], accuracy=accuracy)
    >>> data = examples(features[:100], labels[:100])
    >>> found = tune(make, cross_entropy, data, grid={"lr": [0.1, 1.0]},
    ...              score=highest(pilot, "accuracy"), selection=fixed_grid(), steps=10,
    ...              sampler=poisson(examples=100, expected_size=10))
    >>> found.privacy.tuning_trials, found.trial_epsilon < found.privacy.epsilon
    (2, True)
    """
    require_alone("tuning")
    unknown = options.keys() - TuneOptions.__annotations__.keys()
    if unknown:
        raise ContractError(
            f"Expected options of `tune`, found {', '.join(sorted(unknown))}. Known: "
            f"{', '.join(sorted(TuneOptions.__annotations__))}."
        )
    if (steps is None) == (epochs is None):
        raise ContractError("Expected either steps or epochs, found both or neither. Give one.")
    if progress and isinstance(selection, PrivateSelection):
        raise ContractError(
            "Expected no progress bar under private selection, found progress=True. The number of "
            "trials must stay secret: leave `progress` out."
        )
    if options.get("ledger") is not None and options.get("budget") is not None:
        raise ContractError(
            "Expected a ledger or a budget, found both. A ledger carries its own budget."
        )
    ledger = ledger_for(options.get("ledger"), options.get("budget"), None)
    trials = Trials(
        make=make,
        loss=loss,
        data=data,
        score=score,
        sampler=sampler,
        steps=steps if steps is not None else sampler.steps(epochs or 0),
        evaluate=tuple(evaluate),
        delta=_delta(options.get("delta"), ledger.budget, sampler),
        randomness=options.get("randomness") or secure(),
        physical_batch_size=options.get("physical_batch_size"),
        assumed_public=declared(options.get("assumed_public", ())),
    )
    plan = _plan(trials, settings_of(grid), selection, ledger, options.get("accountant"))
    plan.open(ledger)
    table: Table | None = None
    if isinstance(selection, PrivateSelection):
        best = _select(plan, selection, ledger)
    else:
        best, table = _try_all(plan, ledger, progress)
    return _outcome(plan, best, table)


@dataclass(frozen=True)
class _Plan:
    """Everything that is fixed before anything is drawn."""

    trials: Trials
    settings: tuple[PlannedTrial, ...]
    selection: FixedGrid | PrivateSelection
    accountant: Accountant
    mechanism: DpEvent
    charges: tuple[tuple[DpEvent, int], ...]
    name: str

    def epsilon(self, event: DpEvent, delta: float) -> float:
        return epsilon_of(
            event,
            delta=delta,
            accountant=self.accountant,
            relation=self.trials.sampler.relation,
        )

    def open(self, ledger: Ledger) -> None:
        """Open the tuning on the ledger if there is room for everything; otherwise refuse."""
        total, budget = composed(self.charges), ledger.budget
        if budget is not None:
            cost = self.epsilon(total, budget.delta)
            if cost > budget.epsilon:
                raise self._refusal(budget, f"a total of {cost:.4g}")
        ledger.open(self.name, self.trials.sampler.relation, self.accountant, self._facts())
        if budget is not None and ledger.room(total, 1) == 0:
            spent = ledger.epsilon(budget.delta)
            raise self._refusal(budget, f"{spent:.4g} already spent and a plan that does not fit")

    def _refusal(self, budget: Budget, found: str) -> BudgetError:
        reasons = "; ".join(dict.fromkeys(why for one in self.settings for why in one.reasons))
        return BudgetError(
            f"Expected a tuning of {len(self.settings)} settings within epsilon = "
            f"{budget.epsilon:g} at delta = {budget.delta:g}, found {found}"
            f"{f' ({reasons})' if reasons else ''}. Nothing was drawn. Try fewer settings, fewer "
            "steps or more noise: `calibrate_tuning` computes how much is needed."
        )

    def _facts(self) -> RunFacts:
        methods = [one.method for one in self.settings]
        chains = dict.fromkeys(str(method) for method in methods)
        side = {str(known): known for method in methods for known in side_information_of(method)}
        return RunFacts(
            unit=unit_of(methods[0]),
            sampler={**sampling_of(methods[0], self.trials.sampler), "steps": self.trials.steps},
            chain=f"{self.selection.trials(len(methods))}: {' | '.join(chains)}",
            side_information=tuple(side.values()),
            planned_steps=sum(count for _, count in self.charges),
        )


def _plan(
    trials: Trials,
    settings: list[Setting],
    selection: FixedGrid | PrivateSelection,
    ledger: Ledger,
    wanted: Accountant | None,
) -> _Plan:
    methods = trials.methods(settings)
    fitting = trials.accountants(methods)
    allowed = selection.accountants([one for one in fitting if wanted in (None, one)] or fitting)
    accountant = wanted or ledger.choose_accountant(allowed)
    planned = tuple(
        trials.plan(setting, method, accountant)
        for setting, method in zip(settings, methods, strict=True)
    )
    relation = trials.sampler.relation
    return _Plan(
        trials=trials,
        settings=planned,
        selection=selection,
        accountant=accountant,
        mechanism=composed(selection.charges([one.event for one in planned], relation)),
        charges=tuple(selection.charges([one.charged for one in planned], relation)),
        name=f"tuning {secrets.token_hex(8)}",
    )


def _try_all(plan: _Plan, ledger: Ledger, progress: bool | None) -> tuple[Finished, Table]:
    """Run every trial once; each is paid for before it begins."""
    best: Finished | None = None
    table: Table = []
    with progress_bar(len(plan.settings), progress, label="tuning") as bar:
        for index, trial in enumerate(plan.settings):
            ahead = [one.charged for one in plan.settings[index:]]
            left = ahead.count(trial.charged)
            ledger.authorise(trial.charged, run=plan.name, ahead=left)
            finished = plan.trials.perform(trial, plan.accountant)
            table.append({"setting": dict(trial.setting), "score": finished.value})
            best = plan.trials.better(best, finished)
            bar.advance()
    assert best is not None
    return best, table


def _select(plan: _Plan, selection: PrivateSelection, ledger: Ledger) -> Finished:
    """Run a random number of random trials; only the best one is kept or shown."""
    ((charge, _),) = plan.charges
    ledger.authorise(charge, run=plan.name)
    rng = plan.trials.randomness.generator
    best: Finished | None = None
    with torch.random.fork_rng(devices=[]):  # its state would reveal how many models were made
        for _ in range(selection.number.draw(rng)):
            # with known initial weights, the best model would reveal which trial it came from
            torch.manual_seed(int(rng.integers(2**63)))
            trial = plan.settings[int(rng.integers(len(plan.settings)))]
            best = plan.trials.better(best, plan.trials.perform(trial, plan.accountant))
    if best is None:
        raise NoTrialError(
            f"Expected at least one trial, found that the random number of trials "
            f"({selection.number}) was 0 this time. The charge stands. Tune again, or choose a "
            "finite shape, with which there is always at least one trial."
        )
    return best


def _outcome(plan: _Plan, best: Finished, table: Table | None) -> TuningResult:
    """Return the best trial, with a privacy statement about all trials."""
    own, score, selection = best.result.privacy, plan.trials.score, plan.selection
    total = plan.epsilon(plan.mechanism, plan.trials.delta)
    reasons = tuple(dict.fromkeys(why for one in plan.settings for why in one.reasons))
    shown = [looked_at(one) for one in plan.trials.evaluate if one is not score.evaluation]
    statement = replace(
        own,
        epsilon=math.inf if reasons else total,
        mechanism_epsilon=total if math.isfinite(total) else None,
        tuning_trials=None if table is None else len(table),
        not_private_because=reasons,
        charges=None,  # epsilon is not the price of the charges of one trial
        tuning={
            "selection": selection.name,
            "trials": selection.trials(len(plan.settings)),
            "settings": [dict(one.setting) for one in plan.settings],
            "chosen": dict(best.trial.setting),
            "score": best.value,
            "trial_epsilon": own.epsilon if own.private else None,
            "looked_at": [
                {**score.describe(), "used": "to choose"},
                *({**entry, "used": "shown beside"} for entry in shown),
            ],
            "must_stay_secret": selection.secret,
            "table": table,
        },
    )
    return TuningResult(replace(best.result, privacy=statement))


def _delta(delta: float | None, budget: Budget | None, sampler: Sampler) -> float:
    if delta is None:
        delta = budget.delta if budget is not None else default_delta(sampler.examples)
    require_delta(delta)
    require_small_delta(delta, sampler.examples, sampler.unit, warn=True)
    return delta
