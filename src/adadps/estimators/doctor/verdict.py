"""From simulated scores to what they show, what is advised, and why.

A gain or a loss is *shown* if it exceeds what noise alone would give. Otherwise nothing was shown:
side information may still help, by less than these few public rows can show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import stats

from adadps.estimators.doctor.candidates import DP_SGD, Candidate
from adadps.estimators.doctor.plans import CandidatePlan
from adadps.estimators.doctor.terms import BoundTerms


class Shown(StrEnum):
    """What simulated runs show in comparison with DP-SGD."""

    GAIN = "gain"
    NEITHER = "neither"
    LOSS = "loss"

    @property
    def in_words(self) -> str:
        """Return the verdict in words.

        >>> Shown.NEITHER.in_words
        'no gain could be shown'
        """
        return "no gain could be shown" if self is Shown.NEITHER else f"a {self.value} was shown"


@dataclass(frozen=True)
class Finding:
    """What was found about one candidate. ``scores`` and ``gains`` have one entry per fold."""

    plan: CandidatePlan
    scores: tuple[float, ...]
    gains: tuple[float, ...]
    terms: BoundTerms
    relative: dict[str, float]
    needed: float

    @property
    def candidate(self) -> Candidate:
        """Return the candidate."""
        return self.plan.candidate

    @property
    def score(self) -> float:
        """Return the mean simulated accuracy on held-out public rows."""
        return float(np.mean(self.scores))

    @property
    def gain(self) -> float:
        """Return the mean gain over DP-SGD on the same folds."""
        return float(np.mean(self.gains))

    @property
    def shown(self) -> Shown:
        """Return whether a gain or a loss exceeds the noise of the simulation."""
        if self.gain > self.needed:
            return Shown.GAIN
        return Shown.LOSS if self.gain < -self.needed else Shown.NEITHER

    @property
    def points(self) -> str:
        """Return the gain and its standard error, in points of accuracy."""
        return f"{100 * self.gain:+.1f} ± {100 * standard_error(self.gains):.1f}"

    def describe(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        settings = self.plan.settings
        return {
            "candidate": self.candidate.name,
            "door": self.candidate.door,
            "source": self.candidate.source,
            "accuracy": self.score,
            "standard_error": standard_error(self.scores),
            "gain": self.gain,
            "gain_standard_error": standard_error(self.gains),
            "gain_needed": self.needed,
            "shown": None if self.candidate.is_plain else self.shown.value,
            "terms_relative_to_dp_sgd": self.relative,
            "settings": {
                "batch_size": settings.sampler.expected_size,
                "steps": settings.steps,
                "noise_multiplier": settings.noise_multiplier,
                "clip_norm": settings.clip_norm,
                "lr": settings.lr,
            },
        }


@dataclass(frozen=True)
class Verdict:
    """What was shown, which candidate to use, and why; ``theorem`` quotes the convex bounds."""

    advised: Finding
    shown: Shown
    reasons: tuple[str, ...]
    theorem: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the advised candidate."""
        return self.advised.candidate.name


def standard_error(values: tuple[float, ...]) -> float:
    """Return the standard error of the mean.

    >>> standard_error((1.0, 3.0))
    1.0
    """
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def gain_needed(gains: tuple[float, ...], *, rows: int, others: int, confidence: float) -> float:
    """Return what a mean gain must exceed: t · standard error.

    On a single row a gain is -1, 0 or 1, so that the mean g of m rows has a standard error of at
    least √(|g| (1 - |g|) / m), even where few folds happen to agree.

    t is the quantile of Student's law with folds - 1 degrees of freedom at which, if none of the
    ``others`` candidates helped, one would seem to with probability at most 1 - ``confidence``
    (Bonferroni). Folds share training rows, so this is a rule, not a proof.
    """
    level = 1 - (1 - confidence) / max(1, others)
    gain = min(1.0, abs(float(np.mean(gains))))
    error = max(standard_error(gains), math.sqrt(gain * (1 - gain) / rows))
    return float(stats.t.ppf(level, len(gains) - 1)) * error


