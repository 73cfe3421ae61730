"""The Python and shell blocks of the pages run, what they name exists, and nothing is left out."""

import importlib
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import adadps
from adadps.cli.main import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(python|sh)\b([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^::: (adadps[\w.]*)$", re.MULTILINE)
OPACUS = 'title="Opacus 1.6"'


def blocks_of(page):
    """Language, what stands beside it, and code of every fenced block that can run."""
    return FENCE.findall((ROOT / page).read_text(encoding="utf-8"))


PAGES = [
    page
    for page in ["README.md", *sorted(f"docs/{page.name}" for page in DOCS.glob("*.md"))]
    if blocks_of(page)
]


def run_commands(code, folder):
    """Run a block: within this process if it is calls of `adadps` alone, else by a shell."""
    lines = code.replace("\\\n", " ").splitlines()
    if not all(line.startswith("adadps ") and not set(line) & set("|&;<>$`*") for line in lines):
        run_shell(code, folder)
        return
    for line in lines:
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}"


def run_shell(code, folder):
    """Run a block as a reader would, with the `adadps` of this Python and of these sources."""
    sources = str(Path(adadps.__file__).parents[1])
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([sources, os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        ["sh", "-eu", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def run_python(code, page, namespace):
    exec(compile(code, page, "exec"), namespace)


def test_pages_with_blocks_are_found():
    assert {"README.md", "docs/quickstart.md", "docs/guide.md", "docs/pytorch.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # of peft itself
def test_blocks_run(page, tmp_path, monkeypatch, request):
    if page == "docs/user-level.md":  # its noise is given, and fills the budget
        request.getfixturevalue("real_accounting")
    if page in ("docs/huggingface.md", "docs/opacus.md"):
        pytest.importorskip("peft", reason="needs the extra huggingface")
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in blocks_of(page) if OPACUS not in block[1]]
    namespace = {"__name__": page}
    for language, _, code in blocks:
        if language == "sh":
            run_commands(code, tmp_path)
        else:
            run_python(code, page, namespace)


def test_opacus_block_runs(monkeypatch, tmp_path):
    pytest.importorskip(
        "opacus", reason="Opacus is compared with where it is installed: '.[bench]'"
    )
    monkeypatch.chdir(tmp_path)
    page = "docs/pytorch.md"
    blocks = [code for language, _, code in blocks_of(page) if language == "python"]
    theirs = [code for _, beside, code in blocks_of(page) if OPACUS in beside]
    assert len(theirs) == 1
    namespace = {"__name__": page}
    run_python(blocks[0], page, namespace)  # the data of the task
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # secure RNG off, orders, backward hooks
        run_python(theirs[0], page, namespace)
    assert namespace["engine"].get_epsilon(delta=1e-5) <= 2.0


@pytest.mark.parametrize("code", ["exit 3", "cat missing.csv; true"])
def test_a_failing_shell_block_is_noticed(code, tmp_path):
    with pytest.raises(AssertionError):
        run_commands(code, tmp_path)


def test_a_failing_command_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="no such"):
        run_commands("adadps card nowhere\n", tmp_path)


def test_every_page_is_in_the_navigation():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"^ *- (?:.*: )?([\w/-]+\.md)$", settings, re.MULTILINE))
    assert named == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def documented():
    """Every object that the reference shows, by identity."""
    for page in (DOCS / "api").glob("*.md"):
        for path in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            room, _, name = path.rpartition(".")
            yield path, getattr(importlib.import_module(room), name)


def test_every_public_name_is_in_the_reference():
    shown = {id(value) for _, value in documented()}
    rooms = (adadps.losses, adadps.methods, adadps.side, adadps.stages)
    names = [(adadps, name) for name in adadps.__all__ if getattr(adadps, name) not in rooms]
    names += [(room, name) for room in rooms[1:] for name in room.__all__]
    missing = [
        f"{room.__name__}.{name}" for room, name in names if id(getattr(room, name)) not in shown
    ]
    assert not missing
    assert id(adadps.losses.cross_entropy) in shown


def test_nothing_is_in_the_reference_twice():
    paths = [path for path, _ in documented()]
    assert len(paths) == len(set(paths))


def test_everything_in_the_reference_has_a_docstring():
    assert [path for path, value in documented() if not value.__doc__] == []


def test_links_of_the_readme_lead_somewhere():
    """Links between pages are checked by `mkdocs build --strict`, those of the README here."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([\w./-]+)(?:#([\w-]+))?\)", readme)
    assert ("docs/guide.md", "from-a-csv") in links
    for path, anchor in links:
        text = (ROOT / path).read_bytes().decode("utf-8", errors="ignore")
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert not anchor or anchor in {title.lower().replace(" ", "-") for title in headings}


def test_the_readme_has_exactly_two_set_up_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^ {4}(make \w+)", readme, re.MULTILINE)
    assert sorted(set(commands)) == ["make demo", "make test"]


def test_the_doors_have_the_numbers_of_the_results():
    """Each row of the table of doors is a row of accuracies in the results."""
    page = (DOCS / "side-information.md").read_text(encoding="utf-8")
    doors = page[page.index("| | ε | none |") : page.index("*At ε = 1.5 and 3")]
    shown = re.findall(r"\b0\.\d{3}\b", doors)
    results = (DOCS / "results" / "text.md").read_text(encoding="utf-8")
    assert len(shown) == 23
    assert [number for number in shown if f"{number} ± " not in results] == []
