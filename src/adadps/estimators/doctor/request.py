"""What a person asks the doctor about a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adadps.estimators.doctor.examination import FOLDS

WORDS, LANGUAGE = 10_000, "en"
"""The vocabulary that `adadps train` has, too, where nothing else is asked for."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asks for; None is "choose for me"."""

    public: Path
    text: str
    label: str
    examples: int
    epsilon: float
    delta: float | None = None
    side: Sequence[Path] = ()
    folds: int = FOLDS
    steps: int | None = None
    batch_size: float | None = None
    words: int = WORDS
    language: str = LANGUAGE
    seed: int = 0
