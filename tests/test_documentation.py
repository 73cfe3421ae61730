"""The Python blocks of the README and the guide run, and what they name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/guide.md", "docs/audit.md", "docs/data.md", "docs/doctor.md"]
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert blocks
    namespace = {"__name__": page}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)


def test_every_decision_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in navigation


def test_the_readme_has_exactly_two_set_up_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^ {4}(make \w+)", readme, re.MULTILINE)
    assert sorted(set(commands)) == ["make demo", "make test"]
