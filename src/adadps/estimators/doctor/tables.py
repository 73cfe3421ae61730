"""The doctor on a public table of labelled texts, and the `adadps train` command that follows.

The candidates are what `adadps train` can train: its methods by name, with its features.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adadps.data.tables import read_table
from adadps.errors import DataError, SettingError
from adadps.estimators.doctor.candidates import DP_SGD, Candidate
from adadps.estimators.doctor.case import Array
from adadps.estimators.doctor.examination import FOLDS, Findings, examine
from adadps.estimators.doctor.further import advice_for_texts
from adadps.estimators.planner.methods import embedding_share, takes_side_information
from adadps.estimators.planner.plan import Settings
from adadps.estimators.short_texts import short_by_rule
from adadps.estimators.tables.features import RowFeatures, prepare_for_rows, text_features
from adadps.estimators.tables.frequency_file import frequencies_from_file
from adadps.estimators.tables.schema import Label, Schema
from adadps.estimators.text import (
    TableVocabulary,
    VocabularySource,
    share_negated,
)
from adadps.methods.side import Frequencies, embeddings
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
    public_texts: Path | None = None
    folds: int = FOLDS
    steps: int | None = None
    batch_size: float | None = None
    features: TextFeatures = TextFeatures.AUTO
    words: int = WORDS
    language: str = LANGUAGE
    negation: bool = True
    seed: int = 0


@dataclass(frozen=True)
class TrainableMethod:
    """A method of `adadps train`, and the file of its word frequencies, or of public texts.

    Both are None for wordfreq.
    """

    method: Method
    side: Path | None = None
    texts: Path | None = None

    @property
    def word_list(self) -> str:
        """Return where word frequencies come from, in a word."""
        if not takes_side_information(self.method):
            return "none"
        file = self.side or self.texts
        return "wordfreq" if file is None else file.name


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

    @property
    def further(self) -> tuple[str, ...]:
        """Return what else may help, by what was declared."""
        return advice_for_texts(
            examples=self.request.examples,
            classes=len(self.labels),
            epsilon=self.request.epsilon,
            features=self.request.features,
            public_texts=self.request.public_texts is not None,
        )

    def describe(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        described = self.findings.describe() | {"further": list(self.further)}
        for finding in described["findings"]:
            method = self.methods[finding["candidate"]]
            finding |= {"method": method.method.value, "word_list": method.word_list}
        return {**described, "next_command": self.next_command}


def examine_table(request: DoctorRequest, say: Callable[[str], None]) -> TableFindings:
    """Compare what `adadps train` can do with word frequencies, including those in given files."""
    _require_possible(request)
    if request.text == request.label:
        raise SettingError(
            f"Expected different columns for texts and labels, found '{request.text}' for both. "
            "Name the column that holds the labels."
        )
    say(f"Reading {request.public} ...")
    table = read_table(request.public)
    texts, labels = table.column(request.text), table.column(request.label)
    alone = request.features is TextFeatures.EMBEDDINGS
    vocabulary = _vocabulary(request)
    vectors = None if request.features is TextFeatures.WORDS else embeddings()
    share = embedding_share(request.examples, len(set(labels)), request.epsilon)
    features = text_features(
        vocabulary.words, vectors, vocabulary.fitted, vocabulary.negation, short_by_rule(share)
    )
    rows = features.of_texts(texts)
    if rows[:, : features.words].nnz == 0 and not (alone and rows.nnz):
        raise DataError(
            f"Expected words of the vocabulary in the texts of {request.public}, found none. Check "
            "the column of the texts, or choose another --language."
        )
    methods, candidates = _candidates(request, features, share, vocabulary.frequencies)
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
    if advised.texts is not None:
        parts += ["--public", str(advised.texts), "--public-because", WHY]
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
    parts += [] if request.negation else ["--without-negation"]
    if request.features is not TextFeatures.AUTO:
        parts += ["--features", request.features.value]
    return shlex.join([*parts, "--out", MODEL])


def _require_possible(request: DoctorRequest) -> None:
    """Refuse what `adadps train` would refuse, or what the doctor cannot judge."""
    if request.features is TextFeatures.CHOOSE:
        raise SettingError(
            "Expected features that the doctor can compare, found --features choose, which looks "
            "at private rows for a part of epsilon. Leave --features out here, and add it to the "
            "command that follows."
        )
    texts = request.public_texts
    if texts is None:
        return
    if request.features is TextFeatures.EMBEDDINGS or request.side:
        raise SettingError(
            "Expected words whose frequencies come from the texts of --public, found --features "
            "embeddings or --side. Leave one of them out."
        )
    if texts.exists() and request.public.exists() and texts.samefile(request.public):
        raise SettingError(
            "Expected other texts for --public than those that are judged, found the same table. "
            "What is fitted to the rows that are held out looks better than it is: give another "
            "table, or split this one."
        )


def _vocabulary(request: DoctorRequest) -> TableVocabulary:
    """Return the words, and what public texts tell about them, if there are any."""
    if request.features is TextFeatures.EMBEDDINGS:
        return TableVocabulary((), "")
    source = VocabularySource(
        words=request.words,
        language=request.language,
        negation=request.negation,
        public=request.public_texts,
        public_because=BECAUSE if request.public_texts else None,
        fits_vectors=request.features is not TextFeatures.WORDS,
    )
    found = source.read(Schema((request.text,), (), (), Label(request.label)), (), informed=True)
    assert found.frequencies is not None  # they were asked for
    # The rows that are judged stand for private ones: none is left out for being public.
    return replace(found, frequencies=replace(found.frequencies, rows=None))


def _candidates(
    request: DoctorRequest, features: RowFeatures, share: float, usual: Frequencies | None
) -> tuple[dict[str, TrainableMethod], list[Candidate]]:
    """Return every method that reads word frequencies, with the usual ones and each file's."""
    words = features.vocabulary
    if not words or usual is None:
        return {DP_SGD: TrainableMethod(Method.DP_SGD)}, []
    texts = request.public_texts
    known: dict[str, tuple[Path | None, Frequencies]] = {
        "wordfreq" if texts is None else texts.name: (None, usual)
    }
    for path in request.side:
        if path.name in known:
            raise SettingError(
                f"Expected --side files with different names, found '{path.name}' twice. Rename "
                "one of them: the table shows names only."
            )
        read = frequencies_from_file(
            path,
            words,
            source=path.name,
            public_because=BECAUSE,
            negated=share_negated(features.negation, request.language) if features.negation else 0,
        )
        known[path.name] = (path, read)
    methods, candidates = {DP_SGD: TrainableMethod(Method.DP_SGD)}, []
    for called, (file, frequencies) in known.items():
        for method in INFORMED:
            name = f"{method.value} with {called}"
            methods[name] = TrainableMethod(method, file, texts)
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
