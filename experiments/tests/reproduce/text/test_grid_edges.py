"""A grid is extended at the edge where its best setting lies."""

import math

import pytest

from adadps_experiments.reproduce.records import RecordFile
from adadps_experiments.reproduce.text import tuning
from adadps_experiments.reproduce.text.experiments import PAPER, Experiment, TableLine
from support.small_corpora import TINY, forget, put_in_place, small_corpus


def experiment(*methods):
    lines = tuple(TableLine("imdb", PAPER, method, 2.0) for method in methods)
    return Experiment("small", "A small experiment", lines, lines[:1])


def near(**best):
    """Return an accuracy that falls with the logarithmic distance from these values."""

    def accuracy(job):
        off = sum(abs(math.log(job.setting.get(name, at) / at)) for name, at in best.items())
        return {"job": job.describe(), "values": {"accuracy": 1 / (1 + off)}}

    return accuracy


@pytest.fixture
def tuned(monkeypatch, tmp_path):
    """Tune with synthetic accuracies; return the entries of the methods and all jobs run."""
    ran = put_in_place(monkeypatch, imdb=small_corpus())

    def tune(accuracy, *methods):
        monkeypatch.setattr(tuning, "run", accuracy)
        record_file = RecordFile(tmp_path / "trials.jsonl")
        found = tuning.tune(experiment(*methods), record_file)["datasets"]["imdb"]["methods"]
        return {name.split(" | ")[1]: entry for name, entry in found.items()}, ran

    yield tune
    forget()


def outside(entry, count=16):
    """Return the settings beyond the grid, in the order of their trials."""
    return [trial["setting"] for trial in entry["trials"][count:]]


def test_a_best_setting_inside_is_taken_as_it_is(tuned):
    found, _ = tuned(near(clip=0.5, length=3.0), "dp-sgd")
    assert outside(found["dp-sgd"]) == []
    assert found["dp-sgd"]["winner"] == {"clip": 0.5, "length": 3.0}


@pytest.mark.parametrize(
    ("at", "tried"), [(30.0, (50.0,)), (60.0, (50.0, 125.0)), (1e4, (50.0, 125.0))]
)
def test_lengths_go_on_beyond_the_largest_while_that_is_better(tuned, at, tried):
    """From 8 to 20 is a factor of 2.5, which continues for at most two steps."""
    assert TINY.lengths[-2:] == (8.0, 20.0)
    found, _ = tuned(near(clip=0.5, length=at), "dp-sgd")
    assert [setting["length"] for setting in outside(found["dp-sgd"])] == list(tried)
    assert {setting["clip"] for setting in outside(found["dp-sgd"])} == {0.5}
    best = min((20.0, *tried), key=lambda length: abs(math.log(length / at)))
    assert found["dp-sgd"]["winner"] == {"clip": 0.5, "length": best}


def test_a_corner_is_taken_further_both_ways(tuned):
    found, _ = tuned(near(clip=0.1, length=0.3), "dp-sgd")
    first = outside(found["dp-sgd"])[:2]
    assert first == [{"clip": 0.125, "length": 1.0}, {"clip": 0.25, "length": 0.333}]
    # The second step starts from the better of the two, which is at an edge of the other size.
    assert found["dp-sgd"]["winner"] in outside(found["dp-sgd"])


def test_the_rule_is_the_same_for_all_and_leaves_shapes_alone(tuned):
    accuracy = near(clip=1e-3, length=1e4, public_length=0.1)
    found, ran = tuned(accuracy, "dp-sgd", "dp-adam", "adadps", "warm-start")
    assert [len(outside(entry)) for entry in found.values()] == [3, 3, 2, 2]
    for entry in found.values():  # AdaDPS and the warm start have one clip norm, and no edge there
        inside, further = entry["trials"][:16], outside(entry)
        for name in ("floor", "power", "public_length"):
            known = {trial["setting"].get(name) for trial in inside}
            assert {setting.get(name) for setting in further} <= known
    assert {job.describe()["split"] for job in ran} == {"validation"}


def test_starts_on_public_examples_are_a_size_too(tuned):
    found, _ = tuned(near(public_length=1.0, length=3.0), "warm-start")
    assert found["warm-start"]["winner"]["public_length"] == 0.9  # 0.1, 0.3 and on


def test_nothing_is_run_again(tuned):
    first, ran = tuned(near(clip=0.1, length=60.0), "dp-sgd", "dp-adam")
    ran.clear()
    second, _ = tuned(near(clip=0.1, length=60.0), "dp-sgd", "dp-adam")
    assert second == first
    assert ran == []
