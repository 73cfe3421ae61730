"""`adadps train --user`: epsilon protects users, however many rows they have."""

import json

import pytest

from adadps.data.tables import write_table
from support.author_tables import HEADER, rows
from support.commands import app, files, plain, runner


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "data.csv"
    with path.open("wb") as stream:
        write_table(stream, path, [HEADER, *rows(600, 200)])
    return path


def train(table, *more, epsilon="8"):
    model = table.parent / "model"
    given = ("--text", "review", "--label", "stars", "--words", "300", "--epochs", "10")
    ledger = ("--ledger", table.parent / "paid.ledger")
    return runner.invoke(
        app,
        [str(one) for one in ("train", table, *given, *ledger, "--epsilon", epsilon, "--out", model,
                              "--json", *more)],
    )  # fmt: skip


DECLARED = ("--classes", "one,five", "--user", "author")


def test_the_statement_is_for_users(table):
    shown = train(table, *DECLARED, "--users", 200, "--rows-per-user", 3)
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    assert told["privacy"]["unit"] == "user (author)"
    assert told["privacy"]["sampler"]["users"] == 200
    assert "at most 3 rows each" in told["method"]
    assert told["privacy"]["delta"] == pytest.approx(1 / 2000)
    assert "the number of users, declared as 200" in told["privacy"]["assumed_public"]
    card = (table.parent / "model" / "card.md").read_text(encoding="utf-8")
    assert "user (author)" in card


def test_a_number_of_users_that_is_not_declared_is_assumed_public(table):
    told = json.loads(train(table, *DECLARED).stdout)
    facts = told["privacy"]["assumed_public"]
    counted = len({row[2] for row in rows(600, 200)})
    assert facts[0] == f"the number of users, read off the data: {counted}"
    assert sum("number of users" in fact for fact in facts) == 1
    assert told["privacy"]["sampler"]["users"] == counted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--user", "author"), "everything declared with --user, found that the classes"),
        (("--users", 10), "Add --user COLUMN"),
        (("--rows-per-user", 10), "Add --user COLUMN"),
        ((*DECLARED, "--examples", 600), "Give --users instead"),
        (("--classes", "one,five", "--user", "review"), "a separate column of users"),
        (("--classes", "one,five", "--user", "autor"), "author"),
        ((*DECLARED, "--strict"), "the number of users"),
    ],
    ids=["classes", "no column", "rows", "examples", "a feature", "misnamed", "strict"],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_left(table, given, said):
    shown = train(table, *given)
    assert shown.exit_code in (1, 2)
    assert said in plain(shown.output)
    assert set(files(table.parent)) == {"data.csv"}


def test_a_ledger_of_users_takes_no_run_of_rows(table):
    assert train(table, *DECLARED, "--ledger-budget", 20).exit_code == 0
    shown = train(table, "--classes", "one,five", "--out", table.parent / "other")
    assert shown.exit_code == 2
    assert "user" in plain(shown.output)


def test_a_row_without_a_user_is_refused(table):
    with table.open("ab") as stream:
        stream.write(b"good film,five,\n")
    shown = train(table, *DECLARED)
    assert shown.exit_code == 1
    assert "author" in plain(shown.output)
    assert set(files(table.parent)) == {"data.csv"}


@pytest.mark.parametrize("cell", ["NULL", "nan", "None", "n/a"])
def test_hazard_rows_without_a_user_are_not_one_user(table, cell):
    with table.open("ab") as stream:
        stream.write(f"good film,five,{cell}\n".encode())
    shown = train(table, *DECLARED)
    assert shown.exit_code == 1
    assert "several people under one name" in plain(shown.output)
    assert set(files(table.parent)) == {"data.csv"}


def test_blanks_around_a_name_make_no_other_user(table):
    counted = len({row[2] for row in rows(600, 200)})
    with table.open("wb") as stream:
        content = (
            [review, stars, f" {author}" if number % 3 else author]
            for number, (review, stars, author) in enumerate(rows(600, 200))
        )
        write_table(stream, table, [HEADER, *content])
    assert json.loads(train(table, *DECLARED).stdout)["privacy"]["sampler"]["users"] == counted


def measured_on(table, header, lines, *more):
    path = table.parent / "test.csv"
    with path.open("wb") as stream:
        write_table(stream, path, [header, *lines])
    return train(table, *DECLARED, "--users", 200, "--test", path, *more)


def test_rows_of_users_who_were_trained_on_are_tested_on_like_any_other(table):
    """Else the number would tell which users are in the table."""
    right, wrong = ["good great film", "five"], ["good great film", "one"]
    lines = [[*right, f"new{number}"] for number in range(30)] + [[*wrong, "a0"]] * 30
    shown = measured_on(table, HEADER, lines)
    assert shown.exit_code == 0, shown.output
    assert [entry["value"] for entry in json.loads(shown.stdout)["history"]] == [0.5, 0.5]


def test_the_check_counts_rows_of_users_who_were_trained_on(table):
    """Other rows of theirs are theirs as well."""
    line = ["a new text", "five"]
    lines = [*[[*line, "a0"]] * 20, *[[*line, "new"]] * 10]
    shown = measured_on(table, HEADER, lines, "--check-overlap")
    assert shown.exit_code == 0, shown.output
    said = "20 of 30 held-out rows belong to users who are also in the training table."
    assert said in plain(shown.stderr)
    assert files(table.parent) == ["data.csv", "test.csv"]


def test_the_check_needs_the_users_of_held_out_rows_and_the_metric_does_not(table):
    lines = [["a new text", "five"]] * 20
    shown = measured_on(table, HEADER[:2], lines, "--check-overlap")
    assert shown.exit_code == 1
    assert "'author'" in plain(shown.stderr)
    assert measured_on(table, HEADER[:2], lines).exit_code == 0


def test_the_check_tells_users_apart_as_training_does(tmp_path):
    """Case, blanks, forms of Unicode and leading zeros make no other user."""
    table = tmp_path / "data.csv"
    known = ["Ann  Lee", "bob", "007"]
    lines = [[*row[:2], known[n] if n < 3 else row[2]] for n, row in enumerate(rows(600, 200))]
    with table.open("wb") as stream:
        write_table(stream, table, [HEADER, *lines])
    same = ["ann lee", "\uff22\uff2f\uff22", "7", "70"]  # the second is a wide BOB
    held_out = [["a new text", "five", user] for user in same]
    shown = measured_on(table, HEADER, held_out, "--check-overlap")
    assert shown.exit_code == 0, shown.output
    assert "3 of 4 held-out rows belong" in plain(shown.stderr)


def test_the_check_recognises_users_however_they_are_written(tmp_path):
    """7 in a table of texts and 7.0 in one of numbers are the same person."""
    table = tmp_path / "data.csv"
    lines = [[*row[:2], row[2].removeprefix("a")] for row in rows(600, 200)]
    with table.open("wb") as stream:
        write_table(stream, table, [HEADER, *lines])
    others = tmp_path / "test.jsonl"
    same = [dict(zip(HEADER, [*row[:2], float(row[2])], strict=True)) for row in lines[:40]]
    others.write_text("\n".join(json.dumps(row) for row in same), encoding="utf-8")
    shown = train(table, *DECLARED, "--users", 200, "--test", others, "--check-overlap")
    assert shown.exit_code == 0
    assert "40 of 40 held-out rows" in plain(shown.stderr)
