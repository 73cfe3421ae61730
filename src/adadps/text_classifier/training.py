"""Train a text classifier at a given epsilon: first the plan, then the ledger, then the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adadps.accounting import Budget, calibrate_noise
from adadps.data.examples import Examples, examples
from adadps.errors import DataError
from adadps.evaluation import accuracy, on_held_out
from adadps.ledger import Ledger
from adadps.losses import cross_entropy
from adadps.result import Result
from adadps.sampling import Sampler, poisson
from adadps.side import Frequencies
from adadps.stages import Chain
from adadps.text_classifier.saved import TextModel
from adadps.text_classifier.settings import Settings
from adadps.training import fit
from adadps.types import Accountant

RARE = 3
"""A label that is read off the data must not be that of one or two people."""

_MISSING = {"nan", "null", "none", "na", "n/a"}

MOST_CLASSES = 1000
"""More distinct labels than that are rather names or texts."""
HELD_OUT = "held-out texts"


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with labels, and the line of the file at which each stands. Shows no content.

    >>> mail = LabelledTexts("mail.csv", ["win a prize", "see you"] * 3, ["spam", "ham"] * 3,
    ...                      [2, 3, 4, 5, 6, 7])
    >>> mail.classes()
    ('ham', 'spam')
    """

    source: str | Path
    texts: Sequence[str] = field(repr=False)
    labels: Sequence[str] = field(repr=False)
    lines: Sequence[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.texts)

    def classes(self) -> tuple[str, ...]:
        """The labels that occur; to use them is to assume that they are public."""
        found = tuple(sorted(set(self.labels)))
        if not 2 <= len(found) <= MOST_CLASSES:
            raise DataError(
                f"Expected between 2 and {MOST_CLASSES} different labels in {self.source}, found "
                f"{len(found)}. Check which column holds the labels, or declare the classes."
            )
        seen = Counter(self.labels)
        rare = [
            line
            for label, line in zip(self.labels, self.lines, strict=True)
            if seen[label] < RARE or label.strip().lower() in _MISSING
        ]
        if rare:
            raise DataError(
                f"Expected labels that occur at least {RARE} times in {self.source}, found a rarer "
                f"one, or a missing value, on line {rare[0]}. Classes stand in the model for "
                "everyone to read: mend the line, or declare the classes by --classes a,b,c."
            )
        return found

    def examples(self, model: TextModel) -> Examples:
        """Features and class numbers."""
        number = {name: place for place, name in enumerate(model.classes)}
        for label, line in zip(self.labels, self.lines, strict=True):
            if label not in number:
                raise DataError(
                    f"Expected one of the {len(number)} classes as a label, found {label[:80]!r} "
                    f"on line {line} of {self.source}. Declare all classes, or leave the line out."
                )
        return examples(model.features(self.texts), [number[label] for label in self.labels])


@dataclass(frozen=True)
class Plan:
    """A run that costs its budget; nothing in it depends on private data."""

    sampler: Sampler
    steps: int
    noise_multiplier: float
    method: Chain
    budget: Budget
    accountant: Accountant
    settings: dict[str, Any]


def plan_training(
    settings: Settings,
    *,
    examples: int,
    budget: Budget,
    accountant: Accountant,
    side: Frequencies | None = None,
) -> Plan:
    """Poisson batches of a declared number of examples, and the noise with which they fit."""
    sampler = poisson(examples=examples, expected_size=settings.batch_size)
    steps = sampler.steps(settings.epochs)
    sigma = calibrate_noise(sampler, steps, budget=budget, accountant=accountant)
    return Plan(
        sampler=sampler,
        steps=steps,
        noise_multiplier=sigma,
        method=settings.build(sigma, side),
        budget=budget,
        accountant=accountant,
        settings={
            "method": settings.method.value,
            "epochs": settings.epochs,
            "lr": settings.lr_at(sigma),
        },
    )


def train_classifier(
    model: TextModel,
    train: Examples,
    *,
    plan: Plan,
    ledger: Ledger | None = None,
    checkpoints: Path | None = None,
    held_out: Examples | None = None,
    assumed_public: Sequence[str] = (),
) -> Result:
    """Train ``model`` as planned. Without a ledger, the plan's budget is one of its own.

    With ``checkpoints``, a run that is in that folder goes on.
    """
    evaluations = []
    if held_out is not None:
        evaluations.append(
            on_held_out(HELD_OUT, held_out.features, held_out.targets, accuracy=accuracy)
        )
    return fit(
        model.layer(),
        cross_entropy,
        train,
        method=plan.method,
        sampler=plan.sampler,
        steps=plan.steps,
        evaluate=evaluations,
        delta=plan.budget.delta,
        accountant=plan.accountant,
        ledger=ledger,
        budget=plan.budget if ledger is None else None,
        assumed_public=assumed_public,
        checkpoints=checkpoints,
        most_epsilon=plan.budget.epsilon,
        settings={**plan.settings, "model": model.in_words},
    )
