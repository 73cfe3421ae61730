"""Commands that torchrun has started: one process speaks."""

import json

import pytest
from typer.testing import CliRunner

from adadps.cli import main

runner = CliRunner()
PLAN = [
    *("plan", "--examples", "1000", "--batch-size", "100", "--steps", "10"),
    *("--noise-multiplier", "4", "--delta", "1e-4", "--accountant", "rdp"),
]


@pytest.fixture(autouse=True)
def _speaking_again(monkeypatch):
    for console in (main.out, main.err):
        monkeypatch.setattr(console, "quiet", False)


def called(rank, *options):
    variables = {} if rank is None else {"TORCHELASTIC_RUN_ID": "a test", "RANK": rank}
    return runner.invoke(main.app, [*PLAN, *options], env=variables)


@pytest.mark.parametrize("rank", [None, "0"])
def test_the_first_process_speaks(rank):
    done = called(rank, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 10
    failed = called(rank, "--steps", "-1")
    assert failed.exit_code == 2


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["a table", "JSON"])
def test_the_others_are_quiet(options):
    done = called("1", *options)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")


def test_the_others_fail_without_a_word():
    failed = called("1", "--noise-multiplier", "-1")
    assert failed.exit_code == 2
    assert failed.stdout == ""
