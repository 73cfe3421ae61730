"""The outcome of an audit: the claim, the lower bound, and the verdict."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from adadps.errors import require

CONSISTENT = "consistent"
BROKEN = "BROKEN: lower bound above claim"
TOO_LITTLE = "inconclusive: this few guesses could not have refuted the claim"


def require_confidence(confidence: float) -> None:
    """Refuse a confidence that is not strictly between 0 and 1."""
    require(0 < confidence < 1, "0 < confidence < 1", confidence, "0.95 is common.")


@dataclass(frozen=True)
class PrivacyClaim:
    """What a run claims about its privacy: ε at δ under a neighbouring relation."""

    epsilon: float
    delta: float
    relation: str


@dataclass(frozen=True)
class AuditResult:
    """A claimed ε beside the lower bound that was found, with its confidence.

    If the claim is true, the lower bound exceeds it with probability at most 1 - ``confidence``.
    A lower bound below the claim proves nothing. ``largest_bound`` is the bound that the audit
    would have found if every guess had been right: a claim that is not below it cannot be refuted
    with this few runs or canaries, and the verdict says so.

    >>> found = AuditResult(audit="one run", claim=PrivacyClaim(1.0, 1e-5, "add or remove one"),
    ...                     lower_bound=2.5, largest_bound=3.3, confidence=0.95, runs=1,
    ...                     canaries=100, guesses=40, right_guesses=40)
    >>> found.broken, found.verdict
    (True, 'BROKEN: lower bound above claim')
    """

    audit: str
    claim: PrivacyClaim
    lower_bound: float
    largest_bound: float
    confidence: float
    runs: int
    canaries: int
    guesses: int
    right_guesses: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        """Whether the lower bound is above the claim."""
        return self.lower_bound > self.claim.epsilon

    @property
    def could_refute(self) -> bool:
        """Whether the claim could have been refuted, had every guess been right."""
        return self.largest_bound > self.claim.epsilon

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.broken:
            return BROKEN
        return CONSISTENT if self.could_refute else TOO_LITTLE

    def describe(self) -> dict[str, Any]:
        """Return the outcome, ready for JSON; an infinite ε becomes null."""
        held = asdict(self)
        claim = held.pop("claim")
        claimed = claim["epsilon"] if math.isfinite(claim["epsilon"]) else None
        return {
            "audit": held.pop("audit"),
            "claimed_epsilon": claimed,
            "delta": claim["delta"],
            "relation": claim["relation"],
            **held,
            "verdict": self.verdict,
        }
