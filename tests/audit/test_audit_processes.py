"""The audit of one run passes where two processes train, and finds noise that is missing in both.

Each verdict of an intact run is false once in a million times. Processes that differ from one
another are stopped before an audit could tell (`test_hazards_of_processes`); here they are alike.
"""

import pytest

from adadps.audit.outcome import CONSISTENT
from support import team_audit as work


@pytest.mark.parametrize("waits", [False, True], ids=["dense", "late"])
def test_an_intact_run_of_two_processes_passes(waits, team):
    first, second = team.run(work.audited, waits, "added")
    assert first == second
    assert first[0] == CONSISTENT, first


@pytest.mark.parametrize("waits", [False, True], ids=["dense", "sparse"])
def test_noise_that_is_missing_in_both_is_found(waits, team):
    first, second = team.run(work.audited, waits, "missing")
    assert first == second
    verdict, bound, claimed = first
    assert verdict != CONSISTENT
    assert bound > claimed
