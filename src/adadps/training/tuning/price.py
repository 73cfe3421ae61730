"""What a trial costs, and how much noise a tuning needs to stay within its budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent

from adadps.accounting.contract import Grouping
from adadps.accounting.epsilon import (
    Budget,
    Life,
    epsilon_of,
    grouping_of,
    run_event,
    smallest_noise,
    units_of,
)
from adadps.accounting.events import composed, require_small_delta
from adadps.accounting.samplers import Sampler
from adadps.errors import ContractError, SettingError, require
from adadps.methods.stages.chain import Chain
from adadps.training.tuning.score import Score
from adadps.training.tuning.selection import FixedGrid, PrivateSelection
from adadps.types import Accountant

Value = str | int | float | bool | None
Setting = Mapping[str, Value]
"""One point of the grid: a mapping from names to plain values."""


@dataclass(frozen=True)
class PlannedTrial:
    """A trial of one setting that has not begun.

    ``event`` is the cost of the trial, including its score. ``allowance`` lists the events that
    its run may charge, with their counts. ``reasons`` say why the trial is not private, if it is
    not.
    """

    setting: Setting
    method: Chain
    reasons: tuple[str, ...]
    event: DpEvent
    allowance: tuple[tuple[DpEvent, int], ...]

    @property
    def charged(self) -> DpEvent:
        """The event that is charged to the ledger."""
        return NonPrivateDpEvent() if self.reasons else self.event


def plan_trial(
    setting: Setting,
    method: Chain,
    *,
    sampler: Sampler,
    steps: int,
    accountant: Accountant,
    score: Score,
    mark: str | None,
) -> PlannedTrial:
    """Compute the price of a trial; ``mark`` says why the randomness is not private, if so."""
    units = units_of(method, sampler)
    reasons = (*method.exposures, *([mark] if mark else []))
    charged = units.charged_steps(steps)
    if reasons:
        step: DpEvent = NonPrivateDpEvent()
        charged = steps
    else:
        step = units.step_event(method.release.noise_multiplier, 1, accountant, grouping_of(method))
    side = method.side_events(sampler.relation, accountant)
    return PlannedTrial(
        setting=setting,
        method=method,
        reasons=reasons,
        event=ComposedDpEvent(
            [run_event(method, units, [Life(steps, informed=bool(side))], accountant), score.event]
        ),
        allowance=(*((event, 1) for event in side), (step, charged)),
    )


def calibrate_tuning(
    sampler: Sampler,
    steps: int,
    *,
    selection: FixedGrid | PrivateSelection,
    settings: int,
    budget: Budget,
    accountant: Accountant,
    score: Score | None = None,
    grouping: Grouping | None = None,
) -> float:
    """Return the smallest noise multiplier (to 1e-4) with which the whole tuning fits the budget.

    All ``settings`` get the same noise. The price of a private ``score`` is part of each trial.

    >>> from adadps.accounting.samplers import poisson
    >>> from adadps.training.tuning import fixed_grid, private_selection
    >>> terms = {"settings": 8, "budget": Budget(epsilon=2.0, delta=1e-5),
    ...          "accountant": Accountant.RDP}
    >>> sampler = poisson(examples=10_000, expected_size=100)
    >>> calibrate_tuning(sampler, 500, selection=fixed_grid(), **terms)
    1.552
    >>> chosen = private_selection(mean_trials=16, shape=1)
    >>> calibrate_tuning(sampler, 500, selection=chosen, **terms)
    1.3367
    """
    require(settings >= 1, "settings >= 1", settings, "Count the settings of the grid.")
    (chosen,) = selection.accountants((accountant,))
    grouping = grouping or sampler.alone
    require_small_delta(budget.delta, sampler.examples, sampler.unit)

    def spent(noise_multiplier: float) -> float:
        parts = [sampler.run_event(noise_multiplier, steps, chosen, grouping)]
        parts += [score.event] if score is not None else []
        charges = selection.charges([ComposedDpEvent(parts)] * settings, sampler.relation)
        return epsilon_of(
            composed(charges), delta=budget.delta, accountant=chosen, relation=sampler.relation
        )

    start = 1.0
    if chosen is Accountant.PLD:  # RDP is fast and slightly higher: a good start
        with suppress(ContractError, SettingError):
            start = calibrate_tuning(
                sampler,
                steps,
                selection=selection,
                settings=settings,
                budget=budget,
                accountant=Accountant.RDP,
                score=score,
                grouping=grouping,
            )
    return smallest_noise(spent, budget.epsilon, start)


def settings_of(grid: Sequence[Setting] | Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Return a list of settings unchanged, or every combination of lists of values by name.

    >>> settings_of({"lr": [0.1, 1.0], "clip_norm": [0.5]})
    [{'lr': 0.1, 'clip_norm': 0.5}, {'lr': 1.0, 'clip_norm': 0.5}]
    """
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Sequence):
                raise _refusal(f"{name} = {values!r} instead of a list of values")
        combined = product(*grid.values())
        settings: list[Setting] = [dict(zip(grid, values, strict=True)) for values in combined]
    else:
        settings = [_checked_mapping(setting) for setting in grid]
    if not settings or (isinstance(grid, Mapping) and not grid):
        raise _refusal("none")
    for setting in settings:
        for name, value in setting.items():
            if not isinstance(name, str) or not _is_plain(value):
                raise _refusal(f"{name} = {value!r}")
    return settings


def _checked_mapping(setting: Any) -> Setting:
    if not isinstance(setting, Mapping):
        raise _refusal(repr(setting))
    return dict(setting)


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def _refusal(found: str) -> SettingError:
    return SettingError(
        "Expected settings that map names to strings, finite numbers, True, False or None, since "
        f"the result records them; found {found}. Describe each setting by plain values, and let "
        "`make` build everything else from them."
    )
