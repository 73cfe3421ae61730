"""The comparison of default settings: constants come from other problems, winners from trials."""

import json
from collections import Counter
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from adadps.estimators.planner.methods import EXAMPLES_AT_HALF
from adadps.estimators.text import NAME_SCALE
from adadps_experiments.reproduce.defaults import (
    jobs as defaults_jobs,
)
from adadps_experiments.reproduce.defaults import (
    problems as defaults_problems,
)
from adadps_experiments.reproduce.defaults import (
    table as defaults_table,
)
from adadps_experiments.reproduce.defaults.jobs import BEFORE, BOTH, FEATURES, NO_DOOR, DefaultsJob
from adadps_experiments.reproduce.records import RecordFile


def kept_with(tmp_path, score):
    """Return synthetic trials of all problems: ``score(dataset, epsilon, setting)``."""
    record_file = RecordFile(tmp_path / "trials.jsonl")
    for dataset in defaults_table.DATASETS:
        mixed = defaults_table.mix_trials(dataset) if dataset in defaults_table.TEXTS else []
        for job in [*defaults_table.trials_of(dataset), *mixed]:
            value = score(dataset, job.epsilon, job.setting)
            record_file._records[json.dumps(job.describe(), sort_keys=True)] = {
                "job": job.describe(), "values": {"accuracy": value},
                "examples": 1000, "outputs": 10,
            }  # fmt: skip
    return record_file


def liking(special, value):
    """Return a score of 0.5 for all settings, but more for one of them on one problem."""

    def score(dataset, epsilon, setting):
        return value if (dataset, setting) == special else 0.5

    return score


def test_dp_sgd_without_side_information_has_a_dozen_trials():
    assert len(defaults_table.plain_settings()) == 12
    assert {one["door"] for one in defaults_table.plain_settings()} == {NO_DOOR}


def test_candidates_have_every_door():
    doors = Counter(rule["door"] for rule in defaults_table.rules())
    assert doors == {NO_DOOR: 6, FEATURES: 6, BEFORE: 3, BOTH: 3}


def test_constants_of_a_problem_are_not_chosen_on_it(tmp_path):
    rule = defaults_table.rules()[-1]
    found = defaults_table.tune(
        defaults_table.DATASETS, kept_with(tmp_path, liking(("imdb", rule), 0.9))
    )
    assert found["rules"]["imdb"]["winner"] != rule
    assert found["rules"]["amazon"]["winner"] == rule
    assert found["shipped"]["winner"] == rule
    for dataset, held in found["rules"].items():
        assert dataset not in held["chosen_on"]
        assert "mnist" not in held["chosen_on"]


def test_constants_lose_least_on_average_over_problems_and_epsilons(tmp_path):
    steady, brilliant = defaults_table.rules()[3], defaults_table.rules()[10]

    def score(dataset, epsilon, setting):
        if setting == steady:
            return 0.8
        return 0.9 if (setting, dataset, epsilon) == (brilliant, "imdb", 1.0) else 0.5

    found = defaults_table.best_rule(["imdb", "amazon"], kept_with(tmp_path, score))
    assert found["winner"] == steady
    assert found["mean_loss"] == pytest.approx(0.1 / 6)


def test_winners_are_the_best_trials_of_their_own_problem(tmp_path):
    best = next(rule for rule in defaults_table.rules() if rule["door"] == BOTH)
    found = defaults_table.tune(
        defaults_table.DATASETS, kept_with(tmp_path, liking(("so-titles", best), 0.9))
    )
    mine = found["datasets"]["so-titles"]["3"]
    assert mine[defaults_table.BEST]["winner"] == best
    assert mine[defaults_table.DP_SGD]["winner"]["door"] == NO_DOOR
    assert mine[defaults_table.DP_SGD]["accuracy"] == 0.5


