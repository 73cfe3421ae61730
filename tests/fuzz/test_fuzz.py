"""Half a minute of fuzzing, two seconds per target; `make torture` runs all of it."""

import time
from types import SimpleNamespace

import pytest

from fuzz import law
from fuzz.driver import run_some
from fuzz.targets import TARGETS, Target

SECONDS = 2.0
MOST = 1500
SEED = 2


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_fuzzed_inputs_end_in_success_or_in_an_error_of_ours(target):
    run_some(target, SEED, MOST, 1, float("inf"))  # what is made once, is made here
    report = run_some(target, SEED, 0, MOST, time.monotonic() + SECONDS)
    assert report.well > 0
    assert report.refused > 0
    assert not report.failures, f"{target.name} --seed {SEED}: {report.failures[0]}"


def fails_now_and_then(rng, folder):
    if rng.random() < 0.5:
        raise KeyError("a bug")


def test_a_bug_is_found_and_can_be_repeated():
    target = Target(fails_now_and_then, 1.0)
    report = run_some(target, SEED, 0, 20, float("inf"))
    assert 0 < len(report.failures) < report.inputs == 20
    number, trace = report.failures[0]
    assert "KeyError: 'a bug'" in trace
    assert len(run_some(target, SEED, number, 1, float("inf")).failures) == 1


@pytest.mark.parametrize("left", ["out", ".adadps-draft"])
def test_what_a_refused_command_leaves_is_a_breach(tmp_path, monkeypatch, left):
    def refuse(app, arguments):
        (tmp_path / left).mkdir()
        return SimpleNamespace(
            exit_code=1, exception=None, stdout="", stderr="DataError: Expected less.\n"
        )

    monkeypatch.setattr(law, "_RUNNER", SimpleNamespace(invoke=refuse))
    with pytest.raises(law.BreachError, match=left):
        law.command_ends_well(["train"], tmp_path)
