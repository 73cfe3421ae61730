"""From a public table of labelled texts to findings: features as `adadps train` has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adadps.data.tables import read_table
from adadps.data.text import TOKEN, BagOfWords, public_vocabulary
from adadps.doctor.candidates import Candidate, candidates_for_words, public_gradients
from adadps.doctor.case import Array
from adadps.doctor.examination import FOLDS, Findings, examine
from adadps.errors import DataError, SettingError
from adadps.side import word_frequencies
from adadps.table_model.word_list import frequencies_from_file

BECAUSE = "given to the doctor as public"
LONGEST_TEXTS = 1000
"""So many public texts are enough for a typical length."""


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
    words: int = 10_000
    language: str = "en"
    seed: int = 0


def examine_table(request: Request, say: Callable[[str], None]) -> Findings:
    """Weigh word frequencies, the files that were given, and public gradients."""
    if request.text == request.label:
        raise SettingError(
            f"Expected different columns for texts and labels, found '{request.text}' for both. "
            "Name the column that holds the labels."
        )
    say(f"Reading {request.public} ...")
    table = read_table(request.public)
    texts, labels = table.column(request.text), table.column(request.label)
    words = public_vocabulary(request.words, request.language)
    rows = BagOfWords(words, dampened=True)(texts)
    if rows.nnz == 0:
        raise DataError(
            f"Expected words of the vocabulary in the texts of {request.public}, found none. Check "
            "the column of the texts, or choose another --language."
        )
    return examine(
        rows,
        _numbered(labels),
        candidates=_candidates(request, words, typical_length(texts)),
        examples=request.examples,
        epsilon=request.epsilon,
        delta=request.delta,
        folds=request.folds,
        steps=request.steps,
        batch_size=request.batch_size,
        seed=request.seed,
        say=say,
    )


def typical_length(texts: Sequence[str]) -> float:
    """Median number of words of public texts, at least 1.

    >>> typical_length(["one two three", "one", "a b"])
    1.0
    """
    token = re.compile(TOKEN)
    return float(max(1, np.median([len(token.findall(text)) for text in texts[:LONGEST_TEXTS]])))


def _candidates(request: Request, words: tuple[str, ...], words_per_text: float) -> list[Candidate]:
    """Frequencies of wordfreq and of each file by every door, and public gradients."""
    known = {"wordfreq": word_frequencies(words, request.language)}
    for path in request.side:
        if path.name in known:
            raise SettingError(
                f"Expected files of different names by --side, found '{path.name}' twice. Rename "
                "one: the table shows names."
            )
        known[path.name] = frequencies_from_file(
            path, words, source=str(path.name), public_because=BECAUSE
        )
    found = [
        candidate
        for called, frequencies in known.items()
        for candidate in candidates_for_words(
            frequencies, words_per_text=words_per_text, called=called
        )
    ]
    return [*found, public_gradients()]


def _numbered(labels: Sequence[str]) -> Array:
    number = {name: place for place, name in enumerate(sorted(set(labels)))}
    return np.array([number[label] for label in labels], dtype=np.int64)