def test_rows_say_which_line_has_which_accuracy(tmp_path):
    weighted, both = defaults_table.rules()[7], defaults_table.rules()[-1]

    def score(dataset, epsilon, setting):
        return 0.9 if setting == (both if dataset == "amazon" else weighted) else 0.5

    record_file = kept_with(tmp_path, score)
    winners = defaults_table.tune(defaults_table.DATASETS, record_file)
    for number, jobs in enumerate(defaults_table.jobs_of("amazon", winners, 2).values()):
        for job in jobs:
            record_file._records[json.dumps(job.describe(), sort_keys=True)] = record(
                job, number / 100
            )
    rows = defaults_table.run_rows(["amazon"], winners, 2, record_file)
    assert Counter(row["settings"]["target_epsilon"] for row in rows) == {0.5: 6, 1: 8, 3: 8, 8: 8}
    written = list(defaults_table.jobs_of("amazon", winners, 2))
    once = {defaults_table.NO_PRIVACY, defaults_table.PUBLIC}  # the same job for all epsilons
    for number, (place, row) in enumerate(zip(written, rows, strict=True)):
        assert place == (row["method"], row["settings"]["target_epsilon"])
        if row["method"] not in once:
            same_plan = row["method"] == defaults_table.DEFAULTS  # as the line before: few examples
            assert row["mean"] == pytest.approx((number - same_plan) / 100)
    assert {row["method"] for row in rows} == set(defaults_table.LINES)
    public = next(row for row in rows if row["method"] == defaults_table.PUBLIC)
    assert (public["seeds"], public["side"]) == (1, "wordllama")
    wide = defaults_table.wide(rows)
    assert [row["epsilon"] for row in wide] == [0.5, 1.0, 3.0, 8.0]
    assert wide[0][defaults_table.DP_SGD] is None, "settings were not tuned there"
    assert defaults_table.figure_of(rows).startswith(b"\x89PNG")


@pytest.mark.parametrize(("examples", "alike"), [(10, True), (10_000, False), (1_000_000, True)])
def test_runs_of_the_same_plan_are_not_made_again(tmp_path, examples, alike):
    """The rule for short texts changes nothing with few examples per class, or very many."""
    setting = {**defaults_table.mix(half=500.0, names=8.0), "negated": True}
    earlier = DefaultsJob("imdb", 1.0, setting, 0, tuning=False)
    held = {**record(earlier, 0.5), "examples": examples}
    job = replace(earlier, setting={**setting, "short": 50})
    record_file = RecordFile(tmp_path / "runs.jsonl")
    assert defaults_table._of_same_plan(job, record_file) == job, "nothing was run"
    record_file.add(held)
    assert defaults_table._of_same_plan(job, record_file) == (earlier if alike else job)
    assert defaults_table._of_same_plan(earlier, record_file) == earlier


def test_constants_of_a_mix_are_not_chosen_on_its_problem(tmp_path):
    def score(dataset, epsilon, setting):
        if "features" not in setting:
            return 0.5
        if dataset == "imdb":  # the opposite of all others
            return 1 - setting.get("share", 0.5) + (setting["names"] == 16.0)
        return setting.get("share", 0.5) + (setting["names"] == 4.0)

    found = defaults_table.tune(defaults_table.DATASETS, kept_with(tmp_path, score))
    assert set(found["mixes"]) == set(defaults_table.TEXTS)
    assert found["mixes"]["imdb"]["half"] in (1000.0, 2000.0), "the largest share is bounded"
    assert found["mixes"]["imdb"]["names"] == 4.0
    assert all(name not in held["chosen_on"] for name, held in found["mixes"].items())


def test_the_shipped_constants_are_those_that_won():
    recorded = files("adadps_experiments.reproduce.recorded").joinpath("defaults.json")
    shipped = json.loads(recorded.read_text("utf-8"))["shipped_mix"]
    assert (shipped["half"], shipped["names"]) == (EXAMPLES_AT_HALF, NAME_SCALE)


