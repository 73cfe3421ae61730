"""The script that traces which files a step and a training visit."""

import json
import subprocess
import sys
from pathlib import Path

import adadps

ROOT = Path(__file__).parents[2]
PACKAGE = Path(adadps.__file__).parent


def test_the_script_traces_steps_and_training():
    command = [sys.executable, ROOT / "scripts/trace_files.py", "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert found.keys() == {"step", "sparse_step", "train"}
    for trace in found.values():
        files = trace["files"]
        assert trace["count"] == len(set(files)) == len(files)
        assert all((PACKAGE / file).is_file() for file in files)
        seen = {"training/run.py", "methods/stages/gradients.py", "engine/noise/randomness.py"}
        assert seen <= set(files), "a broken trace would show few files"
    assert found["step"]["count"] <= 25, "a reader can follow a step"
    assert found["sparse_step"]["count"] <= 27, "also one whose noise is late"
    assert found["train"]["count"] <= 66, "and a training"
    steps = set(found["step"]["files"])
    assert "cli/main.py" not in steps
    assert "cli/main.py" in found["train"]["files"]
    assert "engine/noise/late.py" in found["sparse_step"]["files"]
    texts = [(PACKAGE / file).read_text(encoding="utf-8") for file in steps]
    assert any("\n@compiled" in text for text in texts), "compiled loops count"
