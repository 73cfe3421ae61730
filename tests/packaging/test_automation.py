"""The files that run the checks: hooks before a commit, and continuous integration."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workflow():
    return yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))


def test_the_workflow_runs_what_ci_runs_on_every_supported_python(workflow):
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [re.search(r":: (3\.\d+)$", line) for line in project["classifiers"]]
    assert job["strategy"]["matrix"]["python-version"] == [found[1] for found in named if found]
    assert project["requires-python"] == ">=3.11"


def test_ci_runs_checks_and_tests():
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111, "it can be executed"
    assert script.read_text(encoding="utf-8").splitlines()[-2:] == ["make check", "make test"]


def test_hooks_are_local_and_run_what_make_check_runs():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    entries = [hook["entry"] for hook in config["repos"][0]["hooks"]]
    assert not any("/" in entry for entry in entries), "tools are found on PATH"
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ncheck: ")[1].split("\n\n")[0]
    checks = [line.removeprefix("\t$(BIN)/").removesuffix(" .") for line in recipe.split("\n")[1:]]
    assert [entry.removesuffix(" --force-exclude") for entry in entries] == checks