def decide(findings: list[Finding], *, rows: int, otherwise: str = DP_SGD) -> Verdict:
    """Advise the best simulated score among candidates with a shown gain over DP-SGD.

    Where there is none, advise ``otherwise``, or DP-SGD if ``otherwise`` shows a loss. ``rows`` is
    the number of public rows.
    """
    plain = next(one for one in findings if one.candidate.is_plain)
    others = [one for one in findings if one is not plain]
    if not others:
        return Verdict(plain, Shown.NEITHER, ("There is no side information to weigh.",))
    gained = [one for one in others if one.shown is Shown.GAIN]
    lost = [one for one in others if one.shown is Shown.LOSS]
    usual = next(one for one in findings if one.candidate.name == otherwise)
    advised = max(gained, key=lambda one: one.gain, default=_unless_lost(usual, plain))
    if gained:
        shown, reason = Shown.GAIN, _of_a_gain(advised, plain, rows)
    elif len(lost) == len(others):
        shown, reason = Shown.LOSS, _of_losses(lost, plain, rows)
    else:
        shown, reason = Shown.NEITHER, _of_neither(others, plain, rows)
    some = lost if shown is not Shown.LOSS else []
    warnings = [f"A loss was shown for {one.candidate.name}: {one.points} points." for one in some]
    favourite = min([plain, *others], key=lambda one: one.relative["sharper"])
    theorem = (_theorem(advised), _agreement(advised, favourite))
    return Verdict(advised, shown, (reason, *warnings), theorem)


def _unless_lost(usual: Finding, plain: Finding) -> Finding:
    return plain if usual.shown is Shown.LOSS else usual


def _of_a_gain(advised: Finding, plain: Finding, rows: int) -> str:
    return (
        f"In {_where(plain, rows)} {advised.candidate.name} reached {advised.score:.3f} and "
        f"{DP_SGD} {plain.score:.3f}: a gain of {advised.points} points. Noise alone would give up "
        f"to {100 * advised.needed:.1f}."
    )


def _of_neither(others: list[Finding], plain: Finding, rows: int) -> str:
    best = max(others, key=lambda one: one.gain)
    return (
        f"In {_where(plain, rows)} the largest gain over {DP_SGD}, by {best.candidate.name}, was "
        f"{best.points} points; on this many rows noise alone would give up to "
        f"{100 * best.needed:.1f}. That does not mean that nothing helps: more public rows can "
        "show smaller gains."
    )


def _of_losses(lost: list[Finding], plain: Finding, rows: int) -> str:
    least = max(lost, key=lambda one: one.gain)
    return (
        f"In {_where(plain, rows)} all side information did worse than {DP_SGD}; the smallest "
        f"loss, by {least.candidate.name}, was {least.points} points."
    )


def _where(plain: Finding, rows: int) -> str:
    return f"{len(plain.scores)} simulated runs on {rows:,} public rows"


def _theorem(advised: Finding) -> str:
    if advised.candidate.is_plain:
        return "The theorem's terms are those of DP-SGD, with which all others are compared."
    found = {name: f"{value:.3g}" for name, value in advised.relative.items()}
    return (
        f"Relative to DP-SGD's, the convex theorem's bound is {found['bound']} for "
        f"{advised.candidate.name} (D {found['diameter']}, R {found['ratio']}, noise "
        f"{found['noise']}, at equal ΣA), and the sharper line of its proof {found['sharper']}."
    )


def _agreement(advised: Finding, favourite: Finding) -> str:
    if favourite is advised:
        return "The sharper line is smallest there too: it agrees with the advice."
    least = f"for {favourite.candidate.name}, {favourite.relative['sharper']:.3g} of DP-SGD's; it"
    if favourite.candidate.is_plain:
        least = "for DP-SGD itself; it"
    else:
        least += f" gained {favourite.points} points in the simulation. The bound"
    return (
        f"The sharper line is smallest {least} does not account for clipping, new examples or the "
        "learning rate that is used, so the simulation decides."
    )
