"""Rows and figures of the text experiments, from real runs on a synthetic problem."""

import json
import math
import statistics
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from adadps.accounting.epsilon import epsilon_of_run
from adadps.accounting.samplers import poisson
from adadps.methods.paper import dp_sgd
from adadps.methods.stages import privatize
from adadps.types import Accountant
from adadps_experiments.reproduce.records import RecordFile
from adadps_experiments.reproduce.text import corpora, jobs, recipes, tables
from adadps_experiments.reproduce.text.experiments import (
    BEST,
    PAPER,
    Experiment,
    TableLine,
)
from adadps_experiments.reproduce.text.methods import TEXT_METHODS
from adadps_experiments.reproduce.text.problem import ONE_PERCENT, PublicSource
from support.small_corpora import TINY, forget, put_in_place, small_corpus

KEYS = {
    "experiment",
    "dataset",
    "method",
    "side",
    "metric",
    "mean",
    "std",
    "seeds",
    "epsilon_pld",
    "epsilon_rdp",
    "delta",
    "paper",
    "settings",
}
RESULTS = Path(__file__).parents[4] / "docs" / "results" / "text"
METHODS = ("dp-sgd", "adadps", "warm-start", "ideal", "adam", "public-only")
LINES = (
    *(TableLine("imdb", PAPER, name, 2.0, ONE_PERCENT, 0.63, "table: made up") for name in METHODS),
    TableLine("imdb", PAPER, "public-only", 2.0, PublicSource(proxy=20)),
    TableLine("imdb", BEST, "dp-sgd", 2.0),
    TableLine("imdb", PAPER, "dp-sgd", 4.0),
    TableLine("so-titles", PAPER, "adam", 2.0, ONE_PERCENT, 0.64, "table: made up"),
)
SMALL = Experiment("small", "A small experiment", LINES, LINES[:1])
SETTINGS = {
    "dp-sgd": {"clip": 0.5, "length": 3.0},
    "adadps": {"clip": 0.5, "length": 3.0, "floor": 0.03, "power": 0.5},
    "warm-start": {"clip": 0.5, "length": 3.0, "public_length": 0.1},
    "ideal": {"clip": 0.25, "length": 3.0, "floor": 0.01},
    "adam": {"length": 0.128},
    "public-only": {"length": 0.128},
}
ON_PUBLIC = " | 1.00% of the training texts"
BEST_RECIPE = recipes.Recipe(binary=True, power=1.0)
ONE_TABLE = {
    "features": {"winner": {"binary": True, "power": 1.0}},
    "methods": {
        f"{features} | {name}{where}": {"features": str(recipe), "winner": setting}
        for features, recipe in ((PAPER, recipes.PAPER), (BEST, BEST_RECIPE))
        for name, setting in SETTINGS.items()
        for where in ("", ON_PUBLIC)
    },
}
WINNERS = {"datasets": {"imdb": ONE_TABLE, "so-titles": ONE_TABLE}}
SEEDS, SIGMA = 2, {2.0: 1.5, 4.0: 1.0}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """All lines, run once for this file, with fixed noise and short curves, because accounting
    takes seconds.
    """
    with pytest.MonkeyPatch.context() as patched:
        several = small_corpus(several=True)
        ran = put_in_place(patched, imdb=small_corpus(), so_titles=several)
        patched.setattr(jobs, "POINTS", 4)
        patched.setattr(jobs, "_sigma", lambda _n, _b, _steps, epsilon, _d: SIGMA[epsilon])
        record_file = RecordFile(tmp_path_factory.mktemp("runs") / "runs.jsonl")
        records = tables.run_lines(LINES, SEEDS, WINNERS, record_file, "small")
        yield (
            record_file,
            list(ran),
            records,
            tables.rows_of(SMALL, LINES, SEEDS, WINNERS, record_file),
            ran,
        )
    forget()


@pytest.fixture
def rows(world):
    return world[3]


def row_of(rows, method, epsilon=2.0, features=PAPER, dataset="imdb"):
    [found] = [
        row
        for row in rows
        if (row["dataset"], row["method"]) == (dataset, method)
        and row["settings"]["features"] == features
        and row["settings"]["target_epsilon"] in (epsilon, None)
        and row["settings"]["public"] in (None, str(ONE_PERCENT))
        and row["metric"] == "test accuracy"
    ]
    return found


