"""The examination: every candidate on every fold, the theorem's terms, a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adadps.accounting import Budget, default_delta
from adadps.doctor.candidates import Candidate, Door, PublicGradients, nothing
from adadps.doctor.case import Case, case_of, require_folds
from adadps.doctor.plans import Plan, plan_for
from adadps.doctor.simulation import simulated_accuracy, simulated_size, splits
from adadps.doctor.terms import terms_of
from adadps.doctor.verdict import Finding, Verdict, decide, gain_needed
from adadps.errors import SideInformationError
from adadps.types import require

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
    def plan(self) -> Plan:
        """How the advised candidate would be trained on the private data."""
        return self.verdict.advised.plan

    def describe(self) -> dict[str, Any]:
        """Everything, ready for JSON. Its epsilon is what is planned, none is spent."""
        return {
            "advice": self.verdict.name,
            "candidate": self.verdict.advised.candidate.name,
            "reasons": list(self.verdict.reasons),
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
    say: Callable[[str], None] = lambda _text: None,
) -> Findings:
    """Weigh ``candidates`` on *public* examples for a planned run on private ones.

    ``features`` and ``labels`` (0 to K-1) are public and stand in for ``examples`` private ones, a
    declared number; ``epsilon`` and ``delta`` (default: 1/(10 examples)) are what the private run
    may spend. Nothing is spent here. DP-SGD is always among the candidates.

    >>> import numpy as np
    >>> rows = np.random.default_rng(0).normal(size=(60, 4))
    >>> found = examine(rows, rows[:, 0] > 0, candidates=[], examples=2000, epsilon=1.0,
    ...                 folds=3, steps=20)
    >>> found.verdict.name
    'DP-SGD: nothing helps here'
    """
    require(0 < confidence < 1, "0 < confidence < 1", confidence, "Choose e.g. 0.95.")
    require(examples >= 1, "examples >= 1", examples, "Declare how many private ones there are.")
    require(seed >= 0, "seed >= 0", seed, "Choose another one.")
    budget = Budget(epsilon, default_delta(examples) if delta is None else delta)
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
    plans = _plans(case, weighed)
    scores = []
    for plan in plans:
        say(f"Simulating {plan.candidate.name} ...")
        scores.append(_scores(case, plan, folds, seed))
    found = _compared(case, plans, scores, confidence)
    return Findings(case, tuple(found), decide(found), confidence)


def _plans(case: Case, candidates: list[Candidate]) -> list[Plan]:
    """The noise is the same for all: it is calibrated once."""
    first = plan_for(case, candidates[0])
    sigma = first.choice.noise_multiplier
    return [first, *(plan_for(case, one, noise_multiplier=sigma) for one in candidates[1:])]


def _scores(case: Case, plan: Plan, folds: int, seed: int) -> tuple[float, ...]:
    """One simulated accuracy a fold; the folds are the same for every candidate."""
    return tuple(simulated_accuracy(case, plan, split) for split in splits(len(case), folds, seed))


def _compared(
    case: Case, plans: list[Plan], scores: list[tuple[float, ...]], confidence: float
) -> list[Finding]:
    plain_terms = None
    found = []
    for plan, mine in zip(plans, scores, strict=True):
        terms = terms_of(
            case,
            plan.candidate,
            noise_multiplier=plan.choice.noise_multiplier,
            expected_size=plan.choice.sampler.expected_size,
        )
        plain_terms = plain_terms or terms
        gains = tuple(one - other for one, other in zip(mine, scores[0], strict=True))
        needed = gain_needed(gains, rows=len(case), others=len(plans) - 1, confidence=confidence)
        found.append(Finding(plan, mine, gains, terms, terms.relative_to(plain_terms), needed))
    return found


def _with_dp_sgd(candidates: Sequence[Candidate]) -> list[Candidate]:
    """DP-SGD first, then all others; names must tell them apart."""
    others = [one for one in candidates if one.door is not Door.NONE]
    names = [one.name for one in others]
    if len(set(names)) != len(names):
        raise SideInformationError(
            "Expected candidates with different names, found one name twice. Name each by what it "
            "knows and where it enters."
        )
    for one in others:
        if not isinstance(one.side, PublicGradients) and one.side is None:
            raise SideInformationError(
                f"Expected side information for '{one.name}', found none. Use `nothing()` for "
                "DP-SGD."
            )
    return [nothing(), *others]
