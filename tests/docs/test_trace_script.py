"""The script that traces which files a step and a training visit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import adadps

ROOT = Path(__file__).parents[2]
PACKAGE = Path(adadps.__file__).parent
IN_COARSE_UNITS = """
from support.coarse_accounting import use_coarse_accounting
import trace_files
use_coarse_accounting()
trace_files.main()
"""


def test_the_script_traces_steps_and_training():
    command = [sys.executable, "-c", IN_COARSE_UNITS, "--json"]
    paths = os.pathsep.join(map(str, [ROOT / "scripts", ROOT / "tests", PACKAGE.parent]))
    done = subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": paths}
    )
    found = json.loads(done.stdout)
    assert found.keys() == {"step", "sparse_step", "train"}
    for trace in found.values():
        files = trace["files"]
        assert trace["count"] == len(set(files)) == len(files)
        assert all((PACKAGE / file).is_file() for file in files)
        seen = {"training/run.py", "methods/stages/gradients.py", "engine/noise/randomness.py"}
        assert seen <= set(files), "a broken trace would show few files"
    assert found["step"]["count"] <= 25, "a reader can follow a step"
    assert found["sparse_step"]["count"] <= 28, "also one whose noise is late"
    assert found["train"]["count"] <= 73, "and a training"
    steps = set(found["step"]["files"])
    assert "cli/main.py" not in steps
    assert "cli/main.py" in found["train"]["files"]
    assert "engine/noise/late.py" in found["sparse_step"]["files"]
    texts = [(PACKAGE / file).read_text(encoding="utf-8") for file in steps]
    assert any("\n@compiled" in text for text in texts), "compiled loops count"
