"""How a candidate would be trained on the private data: settings by rule, and the chain.

Clip norm and learning rate come from `adadps.estimators.planner.defaults.choose`, for every
candidate alike. What the rule needs to know, how long rows are where the clip and where the noise
meet them, is measured on public rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adadps.data.examples import Examples, PublicExamples
from adadps.data.provenance import Provenance
from adadps.estimators.doctor.candidates import Candidate, Door, PublicGradients
from adadps.estimators.doctor.case import Case
from adadps.estimators.doctor.scales import inverse_of, norms, weighted_rows
from adadps.estimators.doctor.terms import gradient_norms, moments_at
from adadps.estimators.planner.defaults import Choice, choose, first_gradient
from adadps.methods.paper import adadps, adadps_public, adadps_two_sided, dp_sgd, dp_sgd_weighted
from adadps.methods.side import RMSPropStatistics
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain, privatize
from adadps.methods.stages.gradients import Privatize

PUBLIC_BATCH = 256


@dataclass(frozen=True)
class Plan:
    """A candidate with everything that a private run of it needs."""

    candidate: Candidate
    choice: Choice
    row_norm: float

    def method(self, public: Examples, *, noise_multiplier: float | None = None) -> Chain:
        """The chain for a private run; ``public`` are examples for those who read gradients.

        ``noise_multiplier`` is the planned one unless a simulation says otherwise.
        """
        sigma = self.choice.noise_multiplier if noise_multiplier is None else noise_multiplier
        privacy = privatize(clip_norm=self.choice.clip_norm, noise_multiplier=sigma)
        side, lr = self.candidate.side, self.choice.lr
        if side is None:
            return dp_sgd(privacy, lr=lr)
        if isinstance(side, PublicGradients):
            statistics = RMSPropStatistics(
                decay=side.decay, epsilon=side.floor * self.row_norm, debias=True
            )
            return adadps_public(_declared_public(public), statistics, privacy, lr=lr)
        return _by_door(self.candidate.door, side, privacy, lr)


def plan_for(case: Case, candidate: Candidate, *, noise_multiplier: float | None = None) -> Plan:
    """Settings by the rule, from declared numbers and public rows.

    A ``noise_multiplier`` that is known already, it is the same for all candidates, saves time.
    """
    row_norm = float(np.median(norms(case.rows)))
    clipped, noised = _norms_met(case, candidate, row_norm)
    choice = choose(
        examples=case.examples,
        budget=case.budget,
        gradient_norm=first_gradient(case.classes),
        clipped_norm=clipped,
        noised_norm=noised,
        batch_size=case.batch_size,
        steps=case.steps,
        noise_multiplier=noise_multiplier,
    )
    return Plan(candidate, choice, row_norm)


def _norms_met(case: Case, candidate: Candidate, row_norm: float) -> tuple[float, float]:
    """Typical norms of a row as the clip meets it, and as the noise does."""
    if isinstance(candidate.side, PublicGradients):
        start = moments_at(np.zeros((case.classes, case.features)), case.rows, case.labels)
        batch = min(PUBLIC_BATCH, len(case))
        A = np.sqrt(start.of_batches(batch)) + candidate.side.floor * row_norm
        lengths = gradient_norms(start.residuals, case.rows, 1 / A)
        return float(np.median(lengths)) / first_gradient(case.classes), row_norm
    if candidate.door is Door.BEFORE:
        inverse = np.broadcast_to(inverse_of(candidate, case), (case.classes, case.features))
        residuals = np.full((len(case), case.classes), case.classes**-0.5)
        return float(np.median(gradient_norms(residuals, case.rows, inverse))), row_norm
    length = float(np.median(norms(weighted_rows(case, candidate))))
    return length, length


def _by_door(door: Door, side: Fixed, privacy: Privatize, lr: float) -> Chain:
    if door is Door.BOTH:
        return adadps_two_sided(side, side, privacy, lr=lr)
    if door is Door.FEATURES:
        return dp_sgd_weighted(side, privacy, lr=lr)
    return adadps(side, privacy, lr=lr)


def _declared_public(public: Examples) -> PublicExamples:
    origin = Provenance("the doctor's public examples", "given to the doctor as public")
    return PublicExamples(public, origin, min(PUBLIC_BATCH, len(public)))
