"""From advice to the command that follows it: the `adadps train` line for the private table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adadps.estimators.doctor.request import LANGUAGE, WORDS, Request
from adadps.estimators.planner.defaults import Choice
from adadps.estimators.planner.named_methods import Method

PRIVATE_TABLE, MODEL = "private.csv", "model"
"""Stand for the private table and the new folder, whose names the doctor does not know."""
WHY = "WHY IT IS PUBLIC"
"""Stands for a reason that only a person can give: it will be on the card."""
MOST_CLASSES = 50
"""More than that are no line that anybody reads."""


@dataclass(frozen=True)
class Way:
    """How `adadps train` can be told to train: a method, and the file of its word frequencies."""

    method: Method
    side: Path | None = None

    @property
    def word_list(self) -> str:
        """Where word frequencies come from, in a word."""
        if not self.method.takes_side_information:
            return "none"
        return "wordfreq" if self.side is None else self.side.name


def next_command(request: Request, way: Way, choice: Choice, labels: Sequence[str] = ()) -> str:
    """A line for a shell that trains on the private table as was planned.

    The public ``labels`` are declared as its classes, so that they are not read off private data.

    >>> from adadps.accounting.epsilon import Budget
    >>> from adadps.estimators.planner.defaults import choose
    >>> asked = Request(public=Path("p.csv"), text="review", label="stars", examples=500, epsilon=2)
    >>> rule = choose(examples=500, budget=Budget(2, 1e-5), gradient_norm=1, noise_multiplier=1)
    >>> print(next_command(asked, Way(Method.ADADPS), rule, ["good", "bad", "so so"]))
    adadps train private.csv --text review --label stars --classes 'bad,good,so so' --method adadps --examples 500 --epsilon 2 --out model
    """  # noqa: E501
    parts = ["adadps", "train", PRIVATE_TABLE, "--text", request.text, "--label", request.label]
    parts += _classes(labels)
    parts += ["--method", way.method.value, *_side(way.side)]
    parts += ["--examples", str(request.examples), "--epsilon", _number(request.epsilon)]
    given = {
        "--delta": request.delta,
        "--batch-size": request.batch_size,
        "--epochs": None if request.steps is None else choice.epochs,
        "--words": request.words if request.words != WORDS else None,
    }
    for option, value in given.items():
        parts += [] if value is None else [option, _number(value)]
    parts += [] if request.language == LANGUAGE else ["--language", request.language]
    return shlex.join([*parts, "--out", MODEL])


def _side(file: Path | None) -> list[str]:
    if file is None:
        return []
    return ["--side", str(file), "--side-source", file.name, "--side-because", WHY]


def _classes(labels: Sequence[str]) -> list[str]:
    """Nothing where the option cannot name them: it has commas between them, on one line."""
    names = sorted(set(labels))
    listed = ",".join(names)
    fits = 2 <= len(names) <= MOST_CLASSES and listed.isprintable()
    return ["--classes", listed] if fits and names == _as_read(listed) else []


def _as_read(listed: str) -> list[str]:
    """What `adadps train` makes of it."""
    return [name.strip() for name in listed.split(",")]


def _number(value: float) -> str:
    """Without a needless .0, and with all digits that matter.

    >>> _number(2.0), _number(0.1 + 0.2)
    ('2', '0.30000000000000004')
    """
    return str(int(value)) if value == int(value) else repr(float(value))
