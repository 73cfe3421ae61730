"""The tests notice when privacy is taken out of the code.

Each mutation is made in a copy of the source; the named tests must then fail. A mutation that
survives means that nothing guards that line. Those of `ESSENTIAL` are made with every run of the
tests, the others by `make torture` (ADADPS_MUTATIONS=all); that all of them can be made is checked
always.
"""

import os

import pytest

from support.guards import ROOT, changed_copy, outcome_of
from support.mutations import ESSENTIAL, MUTATIONS

TESTS_FAILED = 1  # pytest's exit code for failed tests, as opposed to errors in collection


CHOSEN = list(MUTATIONS) if os.environ.get("ADADPS_MUTATIONS") == "all" else ESSENTIAL


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_every_mutation_can_be_made(mutation):
    """The line is there, once, and so are the tests that guard it."""
    source = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert source.count(mutation.before) == 1
    path, *selection = mutation.guard.split(" -k ")
    tests = (ROOT / path).read_text(encoding="utf-8")
    for part in selection[0].split("_or_") if selection else ():
        assert part in tests


@pytest.mark.parametrize("name", CHOSEN)
def test_a_mutation_turns_a_test_red(name, tmp_path):
    mutation = MUTATIONS[name]
    sources = changed_copy(tmp_path, mutation.file, mutation.before, mutation.after)
    path, *selection = mutation.guard.split(" -k ")
    wanted = selection[0].replace("_or_", " or ") if selection else ""
    log = tmp_path / "log"
    assert outcome_of(path, wanted, sources, log) == TESTS_FAILED, log.read_text()[-4000:]


def test_the_guards_are_green_without_a_mutation(tmp_path):
    """A control: tests do not turn red because they run on a copy."""
    mutation = MUTATIONS["steps are not charged"]
    sources = changed_copy(tmp_path, mutation.file, mutation.before, mutation.before)
    log = tmp_path / "log"
    assert outcome_of(*mutation.guard.split(" -k "), sources, log) == 0, log.read_text()[-4000:]
