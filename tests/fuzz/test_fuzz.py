"""A minute of fuzzing, one test a target; `make torture` runs all of it."""

import time

import pytest

from fuzz.driver import run_some
from fuzz.targets import TARGETS

SECONDS = 4.0
MOST = 1500
SEED = 2


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_fuzzed_inputs_end_in_success_or_in_an_error_of_ours(target):
    run_some(target, SEED, MOST, 1, float("inf"))  # what is made once, is made here
    report = run_some(target, SEED, 0, MOST, time.monotonic() + SECONDS)
    assert report.well > 0
    assert report.refused > 0
    assert not report.failures, f"{target.name} --seed {SEED}: {report.failures[0]}"
