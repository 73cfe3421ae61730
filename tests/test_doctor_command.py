"""`adadps doctor`: from a public table to advice, and clear errors."""

import csv
import json
import re

import pytest
from typer.testing import CliRunner

from adadps.cli import app

runner = CliRunner()
FRUIT, TOOLS = "apple pear plum cherry juice", "hammer saw nail drill steel"


def plain(text):
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def texts(count, labels=("fruit", "tools")):
    for number in range(count):
        words = (FRUIT, TOOLS)[number % 2].split()
        yield [f"the {words[number % 5]} and the {words[number % 3]}", labels[number % 2]]


@pytest.fixture
def public(tmp_path):
    return write(tmp_path / "public.csv", [["text", "label"], *texts(60)])


def ask(public, *more):
    given = ["doctor", public, "--text", "text", "--label", "label", "--words", 3000]
    usual = ["--examples", 2000, "--epsilon", 1, "--folds", 3, "--steps", 5]
    return runner.invoke(app, [str(part) for part in (*given, *usual, *more)])


def test_a_table_of_all_candidates_and_an_advice(public, tmp_path):
    counts = write(tmp_path / "counts.csv", [["word", "frequency"], ["the", 9], ["apple", 1]])
    shown = ask(public)
    assert shown.exit_code == 0, shown.output
    assert shown.stderr == "", "quiet when piped"
    said = plain(shown.stdout)
    assert "Advice: " in said
    assert "nothing was spent" in said
    assert "ε" not in said, "no epsilon is shown: none was spent"

    told = json.loads(ask(public, "--side", counts, "--json").stdout)
    names = [one["candidate"] for one in told["findings"]]
    assert names[0] == "DP-SGD"
    assert [name for name in names if name.startswith("counts.csv")] == [
        "counts.csv, before the clip",
        "counts.csv, two-sided",
        "counts.csv, weighted features",
        "counts.csv as IDF, weighted features",
    ]
    assert len([name for name in names if name.startswith("wordfreq")]) == 4
    assert names[-1] == "public gradients, before the clip"
    assert told["planned"] == {"examples": 2000, "epsilon": 1.0, "delta": 1 / 20_000}
    assert told["public_rows"] == 60


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--text", "body"], 1, "Expected a column 'body'"),
        (["--text", "label"], 2, "different columns"),
        (["--epsilon", 0], 2, "epsilon"),
        (["--delta", 2], 2, "delta"),
        (["--folds", 13], 1, "between 3 and 12 folds"),
        (["--examples", 100, "--batch-size", 500], 2, "the 100 examples"),
        (["--language", "xx"], 1, "language"),
        (["--side", "absent.csv"], 1, "absent.csv"),
    ],
)
def test_bad_requests_end_in_one_clear_error(public, more, code, said):
    shown = ask(public, *more)
    assert shown.exit_code == code, shown.output
    assert said in plain(shown.stderr)
    assert shown.stdout == ""


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (list(texts(39)), "at least 40 public examples, found 39"),
        (list(texts(60, labels=("same", "same"))), "at least two classes, found 1"),
        ([["¿¡ ¿¡", str(number % 2)] for number in range(60)], "words of the vocabulary"),
    ],
)
def test_public_tables_that_tell_nothing_are_refused(tmp_path, rows, said):
    shown = ask(write(tmp_path / "odd.csv", [["text", "label"], *rows]))
    assert shown.exit_code == 1, shown.output
    assert said in plain(shown.stderr)


def test_files_of_the_same_name_are_refused(public, tmp_path):
    (tmp_path / "other").mkdir()
    rows = [["word", "frequency"], ["the", 9]]
    first, second = (write(place / "a.csv", rows) for place in (tmp_path, tmp_path / "other"))
    shown = ask(public, "--side", first, "--side", second)
    assert shown.exit_code == 2
    assert "different names" in plain(shown.stderr)
