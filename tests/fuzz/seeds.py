"""Valid files to spoil, made once in a process."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from adadps import (
    Accountant,
    Budget,
    DiskLedger,
    adadps,
    dp_sgd,
    examples,
    fit,
    losses,
    on_public,
    poisson,
    privatize,
    shuffled,
    side,
)
from adadps import accuracy as share_right
from adadps.accounting.events import text_of
from adadps.accounting.samplers import Sampler
from adadps.data.tables import write_table
from adadps.errors import AssumedPublicWarning
from adadps.estimators.tables.request import TrainingRequest
from adadps.estimators.tables.training import train_from_table
from adadps.methods import plain_sgd
from adadps.methods.paper import dp_sgd_weighted
from adadps.types import Method, TextFeatures

WORDS = "the apple pear hammer and saw is sweet in of new".split()  # noqa: SIM905
EVENTS = (
    NoOpDpEvent(),
    NonPrivateDpEvent(),
    GaussianDpEvent(1.5),
    LaplaceDpEvent(2.0),
    PoissonSampledDpEvent(0.01, GaussianDpEvent(1.1)),
    SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(0.7)),
    SelfComposedDpEvent(PoissonSampledDpEvent(0.5, GaussianDpEvent(3.0)), 7),
    ComposedDpEvent([NoOpDpEvent(), SelfComposedDpEvent(GaussianDpEvent(2.0), 3)]),
)


@cache
def workshop() -> Path:
    """A folder for seeds that goes with the process."""
    keeper = tempfile.TemporaryDirectory(prefix="adadps-fuzz-seeds-")
    _KEEPERS.append(keeper)
    return Path(keeper.name)


_KEEPERS: list[tempfile.TemporaryDirectory[str]] = []


@cache
def tables() -> tuple[bytes, ...]:
    """Tables with texts and labels, numbers and categories."""
    header, rows = _content()
    made = [_written([header, *rows], separator) for separator in (",", "\t")]
    made.append(b"\xef\xbb\xbf" + made[0].replace(b"\n", b"\r\n"))
    made.append(gzip.compress(made[0], mtime=0))
    return tuple(made)


def _content() -> tuple[list[str], list[list[str]]]:
    rows = [
        [f'{WORDS[n % 11]} {WORDS[n % 7]}, "{n}"', "ab"[n % 2], str(n), "abc"[n % 3]]
        for n in range(12)
    ]
    rows[3][0] = "two\nlines"
    return ["text", "label", "id", "kind"], rows


@cache
def other_tables() -> dict[str, bytes]:
    """The same rows in other formats, by the name of a file."""
    header, rows = _content()
    made = {}
    for name in ("t.jsonl", "t.jsonl.gz", "t.parquet"):
        stream = io.BytesIO()
        write_table(stream, Path(name), [header, *rows])
        made[name] = stream.getvalue()
    return made


@cache
def schemas() -> tuple[dict[str, Any], ...]:
    """Schemas of these tables."""
    numbers = {"id": {"low": 0, "high": 11, "missing": 3}}
    label = {"column": "label", "classes": ["a", "b"]}
    kinds = {"kind": {"levels": ["a", "b", "other"]}}
    return (
        {"text": ["text"], "label": label, "examples": 12},
        {"text": ["text"], "numeric": numbers, "label": {"column": "label", "separator": ";"}},
        {"numeric": numbers, "categorical": kinds, "label": label, "missing": "fill"},
        {"text": ["text"], "label": {"column": "id", "regression": True, "low": 0, "high": 9}},
    )


@cache
def word_lists() -> tuple[bytes, ...]:
    """Side information."""
    rows = [[word, repr(0.3 / (place + 1))] for place, word in enumerate(WORDS)]
    return (_written([["word", "frequency"], *rows], ","),)


def _written(rows: list[list[str]], separator: str) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


@cache
def results() -> tuple[dict[str, bytes], ...]:
    """Saved results: private, not private, with feature weights."""
    data = examples(torch.rand(20, 3), torch.arange(20) % 2)
    known = side.frequency(
        side.given_frequencies([1.0, 0.5, 0.1], source="a book", public_because="printed"),
        floor=0.01,
    )
    privacy = privatize(clip_norm=1.0, noise_multiplier=3.0)
    chains = (
        adadps(known, privacy, lr=0.1),
        plain_sgd(0.1),
        dp_sgd_weighted(known, privacy, lr=0.1),
    )
    made = []
    for number, method in enumerate(chains):
        result = fit(
            torch.nn.Linear(3, 2, bias=number != 2),
            losses.cross_entropy,
            data,
            method=method,
            sampler=poisson(examples=20, expected_size=5),
            steps=2,
            accountant=Accountant.RDP,
            evaluate=[on_public("some", data.features, data.targets, accuracy=share_right)],
            settings={"note": "ε", "list": [1, 2.5, None]},
        )
        made.append(_read(result.save(workshop() / f"result-{number}")))
    return tuple(made)


def _read(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def _run_on(path: Path, budget: Budget | None, runs: int, sampler: Sampler) -> bytes:
    data = examples(torch.rand(20, 3), torch.arange(20) % 2)
    with DiskLedger(path, budget=budget) as ledger:
        for number in range(runs):
            fit(
                torch.nn.Linear(3, 2),
                losses.cross_entropy,
                data,
                method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=8.0 + number), lr=0.1),
                sampler=sampler,
                steps=3,
                ledger=ledger,
            )
    return path.read_bytes()


@cache
def ledgers() -> tuple[bytes, ...]:
    """Ledgers: new, with several runs, without a budget."""
    budget, quick = Budget(3.0, 1e-3), shuffled(examples=20, expected_size=10)
    slow = poisson(examples=20, expected_size=2)  # takes the accountants a tenth of a second
    made = ((None, 2, quick), (budget, 2, quick), (budget, 0, quick), (budget, 3, quick))
    made = (*made, *made, (budget, 2, slow))
    return tuple(_run_on(workshop() / f"{number}.ledger", *how) for number, how in enumerate(made))


@cache
def event_texts() -> tuple[str, ...]:
    """Events as a ledger keeps them."""
    return tuple(text_of(event) for event in EVENTS)


@cache
def models() -> tuple[dict[str, bytes], ...]:
    """Saved classifiers."""
    data = workshop() / "data.csv"
    data.write_bytes(tables()[0])
    made = []
    numbers = {"numeric": ("id=0,11",), "categorical": ("kind=a,b,other",)}
    for name, method, more in (
        ("plain", Method.DP_SGD, {"features": TextFeatures.WORDS}),
        ("weighted", Method.DP_SGD_WEIGHTED, {}),
        ("mixed", Method.DP_SGD_WEIGHTED, numbers),
    ):
        folder = workshop() / name
        request = TrainingRequest(
            data=data,
            texts=("text",),
            label="label",
            epsilon=5.0,
            out=folder,
            method=method,
            epochs=1,
            words=20,
            ledger=workshop() / f"{name}.ledger",
            **more,
        )
        with warnings.catch_warnings(action="ignore", category=AssumedPublicWarning):
            train_from_table(request, lambda _: None)
        made.append(_read(folder))
    return tuple(made)
