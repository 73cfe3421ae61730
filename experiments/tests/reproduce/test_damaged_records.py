"""Records that were damaged later are refused, with the file and the cure."""

import json

import pytest
from typer.testing import CliRunner

from adadps.cli.main import app
from adadps.errors import DataError
from adadps_experiments.reproduce.records import (
    IN_EVERY_RUN,
    RecordFile,
    valid_run,
    valid_toy_run,
    valid_trial,
)
from adadps_experiments.reproduce.text import recipes, tuning
from adadps_experiments.reproduce.text.experiments import PAPER, Experiment, TableLine
from adadps_experiments.reproduce.text.jobs import TextJob
from adadps_experiments.reproduce.text.tables import rows_of, run_lines
from adadps_experiments.reproduce.toy import problem as toy_problem
from adadps_experiments.reproduce.toy import table as toy_table
from support.small_corpora import forget, put_in_place, small_corpus

REFUSED = r"Expected the record of a run of .* in .*\.jsonl, found a damaged one .*to run it again"
JOB = {"method": "dp-sgd", "seed": 0}
RUN = {
    "job": JOB,
    "values": {"accuracy": 0.5},
    "curve": [[1, 0.25], [2, 0.5]],
    **dict.fromkeys(sorted(IN_EVERY_RUN), 1.0),
}
TOY = {"job": JOB, "loss": 0.25, "curve": [[1, None], [2, 0.25]]}


def kept_with(path, record):
    record_file = RecordFile(path)
    record_file.add(record)
    return record_file


@pytest.mark.parametrize(
    "damage",
    [
        {"values": {"accuracy": "x"}},
        {"values": {"accuracy": 83.0}},
        {"values": {}},
        {"values": [0.5]},
        {"curve": None},
        {"curve": [[1]]},
        *({name: ...} for name in RUN if name != "job"),
    ],
    ids=str,
)
def test_a_damaged_run_is_refused(tmp_path, damage):
    assert valid_run(kept_with(tmp_path / "whole.jsonl", RUN), JOB) == RUN
    spoiled = {name: value for name, value in {**RUN, **damage}.items() if value is not ...}
    with pytest.raises(DataError, match=REFUSED):
        valid_run(kept_with(tmp_path / "runs.jsonl", spoiled), JOB)


@pytest.mark.parametrize(
    "values", [{}, None, [], {"loss": 0.5}, {"accuracy": None}, {"accuracy": 83.0}], ids=str
)
def test_a_damaged_trial_is_refused(tmp_path, values):
    whole = {"job": JOB, "values": {"accuracy": 1.0}}
    assert valid_trial(kept_with(tmp_path / "whole.jsonl", whole), JOB) == whole
    with pytest.raises(DataError, match=REFUSED):
        valid_trial(kept_with(tmp_path / "trials.jsonl", {"job": JOB, "values": values}), JOB)


@pytest.mark.parametrize(
    "damage",
    [
        {"loss": "x"},
        {"loss": ...},
        {"loss": []},
        {"curve": ...},
        {"curve": 7},
        {"curve": []},
        {"curve": [1, 2]},
        {"curve": [[None, 0.5]]},
        {"curve": [[1, "x"]]},
    ],
    ids=str,
)
def test_a_damaged_toy_run_is_refused(tmp_path, damage):
    for whole in (TOY, {**TOY, "loss": None}):  # null stands for an infinite loss
        assert valid_toy_run(kept_with(tmp_path / "whole.jsonl", whole), JOB) == whole
    spoiled = {name: value for name, value in {**TOY, **damage}.items() if value is not ...}
    with pytest.raises(DataError, match=REFUSED):
        valid_toy_run(kept_with(tmp_path / "runs.jsonl", spoiled), JOB)


LINE = TableLine("imdb", PAPER, "dp-sgd", 2.0)
SMALL = Experiment("small", "A small experiment", (LINE,), (LINE,))
WINNERS = {
    "datasets": {
        "imdb": {
            "methods": {
                "paper | dp-sgd": {
                    "features": str(recipes.PAPER),
                    "winner": {"clip": 0.5, "length": 1.0},
                }
            }
        }
    }
}


@pytest.fixture
def _small(monkeypatch):
    put_in_place(monkeypatch, imdb=small_corpus())
    yield
    forget()


@pytest.mark.usefixtures("_small")
def test_tuning_tells_which_trial_is_damaged(tmp_path):
    job = TextJob("imdb", recipes.PAPER, "dp-sgd", {"clip": 0.5, "length": 1.0}, 2.0,
              tuning.TUNING_SEED, tuning=True)  # fmt: skip
    record_file = kept_with(tmp_path / "trials.jsonl", {"job": job.describe(), "values": {}})
    with pytest.MonkeyPatch.context() as until:
        until.setattr(
            tuning,
            "run",
            lambda one: {"job": one.describe(), "values": {"accuracy": 0.5}},
        )
        with pytest.raises(DataError, match=REFUSED):
            tuning.tune(SMALL, record_file)
        record_file = kept_with(tmp_path / "cured.jsonl", {"job": JOB})
        tuning.tune(SMALL, record_file)


@pytest.mark.usefixtures("_small")
def test_tables_tell_which_run_is_damaged(tmp_path):
    job = TextJob("imdb", recipes.PAPER, "dp-sgd", {"clip": 0.5, "length": 1.0}, 2.0, 0).describe()
    record_file = kept_with(tmp_path / "runs.jsonl", {**RUN, "job": job, "values": {}})
    with pytest.raises(DataError, match=REFUSED):
        run_lines([LINE], 1, WINNERS, record_file, "tests")
    with pytest.raises(DataError, match=REFUSED):
        rows_of(SMALL, [LINE], 1, WINNERS, record_file)


def _one_of_the_toy(**changed):
    method = toy_problem.TOY_METHODS[0]
    setting = toy_table.recorded_settings("toy")[method.name]
    job = toy_problem.job_of(method, setting, 0, toy_table.QUICK_STEPS)
    return json.dumps({"job": job, **changed}) + "\n"


@pytest.mark.parametrize("changed", [{"values": {}}, {"loss": 0.5}, {"curve": [[1, 0.5]]}], ids=str)
def test_the_toy_command_tells_which_run_is_damaged(tmp_path, changed, monkeypatch):
    monkeypatch.setattr(toy_table, "run_all", lambda *_, **__: [])
    (tmp_path / "runs.jsonl").write_text(_one_of_the_toy(**changed), encoding="utf-8")
    words = ["reproduce", "toy", "--quick", "--json", str(tmp_path / "toy.json")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 1, shown.exception
    assert "found a damaged one" in " ".join(shown.stderr.split())
