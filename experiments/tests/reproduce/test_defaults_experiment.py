"""The comparison of default settings: constants come from other problems, winners from trials."""

import json
from collections import Counter

import numpy as np
import pytest

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
        for job in defaults_table.trials_of(dataset):
            value = score(dataset, job.epsilon, job.setting)
            record_file._records[json.dumps(job.describe(), sort_keys=True)] = {
                "job": job.describe(), "values": {"accuracy": value},
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
    assert len(rows) == 12
    without_privacy = 0.11  # one job for all epsilons: the last has written it
    assert [row["mean"] for row in rows[:4]] == pytest.approx([0.0, 0.01, 0.02, without_privacy])
    assert {row["method"] for row in rows} == set(defaults_table.LINES)
    wide = defaults_table.wide(rows)
    assert [row["epsilon"] for row in wide] == [1.0, 3.0, 8.0]
    assert wide[0]["defaults"] == "0.010 ± 0.000"
    assert defaults_table.figure_of(rows).startswith(b"\x89PNG")


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
