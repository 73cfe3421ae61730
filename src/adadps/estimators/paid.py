"""``"paid"``: classes and bounds that an estimator measures with noise, as a part of epsilon.

Whatever an estimator measures before its first step is paid for here (`pay_before`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from adadps.accounting.epsilon import grouping_of
from adadps.accounting.ledger import Ledger
from adadps.accounting.noisy_counts.histograms import NameCounts, OctaveCounts
from adadps.accounting.noisy_counts.price import Charged, Price, pay
from adadps.data.bounds import Bounds, is_sparse
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.engine.noise.randomness import Randomness
from adadps.errors import AssumedPublicWarning, DataError
from adadps.estimators.labels import Labels
from adadps.estimators.planner.plan import PlannedRun
from adadps.estimators.rows import Table
from adadps.training.describe import plan_of

PAID = "paid"
HOW = "measured with noise"
UNKNOWN_CLASSES = 4
"""The K for which settings are planned, √(1 - 1/K), before the classes are known."""


@dataclass(frozen=True)
class MeasuredFacts:
    """What was measured, or placeholders (``is_placeholder``) to plan with."""

    labels: Labels | None = None
    targets: Bounds | None = None
    features: Bounds | None = None
    is_placeholder: bool = False

    @property
    def facts(self) -> tuple[str, ...]:
        """Return the facts in words, for the statement."""
        facts = []
        if self.labels is not None:
            facts.append(f"the classes, {HOW}: {', '.join(map(str, self.labels.classes))}")
        named = (("targets", self.targets), ("features", self.features))
        facts += [held.in_words(f"bounds, {HOW}: {what}") for what, held in named if held]
        return tuple(facts)


def is_paid(given: Any) -> bool:
    """Return whether an option is the word "paid"; arrays would compare entry by entry.

    >>> is_paid("paid"), is_paid(np.array(["paid", "free"])), is_paid(None)
    (True, False, False)
    """
    return isinstance(given, str) and given == PAID


@declared_read(DeclaredRead.PAID_MEASUREMENT)
def classes_with_noise(y: Any, price: Price, randomness: Randomness) -> Labels:
    """Return the classes that are common enough to be released."""
    counts: NameCounts[Any] = NameCounts()
    counts.add(y.tolist())
    released = counts.release(price, randomness)
    if len(released) < 2:
        raise DataError(
            "Expected at least two classes that are common enough to be released, found fewer "
            "above the noise; the privacy cost has already been charged. Declare them by "
            "`classes=...`."
        )
    return Labels(np.unique(np.asarray(released, dtype=y.dtype)), several=False)


@declared_read(DeclaredRead.PAID_MEASUREMENT)
def bounds_with_noise(
    table: Table, price: Price, randomness: Randomness, what: str, name: str
) -> Bounds:
    """Return noisy bounds of every column of a table."""
    found = []
    for column in range(table.shape[1]):
        values = table[:, [column]]
        counts = OctaveCounts()
        counts.add((values.toarray() if is_sparse(values) else values).ravel())
        bounds = counts.release(price.deviation, randomness)
        if bounds is None:
            raise DataError(
                f"Expected {what} that stand above the noise in column {column}, found none; the "
                "privacy cost has already been charged. Declare them by "
                f"`{name}=(low, high)`."
            )
        found.append(bounds)
    low, high = np.array(found).T
    return Bounds(low, high)


@declared_read(DeclaredRead.ENCODING)
def rows_of_classes(X: Table, y: Any, labels: Labels) -> tuple[Table, Any]:
    """Return the rows of known classes; other rows are neither trained on nor counted."""
    known = np.isin(y, labels.classes)
    return X[known], y[known]


def warn_of_reading(what: str, name: str, why: str) -> None:
    """Warn that something is read off private data, which epsilon does not cover."""
    warnings.warn(
        f"{what} read off the private data, and assumed public: {why}. Epsilon does not cover "
        f"that. Declare what is known without the data ({name}=...), or have it measured with "
        f"noise as a part of epsilon: {name}='{PAID}'. strict=True refuses instead.",
        AssumedPublicWarning,
        stacklevel=6,
    )


def pay_before(ledger: Ledger, price: Charged, plan: PlannedRun) -> str:
    """Open the run on its ledger under its whole plan, charge the price, and return its name."""
    settings, method = plan.settings, plan.chain
    sampler, accountant = settings.sampler, settings.accountant
    step = sampler.step_event(settings.noise_multiplier, 1, accountant, grouping_of(method))
    whole = plan_of(method, sampler, settings.steps, accountant, price.events)
    charged = sampler.charged_steps(settings.steps)
    return pay(ledger, price, whole, step=step, charged_steps=charged, own=False)