def test_each_line_and_seed_is_run_once(world):
    record_file, ran, records, *_ = world
    assert len(ran) == len(record_file) == len(records) == len(LINES) * SEEDS
    assert {job.seed for job in ran} == set(range(SEEDS))
    for job in ran:
        assert not job.tuning
        assert job.setting == SETTINGS[job.method]
        assert job.steps == TINY.steps
    assert {job.recipe for job in ran} == {recipes.PAPER, recipes.Recipe(binary=True, power=1.0)}


def test_kept_runs_are_not_run_again(world):
    record_file, _, records, rows, ran = world
    ran.clear()
    content = record_file.path.read_bytes()
    again = RecordFile(record_file.path)
    assert tables.run_lines(LINES, SEEDS, WINNERS, again, "small") == records
    assert tables.rows_of(SMALL, LINES, SEEDS, WINNERS, again) == rows
    assert ran == []
    assert record_file.path.read_bytes() == content


def test_only_what_is_missing_is_run(world, tmp_path):
    record_file, *_, ran = world
    lines = record_file.path.read_bytes().splitlines(keepends=True)
    path = tmp_path / "runs.jsonl"
    path.write_bytes(
        b"".join([*lines[:6], *lines[8:-1], lines[-1][:30]])
    )  # two removed, one truncated
    ran.clear()
    tables.run_lines(LINES, SEEDS, WINNERS, RecordFile(path), "small")
    missing = [json.loads(line)["job"] for line in (*lines[6:8], lines[-1])]
    assert [job.describe() for job in ran] == missing
    assert len(RecordFile(path)) == len(lines)


def test_more_seeds_run_the_new_ones_alone(world, tmp_path):
    record_file, *_, ran = world
    path = tmp_path / "runs.jsonl"
    path.write_bytes(record_file.path.read_bytes())
    ran.clear()
    tables.run_lines(LINES[4:5], SEEDS + 1, WINNERS, RecordFile(path), "small")
    assert [job.seed for job in ran] == [SEEDS]


def test_rows_have_exactly_the_agreed_names(rows):
    assert len(rows) == len(LINES) + 1  # tags have two metrics
    for row in rows:
        assert set(row) == KEYS
        assert row["experiment"] == "small"
        assert row["seeds"] == SEEDS
        json.dumps(row, allow_nan=False)


def test_mean_and_deviation_are_those_of_the_runs(world):
    record_file, _, _, rows, _ = world
    for row in rows:
        name = row["metric"].removeprefix("test ")
        values = [
            record["values"][name]
            for record in record_file._records.values()
            if record["job"]["dataset"] == row["dataset"]
            and record["job"]["method"] == row["method"]
            and record["job"]["features"] == row["settings"]["recipe"]
            and record["job"]["epsilon"] == row["settings"]["target_epsilon"]
            and record["job"]["public"] == row["settings"]["public"]
        ]
        assert len(values) == SEEDS
        assert sorted(row["settings"]["values"]) == sorted(values)
        assert row["mean"] == pytest.approx(statistics.fmean(values))
        assert row["std"] == pytest.approx(statistics.pstdev(values))


def test_tags_have_both_metrics(rows):
    metrics = {row["metric"] for row in rows if row["dataset"] == "so-titles"}
    assert metrics == {"test accuracy", "test recall@5"}


def test_epsilons_are_those_of_the_run(rows):
    for method, epsilon in (("dp-sgd", 2.0), ("adadps", 2.0), ("warm-start", 2.0), ("dp-sgd", 4.0)):
        row = row_of(rows, method, epsilon)
        sampler = poisson(examples=row["settings"]["private_examples"], expected_size=TINY.batch)
        privacy = privatize(clip_norm=1.0, noise_multiplier=SIGMA[epsilon])
        for name, accountant in (
            ("epsilon_pld", Accountant.PLD),
            ("epsilon_rdp", Accountant.RDP),
        ):
            expected = epsilon_of_run(
                dp_sgd(privacy, lr=1.0),
                sampler,
                TINY.steps,
                delta=TINY.delta,
                accountant=accountant,
            )
            assert row[name] == pytest.approx(expected)
        assert row["epsilon_pld"] < row["epsilon_rdp"]
        assert row["delta"] == TINY.delta
        assert row["settings"]["private"] is True
        assert row["settings"]["target_epsilon"] == epsilon
        assert row["settings"]["noise_multiplier"] == SIGMA[epsilon]


