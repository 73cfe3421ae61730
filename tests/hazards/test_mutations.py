"""The tests notice when privacy is taken out of the code.

Each mutation is made in a copy of the source; the named tests must then fail. A mutation that
survives means that nothing guards that line. Those of `ESSENTIAL` are made with every run of the
tests, the others by `make torture` (ADADPS_MUTATIONS=all); that all of them can be made is checked
always.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.mutations import ESSENTIAL, MUTATIONS

ROOT = Path(__file__).parents[2]
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
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / mutation.file
    source = file.read_text(encoding="utf-8")
    file.write_text(source.replace(mutation.before, mutation.after), encoding="utf-8")
    path, *selection = mutation.guard.split(" -k ")
    wanted = [f"-k={selection[0].replace('_or_', ' or ')}"] if selection else []
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", path, *wanted],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == TESTS_FAILED, run.stdout[-2000:] + run.stderr[-2000:]
