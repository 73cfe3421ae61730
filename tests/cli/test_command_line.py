"""The command line: what people type, what they see, and how it fails."""

import csv
import json
import re

import pytest
from typer.testing import CliRunner

from adadps import load_result
from adadps.cli.demo import DEFAULTS, data, training
from adadps.cli.demo.training import PUBLIC_ONLY
from adadps.cli.main import app
from adadps.data.debian import SECTIONS, debian_packages
from adadps.data.tables import read_table
from adadps.estimators.doctor.case import as_matrix
from adadps.estimators.planner.plan import GivenSettings
from adadps.estimators.tables.saved_model import load_model

runner = CliRunner()


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["plan"],
        ["train"],
        ["predict"],
        ["card"],
        ["report"],
        ["doctor"],
        ["federate"],
        ["demo"],
        ["reproduce"],
        ["bench"],
        ["ledger"],
        ["audit"],
        ["data"],
    ],
)
def test_help_explains_each_command(command):
    shown = runner.invoke(app, [*command, "--help"])
    assert shown.exit_code == 0
    assert "adadps" in shown.output


@pytest.fixture
def short_demo(monkeypatch):
    monkeypatch.setattr(training, "STEPS", 20)
    monkeypatch.setattr(training, "GIVEN", GivenSettings(epochs=1.25))
    monkeypatch.setattr(training, "BATCH", 256)
    monkeypatch.setattr(data, "debian_packages", lambda: debian_packages()[::6])


def test_the_demo_writes_report_rows_and_model(short_demo, tmp_path):
    folder = tmp_path / "out"
    shown = runner.invoke(app, ["demo", "--out", str(folder), "--json"])
    assert shown.exit_code == 0, shown.output
    assert shown.stderr == "", "quiet when piped"
    rows = json.loads(shown.stdout)
    assert rows == json.loads((folder / "demo.json").read_text(encoding="utf-8"))
    by_name = {row["method"]: row for row in rows}
    public = rows.pop(0)
    assert (public["method"], public["epsilon"]) == (PUBLIC_ONLY, 0)
    private = [row for row in rows if row["epsilon"] is not None]
    assert {"DP-SGD", "DP-Adam", "AdaDPS, two-sided"} <= {row["method"] for row in private}
    assert all(0.95 < row["epsilon"] <= 1.0 for row in private)
    assert len({row["epsilon"] for row in private if row["method"] != DEFAULTS}) == 1
    assert len({row["delta"] for row in private}) == 1
    assert by_name["Adam, no privacy"]["epsilon"] is None
    assert [row["method"] for row in rows][-2:] == [DEFAULTS, "Adam, no privacy"]
    trials = {row["method"]: row["tuning_trials"] for row in rows}
    assert trials.pop(DEFAULTS) == 0
    assert set(trials.values()) == {12}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "Assumed public" in page
    assert page.count("<details") == len(rows) == 7
    assert DEFAULTS in page
    assert "do not have the same" not in page, "equal epsilon and delta"
    result = load_result(folder / "model")
    assert result.privacy.private
    assert any("sections" in fact for fact in result.privacy.assumed_public)
    again = runner.invoke(app, ["demo", "--out", str(folder), "--json"])
    assert again.exit_code == 0, "an earlier demo is replaced"


def test_the_demos_defaults_are_those_of_train(tmp_path, monkeypatch):
    """Words, features, side information and settings of `adadps train` with declared classes."""
    packages = [package for package in debian_packages() if package.fold == 2][:500]
    monkeypatch.setattr(data, "debian_packages", lambda: [*packages, *_held_out(5)])
    held = data.load_default_data(2.0)
    plan = training.default_plan(held, 2.0)

    rows = [("description", "section"), *((one.text, one.section) for one in packages)]
    with (tmp_path / "packages.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    given = ["--text", "description", "--label", "section", "--classes", ",".join(SECTIONS)]
    more = ["--epsilon", "2", "--out", str(tmp_path / "model")]
    shown = runner.invoke(app, ["train", str(tmp_path / "packages.csv"), *given, *more])
    assert shown.exit_code == 0, shown.output
    result = load_result(tmp_path / "model")
    assert result.method == str(plan.chain)
    assert result.privacy.steps == plan.settings.steps
    assert result.privacy.noise_multiplier == plan.settings.noise_multiplier
    assert result.settings.items() >= plan.describe().items()
    model = load_model(tmp_path / "model").model
    assert model.features.vocabulary == held.words
    table = read_table(tmp_path / "packages.csv")
    assert (model.features(table) != as_matrix(held.train.features).astype("float32")).nnz == 0
    assert model.embeddings.provenance == held.embeddings.provenance
    sources = [known["source"] for known in result.side_information]
    assert any("wordllama" in source for source in sources)


def _held_out(count):
    return [package for package in debian_packages() if package.held_out][:count]


def test_the_demo_touches_no_folder_of_others(tmp_path):
    (tmp_path / "precious.txt").write_text("keep me", encoding="utf-8")
    shown = runner.invoke(app, ["demo", "--out", str(tmp_path)])
    assert shown.exit_code == 1
    assert (tmp_path / "precious.txt").read_text(encoding="utf-8") == "keep me"


def test_the_demo_refuses_a_bad_epsilon(tmp_path):
    shown = runner.invoke(app, ["demo", "--out", str(tmp_path / "out"), "--epsilon", "0"])
    assert shown.exit_code == 2
    assert "epsilon > 0" in plain(shown.stderr)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("width", [80, 120])
def test_the_help_of_train_is_in_panels_with_examples_at_the_end(width):
    shown = plain(runner.invoke(app, ["train", "--help"], env={"COLUMNS": str(width)}).stdout)
    panels = re.findall(r"╭─ (.*?) ─", shown)
    assert panels[:2] == ["Arguments", "Options"]
    assert {"More about columns", "Privacy", "Places on disk"} <= set(panels)
    first = shown[: shown.index("More about columns")]
    for needed in ("--text", "--label", "--numeric", "--categorical", "--epsilon", "--out"):
        assert f"{needed} " in first
    examples = [line.strip() for line in shown[shown.rindex("╯") :].splitlines()]
    commands = [line for line in examples if line.startswith("adadps train ")]
    assert [any(word in line for word in ("--text", "--numeric")) for line in commands] == [
        True
    ] * 3
    assert "--user sender" in " ".join(examples)
    assert max(map(len, shown.splitlines())) <= width


HELPS = (["train"], ["plan"], ["doctor"], ["reproduce"], ["audit", "canaries"], ["predict"])


@pytest.mark.parametrize("command", HELPS, ids=lambda words: words[-1])
def test_help_shows_no_range_that_says_nothing_and_no_flag_twice(command):
    shown = plain(runner.invoke(app, [*command, "--help"], env={"COLUMNS": "100"}).stdout)
    assert "RANGE" not in shown
    assert "x<=" not in shown
    assert "--no-" not in shown
    assert shown.rindex("Example") > shown.rindex("╰")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--examples", 0), ("--users", 10**13), ("--words", 0), ("--rows-per-user", -1)],
)
def test_a_number_out_of_its_range_is_still_refused(tmp_path, option, value):
    words = ["train", "data.csv", "--text", "a", "--label", "b", "--epsilon", "1"]
    words += ["--out", str(tmp_path / "model"), option, str(value)]
    shown = runner.invoke(app, words, env={"COLUMNS": "200"})
    assert shown.exit_code == 2
    told = " ".join(plain(shown.stderr).split())
    assert option in told
    assert f"found {value}" in told
