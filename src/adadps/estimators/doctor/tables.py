"""The doctor on a public table of labelled texts, and the `adadps train` command that follows.

The candidates are what `adadps train` can train: its methods by name, with its features.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adadps.data.tables import read_table
from adadps.errors import DataError, SettingError
from adadps.estimators.doctor.candidates import DP_SGD, Candidate
from adadps.estimators.doctor.case import Array
from adadps.estimators.doctor.examination import FOLDS, Findings, examine
from adadps.estimators.planner.methods import embedding_share, takes_side_information
from adadps.estimators.planner.plan import Settings
from adadps.estimators.tables.features import RowFeatures, prepare_for_rows, text_features
from adadps.estimators.text import frequencies_from_file, public_vocabulary
from adadps.methods.side import Frequencies, embeddings, word_frequencies
from adadps.types import Method, TextFeatures

WORDS, LANGUAGE = 10_000, "en"
"""The default vocabulary of `adadps train`."""
INFORMED = (Method.DP_SGD_WEIGHTED, Method.ADADPS, Method.ADADPS_TWO_SIDED)
BECAUSE = "declared public to adadps doctor"
PRIVATE_TABLE, MODEL = "private.csv", "model"
"""Placeholders for the private table and the new folder, whose names the doctor does not know."""
WHY = "WHY IT IS PUBLIC"
"""Placeholder for a reason that only a person can give: it will be on the card."""
MOST_CLASSES = 50
"""With more classes than this, the command would be too long to read."""


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """What the doctor is asked about a table; settings that are None follow from the rule."""

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
    features: TextFeatures = TextFeatures.AUTO
    words: int = WORDS
    language: str = LANGUAGE
    seed: int = 0


@dataclass(frozen=True)
class TrainableMethod:
    """A method of `adadps train`, and the file of its word frequencies (None for wordfreq)."""

    method: Method
    side: Path | None = None

    @property
    def word_list(self) -> str:
        """Return where word frequencies come from, in a word."""
        if not takes_side_information(self.method):
            return "none"
        return "wordfreq" if self.side is None else self.side.name


@dataclass(frozen=True)
class TableFindings:
    """Findings about methods of `adadps train`, by the names of the candidates."""

    request: DoctorRequest
    findings: Findings
    methods: dict[str, TrainableMethod]
    labels: tuple[str, ...]

    @property
    def next_command(self) -> str:
        """Return the line to run next, once the private table's name is filled in."""
        advised = self.methods[self.findings.verdict.name]
        return next_command(self.request, advised, self.findings.plan.settings, self.labels)

    def describe(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        described = self.findings.describe()
        for finding in described["findings"]:
            method = self.methods[finding["candidate"]]
            finding |= {"method": method.method.value, "word_list": method.word_list}
        return {**described, "next_command": self.next_command}


def examine_table(request: DoctorRequest, say: Callable[[str], None]) -> TableFindings:
    """Compare what `adadps train` can do with word frequencies, including those in given files."""
    if request.text == request.label:
        raise SettingError(
            f"Expected different columns for texts and labels, found '{request.text}' for both. "
            "Name the column that holds the labels."
        )
    say(f"Reading {request.public} ...")
    table = read_table(request.public)
    texts, labels = table.column(request.text), table.column(request.label)
    alone = request.features is TextFeatures.EMBEDDINGS
    words = () if alone else public_vocabulary(request.words, request.language)
    vectors = None if request.features is TextFeatures.WORDS else embeddings()
    features = text_features(words, vectors)
    rows = features.of_texts(texts)
    if rows[:, : features.words].nnz == 0 and not (alone and rows.nnz):
        raise DataError(
            f"Expected words of the vocabulary in the texts of {request.public}, found none. Check "
            "the column of the texts, or choose another --language."
        )
    share = embedding_share(request.examples, len(set(labels)), request.epsilon)
    methods, candidates = _candidates(request, features, share)
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
    return TableFindings(request, found, methods, tuple(sorted(set(labels))))


def next_command(
    request: DoctorRequest,
    advised: TrainableMethod,
    settings: Settings,
    labels: Sequence[str] = (),
) -> str:
    """Return a line for a shell that trains on the private table as was planned.

    The public ``labels`` are declared as its classes, so that they are not read off private data.

    >>> from adadps.accounting.epsilon import Budget
    >>> from adadps.estimators.planner.plan import choose_settings
    >>> asked = DoctorRequest(
    ...     public=Path("p.csv"), text="review", label="stars", examples=500, epsilon=2
    ... )
    >>> settings = choose_settings(examples=500, budget=Budget(2, 1e-5), gradient_norm=1)
    >>> advised = TrainableMethod(Method.ADADPS)
    >>> print(next_command(asked, advised, settings, ["good", "bad", "so so"]))
    adadps train private.csv --text review --label stars --classes 'bad,good,so so' --method adadps --examples 500 --epsilon 2 --out model
    """  # noqa: E501
    parts = ["adadps", "train", PRIVATE_TABLE, "--text", request.text, "--label", request.label]
    parts += _class_option(labels)
    parts += ["--method", advised.method.value, *_side_options(advised.side)]
    parts += ["--examples", str(request.examples), "--epsilon", _number(request.epsilon)]
    given = {
        "--delta": request.delta,
        "--batch-size": request.batch_size,
        "--epochs": None if request.steps is None else settings.epochs,
        "--words": request.words if request.words != WORDS else None,
    }
    for option, value in given.items():
        parts += [] if value is None else [option, _number(value)]
    parts += [] if request.language == LANGUAGE else ["--language", request.language]
    if request.features is not TextFeatures.AUTO:
        parts += ["--features", request.features.value]
    return shlex.join([*parts, "--out", MODEL])


def _candidates(
    request: DoctorRequest, features: RowFeatures, share: float
) -> tuple[dict[str, TrainableMethod], list[Candidate]]:
    """Return every method that reads word frequencies, with wordfreq's and those of each file."""
    words = features.vocabulary
    if not words:
        return {DP_SGD: TrainableMethod(Method.DP_SGD)}, []
    known: dict[str, tuple[Path | None, Frequencies]] = {
        "wordfreq": (None, word_frequencies(words, request.language))
    }
    for path in request.side:
        if path.name in known:
            raise SettingError(
                f"Expected --side files with different names, found '{path.name}' twice. Rename "
                "one of them: the table shows names only."
            )
        read = frequencies_from_file(path, words, source=path.name, public_because=BECAUSE)
        known[path.name] = (path, read)
    methods, candidates = {DP_SGD: TrainableMethod(Method.DP_SGD)}, []
    for called, (file, frequencies) in known.items():
        for method in INFORMED:
            name = f"{method.value} with {called}"
            methods[name] = TrainableMethod(method, file)
            side = prepare_for_rows(method, features, frequencies, share).side
            candidates.append(Candidate(name, method, side))
    return methods, candidates


def _numbered(labels: Sequence[str]) -> Array:
    number = {name: place for place, name in enumerate(sorted(set(labels)))}
    return np.array([number[label] for label in labels], dtype=np.int64)


def _side_options(file: Path | None) -> list[str]:
    if file is None:
        return []
    return ["--side", str(file), "--side-source", file.name, "--side-because", WHY]


def _class_option(labels: Sequence[str]) -> list[str]:
    """Return the option that names the classes, unless they cannot be listed between commas."""
    names = sorted(set(labels))
    listed = ",".join(names)
    fits = 2 <= len(names) <= MOST_CLASSES and listed.isprintable()
    as_read = [name.strip() for name in listed.split(",")]
    return ["--classes", listed] if fits and names == as_read else []


def _number(value: float) -> str:
    """Write a number without a needless .0, and with all digits that matter.

    >>> _number(2.0), _number(0.1 + 0.2)
    ('2', '0.30000000000000004')
    """
    return str(int(value)) if value == int(value) else repr(float(value))
