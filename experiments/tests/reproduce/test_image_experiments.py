"""`adadps reproduce mnist-ae` and `mnist`: the same chance for every method, and a true epsilon."""

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from adadps import Accountant, dp_sgd, epsilon_of_run, poisson, privatize
from adadps.cli.main import app
from adadps.errors import DataError, SettingError
from adadps_experiments.reproduce import trials as searches
from adadps_experiments.reproduce.images import jobs as image_jobs
from adadps_experiments.reproduce.images import problems, table, trials
from adadps_experiments.reproduce.images.jobs import ImageJob, run
from adadps_experiments.reproduce.images.methods import IMAGE_METHODS, Given, methods_of
from adadps_experiments.reproduce.images.problems import SIZES
from adadps_experiments.reproduce.records import RecordFile

ROWS, PIXELS = 300, 784


def images(rows=ROWS, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return torch.rand(rows, PIXELS, generator=draws)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A few random images, a small autoencoder, and a cache for features."""
    monkeypatch.setenv("ADADPS_CACHE", str(tmp_path / "cache"))
    held = (images(ROWS), torch.arange(ROWS) % 10, images(40, 1), torch.arange(40) % 10)
    monkeypatch.setattr(problems, "_pixels", lambda _dataset: held)
    monkeypatch.setattr(problems, "PUBLIC", 60)
    monkeypatch.setattr(problems, "WIDTHS", (784, 8, 4, 8, 784))
    monkeypatch.setitem(
        SIZES, "mnist-ae", problems.ImageSize(50, 2, 1, (1.6, 3.0), 1e-3, True, "loss", 100.0)
    )
    monkeypatch.setitem(
        SIZES, "mnist", problems.ImageSize(50, 1, 1, (1.25,), 1e-3, False, "accuracy")
    )
    for name, epsilons in (("mnist-wavelets", (1.25,)), ("fashion-mnist", (1.0, 3.0))):
        few = problems.ImageSize(
            50, 1, 1, epsilons, 1e-3, False, "accuracy", dataset=SIZES[name].dataset, wavelets=True
        )
        monkeypatch.setitem(SIZES, name, few)
    monkeypatch.setattr(image_jobs, "PUBLIC_EPOCHS", 2)
    image_jobs._problem.cache_clear()
    yield
    image_jobs._problem.cache_clear()


def job_of(experiment, method, setting, **more):
    epsilon = SIZES[experiment].tuned_at
    return ImageJob(
        experiment=experiment, method=method, setting=setting, epsilon=epsilon, seed=0, **more
    )


def test_every_method_has_eight_settings():
    for experiment in SIZES:
        for name, settings in methods_of(experiment).items():
            assert len({json.dumps(setting) for setting in settings}) == 8, (experiment, name)


def test_five_methods_and_one_without_privacy_have_all_seeds():
    main = [name for name, method in IMAGE_METHODS.items() if method.main]
    assert main == ["dp-sgd", "dp-adam", "adadps", "whitened", "warm-whitened", "adam"]


def test_public_validation_and_test_images_are_apart(small):
    whole, tuned = (problems.problem("mnist", tuning=tuning) for tuning in (False, True))
    rows = {
        "public": whole.public.features,
        "trained": tuned.train.features,
        "validation": tuned.test.features,
        "test": whole.test.features,
    }
    sets = {name: {row.tobytes() for row in held.numpy()} for name, held in rows.items()}
    assert sum(map(len, sets.values())) == len(set().union(*sets.values())) == ROWS + 40
    assert len(tuned.train) + len(tuned.test) == len(whole.train) == ROWS - 60


@pytest.mark.parametrize("method", IMAGE_METHODS)
def test_every_method_trains(small, method):
    setting = dict(IMAGE_METHODS[method].settings[0])
    record = run(job_of("mnist-ae", method, setting, tuning=True))
    json.dumps(record, allow_nan=False)
    assert 0 < record["values"]["score"] < 1
    assert record["private"] is IMAGE_METHODS[method].private
    if record["private"]:
        assert 1.55 < record["epsilon_pld"] <= 1.6 < record["epsilon_rdp"] < 2.2
        sampler = poisson(examples=record["examples"], expected_size=50)
        chain = dp_sgd(
            privatize(clip_norm=1.0, noise_multiplier=record["noise_multiplier"]), lr=1.0
        )
        alone = epsilon_of_run(
            chain, sampler, record["steps"], delta=1e-3, accountant=Accountant.PLD
        )
        assert record["epsilon_pld"] == pytest.approx(alone), "side information costs nothing"
    else:
        assert record["epsilon_pld"] is None


def test_lengths_do_not_depend_on_the_scale_of_the_loss(small):
    given = problems.problem("mnist-ae", tuning=True)
    clips = {}
    for factor in (1.0, 100.0):
        scaled = replace(
            given, loss=lambda out, target, factor=factor: factor * given.loss(out, target)
        )
        asked = Given(scaled, {"clip": 0.5, "length": 3.0}, 1.0, 10, 0, 64)
        stage, rate = asked.clipped()
        clips[factor] = stage.clip_norm
        assert rate(1) * stage.clip_norm == pytest.approx(3.0)
        assert rate(6) == pytest.approx(rate(1) / 2)
    assert clips[100.0] == pytest.approx(100 * clips[1.0], rel=1e-4)


@pytest.fixture
def scored(monkeypatch, small):
    """Runs are not made, but given a score: `scored.score(job)`; `scored.jobs` tells which."""

    class Scored:
        jobs: ClassVar = []
        score = staticmethod(lambda _job: 0.5)

    def run_missing(_run, jobs, record_file, *_):
        for job in jobs:
            if record_file.find(job.describe()) is None:
                Scored.jobs.append(job)
                values = {"score": Scored.score(job)}
                record_file.add({"job": job.describe(), "values": values})

    Scored.jobs = []
    for module in (table, searches):
        monkeypatch.setattr(module, "run_missing", run_missing)
    return Scored


def test_the_best_trial_is_tried_again_at_the_length_of_runs(scored, tmp_path):
    """Longer runs want shorter steps here: half of those that were best in trials."""
    rates = [setting["rate"] for setting in IMAGE_METHODS["adam"].settings]
    scored.score = lambda job: abs(job.setting["rate"] - rates[4] / (2 if job.epochs else 1))
    found = trials.tune(["mnist-ae"], RecordFile(tmp_path / "trials.jsonl"), methods=["adam"])
    (winner,) = found["datasets"]["mnist-ae"]["methods"].values()
    finals = [rates[4], rates[4] / 2, rates[4] / 4]
    assert winner["winner of trials"] == {"rate": rates[4]}
    assert winner["winner"] == {"rate": rates[4] / 2}
    assert [setting["rate"] for setting, _ in winner["finals"]] == finals
    long = [job for job in scored.jobs if job.describe()["epochs"] == SIZES["mnist-ae"].epochs]
    assert [job.setting["rate"] for job in long] == finals
    assert all(job.tuning for job in long)
    assert len(scored.jobs) == 8 + 3


@pytest.mark.parametrize(
    ("experiment", "method"), [("fashion-mnist", "adam"), ("mnist-ae", "public-only")]
)
def test_trials_as_long_as_runs_have_no_finals(scored, tmp_path, experiment, method):
    scored.score = lambda job: abs(job.setting["rate"] - 0.0027)
    held = RecordFile(tmp_path / "trials.jsonl")
    found = trials.tune([experiment], held, methods=[method])
    assert found["datasets"][experiment]["methods"][method]["finals"] == []


def test_diverged_trials_are_written_as_null(scored, tmp_path):
    scored.score = lambda job: None if job.setting["rate"] > 0.001 else job.setting["rate"]
    found = trials.tune(["mnist-ae"], RecordFile(tmp_path / "trials.jsonl"), methods=["adam"])
    shown = found["datasets"]["mnist-ae"]["methods"]["adam"]["trials"]
    assert [None if rate["rate"] > 0.001 else rate["rate"] for rate, _ in shown] == [
        score for _, score in shown
    ]


def test_methods_that_were_not_asked_for_keep_their_winners(scored, tmp_path):
    record_file = RecordFile(tmp_path / "trials.jsonl")
    first = trials.tune(["mnist-ae"], record_file, methods=["whitened", "adam"])
    both = trials.tune(["mnist-ae"], record_file, held=first, methods=["dp-sgd"])
    held = both["datasets"]["mnist-ae"]["methods"]
    assert list(held) == ["dp-sgd", "whitened", "adam"], "in the order of the table"
    assert held["adam"] == first["datasets"]["mnist-ae"]["methods"]["adam"]
    assert {job.method for job in scored.jobs} == {"whitened", "adam", "dp-sgd"}
    with pytest.raises(SettingError, match="found 'adma'"):
        trials.tune(["mnist-ae"], record_file, methods=["adma"])


def won(*names):
    """Return a file of winners in which the first setting of each method has won."""
    first = {name: dict(IMAGE_METHODS[name].settings[0]) for name in names}
    methods = {
        name: {"winner": setting, "winner of trials": setting, "finals": [[setting, 0.5]]}
        for name, setting in first.items()
    }
    return {"datasets": {"mnist-ae": {"methods": methods}}}


def test_quick_trials_have_no_finals_and_serve_quick_runs_alone(scored, tmp_path):
    rates = [setting["rate"] for setting in IMAGE_METHODS["adam"].settings]
    scored.score = lambda job: abs(job.setting["rate"] - rates[4] / (2 if job.epochs else 1))
    record_file = RecordFile(tmp_path / "trials.jsonl")
    found = trials.tune(["mnist-ae"], record_file, methods=["adam"], quick=True)
    assert len(scored.jobs) == 8
    assert trials.setting_of("mnist-ae", "adam", found, quick=True) == {"rate": rates[4]}
    with pytest.raises(DataError, match="--tune first"):
        trials.setting_of("mnist-ae", "adam", found)
    whole = trials.tune(["mnist-ae"], record_file, held=found, methods=["adam"])
    assert len(scored.jobs) == 8 + 3
    assert trials.setting_of("mnist-ae", "adam", whole, quick=True) == {"rate": rates[4]}
    assert trials.setting_of("mnist-ae", "adam", whole) == {"rate": rates[4] / 2}


def test_quick_runs_are_as_long_as_trials(scored, tmp_path):
    held = RecordFile(tmp_path / "runs.jsonl")
    table.run_rows("mnist-ae", won(*table.QUICK), 1, held, quick=True)
    assert [job.method for job in scored.jobs] == list(table.QUICK)
    for job in scored.jobs:
        assert job.describe()["epochs"] == SIZES["mnist-ae"].trial_epochs
        assert job.describe()["split"] == "test"


def test_only_recorded_runs_are_shown_when_asked_for(scored, tmp_path):
    winners = won(*table.QUICK)
    held = RecordFile(tmp_path / "runs.jsonl")
    table.run_rows("mnist-ae", winners, 1, held, methods=["adadps"])
    made = [(job.method, job.epsilon, job.seed) for job in scored.jobs]
    assert made == [("adadps", 1.6, 0), ("adadps", 3.0, 0)]
    found = table.run_rows("mnist-ae", winners, 3, held, recorded=True)
    assert {line: len(records) for line, records in found.items()} == {
        ("adadps", 1.6): 1, ("adadps", 3.0): 1,
    }  # fmt: skip
    assert len(scored.jobs) == 2
    with pytest.raises(DataError, match="setting of dp-adam"):
        table.run_rows("mnist-ae", winners, 3, held)


def test_the_smaller_epsilon_and_first_seeds_are_run_first(scored, tmp_path):
    winners = won(*table.QUICK)
    held = RecordFile(tmp_path / "runs.jsonl")
    table.run_rows("mnist-ae", winners, 2, held, methods=["adadps", "whitened"])
    made = [(job.method, job.epsilon, job.seed) for job in scored.jobs]
    assert made == [
        ("adadps", 1.6, 0), ("whitened", 1.6, 0), ("adadps", 1.6, 1), ("whitened", 1.6, 1),
        ("adadps", 3.0, 0), ("whitened", 3.0, 0), ("adadps", 3.0, 1), ("whitened", 3.0, 1),
    ]  # fmt: skip


def test_rows_and_the_figure(small):
    winners = won(*IMAGE_METHODS)
    records = {}
    for name in table.QUICK:
        job = job_of("mnist-ae", name, dict(IMAGE_METHODS[name].settings[0]), epochs=1)
        records[name, 1.6] = [run(job)]
    rows = table.rows_of("mnist-ae", records)
    assert [row["paper"] for row in rows] == [5.013, 3.566, None]
    for row, mine in zip(rows, records.values(), strict=True):
        assert row["mean"] == pytest.approx(100 * mine[0]["values"]["score"])
    assert table.figure_of({"mnist-ae": records}).startswith(b"\x89PNG")
    records["dp-sgd", 1.6][0]["values"]["score"] = None  # it diverged
    first, *_ = table.rows_of("mnist-ae", records)
    assert json.loads(json.dumps(first, allow_nan=False))["mean"] is None
    assert table.figure_of({"mnist-ae": records}).startswith(b"\x89PNG")
    assert trials.setting_of("mnist-ae", "adam", winners) == IMAGE_METHODS["adam"].settings[0]
    with pytest.raises(DataError, match="--tune first"):
        trials.setting_of("mnist", "adam", winners)


def test_a_classifier_is_trained_too(small):
    setting = dict(IMAGE_METHODS["whitened"].settings[0])
    record = run(job_of("mnist", "whitened", setting, tuning=True))
    assert 0 <= record["values"]["score"] <= 1
    assert record["digits"] is None
    assert table.figure_of({"mnist": {("whitened", 1.25): [record]}}).startswith(b"\x89PNG")


@pytest.mark.parametrize("method", methods_of("mnist-wavelets"))
def test_linear_models_on_wavelets_are_trained(small, method):
    (setting, *_) = methods_of("mnist-wavelets")[method]
    record = run(job_of("mnist-wavelets", method, dict(setting), tuning=True))
    assert 0 <= record["values"]["score"] <= 1
    assert record["private"] is IMAGE_METHODS[method].private
    if record["private"]:
        assert 1.2 < record["epsilon_pld"] <= 1.25
    (row,) = table.rows_of("mnist-wavelets", {(method, 1.25): [record]})
    assert (row["side"], row["paper"]) == ("wavelets, 600 public images", None)


def test_privacy_at_every_epsilon_stands_in_the_table_of_clothes():
    lines = table.lines("fashion-mnist", quick=False)
    assert lines == [
        ("dp-sgd", 1.0), ("dp-sgd", 3.0), ("dp-adam", 1.0), ("dp-adam", 3.0), ("adadps", 1.0),
        ("adadps", 3.0), ("whitened", 1.0), ("whitened", 3.0), ("adam", None),
        ("public-only", None),
    ]  # fmt: skip


def test_parts_are_tuned_beside_those_tuned_before(small, tmp_path, monkeypatch):
    monkeypatch.setattr(searches, "run_missing", lambda *_: None)
    monkeypatch.setattr(searches.Search, "score", lambda _, job: -job.setting.get("rate", 1.0))
    held = {"datasets": {"mnist": {"methods": {"sgd": {}}}}}
    found = trials.tune(["mnist-wavelets"], RecordFile(tmp_path / "trials.jsonl"), 1, held)
    assert list(found["datasets"]) == ["mnist", "mnist-wavelets"]
    assert set(found["datasets"]["mnist-wavelets"]["methods"]) == set(methods_of("mnist-wavelets"))
    with pytest.raises(SettingError, match="It has: mnist, mnist-wavelets"):
        problems.parts_of("mnist", "fashion-mnist")


def test_the_loss_is_that_of_a_pixel():
    outputs, targets = torch.zeros(3, 784), torch.full((3, 784), 0.5)
    assert problems.mean_pixel_loss(outputs, targets) == pytest.approx(0.25)
    assert np.allclose(problems.pixel_loss(outputs, targets), 0.25)


def test_the_command_tunes_runs_and_shows_some_methods(small, tmp_path, monkeypatch):
    """Trials alone serve --quick; the table needs finals; --recorded runs nothing."""

    def here(work, jobs, record_file, *_):
        for job in jobs:
            if record_file.find(job.describe()) is None:
                record_file.add(work(job))

    for module in (table, searches):
        monkeypatch.setattr(module, "run_missing", here)
    monkeypatch.setattr("adadps_experiments.commands.reproduce.get_if_absent", lambda _: None)

    def called(*words):
        return CliRunner().invoke(app, ["reproduce", "mnist-ae", *map(str, words)])

    winners, rows = tmp_path / "winners.json", tmp_path / "rows.json"
    shown = called("--tune", "--quick", "--methods", "dp-sgd", "--json", winners)
    assert shown.exit_code == 0, shown.output
    few = ("--methods", "dp-sgd", "--winners", winners, "--json", rows)
    assert "--tune first" in called(*few).stderr.replace("\n", " ")
    assert "Expected finished runs" in called(*few, "--quick", "--recorded").stderr
    assert called("--quick", *few).exit_code == 0
    (row,) = json.loads(rows.read_text())
    assert (row["method"], row["settings"]["epochs"], row["seeds"]) == ("DP-SGD", 1, 1)
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert called("--quick", "--recorded", *few).exit_code == 0
    assert (tmp_path / "runs.jsonl").read_text().splitlines() == lines
    assert json.loads(rows.read_text()) == [row]
    assert called("--methods", "dp-sdg", "--tune", "--json", winners).exit_code == 2
