"""No private row is touched outside of a paid step, but for what is declared: through every door.

Each case is a whole pipeline on data that records every access (`recording.py`). Another test in
`test_two_worlds_of_*.py` compare what leaves such pipelines.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from scipy import sparse
from typer.testing import CliRunner

import adadps
from adadps import (
    AdaDPSClassifier,
    PrivateRun,
)
from adadps.cli.main import app
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.tables import read_table
from adadps.training.stepper import Batches
from support.recorded_commands import DECLARED, SMALL, TABLE, doctor, write
from support.recorded_pipelines import (
    PIPELINES,
    ROWS,
    STEPS,
    Read,
    measured_on_held_out_rows,
    tuned_by_a_private_score,
    weighted_by_measured_frequencies,
)
from support.recording import Recording


@pytest.mark.parametrize(
    ("pipeline", "declared"),
    [pytest.param(pipeline, declared, id=name) for name, (pipeline, declared) in PIPELINES.items()],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_private_rows_are_read_in_paid_steps_and_by_declaration_alone(pipeline, declared, tmp_path):
    with Recording().watching() as recording:
        pipeline(recording, tmp_path)
    assert recording.outside == []
    assert len(recording.steps) >= STEPS
    assert recording.declared == declared


@pytest.mark.parametrize("pipeline", [tuned_by_a_private_score, weighted_by_measured_frequencies])
def test_a_measurement_is_made_after_its_payment(pipeline, tmp_path):
    with Recording().watching() as recording:
        pipeline(recording, tmp_path)
    assert recording.outside == []
    assert recording.declared == {Read.FORM, Read.PAID_MEASUREMENT}


def test_the_operator_may_look_for_held_out_rows(tmp_path):
    private, other = (write(tmp_path / f"{name}.csv", TABLE) for name in ("private", "test"))
    line = ["train", private, *SMALL, *DECLARED, "--out", tmp_path / "model", "--test", other]
    with Recording().watching() as recording:
        recording.files.add(str(private))
        asked = [str(part) for part in (*line, "--check-overlap")]
        done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert recording.outside == []
    assert recording.declared == {Read.CHECK_OVERLAP}


def test_the_doctor_looks_at_public_data_alone(tmp_path):
    with Recording().watching() as recording:
        doctor(recording, tmp_path)
    assert recording.log == []


# --- the list is whole, and the recording notices what it should ---


def test_every_declared_read_is_used_and_stands_in_the_contract():
    sources = Path(adadps.__file__).parent
    used = {
        name
        for file in sources.rglob("*.py")
        for name in re.findall(r"declared_read\(DeclaredRead\.(\w+)\)", file.read_text("utf-8"))
        if file.name != "provenance.py"
    }
    assert used == {read.name for read in DeclaredRead}
    page = (sources.parents[1] / "docs/privacy-contract.md").read_text("utf-8")
    section = page.split("## Reads outside of paid steps")[1].split("\n## ")[0]
    listed = [" ".join(one.split()) for one in re.findall(r"^- (.*(?:\n  .*)*)", section, re.M)]
    assert listed == [read.value for read in DeclaredRead]


def peeking(kind, name, peek):
    """A leak that is planted into the product: it looks before it works."""
    original = getattr(kind, name)

    def looks(self, *given, **named):
        peek(self, *given)
        return original(self, *given, **named)

    return kind, name, looks


PLANTED = {
    "a mean, before the draw": (
        peeking(Batches, "__init__", lambda _, data: data.features.mean()),
        "features by mean",
    ),
    "one target, as a number": (
        peeking(Batches, "__init__", lambda _, data: data.targets[0].item()),
        "targets by item",
    ),
    "an array for somebody else": (
        peeking(Batches, "__init__", lambda _, data: data.features.numpy()),
        "features by numpy",
    ),
    "a row, while the result is made": (
        peeking(PrivateRun, "result", lambda run, _: run._stepper._data.take(torch.tensor([0]))),
        "features by __getitem__",
    ),
    "a row, between two steps": (
        peeking(PrivateRun, "evaluate", lambda run, _: torch.std(run._stepper._data.features)),
        "features by std",
    ),
}


@pytest.mark.parametrize(("leak", "found"), PLANTED.values(), ids=PLANTED)
def test_a_planted_look_is_noticed(leak, found, monkeypatch, tmp_path):
    seen = []
    for number in range(2):
        with Recording().watching() as recording:
            measured_on_held_out_rows(recording, tmp_path / str(number))
        seen.append(set(recording.outside))
        monkeypatch.setattr(*leak)
    assert any(one.startswith(found) for one in seen[1] - seen[0])


def test_a_fact_that_was_read_by_declaration_is_not_free_afterwards():
    recording = Recording()
    features = recording.tensor("features", torch.from_numpy(ROWS))
    with declared_read(DeclaredRead.FORM):
        largest = features.max()
    assert recording.outside == []
    _ = float(largest)
    assert len(recording.outside) == 1


def test_views_are_no_reads_and_stay_recorded():
    recording = Recording()
    first = recording.tensor("features", torch.from_numpy(ROWS)).detach().view(-1)[:3]
    assert first.shape == (3,)
    assert recording.log == []
    _ = first + 1
    assert [access.how for access in recording.log] == ["add"]


def test_a_measurement_before_its_payment_is_noticed():
    with Recording().watching() as recording:
        counts = recording.tensor("features", torch.from_numpy(ROWS))
        with declared_read(DeclaredRead.PAID_MEASUREMENT):
            counts.sum()
        assert len(recording.outside) == 1
        recording.log.clear()
        ledger = adadps.accounting.ledger.MemoryLedger()
        ledger.open("measured", adadps.Relation.ADD_OR_REMOVE_ONE, adadps.Accountant.RDP)
        ledger.authorise(GaussianDpEvent(1.0))
        with declared_read(DeclaredRead.PAID_MEASUREMENT):
            counts.sum()
        assert recording.outside == []


def test_a_table_that_is_opened_or_read_in_passing_is_noticed(tmp_path):
    private = write(tmp_path / "private.csv", TABLE)
    with Recording().watching() as recording:
        recording.files.add(str(private))
        with declared_read(DeclaredRead.ENCODING):
            table = read_table(private)
        assert recording.outside == []
        table.column("age")
        assert [one.split(" in ")[0] for one in recording.outside] == [
            "rows of private.csv by rows"
        ]
        recording.log.clear()
        private.read_bytes()
        assert [one.split(" in ")[0] for one in recording.outside] == [
            "the file private.csv by open"
        ]


@pytest.mark.parametrize(
    ("peek", "found"),
    [
        (lambda X, _: X.max(), "X by max"),
        (lambda _, y: np.unique(y), "y by unique"),
        (lambda X, _: X[0], "X by __getitem__"),
        (lambda X, _: np.asarray(X), "X by asarray"),
        (lambda _, y: y + 1, "y by add"),
    ],
)
def test_an_estimator_that_looks_is_noticed(peek, found, monkeypatch, tmp_path):
    leak = peeking(AdaDPSClassifier, "_task", lambda _, X, y: peek(X, y))
    monkeypatch.setattr(*leak)
    with Recording().watching() as recording:
        PIPELINES["classifier, all declared"][0](recording, tmp_path)
    assert any(one.startswith(found) for one in recording.outside)


def test_an_estimator_that_takes_sparse_content_is_noticed():
    recording = Recording()
    rows = recording.matrix("X", sparse.csr_matrix(np.maximum(ROWS, 0)))
    recording.log.clear()
    _ = rows.data.max()
    assert [access.how for access in recording.log] == ["data"]
