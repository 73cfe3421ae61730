"""One run of an experiment: its key, its noise, and what it may claim."""

import json
from dataclasses import replace

import pytest

from adadps_experiments.reproduce.text import jobs, recipes
from adadps_experiments.reproduce.text.jobs import TextJob
from adadps_experiments.reproduce.text.problem import PublicSource
from support.small_corpora import TINY, forget, put_in_place, small_corpus

ADADPS = {"clip": 0.5, "length": 3.0, "floor": 0.03, "power": 0.5}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    held = small_corpus()
    put_in_place(monkeypatch, imdb=held, imdb_private_words=replace(held, private_words=True))
    yield
    forget()


@pytest.mark.parametrize("method", ["dp-sgd", "adadps"])
def test_private_words_are_not_private(monkeypatch, method):
    """With a vocabulary from the private texts there is no epsilon, with or without noise."""
    monkeypatch.setattr(jobs, "_sigma", lambda *_: 1.5)
    for dataset, private in (("imdb", True), ("imdb-private-words", False)):
        record = jobs.run(TextJob(dataset, recipes.PAPER, method, ADADPS, 2.0, 0))
        assert record["private"] is private
        assert (record["epsilon_pld"] is not None) == private
        assert (record["epsilon_rdp"] is not None) == private


def test_noise_is_calibrated_by_pld_to_the_epsilon_of_the_line():
    record = jobs.run(TextJob("imdb", recipes.PAPER, "adadps", ADADPS, 0.5, 0))
    assert 0.495 < record["epsilon_pld"] <= 0.5
    assert record["epsilon_rdp"] > record["epsilon_pld"]
    assert record["job"]["epsilon"] == 0.5
    assert record["curve"][-1] == [TINY.steps, record["values"]["accuracy"]]
    assert len(record["curve"]) == jobs.POINTS


def test_a_job_is_described_by_all_that_it_depends_on():
    job = TextJob("imdb", recipes.PAPER, "adadps-public", {"clip": 0.5}, 1.5, 0)
    others = (
        replace(job, dataset="so-titles"),
        replace(job, recipe=recipes.TF_IDF),
        replace(job, method="dp-r-pub"),
        replace(job, setting={"clip": 0.25}),
        replace(job, epsilon=2.8),
        replace(job, seed=1),
        replace(job, public=PublicSource(share=0.002)),
        replace(job, tuning=True),
    )
    descriptions = [json.dumps(one.describe(), sort_keys=True) for one in (job, *others)]
    assert len(set(descriptions)) == len(descriptions)


def test_a_job_of_another_version_or_with_other_words_is_another_job(monkeypatch):
    """Records from before a change of the code behind a job are not reused."""
    job = TextJob("imdb", recipes.PAPER, "dp-sgd", {"clip": 0.5}, 1.5, 0)
    before = job.describe()
    assert (before["version"], before["words"]) == (jobs.VERSION, TINY.words)
    monkeypatch.setattr(jobs, "VERSION", jobs.VERSION + 1)
    assert job.describe() != before
    monkeypatch.undo()
    monkeypatch.setitem(jobs.SIZES, "imdb", replace(TINY, words=30, narrow=7))
    assert job.describe()["words"] == 30
    assert replace(job, tuning=True).describe()["words"] == 7


def test_a_job_is_not_described_by_what_it_does_not_depend_on():
    """One run without privacy serves all epsilons."""
    job = TextJob("imdb", recipes.PAPER, "adam", {"length": 0.1}, 1.5, 0)
    assert job.describe() == replace(job, epsilon=2.8, public=PublicSource(proxy=250)).describe()
