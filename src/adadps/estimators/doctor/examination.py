"""The examination: simulate every candidate on every fold, compute the terms, and decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adadps.accounting.epsilon import Budget
from adadps.accounting.events import default_delta, require_small_delta
from adadps.data.sparse_rows import SparseRows
from adadps.errors import SideInformationError, require
from adadps.estimators.doctor.candidates import DP_SGD, Candidate, no_side_information
from adadps.estimators.doctor.case import Case, case_of, require_folds
from adadps.estimators.doctor.further import advice_for_rows
from adadps.estimators.doctor.plans import CandidatePlan, plan_for
from adadps.estimators.doctor.simulation import simulated_accuracy, simulated_size, splits
from adadps.estimators.doctor.terms import BoundTerms, terms_of
from adadps.estimators.doctor.verdict import Finding, Verdict, decide, gain_needed
from adadps.training.progress import Progress, progress_bar
from adadps.types import Unit

FOLDS, CONFIDENCE = 8, 0.95
SPENT = "nothing: only public data was read, and no private run was made"


@dataclass(frozen=True)
class Findings:
    """All candidates, DP-SGD first, and the verdict."""

    case: Case
    findings: tuple[Finding, ...]
    verdict: Verdict
    confidence: float

    @property
    def plan(self) -> CandidatePlan:
        """Return how the advised candidate would be trained on the private data."""
        return self.verdict.advised.plan

    @property
    def further(self) -> tuple[str, ...]:
        """Return what else may help, by the kind of the features."""
        return advice_for_rows(dense=not isinstance(self.case.public.features, SparseRows))

    def describe(self) -> dict[str, Any]:
        """Return everything, ready for JSON. Its epsilon is planned; none is spent."""
        return {
            "verdict": self.verdict.shown.in_words,
            "candidate": self.verdict.name,
            "reasons": list(self.verdict.reasons),
            "theorem": list(self.verdict.theorem),
            "further": list(self.further),
            "spent": SPENT,
            "planned": {
                "examples": self.case.examples,
                "epsilon": self.case.budget.epsilon,
                "delta": self.case.budget.delta,
            },
            "public_rows": len(self.case),
            "folds": len(self.findings[0].scores),
            "confidence": self.confidence,
            "simulated_batch_size": simulated_size(self.plan),
            "findings": [finding.describe() for finding in self.findings],
        }


def examine(
    features: Any,
    labels: Any,
    *,
    candidates: Sequence[Candidate],
    examples: int,
    epsilon: float,
    delta: float | None = None,
    classes: int | None = None,
    folds: int = FOLDS,
    steps: int | None = None,
    batch_size: float | None = None,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    otherwise: str = DP_SGD,
    progress: bool | None = None,
) -> Findings:
    """Compare ``candidates`` on *public* examples, for a planned run on private ones.

    ``features`` and ``labels`` (0 to K-1) are public and take the place of ``examples`` private
    ones, a declared number; ``epsilon`` and ``delta`` (default: 1/(10 examples)) are what the
    private run may spend. Nothing is spent here. DP-SGD is always among the candidates.
    ``otherwise`` names the candidate to advise if no gain can be shown, unless it shows a loss.

    >>> import numpy as np
    >>> rows = np.random.default_rng(0).normal(size=(60, 4))
    >>> found = examine(rows, rows[:, 0] > 0, candidates=[], examples=2000, epsilon=1.0,
    ...                 folds=3, steps=20)
    >>> found.verdict.name, found.verdict.shown.in_words
    ('DP-SGD', 'no gain could be shown')
    """
    require(0 < confidence < 1, "0 < confidence < 1", confidence, "Choose e.g. 0.95.")
    require(examples >= 1, "examples >= 1", examples, "Declare the number of private examples.")
    require(seed >= 0, "seed >= 0", seed, "Choose another one.")
    budget = Budget(epsilon, default_delta(examples) if delta is None else delta)
    require_small_delta(budget.delta, examples, Unit.EXAMPLE, warn=True)
    case = case_of(
        features,
        labels,
        examples=examples,
        budget=budget,
        classes=classes,
        steps=steps,
        batch_size=batch_size,
    )
    require_folds(len(case), folds)
    weighed = _with_dp_sgd(candidates)
    _require_named(otherwise, weighed)
    with progress_bar(len(weighed) * (folds + 1), progress, label="simulating") as bar:
        bar.note("planning the noise")
        plans = [plan_for(case, one) for one in weighed]
        scores = [_scores(case, plan, folds, seed, bar) for plan in plans]
        terms = [_terms(case, plan, bar) for plan in plans]
    found = _compared(len(case), plans, scores, terms, confidence)
    verdict = decide(found, rows=len(case), otherwise=otherwise)
    return Findings(case, tuple(found), verdict, confidence)


def _scores(
    case: Case, plan: CandidatePlan, folds: int, seed: int, bar: Progress
) -> tuple[float, ...]:
    """Return one simulated accuracy per fold; all candidates have the same folds."""
    scores = []
    for split in splits(len(case), folds, seed):
        bar.note(plan.candidate.name)
        scores.append(simulated_accuracy(case, plan, split))
        bar.advance()
    return tuple(scores)


def _terms(case: Case, plan: CandidatePlan, bar: Progress) -> BoundTerms:
    bar.note("terms of the theorem")
    found = terms_of(
        case,
        plan.candidate,
        noise_multiplier=plan.settings.noise_multiplier,
        expected_size=plan.settings.sampler.expected_size,
    )
    bar.advance()
    return found


def _compared(
    rows: int,
    plans: list[CandidatePlan],
    scores: list[tuple[float, ...]],
    terms: list[BoundTerms],
    confidence: float,
) -> list[Finding]:
    """Compare each candidate with DP-SGD, which comes first."""
    found = []
    for plan, mine, of_mine in zip(plans, scores, terms, strict=True):
        gains = tuple(one - other for one, other in zip(mine, scores[0], strict=True))
        needed = gain_needed(gains, rows=rows, others=len(plans) - 1, confidence=confidence)
        relative = of_mine.relative_to(terms[0])
        found.append(Finding(plan, mine, gains, of_mine, relative, needed))
    return found


def _with_dp_sgd(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return DP-SGD, then all others; names must differ."""
    others = [one for one in candidates if not one.is_plain]
    names = [one.name for one in others]
    if len(set(names)) != len(names):
        raise SideInformationError(
            "Expected candidates with different names, found one name twice. Name each by its side "
            "information and where that enters."
        )
    for one in others:
        if one.side is None:
            raise SideInformationError(
                f"Expected side information for '{one.name}', found none. Use "
                "`no_side_information()` for DP-SGD."
            )
    return [no_side_information(), *others]


def _require_named(name: str, candidates: list[Candidate]) -> None:
    if all(one.name != name for one in candidates):
        raise SideInformationError(
            f"Expected the name of a candidate for `otherwise`, found '{name}'. Known are "
            f"{', '.join(one.name for one in candidates)}."
        )
