"""`adadps bench --check`: ratios that are kept, broken twice, or skipped; and its exit code."""

import re

import pytest
from typer.testing import CliRunner

from adadps.cli.main import app
from adadps_experiments.bench import sheets, targets
from adadps_experiments.bench.contenders import CONTENDERS, OURS
from adadps_experiments.bench.measure import Timing, failure_row, measure_steps
from adadps_experiments.bench.workloads import WORKLOADS

FAST, SLOW = 1.0, 1000.0
OF_OURS = {promise.ours for promise in targets.PROMISES}


class Machine:
    """Measures by a rule: ``takes(contender, repetition)`` gives ms, or an error."""

    def __init__(self, takes):
        self.takes, self.made = takes, []

    def __call__(self, workload, name, timing):
        assert timing.threads == 1
        self.made.append((workload.name, name))
        found = self.takes(name, self.made.count((workload.name, name)))
        if isinstance(found, str):
            return failure_row(workload, name, found)
        # Wall-clock time is meaningless here: other processes load the machine.
        numbers = {"ms_per_step": 7.0, "peak_mb": 1.0, "cpu_ms_per_step": found}
        return {"workload": workload.name, "contender": name, **numbers}


def as_promised(name, _again):
    return {"torch": 1.0, "opacus-ghost": 10.0}.get(name, FAST)


def checked(takes):
    machine, said = Machine(takes), []
    verdicts = targets.check_promises(said.append, machine)
    return machine, verdicts, said


@pytest.fixture
def _opacus(monkeypatch):
    monkeypatch.setattr(targets, "find_spec", lambda _name: object())


@pytest.mark.usefixtures("_opacus")
def test_every_pair_is_measured_once_where_all_is_kept():
    machine, verdicts, said = checked(as_promised)
    assert targets.all_kept(verdicts)
    assert {verdict.outcome for verdict in verdicts} == {"kept"}
    assert len(machine.made) == len(set(machine.made)) == len(said)
    pairs = {(p.workload, name) for p in targets.PROMISES for name in (p.ours, p.against)}
    assert set(machine.made) == pairs


@pytest.mark.usefixtures("_opacus")
def test_what_is_broken_twice_is_broken():
    machine, verdicts, _ = checked(lambda name, _again: SLOW if name in OF_OURS else FAST)
    assert not targets.all_kept(verdicts)
    assert {verdict.outcome for verdict in verdicts} == {"broken"}
    assert machine.made.count(("logreg-10k", OURS)) == 2
    assert machine.made.count(("logreg-10k", "torch")) == 2
    lines = sheets.promise_sheet(verdicts).lines
    assert [row[-1] for row in lines] == ["broken"] * len(targets.PROMISES)


@pytest.mark.usefixtures("_opacus")
def test_what_is_broken_once_is_measured_again():
    def slow_at_first(name, again):
        return SLOW if name == OURS and again == 1 else as_promised(name, again)

    machine, verdicts, said = checked(slow_at_first)
    assert targets.all_kept(verdicts)
    assert machine.made.count(("embedding-bag", OURS)) == 2
    assert any("measuring again" in text for text in said)


def test_without_opacus_its_pair_is_skipped_and_said_so(monkeypatch):
    monkeypatch.setattr(targets, "find_spec", lambda _name: None)
    machine, verdicts, _ = checked(as_promised)
    assert targets.all_kept(verdicts)
    skipped = [v for v in verdicts if v.outcome == "skipped: opacus is not installed"]
    assert [verdict.target.against for verdict in skipped] == ["opacus-ghost"]
    assert all(name != "opacus-ghost" for _, name in machine.made)


@pytest.mark.usefixtures("_opacus")
@pytest.mark.parametrize("name", [OURS, "torch", "opacus-ghost"])
def test_a_contender_that_cannot_run_keeps_no_promise(name):
    _, verdicts, _ = checked(
        lambda one, again: "cannot run: no" if one == name else as_promised(one, again)
    )
    assert not targets.all_kept(verdicts)
    assert any(f"{name} cannot run: no" == verdict.outcome for verdict in verdicts)


def test_promises_are_about_what_exists():
    for promise in targets.PROMISES:
        assert CONTENDERS[promise.ours].exists(WORKLOADS[promise.workload])
        assert CONTENDERS[promise.against].exists(WORKLOADS[promise.workload])
        assert promise.met(0.0) != promise.met(1e9)


def test_a_measurement_has_the_time_of_the_processor():
    row = measure_steps(WORKLOADS["logreg-10k"].tiny(), "torch", Timing(threads=1, steps=3))
    assert row["cpu_ms_per_step"] > 0


@pytest.mark.usefixtures("_opacus")
@pytest.mark.parametrize(("ours", "code"), [(FAST, 0), (SLOW, 1)])
def test_the_command_says_it_by_its_exit_code(ours, code, monkeypatch):
    machine = Machine(lambda name, again: ours if name == OURS else as_promised(name, again))
    check = targets.check_promises
    monkeypatch.setattr(targets, "check_promises", lambda say: check(say, machine))
    result = CliRunner().invoke(app, ["bench", "--check"])
    assert result.exit_code == code
    assert ("broken" in result.output) is bool(code)
    assert "embedding-bag" in result.output


def test_a_check_goes_alone():
    result = CliRunner().invoke(app, ["bench", "--check", "--workload", "lstm"])
    assert result.exit_code == 2
    said = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", result.output).split())
    assert "Expected --check alone" in said
