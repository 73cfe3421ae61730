"""The page "where to use what" has the margins of the rows."""

import importlib
import sys
from pathlib import Path

import pytest

from adadps.estimators.doctor import further

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("margins_table")


def test_the_page_is_what_the_script_makes(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["margins_table.py", "--check"])
    assert script.main() == 0


def test_every_table_stands_on_the_page(script):
    page = script.PAGE.read_text(encoding="utf-8")
    assert {found[1] for found in script.TABLE.findall(page)} == set(script.TABLES)


def test_a_margin_is_the_difference_of_two_means(script):
    lines = [
        ("films", "this", "that", 0.85, 0.8),
        ("digits (loss × 100)", "this", "that", 1.5, 4.0),
        ("level", "this", "that", 0.80001, 0.80003),
        ("later", "this", "that", None, 0.8),
    ]
    assert script._table(lines).splitlines()[2:] == [
        "| films | this: 0.850 | that: 0.800 | +5.0 |",
        "| digits (loss × 100) | this: 1.50 | that: 4.00 | -2.50 |",
        "| level | this: 0.800 | that: 0.800 | +0.0 |",
        "| later | this | that | not finished |",
    ]


def test_means_are_those_of_the_right_rows(script, monkeypatch):
    rows = tuple(
        {
            "dataset": problem,
            "method": method,
            "mean": mean,
            "settings": {"target_epsilon": epsilon},
        }
        for problem, method, epsilon, mean in (
            ("imdb", "defaults", 8.0, 0.9),
            ("imdb", "defaults", 1.0, 0.8),
            ("amazon", "defaults", 1.0, 0.7),
            ("imdb", "sgd", None, 0.95),
        )
    )
    monkeypatch.setattr(script, "rows_in", lambda _: rows)
    assert script.defaults("imdb", "defaults") == 0.8
    assert script.defaults("imdb", "sgd") == 0.95
    assert script.defaults("imdb", "defaults", 3.0) is None


def test_the_doctor_quotes_the_margins_of_the_page(script):
    """At ε = 1 for embeddings; for public texts without labels, at any ε up to 1."""
    points = {
        problem: 100
        * (script.defaults(problem, "defaults-plain") - script.defaults(problem, words))
        for problem in script.PROBLEMS
        for words in ("defaults-words",)
    }
    assert f"{min(points.values()):.1f} to {max(points.values()):+.1f}" == further.WITH_EMBEDDINGS
    films = "unlabelled reviews of films"
    gained = [
        100 * (mean - script.defaults(problem, "defaults-plain", epsilon))
        for problem in ("imdb", "amazon")
        for epsilon in (0.5, 1.0)
        if (mean := script.with_public_texts(problem, epsilon, films)) is not None
    ]
    assert f"{min(gained):.1f} to {max(gained):.1f}" == further.WITH_PUBLIC_TEXTS