def test_without_words_the_defaults_have_no_side_information(tmp_path):
    winners = defaults_table.tune(defaults_table.DATASETS, kept_with(tmp_path, liking(None, 0.5)))
    winners["rules"]["mnist"]["winner"] = defaults_table.rules()[-1]
    jobs = defaults_table.jobs_of("mnist", winners, 1)
    assert jobs[defaults_table.DEFAULTS, 1.0][0].setting["door"] == NO_DOOR


def record(job, value):
    """Return a record with what the rows read."""
    facts = dict.fromkeys(
        ("epsilon_pld", "epsilon_rdp", "delta", "batch_size", "noise_multiplier", "clip_norm"), 1.0
    )
    return {
        "job": job.describe(), "values": {"accuracy": value}, "examples": 10, "lr": 1.0,
        "outputs": 2,
        "private": job.epsilon is not None, **facts,
    }  # fmt: skip


def small_task():
    """Return a problem with two kinds of short texts."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    texts = [f"the {'good' if label else 'bad'} film of the year" for label in labels]
    names = [str(number) for number in range(400)]
    part = defaults_problems.LabelledRows(texts, labels, names)
    return defaults_problems.DefaultsProblem(
        part, part.take(np.arange(400) < 50), ("bad", "good"), ("bad", "good", "film", "the", "of")
    )


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setitem(defaults_problems.PROBLEMS, "small", small_task)
    defaults_problems.load_problem.cache_clear()
    defaults_jobs._problem.cache_clear()
    yield
    defaults_problems.load_problem.cache_clear()
    defaults_jobs._problem.cache_clear()


@pytest.mark.parametrize("door", [NO_DOOR, FEATURES, BEFORE, BOTH])
@pytest.mark.usefixtures("_small")
def test_a_run_has_its_epsilon_and_learns(door):
    setting = {"door": door, "noise": 0.6, "clip": 0.7, "power": 1.0}
    found = defaults_jobs.run(DefaultsJob("small", 8.0, setting, 0, tuning=True))
    assert 7.9 < found["epsilon_pld"] <= 8.0
    assert found["epsilon_rdp"] >= found["epsilon_pld"]
    assert found["values"]["accuracy"] > 0.9
    assert found["job"]["split"] == "validation"


@pytest.mark.usefixtures("_small")
def test_words_and_embeddings_are_trained_together():
    setting = defaults_table.mix(share=0.5)
    found = defaults_jobs.run(DefaultsJob("small", 8.0, setting, 0, tuning=True))
    assert found["values"]["accuracy"] > 0.9
    assert found["outputs"] == 2


@pytest.mark.usefixtures("_small")
def test_small_shares_are_left_out_as_train_does(monkeypatch):
    monkeypatch.setattr(defaults_problems.DefaultsProblem, "mixed", None)
    setting = defaults_table.mix(half=0.01)
    assert defaults_jobs.run(DefaultsJob("small", 8.0, setting, 0, tuning=True))["private"]


@pytest.mark.usefixtures("_small")
def test_public_knowledge_alone_costs_nothing():
    setting = {"door": NO_DOOR, "features": defaults_jobs.MIXED, "names": 8.0}
    found = defaults_jobs.run(DefaultsJob("small", 0.0, setting, 0, tuning=False))
    assert found["epsilon_pld"] == 0
    assert found["values"]["accuracy"] > 0.9


@pytest.mark.usefixtures("_small")
def test_a_run_without_privacy_says_so():
    found = defaults_jobs.run(
        DefaultsJob("small", None, {"door": NO_DOOR, "lr": 4.0}, 0, tuning=True)
    )
    assert (found["private"], found["epsilon_pld"]) == (False, None)


def test_trials_hold_out_a_part_of_the_training_rows():
    whole = small_task()
    tuned = whole.for_tuning()
    assert not set(tuned.train.groups) & set(tuned.test.groups)
    assert len(tuned.train.rows) + len(tuned.test.rows) == len(whole.train.rows)


def test_words_of_the_classes_are_in_the_vocabulary():
    words = defaults_problems._words(("zymurgy", "film"), 50)
    assert words[:2] == ("film", "zymurgy")
    assert len(words) == len(set(words)) == 50
