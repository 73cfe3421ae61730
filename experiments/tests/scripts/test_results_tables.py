"""Tables of the results pages agree with the rows, and a changed number is noticed."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
PAGE = """# Results

Words before.

<!-- table: films imdb accuracy 1.5 -->
an old table
<!-- end -->

Words between, 0.5 ± 0.1.

<!-- table: films imdb recall@5 1.5 -->
<!-- end -->
"""


def row(method, mean, epsilon, **changed):
    settings = {
        "label": method,
        "features": changed.pop("features", "paper"),
        "public": changed.pop("public", None),
        "target_epsilon": changed.pop("target", 1.5),
    }
    given = {
        "dataset": "imdb",
        "method": method,
        "side": "none",
        "metric": "test accuracy",
        "mean": mean,
        "std": 0.0123,
        "epsilon_pld": epsilon,
        "epsilon_rdp": None if epsilon is None else epsilon * 1.1,
        "paper": None,
        "settings": settings,
    }
    return {**given, **changed}


ROWS = [
    row("DP-SGD", 0.6312, 1.49, paper=0.63),
    row("DP-SGD", 0.8, 1.49, features="best for DP-SGD"),
    row("AdaDPS", 0.7001, 1.5),
    row("AdaDPS", 0.79, 1.5, features="best for DP-SGD"),
    row("ideal (not private)", 0.9, None),
    row("Adam, no privacy", 0.95, None, target=None),
    row("public data only", 0.85, 0.0, target=None),
    row("AdaDPS", 0.99, 2.8, target=2.8),  # for another table
    row("AdaDPS", 0.98, 1.5, dataset="so-titles"),
    row("AdaDPS", 0.4, 1.5, metric="test recall@5"),
]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return the script with its own page and rows."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    found = importlib.import_module("results_tables")
    monkeypatch.setattr(found, "PAGES", (tmp_path / "text.md",))
    monkeypatch.setattr(found, "ROWS", tmp_path / "text")
    found.PAGES[0].write_text(PAGE, encoding="utf-8")
    write(found, ROWS)
    return found


def write(script, rows):
    script.ROWS.mkdir(exist_ok=True)
    (script.ROWS / "films.json").write_text(json.dumps(rows), encoding="utf-8")


def called(script, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["results_tables.py", *words])
    return script.main()


def cells(table):
    """Return the cells of each method by name, without the line of dashes."""
    lines = [re.split(r" *\| *", line)[1:-1] for line in table.splitlines()]
    return {line[0]: line[1:] for line in lines if not line[0].startswith("-")}


def test_a_table_says_what_the_rows_say(script):
    found = cells(script.table("films", "imdb", "accuracy", "1.5"))
    assert found["method"] == [
        "side information",
        "paper's features",
        "best for DP-SGD",
        "ε (PLD / RDP)",
        "paper",
    ]
    assert found["DP-SGD"] == ["none", "0.631 ± 0.012", "**0.800 ± 0.012**", "1.49 / 1.64", "0.63"]
    assert found["AdaDPS"] == ["none", "**0.700 ± 0.012**", "0.790 ± 0.012", "1.50 / 1.65", "–"]
    assert len(found) == 6
    assert cells(script.table("films", "imdb", "accuracy", "2.8"))["AdaDPS"][1] == (
        "**0.990 ± 0.012**"
    )
    assert cells(script.table("films", "imdb", "recall@5", "1.5")) == {
        "method": ["side information", "paper's features", "ε (PLD / RDP)", "paper"],
        "AdaDPS": ["none", "**0.400 ± 0.012**", "1.50 / 1.65", "–"],
    }


def test_the_best_private_value_is_bold_and_no_other(script):
    """Rows without privacy, or of public data alone, are not bold, though they are better."""
    shown = script.table("films", "imdb", "accuracy", "1.5")
    assert re.findall(r"\*\*(.+?)\*\*", shown) == ["0.800 ± 0.012", "0.700 ± 0.012"]


def test_rows_without_an_epsilon_have_an_infinite_one(script):
    found = cells(script.table("films", "imdb", "accuracy", "1.5"))
    assert found["ideal (not private)"][-2] == "∞"
    assert found["Adam, no privacy"][-2] == "∞"
    assert found["public data only"][-2] == "0.00 / 0.00"


def test_several_kinds_of_public_data_have_lines_of_their_own(script):
    kinds = ("1.00% of the training texts", "250 texts of another source")
    few = [row("AdaDPS", 0.5 + n / 10, 1.5, public=kind) for n, kind in enumerate(kinds)]
    write(script, [*few, row("DP-SGD", 0.5, 1.5)])
    shown = script.table("films", "imdb", "accuracy", "1.5")
    assert [line.split(" | ")[2:4] for line in shown.splitlines()[2:]] == [
        [kinds[0], "0.500 ± 0.012"],
        [kinds[1], "**0.600 ± 0.012**"],
        ["–", "0.500 ± 0.012"],
    ]
    write(script, few[:1])
    assert "public data" not in script.table("films", "imdb", "accuracy", "1.5")


def test_filling_twice_changes_nothing_more(script):
    once = script.fill(PAGE)
    assert once != PAGE
    assert script.fill(once) == once
    assert "an old table" not in once
    for words in ("# Results\n\nWords before.\n", "\nWords between, 0.5 ± 0.1.\n"):
        assert words in once
    assert once.count("<!-- table:") == once.count("<!-- end -->") == 2


def test_a_check_finds_a_changed_number_on_either_side(script, monkeypatch):
    assert called(script, monkeypatch, "--check") == 1
    assert script.PAGES[0].read_text(encoding="utf-8") == PAGE  # a check writes nothing
    assert called(script, monkeypatch) == 0
    assert called(script, monkeypatch, "--check") == 0
    page = script.PAGES[0].read_text(encoding="utf-8")
    script.PAGES[0].write_text(page.replace("0.631", "0.632"), encoding="utf-8")
    assert called(script, monkeypatch, "--check") == 1
    script.PAGES[0].write_text(page, encoding="utf-8")
    write(script, [{**ROWS[0], "mean": 0.64}, *ROWS[1:]])
    assert called(script, monkeypatch, "--check") == 1
    assert called(script, monkeypatch) == 0
    assert "0.640 ± 0.012" in script.PAGES[0].read_text(encoding="utf-8")


def test_the_page_of_results_is_filled_in(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    assert called(importlib.import_module("results_tables"), monkeypatch, "--check") == 0


def test_a_table_of_images_has_a_line_for_every_row(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "IMAGES", tmp_path)
    rows = [row("DP-SGD", 0.8812, 0.999, seeds=3), row("Adam", 0.9, None, seeds=1)]
    (tmp_path / "clothes.json").write_text(json.dumps(rows))
    *_, first, second = script.images_table("clothes").splitlines()
    assert first == "| DP-SGD | 1.00 | 1.10 | 0.8812 ± 0.0123 | 3 |"
    assert second == "| Adam | – | – | 0.9000 | 1 |"


def test_losses_have_two_digits_and_stand_beside_those_of_the_paper(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "IMAGES", tmp_path)
    rows = [
        row("DP-SGD", 4.3012, 1.6, paper=5.013, seeds=3, metric="test loss x 100"),
        row("whitened", 2.1, 1.6, seeds=1, metric="test loss x 100"),
        row("SGD", None, None, seeds=3, metric="test loss x 100"),
    ]
    (tmp_path / "mnist-ae.json").write_text(json.dumps(rows))
    head, _, first, second, last = script.images_table("mnist-ae").splitlines()
    assert head == "| method | ε (PLD) | ε (RDP) | test loss x 100 | paper | runs |"
    assert first == "| DP-SGD | 1.60 | 1.76 | 4.30 ± 0.01 | 5.01 | 3 |"
    assert second == "| whitened | 1.60 | 1.76 | 2.10 | – | 1 |"
    assert last == "| SGD | – | – | diverged | – | 3 |"


def test_settings_of_images_stand_with_their_trials_and_finals(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "IMAGES", tmp_path)
    low, high = {"clip": 0.1, "length": 10.0}, {"clip": 0.5, "length": 20.0}
    trials = [[low, 0.04], [high, 0.05], [{"clip": 0.5, "length": 40.0}, None]]
    whole = {"finals": [[low, 0.03], [high, 0.02]], "winner": high}
    methods = {
        "whitened": {"trials": trials, "winner of trials": low, **whole},
        "dp-sgd": {"trials": trials, "winner of trials": low, "finals": [], "winner": low},
    }
    held = {"datasets": {"digits": {"methods": methods}}}
    (tmp_path / "ae-winners.json").write_text(json.dumps(held))
    *_, first, second = script.image_settings_table("ae", "digits").splitlines()
    assert first == (
        "| `whitened` | 3 | clip 0.1, length 10 | 0.0400 | 2 | clip 0.5, length 20 | 0.0200 |"
    )
    assert second == "| `dp-sgd` | 3 | clip 0.1, length 10 | 0.0400 | 0 | – | – |"


def test_tables_of_the_lstm_say_what_is_finished(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "LSTM", tmp_path)
    assert script.fill("<!-- table: lstm imdb-lstm -->\n<!-- end -->").count("is finished") == 1
    assert script.lstm_trials("imdb-lstm") == "No trial is finished.\n"
    rows = [
        {**row("AdaDPS", 0.7312, 2.7999, paper=0.73, seeds=3), "experiment": "imdb-lstm"},
        {**row("Adam", 0.87, None, seeds=1), "experiment": "another"},
    ]
    (tmp_path / "imdb-lstm.json").write_text(json.dumps(rows))
    *_, only = script.lstm_table("imdb-lstm").splitlines()
    assert only == "| AdaDPS | none | 2.80 | 3.08 | 0.731 ± 0.012 | 3 | 0.73 |"
    records = [
        {"job": {"experiment": "imdb-lstm", "method": "adam", "setting": {"rate": rate}},
         "values": {"accuracy": accuracy}}
        for rate, accuracy in ((0.1, 0.7), (0.001, 0.8))
    ]  # fmt: skip
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    assert script.lstm_trials("imdb-lstm").splitlines()[2:] == ["| adam | 2 | 0.800 | rate 0.001 |"]
    assert script.lstm_trials("another") == "No trial is finished.\n"
