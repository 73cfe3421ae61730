"""What CONTRIBUTING says about the code is true: rooms, files, and the tables to extend."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DRAWING = re.compile(r"```text\n(experiments/.*?)```", re.DOTALL)
SOURCES = [*ROOT.glob("src/**/*.py"), *ROOT.glob("experiments/src/**/*.py")]
WHERE = PAGE[PAGE.index("## Where do I add") : PAGE.index("## Tests")]


def rooms(drawing):
    """The names at the beginning of each line, top to bottom."""
    inside = drawing[drawing.index("src/adadps/\n") :].splitlines()[1:]
    named = [re.match(r"  ([a-z]+/?(?:  [a-z]+)*)(?=  )", line)[1] for line in inside]
    return [name.strip("/") for line in named for name in line.split()]


def test_the_drawing_has_the_layers_of_the_linter_in_their_order():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = [layer.removeprefix("adadps.") for layer in contract["layers"]]
    assert layers == ["adadps_experiments", *rooms(DRAWING.search(PAGE)[1])]


def test_the_documentation_shows_the_same_drawing():
    page = (ROOT / "docs/house.md").read_text(encoding="utf-8")
    assert DRAWING.search(page)[1] == DRAWING.search(PAGE)[1]


def test_every_file_that_is_named_exists():
    named = re.findall(r"`((?:src|tests|docs|experiments|scripts)/[\w./]+)`", PAGE)
    assert len(named) > 40
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []
    rooms_of_the_flow = re.findall(
        r"`((?:training|accounting|engine|methods|report)/[\w./]*)`", PAGE
    )
    assert [path for path in rooms_of_the_flow if not (ROOT / "src/adadps" / path).exists()] == []


def test_every_table_that_is_to_be_extended_stands_in_its_file():
    """Names in capitals are those of tables: each is in one of the files of its paragraph."""
    for paragraph in WHERE.split("\n\n")[1:]:
        tables = set(re.findall(r"`(_?[A-Z][A-Z_]+)`", paragraph))
        files = re.findall(r"`((?:src|tests|experiments)/[\w./]+\.py)`", paragraph)
        written = "\n".join(
            (ROOT / file).read_text(encoding="utf-8") for file in files if "NAME" not in file
        )
        missing = {name for name in tables if not re.search(rf"^{name}\b", written, re.MULTILINE)}
        assert not missing, (missing, files)


def test_the_root_has_few_entries():
    found = {path.name for path in (ROOT / "src/adadps").iterdir()} - {"__init__.py", "__pycache__"}
    assert len(found) <= 14, sorted(found)


def test_files_are_short():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert len(lengths) > 200
    assert {str(path): length for path, length in lengths.items() if length > 450} == {}


def test_no_two_classes_have_the_same_name():
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES)
    names = Counter(
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 200
    assert [name for name, count in names.items() if count > 1] == []
