"""From simulated scores and the theorem's terms to advice, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from adadps.doctor.candidates import DP_SGD, Candidate, Door
from adadps.doctor.plans import Plan
from adadps.doctor.terms import Terms

NOTHING_HELPS = "DP-SGD: nothing helps here"


@dataclass(frozen=True)
class Finding:
    """What was found about one candidate. ``scores`` and ``gains`` have one entry a fold."""

    plan: Plan
    scores: tuple[float, ...]
    gains: tuple[float, ...]
    terms: Terms
    relative: dict[str, float]
    needed: float

    @property
    def candidate(self) -> Candidate:
        """Whom this is about."""
        return self.plan.candidate

    @property
    def score(self) -> float:
        """Mean simulated accuracy on held-out public rows."""
        return float(np.mean(self.scores))

    @property
    def gain(self) -> float:
        """Mean gain over DP-SGD on the same folds."""
        return float(np.mean(self.gains))

    @property
    def helps(self) -> bool:
        """Is the gain above the noise of the simulation?"""
        return self.gain > self.needed

    def describe(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        choice = self.plan.choice
        return {
            "candidate": self.candidate.name,
            "door": self.candidate.door.value,
            "source": self.candidate.source,
            "accuracy": self.score,
            "standard_error": standard_error(self.scores),
            "gain": self.gain,
            "gain_standard_error": standard_error(self.gains),
            "gain_needed": self.needed,
            "helps": self.helps,
            "terms_relative_to_dp_sgd": self.relative,
            "settings": {
                "batch_size": choice.sampler.expected_size,
                "steps": choice.steps,
                "noise_multiplier": choice.noise_multiplier,
                "clip_norm": choice.clip_norm,
                "lr": choice.lr,
            },
        }


@dataclass(frozen=True)
class Verdict:
    """The advice and its reasons in words."""

    advised: Finding
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """Whom to use."""
        informed = self.advised.candidate.door is not Door.NONE
        return self.advised.candidate.name if informed else NOTHING_HELPS


def standard_error(values: tuple[float, ...]) -> float:
    """Of the mean.

    >>> standard_error((1.0, 3.0))
    1.0
    """
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def gain_needed(gains: tuple[float, ...], *, rows: int, others: int, confidence: float) -> float:
    """What a mean gain must exceed: t · standard error.

    On a single row a gain is -1, 0 or 1, so that the mean g of m rows has a standard error of at
    least √(|g| (1 - |g|) / m), even where few folds happen to agree.

    t is the quantile of Student's law with folds - 1 degrees of freedom at which, if none of
    ``others`` candidates helped, one would seem to with probability 1 - ``confidence`` at most
    (Bonferroni). Folds share training rows, so that this is a rule, not a proof.
    """
    level = 1 - (1 - confidence) / max(1, others)
    gain = min(1.0, abs(float(np.mean(gains))))
    error = max(standard_error(gains), math.sqrt(gain * (1 - gain) / rows))
    return float(stats.t.ppf(level, len(gains) - 1)) * error


def decide(findings: list[Finding]) -> Verdict:
    """The best simulated score among those that beat DP-SGD by more than the noise, or DP-SGD."""
    plain = next(one for one in findings if one.candidate.door is Door.NONE)
    others = [one for one in findings if one is not plain]
    helpful = [one for one in others if one.helps]
    advised = max(helpful, key=lambda one: one.gain, default=plain)
    return Verdict(advised, tuple(_reasons(advised, plain, others)))


def _reasons(advised: Finding, plain: Finding, others: list[Finding]) -> list[str]:
    if not others:
        return ["There is no side information to weigh."]
    best = max(others, key=lambda one: one.gain)
    reasons = [_simulation(advised, plain, best)]
    favourite = min([plain, *others], key=lambda one: one.relative["sharper"])
    reasons += [_theorem(advised), _agreement(advised, favourite)]
    return reasons


def _simulation(advised: Finding, plain: Finding, best: Finding) -> str:
    folds = len(plain.scores)
    if advised is plain:
        return (
            f"No candidate beat {DP_SGD} by more than the noise of {folds} simulated runs: the "
            f"best, {best.candidate.name}, gained {_points(best)}, and {100 * best.needed:.1f} "
            "were needed."
        )
    return (
        f"In {folds} simulated runs {advised.candidate.name} reached {advised.score:.3f} and "
        f"{DP_SGD} {plain.score:.3f}: a gain of {_points(advised)}, and "
        f"{100 * advised.needed:.1f} were needed."
    )


def _points(finding: Finding) -> str:
    return f"{100 * finding.gain:+.1f} ± {100 * standard_error(finding.gains):.1f} points"


def _theorem(advised: Finding) -> str:
    found = advised.relative
    if advised.candidate.door is Door.NONE:
        return "The theorem's terms are those of DP-SGD, to which all others are compared."
    return (
        f"Relative to DP-SGD's, the convex theorem's bound is {found['bound']:.3g} there (D "
        f"{found['diameter']:.3g}, R {found['ratio']:.3g}, noise {found['noise']:.3g}, at equal "
        f"ΣA), and the sharper line of its proof {found['sharper']:.3g}."
    )


def _agreement(advised: Finding, favourite: Finding) -> str:
    if favourite is advised:
        return "The proof's line has its least value there too: the two agree."
    if favourite.candidate.door is Door.NONE:
        return (
            f"They disagree: by the proof's line no candidate is better than {DP_SGD}. The bound "
            "knows nothing of clipping, of new examples or of the learning rate that is used; the "
            "simulation decides."
        )
    return (
        f"They disagree: the proof's line is least for {favourite.candidate.name} "
        f"({favourite.relative['sharper']:.3g} of DP-SGD's), which gained {_points(favourite)} in "
        "the simulation. The bound knows nothing of clipping, of new examples or of the learning "
        "rate that is used; the simulation decides."
    )
