"""How a candidate would be trained on the private data.

Settings come from the planner, by the same rule for every candidate. The rule needs typical norms
of rows, as the clip and as the noise see them; these are measured on public rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from adadps.data.examples import Examples, PublicExamples
from adadps.data.provenance import Provenance
from adadps.estimators.doctor.candidates import (
    Candidate,
    PublicGradients,
    inverse_of,
    median_row_norm,
    weighted_rows,
)
from adadps.estimators.doctor.case import Case
from adadps.estimators.doctor.terms import gradient_norms, moments_at
from adadps.estimators.planner.methods import Norms, PreparedMethod, norms_for
from adadps.estimators.planner.plan import (
    GivenSettings,
    PlannedRun,
    Settings,
    choose_settings,
    first_gradient,
)
from adadps.methods.paper import adadps_public
from adadps.methods.side import RMSPropStatistics
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain, privatize
from adadps.types import Method

PUBLIC_BATCH = 256


@dataclass(frozen=True)
class CandidatePlan:
    """A candidate with everything that a private run of it needs."""

    candidate: Candidate
    settings: Settings
    row_norm: float

    def chain(self, public: Examples) -> Chain:
        """Return the chain of the run; ``public`` are examples whose gradients it may read."""
        side, settings = self.candidate.side, self.settings
        if not isinstance(side, PublicGradients):
            return PlannedRun(PreparedMethod(self.candidate.method, side), settings).chain
        statistics = RMSPropStatistics(
            decay=side.decay, epsilon=side.floor * self.row_norm, debias=True
        )
        privacy = privatize(
            clip_norm=settings.clip_norm, noise_multiplier=settings.noise_multiplier
        )
        return adadps_public(_declared_public(public), statistics, privacy, lr=settings.lr)

    def simulated(self, noise_multiplier: float) -> CandidatePlan:
        """Return the plan with the noise of a simulation, in which public rows play private ones.

        The side information forgets the public rows behind it. Otherwise the run would leave out
        its stand-ins for private rows, because they are known to be public.
        """
        settings = replace(self.settings, noise_multiplier=noise_multiplier)
        candidate = self.candidate
        if isinstance(candidate.side, Fixed):
            candidate = replace(candidate, side=replace(candidate.side, rows=None))
        return replace(self, candidate=candidate, settings=settings)


def plan_for(case: Case, candidate: Candidate) -> CandidatePlan:
    """Plan a candidate by the rule, from declared numbers and public rows."""
    row_norm = median_row_norm(case.rows)
    settings = choose_settings(
        examples=case.examples,
        budget=case.budget,
        gradient_norm=first_gradient(case.classes),
        norms=_norms(case, candidate, row_norm),
        given=GivenSettings(batch_size=case.batch_size, steps=case.steps),
    )
    return CandidatePlan(candidate, settings, row_norm)


def _norms(case: Case, candidate: Candidate, row_norm: float) -> Norms:
    method = candidate.method
    if isinstance(candidate.side, PublicGradients):
        start = moments_at(np.zeros((case.classes, case.features)), case.rows, case.labels)
        batch = min(PUBLIC_BATCH, len(case))
        A = np.sqrt(start.of_batches(batch)) + candidate.side.floor * row_norm
        lengths = gradient_norms(start.residuals, case.rows, 1 / A)
        scaled = float(np.median(lengths)) / first_gradient(case.classes)
        return norms_for(method, plain=row_norm, scaled=scaled)
    if method is Method.ADADPS:
        inverse = np.broadcast_to(inverse_of(candidate, case), (case.classes, case.features))
        residuals = np.full((len(case), case.classes), case.classes**-0.5)
        scaled = float(np.median(gradient_norms(residuals, case.rows, inverse)))
        return norms_for(method, plain=row_norm, scaled=scaled)
    length = median_row_norm(weighted_rows(case, candidate))
    return norms_for(method, plain=row_norm, scaled=length, weighted=length)


def _declared_public(public: Examples) -> PublicExamples:
    origin = Provenance("the doctor's public examples", "given to the doctor as public")
    return PublicExamples(public, origin, min(PUBLIC_BATCH, len(public)))
