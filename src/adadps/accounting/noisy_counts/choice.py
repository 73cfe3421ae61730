"""What a choice among few candidates costs: short private trainings, and one count for each.

Every candidate is trained for a few steps, each on a batch that is drawn afresh, and then scored by
the number of units that it gets right. A unit adds at most 1 to each of k counts, so that it moves
them together by at most √k in L2; they are released once, with Gaussian noise of standard deviation
s = σ √k and without any amplification. The steps of all trials and the counts are charged before
the first batch is drawn. Both, and the run that follows, are fixed beforehand whichever candidate
wins, so that PLD may compose them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting import DpEvent, GaussianDpEvent

from adadps.accounting.contract import histogram_divisor
from adadps.accounting.epsilon import Budget, calibrate_noise, epsilon_of, smallest_noise
from adadps.accounting.samplers import Sampler
from adadps.errors import SettingError
from adadps.types import Accountant, Relation

MOST_CANDIDATES = 3
SHARE, SHARE_OF_COUNTS = 0.2, 0.1
"""The shares of epsilon, as if nothing else were released: of the whole choice, and of its counts
alone. Training gets the rest."""
STEPS = 100
"""The steps of each trial."""
VISIBLE, CLEARLY = 0.05, 2.0
"""A lead of this share of all units must be `CLEARLY` times as large as the noise of a difference
between two counts, or nothing is tried."""


@dataclass(frozen=True)
class ChoicePrice:
    """The noise of the trials and of their counts, and what a ledger is charged for both."""

    candidates: int
    sampler: Sampler
    steps: int
    trial_noise: float
    noise_multiplier: float
    accountant: Accountant
    alone: float
    """The epsilon for which the noise was found: the choice by itself costs no more."""

    @property
    def relation(self) -> Relation:
        """Return which data sets are neighbours."""
        return self.sampler.relation

    @property
    def deviation(self) -> float:
        """s, the standard deviation of the noise on every count."""
        return self.noise_multiplier * math.sqrt(self.candidates)

    @property
    def clear_lead(self) -> float:
        """By how many units a count must be ahead of another to be clearly the larger one."""
        return CLEARLY * math.sqrt(2) * self.deviation

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """What is charged: all steps of all trials, and the release of the counts."""
        trials = self.sampler.run_event(
            self.trial_noise, self.candidates * self.steps, self.accountant, self.sampler.alone
        )
        return trials, _counts(self.noise_multiplier, self.relation, self.accountant)

    def in_words(self) -> str:
        """Describe the price for people."""
        return (
            f"{self.candidates} trials of {self.steps} private steps with noise multiplier "
            f"{self.trial_noise:g}, and one Gaussian release of how many {self.sampler.unit.value}s"
            f" each gets right, with noise of standard deviation {self.deviation:.4g} (alone they "
            f"would cost ε = {self.alone:.3g}; they are composed with the training)"
        )


def price_of_choice(
    candidates: int, sampler: Sampler, *, budget: Budget, accountant: Accountant
) -> ChoicePrice:
    """Return the price of a choice from this budget; all of it follows from public numbers.

    It is refused, before anything is trained, if the noise would hide every lead.
    """
    if not 2 <= candidates <= MOST_CANDIDATES:
        raise SettingError(
            f"Expected two or {MOST_CANDIDATES} candidates for a paid choice, found {candidates}. "
            "Every further one makes all of them less visible: leave some out."
        )

    def spent(noise_multiplier: float) -> float:
        event = _counts(noise_multiplier, sampler.relation, accountant)
        return epsilon_of(
            event, delta=budget.delta, accountant=accountant, relation=sampler.relation
        )

    of_counts = smallest_noise(spent, SHARE_OF_COUNTS * budget.epsilon)
    of_trials = calibrate_noise(
        sampler,
        candidates * STEPS,
        budget=Budget(SHARE * budget.epsilon, budget.delta),
        accountant=accountant,
        besides=(_counts(of_counts, sampler.relation, accountant),),
    )
    price = ChoicePrice(
        candidates, sampler, STEPS, of_trials, of_counts, accountant, SHARE * budget.epsilon
    )
    units, least = sampler.examples, math.ceil(price.clear_lead / VISIBLE)
    if units < least:
        raise SettingError(
            f"Expected at least {least} {sampler.unit.value}s for a paid choice among {candidates} "
            f"candidates at epsilon = {budget.epsilon:g}, found {units}: the noise would hide "
            f"every lead below {100 * VISIBLE:g} points. Nothing was trained or spent. Leave the "
            "choice to the rule, or allow more epsilon."
        )
    return price


def _counts(noise_multiplier: float, relation: Relation, accountant: Accountant) -> DpEvent:
    return GaussianDpEvent(noise_multiplier / histogram_divisor(relation, accountant))