def test_what_is_not_private_has_no_epsilon(rows):
    for method in ("adam", "ideal"):
        row = row_of(rows, method)
        assert (row["epsilon_pld"], row["epsilon_rdp"]) == (None, None)
        assert row["settings"]["private"] is False
    assert row_of(rows, "adam")["delta"] is None
    assert row_of(rows, "adam")["settings"]["target_epsilon"] is None


def test_public_data_only_costs_nothing(rows):
    row = row_of(rows, "public-only")
    assert (row["epsilon_pld"], row["epsilon_rdp"], row["delta"]) == (0.0, 0.0, None)
    assert row["settings"]["private"] is True
    assert row["settings"]["private_examples"] == 0


def test_public_data_only_sees_no_private_text(world):
    examples = {
        record["job"]["public"]: record["examples"]
        for record in world[0]._records.values()
        if record["job"]["method"] == "public-only"
    }
    assert examples == {str(ONE_PERCENT): 4, "20 texts of another source": 20}


def test_the_papers_numbers_stand_beside_accuracy(rows):
    assert row_of(rows, "dp-sgd")["paper"] == 0.63
    assert row_of(rows, "dp-sgd", features=BEST)["paper"] is None
    assert row_of(rows, "dp-sgd")["settings"]["table"] == "table: made up"


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("imdb", "public word frequencies"),
        ("imdb-private-words", "PRIVATE word frequencies"),
        ("debian-tags", "word list of general English"),
        ("so-titles", "word frequencies of technical descriptions"),
        ("so-titles-general-words", "word list of general English"),
        ("stackoverflow", "word frequencies of technical descriptions"),
    ],
)
def test_side_information_is_called_what_it_is(dataset, words):
    sides = {name: tables.side_of(TableLine(dataset, PAPER, name, 1.5)) for name in TEXT_METHODS}
    for name in ("adadps", "adadps-two-sided", "after-the-noise", "dp-sgd-weighted", "adas"):
        assert sides[name] == words
    assert sides["adadps-warm-start"] == f"{words} and public examples"
    assert sides["dp-sgd"] == "none"
    assert sides["adadps-public"] == "public examples"
    assert sides["adadps-wordfreq"] == "word list of general English"


def test_every_data_set_has_a_name_for_its_words():
    assert set(corpora.WORD_STATISTICS) == set(corpora.CORPORA)


def test_the_rows_of_imdb_say_what_they_always_said():
    rows = json.loads((RESULTS / "imdb.json").read_text(encoding="utf-8"))
    assert len(rows) > 50
    for row in rows:
        assert tables.side_of(TableLine(row["dataset"], PAPER, row["method"], 1.5)) == row["side"]


def test_published_numbers_of_stack_overflow_are_not_those_of_its_stand_ins(rows):
    other = "paper_on_stackoverflow"
    stand_ins = [row for row in rows if row["dataset"] == "so-titles"]
    assert [row["paper"] for row in stand_ins] == [None, None]
    [accuracy] = [row for row in stand_ins if row["metric"] == "test accuracy"]
    assert accuracy["settings"][other] == 0.64
    assert not any(other in row["settings"] for row in rows if row["dataset"] == "imdb")


def test_what_the_published_settings_cost_stands_beside_the_papers_number(world, monkeypatch):
    cost = {"imdb": 108.0, "so-titles": 15.0}
    for dataset, epsilon in cost.items():
        run = SimpleNamespace(cost=lambda epsilon=epsilon: {"published_epsilon_as_is": epsilon})
        monkeypatch.setitem(tables.OF_DATASET, dataset, run)
    rows = tables.rows_of(SMALL, LINES, SEEDS, WINNERS, world[0])
    known = [line for line in LINES if line.paper is not None and TEXT_METHODS[line.method].private]
    with_cost = [row for row in rows if "published_epsilon_as_is" in row["settings"]]
    assert len(with_cost) == len(known)  # only beside accuracies
    for row in with_cost:
        assert row["settings"]["published_epsilon_as_is"] == cost[row["dataset"]]
    assert len(with_cost) < len(rows)


