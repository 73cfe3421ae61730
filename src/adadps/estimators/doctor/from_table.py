"""From a public table of labelled texts to findings, and to the command that follows them.

What is weighed is what `adadps train` can train: its methods by name, with its features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adadps.data.tables import read_table
from adadps.data.text import BagOfWords, public_vocabulary
from adadps.errors import DataError, SettingError
from adadps.estimators.doctor.candidates import (
    DP_SGD,
    Candidate,
    before_the_clip,
    both_sides,
    into_the_features,
)
from adadps.estimators.doctor.case import Array
from adadps.estimators.doctor.examination import Findings, examine
from adadps.estimators.doctor.next_command import Way, next_command
from adadps.estimators.doctor.request import Request
from adadps.estimators.planner.named_methods import Method, shaped
from adadps.estimators.tables.word_list import frequencies_from_file
from adadps.methods.side import Frequencies, word_frequencies
from adadps.methods.side.source import Fixed

DOORS: dict[Method, Callable[[str, Fixed], Candidate]] = {
    Method.DP_SGD_WEIGHTED: into_the_features,
    Method.ADADPS: before_the_clip,
    Method.ADADPS_TWO_SIDED: both_sides,
}
BECAUSE = "declared public to adadps doctor"


@dataclass(frozen=True)
class TableFindings:
    """Findings about ways to train, by the candidates' names."""

    request: Request
    findings: Findings
    ways: dict[str, Way]
    labels: tuple[str, ...]

    @property
    def next_command(self) -> str:
        """The line to run next, with the private table's name to be filled in."""
        way = self.ways[self.findings.verdict.name]
        return next_command(self.request, way, self.findings.plan.choice, self.labels)

    def describe(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        told = self.findings.describe()
        for finding in told["findings"]:
            way = self.ways[finding["candidate"]]
            finding |= {"method": way.method.value, "word_list": way.word_list}
        return {**told, "next_command": self.next_command}


def examine_table(request: Request, say: Callable[[str], None]) -> TableFindings:
    """Weigh what `adadps train` can make of word frequencies and the files that were given."""
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
    ways, candidates = _ways(request, words)
    found = examine(
        rows,
        _numbered(labels),
        candidates=candidates,
        examples=request.examples,
        epsilon=request.epsilon,
        delta=request.delta,
        folds=request.folds,
        steps=request.steps,
        batch_size=request.batch_size,
        seed=request.seed,
    )
    return TableFindings(request, found, ways, tuple(sorted(set(labels))))


def _ways(request: Request, words: tuple[str, ...]) -> tuple[dict[str, Way], list[Candidate]]:
    """Every method that reads word frequencies, with those of wordfreq and of each file."""
    known: dict[str, tuple[Path | None, Frequencies]] = {
        "wordfreq": (None, word_frequencies(words, request.language))
    }
    for path in request.side:
        if path.name in known:
            raise SettingError(
                f"Expected files of different names by --side, found '{path.name}' twice. Rename "
                "one: the table shows names."
            )
        read = frequencies_from_file(path, words, source=path.name, public_because=BECAUSE)
        known[path.name] = (path, read)
    ways, candidates = {DP_SGD: Way(Method.DP_SGD)}, []
    for called, (file, frequencies) in known.items():
        for method, door in DOORS.items():
            name = f"{method.value} with {called}"
            ways[name] = Way(method, file)
            candidates.append(door(name, shaped(frequencies, method)))
    return ways, candidates


def _numbered(labels: Sequence[str]) -> Array:
    number = {name: place for place, name in enumerate(sorted(set(labels)))}
    return np.array([number[label] for label in labels], dtype=np.int64)
