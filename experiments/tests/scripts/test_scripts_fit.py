"""Scripts that nobody runs every day still fit the library."""

import ast
import os
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest

import adadps

SCRIPTS = sorted((Path(__file__).parents[2] / "scripts").glob("*.py"))
IMPORTED = "\n".join(f"import {script.stem}" for script in SCRIPTS)
PATCHED = """
import profile_step, ledger_overhead
profile_step.watch()
assert ledger_overhead.payment.STEPS_RESERVED_AT_ONCE > 1
"""


def test_imports_and_what_is_patched_exist():
    """The profile replaces functions of the engine, the ledger's script a constant."""
    subprocess.run(
        [sys.executable, "-c", f"{IMPORTED}\n{PATCHED}"],
        cwd=SCRIPTS[0].parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_names_at_the_root_exist(script):
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and (names := dotted(node)) and names[0] == "adadps":
            reduce(getattr, names[1:], adadps)


def dotted(node):
    """Return the names of ``a.b.c``, or an empty list."""
    if isinstance(node, ast.Name):
        return [node.id]
    inner = dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*inner, node.attr] if inner else []