def size_of(picture):
    """Return width and height of a PNG, from its header."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", picture[16:24])


@pytest.fixture
def panels(monkeypatch):
    """The panels that are drawn."""
    seen = []
    draw = tables.draw

    def looked_at(panels, *others, **named):
        seen.extend(panels)
        return draw(panels, *others, **named)

    monkeypatch.setattr(tables, "draw", looked_at)
    return seen


def test_the_figure_has_curves_against_epochs_and_against_epsilon(world, panels):
    record_file = world[0]
    width, height = size_of(tables.figure_of(LINES, SEEDS, WINNERS, record_file))
    assert [panel.x_label for panel in panels].count("epochs") == 4
    assert [panel.x_label for panel in panels].count("ε spent (PLD)") == 3
    assert width > height / 3 > 200  # two across, four down
    titles = [panel.title for panel in panels if panel.x_label == "epochs"]
    assert titles == [
        "imdb, paper features, ε = 2",
        "imdb, paper features, ε = 4",
        "imdb, best for DP-SGD features, ε = 2",
        "so-titles, paper features",
    ]
    at_four = [curve.label for curve in panels[2].curves]
    assert at_four == ["DP-SGD", "Adam, no privacy"]  # rows without an epsilon are in both
    by_epoch, by_epsilon = panels[:2]
    assert [curve.label.split(" (")[0] for curve in by_epoch.curves] == [
        "DP-SGD",
        "AdaDPS, before the clip",
        "DP-SGD, warm start",
        "ideal",
        "Adam, no privacy",
    ]
    assert len(by_epsilon.curves) == 3  # lines that are not private have no epsilon
    for curve in (*by_epoch.curves, *by_epsilon.curves):
        assert len(curve.x) == len(curve.mean) == jobs.POINTS
        assert list(curve.x) == sorted(curve.x)
    first = by_epoch.curves[0]
    assert first.x[-1] == pytest.approx(TINY.steps * TINY.batch / 356)
    assert first.mean[-1] == pytest.approx(row_of(world[3], "dp-sgd")["mean"])


def test_curves_end_at_the_epsilon_of_their_row(world, panels):
    tables.figure_of(LINES[:2], SEEDS, WINNERS, world[0])
    assert panels[1].curves[0].x[-1] == pytest.approx(row_of(world[3], "dp-sgd")["epsilon_pld"])
    assert math.isfinite(panels[1].curves[0].x[0])


def test_what_is_not_private_has_no_epsilon_in_its_title(world, panels):
    """This is so with words and frequencies of the private texts, whatever the target epsilon."""
    spoiled = SimpleNamespace(find=lambda job: {**world[0].find(job), "private": False})
    tables.figure_of(LINES[:1], SEEDS, WINNERS, spoiled)
    assert [panel.title for panel in panels] == ["imdb, paper features, ε = ∞"]


def test_of_many_epsilons_the_one_is_drawn_at_which_settings_were_tuned(world, panels):
    lines = [replace(LINES[0], epsilon=epsilon) for epsilon in (1.0, 2.0, 4.0)]
    tables.figure_of(lines, SEEDS, WINNERS, world[0])
    assert {panel.title for panel in panels} == {"imdb, paper features, ε = 2"}
    assert TINY.tuned_at == 2.0


def test_a_figure_is_not_overcrowded(world, panels):
    crowd = [*LINES[:2]] * 10 + [LINES[4]] * 5
    tables.figure_of(crowd, SEEDS, WINNERS, world[0])
    labels = [curve.label for curve in panels[0].curves]
    assert len(labels) == tables.MOST_CURVES == 10
    assert labels.count("Adam, no privacy") == 3
    assert len(panels[1].curves) == 7


def test_what_is_not_drawn_is_named(world, panels):
    tables.figure_of(LINES, SEEDS, WINNERS, world[0])
    both = "public data only (1.00% of the training texts); public data only (20 texts of another"
    assert [panel.note for panel in panels[:2]] == [f"Not drawn: {both} source)"] * 2
    assert panels[-1].note == ""


def test_private_rows_stand_in_one_table_and_free_ones_in_all(rows):
    """Every table then has the rows "no privacy" and "public data only"."""
    parts = tables.tables_of(SMALL, rows)
    assert len(parts) == 2 + 1 + 2  # two epsilons, other features, two metrics of tags
    for title, columns, part in parts:
        assert title.startswith("A small experiment\n")
        for row in part:
            assert row["dataset"] in title
            assert row["metric"] in title
            assert row["settings"]["recipe"] in title
            assert set(columns.values()) <= set(row)
        aims = {row["settings"]["target_epsilon"] for row in part} - {None}
        assert len(aims) <= 1
        assert all(f"ε = {aim:g} at δ = 0.001" in title for aim in aims)
    shown = [row["method"] for title, _, part in parts if "imdb, paper" in title for row in part]
    assert shown.count("dp-sgd") == shown.count("adam") == 2
    assert shown.count("adadps") == shown.count("ideal") == 1
    assert shown.count("public-only") == 4  # two kinds of public data
