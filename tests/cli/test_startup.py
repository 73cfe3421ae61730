"""What commands import: those that need no tensors start without torch."""

import json
import os
import subprocess
import sys

import pytest

from adadps import DiskLedger
from adadps.cli.main import COMMANDS

HEAVY = ("torch", "numpy", "scipy", "sklearn", "dp_accounting")
REPORT = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(set(sys.modules) & set({HEAVY})))))
from adadps.cli.main import app
"""
CALL = 'app(sys.argv[1:], prog_name="adadps")'


def imported_by(*words, code=CALL, **environment):
    """Run a command in a new process; return the heavy modules it imported, and what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", REPORT + code, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    *printed, found = ended.stdout.splitlines()
    return json.loads(found), "\n".join([*printed, ended.stderr])


@pytest.mark.parametrize("words", [["--help"], [], ["--version"], ["trian"]], ids=" ".join)
def test_what_only_prints_text_imports_nothing_heavy(words):
    found, printed = imported_by(*words)
    assert found == []
    assert "adadps" in printed


def test_help_of_commands_imports_nothing_heavy():
    every = "".join(
        f"with suppress(SystemExit): app(['{name}', '--help'], prog_name='adadps')\n"
        for name in COMMANDS
    )
    found, printed = imported_by(code=f"from contextlib import suppress\n{every}")
    assert found == []
    assert printed.count("Usage: adadps ") == len(COMMANDS)


def test_completion_of_a_command_imports_nothing_heavy():
    shell = {"_ADADPS_COMPLETE": "complete_bash", "COMP_WORDS": "adadps ", "COMP_CWORD": "1"}
    found, printed = imported_by(**shell)
    assert found == []
    assert {"plan", "train", "reproduce"} <= set(printed.split())


def test_a_plan_needs_no_torch():
    words = ["--examples", 1000, "--batch-size", 10, "--steps", 20, "--noise-multiplier", 1]
    found, printed = imported_by("plan", *words, "--json")
    assert "torch" not in found
    assert "sklearn" not in found
    assert '"epsilon"' in printed


def test_a_ledger_is_shown_without_torch(tmp_path):
    with DiskLedger(tmp_path / "a.ledger"):
        pass
    found, printed = imported_by("ledger", "show", tmp_path / "a.ledger")
    assert "torch" not in found
    assert "ledger" in printed
