"""`adadps bench --epoch`: whole epochs, extrapolated ones, and the reviews of IMDB."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from adadps.cli.main import app
from adadps_experiments.bench import session
from adadps_experiments.bench.measure import Timing, measure_contender_epoch, measure_epoch
from adadps_experiments.bench.rows import RowFile, load
from adadps_experiments.bench.workloads import WORKLOADS, imdb
from support.bench_rows import row_of

runner = CliRunner()
WHOLE, QUICK = Timing(threads=1), Timing(threads=1, steps=2)


@pytest.fixture
def epochs_at_once(monkeypatch, at_once):
    """Replace whole epochs by instant ones, and list those that were measured."""
    made = []

    def epoch(workload, name, timing):
        made.append((workload.name, name))
        return row_of(workload.name, name, ms=4.0, steps=3845, seconds=15.38)

    monkeypatch.setattr(session, "measure_contender_epoch", epoch)
    return made


@pytest.mark.parametrize("name", ["adadps", "torch"])
def test_an_epoch_is_measured_from_the_first_step_to_the_weights(name, short_runs):
    workload = replace(WORKLOADS["logreg-10k"].tiny(), examples=80)
    row = measure_epoch(workload, name, WHOLE)
    assert row["steps"] == 10
    assert row["seconds"] == pytest.approx(row["ms_per_step"] * 10 / 1000)
    assert row["cpu_ms_per_step"] > 0
    assert "extrapolated" not in row
    assert ("engine" in row) == (name == "adadps")


def test_a_few_steps_are_extrapolated_and_said_so(short_runs):
    workload = replace(WORKLOADS["logreg-10k"].tiny(), examples=80)
    row = measure_epoch(workload, "torch", QUICK)
    assert row["extrapolated"]
    assert row["steps"] == 10
    assert row["seconds"] == pytest.approx(row["ms_per_step"] * 10 / 1000)


def test_an_epoch_that_cannot_run_is_a_row(monkeypatch):
    monkeypatch.setattr("adadps_experiments.bench.measure.find_spec", lambda _: None)
    row = measure_contender_epoch(WORKLOADS["lstm"].tiny(), "opacus-ghost", QUICK)
    assert row["seconds"] is None
    assert row["error"].startswith("cannot run: opacus is not installed")


def test_the_epoch_stands_beside_an_extrapolation(epochs_at_once, at_once, tmp_path):
    file = tmp_path / "rows.json"
    shown = runner.invoke(app, ["bench", "--epoch", "--json", str(file), "--markdown"])
    assert shown.exit_code == 0, shown.output
    assert "| logreg-10k-epoch | adadps | 15.4 | 10 | measured: 3,845 steps |" in shown.stdout
    assert "| opacus-hooks | 3.85 | 10 | extrapolated: 3,845 × 1 ms |" in shown.stdout
    assert [row["workload"] for row in load(file)] == ["logreg-10k-epoch"] * 2
    assert epochs_at_once == [("logreg-10k", "adadps")]
    assert at_once == ["opacus-hooks"]


def test_epochs_resume_with_the_next_contender(epochs_at_once, tmp_path):
    file = RowFile(tmp_path / "rows.json", resume=False)
    file.put(row_of("lstm-imdb-epoch", "adadps", seconds=1.0))
    session.measure_epochs(session.epochs_to_measure(["lstm-imdb"], []), WHOLE, file, print)
    assert [name for _, name in epochs_at_once] == ["torch", "opacus-hooks", "opacus-ghost"]
    assert len(session.stored_rows(tmp_path / "rows.json", ["lstm-imdb-epoch"], [])) == 4


def test_contenders_of_an_epoch_can_be_named():
    (epoch,) = session.epochs_to_measure(["lstm-imdb"], ["adadps-dp-sgd"])
    assert (epoch.whole, epoch.extrapolated) == (("adadps-dp-sgd",), ())
    (other,) = session.epochs_to_measure([], ["opacus-hooks", "torch"])
    assert (other.workload.name, other.whole) == ("logreg-10k", ("torch",))
    assert other.extrapolated == ("opacus-hooks",)


def test_reviews_become_padded_tokens_of_public_words(monkeypatch):
    train = SimpleNamespace(texts=("The THE film", "zzzz", "to the the the"), labels=(1, 0, 1))
    monkeypatch.setattr(imdb, "imdb", lambda: SimpleNamespace(train=train))
    workload = imdb.ImdbLstm("lstm-imdb", examples=3, batch=2, vocabulary=3, length=3)
    data = workload.data()
    assert data.features.tolist() == [[0, 1, 1], [0, 0, 0], [2, 1, 1]]
    assert data.targets.tolist() == [1, 0, 1]
    scores = workload.model()(data.features)
    assert scores.shape == (3, 2)
    assert len(workload.tiny().data()) == 1000, "a tiny copy reads no review"
