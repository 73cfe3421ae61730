"""The search for a setting: the best one wins, beyond the edges of its grid too."""

import math
from dataclasses import dataclass

import pytest

from adadps_experiments.reproduce import trials
from adadps_experiments.reproduce.records import RecordFile
from adadps_experiments.reproduce.trials import Search, TunedJob

RATES = (0.1, 0.2, 0.4)


@dataclass(frozen=True, kw_only=True)
class Job(TunedJob):
    """A run that is not made, only scored."""

    def describe(self):
        return {"setting": dict(self.setting), "epochs": self.epochs}


@pytest.fixture
def search(tmp_path, monkeypatch):
    """A search whose trials are scored by ``score(job)``; ``tried`` has their rates in order."""

    def searching(score, *, lower_is_better=False):
        def scored(_run, jobs, record_file, *_):
            for job in jobs:
                if record_file.find(job.describe()) is None:
                    searched.append(job.setting["rate"])
                    record_file.add({"job": job.describe(), "values": {"score": score(job)}})

        searched = []
        monkeypatch.setattr(trials, "run_missing", scored)
        record_file = RecordFile(tmp_path / "trials.jsonl")
        return Search(None, record_file, "score", lower_is_better), searched

    return searching


def jobs():
    return [
        Job(experiment="numbers", method="adam", setting={"rate": rate}, seed=0) for rate in RATES
    ]


@pytest.mark.parametrize(
    ("lower_is_better", "beyond"), [(False, (0.8, 1.6)), (True, (0.05, 0.025))]
)
def test_the_best_setting_wins_and_its_edges_are_tried(search, lower_is_better, beyond):
    searched, tried = search(lambda job: job.setting["rate"], lower_is_better=lower_is_better)
    found = searched.winner(jobs())
    assert tried == [*RATES, *beyond], "two steps beyond the edge, and no further"
    assert found["winner"] == found["winner of trials"] == {"rate": beyond[-1]}
    assert len(found["trials"]) == 5
    assert found["finals"] == []


def test_a_run_that_diverged_never_wins(search):
    searched, _ = search(lambda job: None if job.setting["rate"] > 0.3 else job.setting["rate"])
    found = searched.winner(jobs())
    assert found["winner"] == {"rate": 0.2}
    assert found["trials"][2] == [{"rate": 0.4}, None]
    assert math.isinf(searched.cost(jobs()[2]))


@pytest.mark.parametrize(
    ("best", "finals"),
    [(0.2, [0.2, 0.1]), (0.1, [0.2, 0.1, 0.05]), (0.0125, [0.2, 0.1, 0.05])],
    ids=["no shorter", "half as long", "at most three"],
)
def test_longer_runs_try_shorter_steps_as_long_as_they_help(search, best, finals):
    searched, tried = search(lambda job: abs(job.setting["rate"] - (best if job.epochs else 0.2)))
    searched = Search(None, searched.record_file, "score", lower_is_better=True)
    found = searched.winner(jobs(), final_epochs=10)
    assert tried == [*RATES, *finals]
    assert found["winner of trials"] == {"rate": 0.2}
    assert found["winner"] == {"rate": max(best, 0.05)}
    assert [setting["rate"] for setting, _ in found["finals"]] == finals
