"""What the two distributions hold, and what they need."""

import ast
import re
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import adadps

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
HOMES = {ROOT: "adadps", EXPERIMENTS: "adadps_experiments"}


@pytest.fixture(scope="module")
def wheel_of(tmp_path_factory):
    """Build a wheel as pip would, without the network; return its files and their contents."""

    def built(folder):
        place = next(
            WheelBuilder(str(folder)).build(directory=str(tmp_path_factory.mktemp("dist")))
        )
        with zipfile.ZipFile(place) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}

    return built


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def names_of(requirements):
    """Return the names of required distributions, without versions and extras."""
    return {re.match(r"[\w.-]+", one)[0].lower().replace("_", "-") for one in requirements}


def declared(folder):
    """Return the distributions that users need: always, or for an extra."""
    found = project(folder)
    extras = found.get("optional-dependencies", {})
    needed = [one for name in extras.keys() - {"dev", "docs"} for one in extras[name]]
    return names_of([*found["dependencies"], *needed])


def imported_by(folder):
    """Return the names of all modules outside of the standard library that the sources import."""
    found = set()
    for file in (folder / "src" / HOMES[folder]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {HOMES[folder]}


def test_the_wheel_of_the_product_holds_the_product_alone(wheel_of):
    held = wheel_of(ROOT)
    package = {name for name in held if not name.startswith("adadps-0.2.0.dist-info/")}
    assert all(name.startswith("adadps/") for name in package)
    assert {name for name in package if not name.endswith(".py")} == {
        "adadps/cli/demo/recorded.json",
        "adadps/data/embedded/debian_packages.csv.xz",
        "adadps/data/embedded/debtags.txt",
        "adadps/py.typed",
        "adadps/report/card/card_schema.json",
        "adadps/report/html/page.html",
    }
    sources = {file.relative_to(ROOT / "src") for file in (ROOT / "src/adadps").rglob("*.py")}
    assert {name for name in package if name.endswith(".py")} == set(map(Path.as_posix, sources))
    parts = {part for name in package for part in Path(name).with_suffix("").parts}
    assert not parts & {"experiments", "adadps_experiments", "reproduce", "bench", "tests"}


def test_both_wheels_offer_their_commands(wheel_of):
    held = {folder: wheel_of(folder) for folder in HOMES}
    points = {
        folder: next(text.decode() for name, text in files.items() if "entry_points" in name)
        for folder, files in held.items()
    }
    assert "adadps = adadps.cli.main:app" in points[ROOT]
    assert "[adadps.commands]" not in points[ROOT]
    for name in ("reproduce", "bench", "data"):
        assert f"{name} = adadps_experiments.commands.{name}:" in points[EXPERIMENTS]
    assert "adadps_experiments/py.typed" in held[EXPERIMENTS]
    assert all(
        name.startswith(("adadps_experiments/", "adadps_experiments-0.2.0.dist-info/"))
        for name in held[EXPERIMENTS]
    )


@pytest.mark.parametrize("folder", HOMES, ids=HOMES.values())
def test_each_wheel_carries_its_readme_and_licence(wheel_of, folder):
    held = {name.partition(".dist-info/")[2]: text for name, text in wheel_of(folder).items()}
    assert held["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert held["licenses/NOTICE"] == (folder / "NOTICE").read_bytes()
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert readme.strip() in held["METADATA"].decode()


def test_one_version_for_both():
    assert WheelBuilder(str(ROOT)).metadata.version == adadps.__version__
    experiments = project(EXPERIMENTS)
    assert experiments["version"] == adadps.__version__
    assert f"adadps=={adadps.__version__}" in experiments["dependencies"]


@pytest.mark.parametrize("folder", HOMES, ids=HOMES.values())
def test_what_is_imported_is_declared(folder):
    needed = declared(ROOT) | declared(folder)
    providers = packages_distributions()
    undeclared = {
        module
        for module in imported_by(folder)
        if not {name.lower().replace("_", "-") for name in providers.get(module, [module])} & needed
    }
    assert undeclared <= {"llvmlite"}, "llvmlite comes with numba, which pins its version"


def test_the_product_needs_nothing_of_the_experiments():
    needed = {"matplotlib", "opacus", "h5py"}
    assert needed <= declared(EXPERIMENTS)
    assert not needed & declared(ROOT)
    assert not (needed | {"adadps_experiments"}) & imported_by(ROOT)
