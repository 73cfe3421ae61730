"""Plan a run before any data is read: epsilon, the noise multiplier, or the number of steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from adadps.accounting.contract import Grouping, Sampling, require_unit
from adadps.accounting.epsilon import Budget, calibrate_noise, calibrate_steps, epsilon_of
from adadps.accounting.events import default_delta, require_delta, require_small_delta
from adadps.accounting.groups import Groups
from adadps.accounting.samplers import SAMPLERS, declared_units
from adadps.errors import BudgetError, SettingError, require, require_positive
from adadps.types import Accountant, Relation


@dataclass(frozen=True)
class PrivacyPlan:
    """The numbers of a planned run; ``examples`` counts the units, which may be users."""

    epsilon: float
    delta: float
    noise_multiplier: float
    steps: int
    epochs: float
    examples: int
    batch_size: float
    sampling: str
    relation: str
    accountant: str
    group_size: int
    grouping: str
    unit: str

    def describe(self) -> dict[str, Any]:
        """Return the plan, ready for JSON."""
        counted = {"examples": f"{self.unit}s"}
        return {counted.get(name, name): value for name, value in asdict(self).items()}


def make_plan(
    *,
    examples: int | None = None,
    users: int | None = None,
    batch_size: float,
    steps: int | None = None,
    epochs: float | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    accountant: Accountant | None = None,
    sampling: Sampling = Sampling.POISSON,
    relation: Relation | None = None,
    groups: Groups | None = None,
) -> PrivacyPlan:
    """Compute the one of steps, epsilon and noise multiplier that is missing.

    Give the number of ``examples``, or of ``users`` if users are protected: then ``batch_size`` is
    also a number of users. The number of rows per user does not change epsilon.

    >>> plan = make_plan(examples=25_000, batch_size=64, epochs=32, noise_multiplier=1.0,
    ...                  delta=1 / 50_000, accountant=Accountant.RDP)
    >>> plan.steps, round(plan.epsilon, 2)
    (12500, 1.59)
    """
    _require_one_missing(steps, epochs, epsilon, noise_multiplier)
    count, unit = declared_units(examples, users)
    sampler = SAMPLERS[sampling](
        examples=count,
        expected_size=batch_size,
        relation=relation or _default_relation(sampling, groups),
        unit=unit,
    )
    grouping = groups.grouping if groups else sampler.alone
    require_unit(unit, grouping)
    chosen = accountant or sampler.accountants(grouping)[0]
    units = groups.units_of(sampler) if groups else sampler
    delta = default_delta(count) if delta is None else delta
    require_delta(delta)
    require_small_delta(delta, count, unit, warn=True)
    if noise_multiplier is not None:
        require_positive("noise_multiplier", noise_multiplier)
    if steps is not None:
        require(steps >= 1, "steps >= 1", steps, "Train for at least one step.")
    elif epochs is not None:
        steps = sampler.steps(epochs)

    if epsilon is not None:
        budget = Budget(epsilon, delta)
        if noise_multiplier is None:
            assert steps is not None
            noise_multiplier = calibrate_noise(
                units, steps, budget=budget, accountant=chosen, grouping=grouping
            )
        else:
            steps = calibrate_steps(
                units, noise_multiplier, budget=budget, accountant=chosen, grouping=grouping
            )
            if steps == 0:
                raise BudgetError(
                    f"Expected a budget for at least one step, found epsilon = {epsilon:g}, which "
                    "a single step exceeds. Raise epsilon or the noise multiplier."
                )
    assert steps is not None
    assert noise_multiplier is not None
    event = units.run_event(noise_multiplier, steps, chosen, grouping)
    return PrivacyPlan(
        epsilon=epsilon_of(event, delta=delta, accountant=chosen, relation=sampler.relation),
        delta=delta,
        noise_multiplier=noise_multiplier,
        steps=steps,
        epochs=steps * batch_size / count,
        examples=count,
        batch_size=batch_size,
        sampling=sampling.value,
        relation=sampler.relation.value,
        accountant=chosen.value,
        group_size=groups.size if groups else 1,
        grouping=grouping.value,
        unit=unit.value,
    )


def _default_relation(sampling: Sampling, groups: Groups | None) -> Relation:
    if groups is not None and groups.grouping is Grouping.IN_ADVANCE:
        return Relation.REPLACE_ONE
    return SAMPLERS[sampling].usual_relation


def _require_one_missing(
    steps: int | None,
    epochs: float | None,
    epsilon: float | None,
    noise_multiplier: float | None,
) -> None:
    length = [value for value in (steps, epochs) if value is not None]
    given = [value for value in (epsilon, noise_multiplier) if value is not None]
    if len(length) + len(given) != 2 or len(length) > 1:
        raise SettingError(
            "Expected two of: a length (steps or epochs, not both), epsilon, noise multiplier; "
            f"found {len(length)} lengths and {len(given)} of the others. Give exactly two; the "
            "third is computed."
        )
