"""`adadps federate`: users train locally, and epsilon protects users."""

import json

import pytest

from adadps.data.tables import write_table
from adadps.estimators.planner.successors import SUCCESSORS
from adadps.types import Relation
from support.author_tables import HEADER, rows
from support.commands import app, files, plain, runner

USERS = len({row[2] for row in rows(600, 120)})


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "data.csv"
    with path.open("wb") as stream:
        write_table(stream, path, [HEADER, *rows(600, 120)])
    return path


def federate(table, *more, epsilon="8", out="model"):
    columns = ("--user", "author", "--text", "review", "--label", "stars", "--classes", "one,five")
    sizes = ("--words", 300, "--rounds", 12, "--cohort", 40, "--users", USERS)
    places = ("--ledger", table.parent / "paid", "--out", table.parent / out)  # by RDP, soon done
    given = ("federate", table, *columns, *sizes, *places, "--epsilon", epsilon, "--json", *more)
    return runner.invoke(app, [str(one) for one in given])


def told_by(shown):
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def test_a_model_a_card_and_a_statement_for_users(table):
    told = told_by(federate(table))
    assert told["privacy"]["unit"] == "user (author)"
    assert told["privacy"]["steps"] == 12
    assert told["privacy"]["epsilon"] <= 8
    assert told["method"].startswith("train_locally("), "as devices can do it"
    assert "at most 1000 rows each" in told["method"]
    card = (table.parent / "model" / "card.md").read_text(encoding="utf-8")
    assert "user (author)" in card
    labelled = table.parent / "labelled.csv"
    given = ("predict", table.parent / "model", table, "--out", labelled)
    assert runner.invoke(app, [str(one) for one in given]).exit_code == 0
    assert "prediction" in labelled.read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize("method", SUCCESSORS)
def test_methods_that_are_not_planned_for_devices_are_refused(table, method):
    found = federate(table, "--method", method)
    assert found.exit_code == 2
    said = " ".join(found.stderr.split())
    assert f"Expected a method of federations, found {method.value}" in said
    assert "Use dp-sgd, dp-adam, adadps or adadps-two-sided" in said


@pytest.mark.parametrize("method", ["dp-sgd", "dp-adam", "adadps", "adadps-two-sided"])
def test_every_method_by_name(table, method):
    told = told_by(federate(table, "--method", method, "--local-batch-size", 2))
    sources = [known["source"] for known in told["side_information"]]
    assert any("wordfreq" in source for source in sources) is method.startswith("adadps")
    assert any("wordllama" in source for source in sources), "in the features"
    assert ("adam(" in told["method"]) is (method == "dp-adam")


@pytest.mark.parametrize(
    ("given", "relation"),
    [
        (("--sampling", "fixed"), Relation.REPLACE_ONE),
        (("--noise", "shares", "--minimum", 30), Relation.ZERO_OUT),
        (("--noise", "device"), Relation.ZERO_OUT),
    ],
)
def test_other_cohorts_and_noise_elsewhere(table, given, relation):
    privacy = told_by(federate(table, *given))["privacy"]
    assert (privacy["accountant"], privacy["relation"]) == ("rdp", relation.value)
    assert privacy["epsilon"] <= 8


def test_a_ledger_is_shared_with_other_runs(table):
    told_by(federate(table, "--ledger-budget", 9, epsilon="8"))
    again = federate(table, epsilon="8", out="other")
    assert again.exit_code == 1
    assert "BudgetError" in again.stderr


@pytest.mark.parametrize(
    ("given", "said", "code"),
    [
        (("--noise", "shares"), "--minimum", 2),
        (("--minimum", 5), "--minimum", 2),
        (("--noise", "device", "--sampling", "poisson"), "--sampling shuffled", 2),
        (("--noise", "shares", "--minimum", 5, "--sampling", "fixed"), "--sampling shuffled", 2),
        (("--noise", "shares", "--minimum", 90), "Lower the minimum", 2),
        (("--sampling", "fixed", "--users", 300), "300 declared users", 1),
        (("--server-momentum", 1), "server momentum", 2),
        (("--local-lr", 0), "local_lr", 2),
        (("--local-epochs", 0), "at least 1", 2),
        (("--cohort", 500), "batch size", 2),
        (("--user", "writer"), "writer", 1),
        (("--epsilon", 0), "epsilon", 2),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_left(table, given, said, code):
    shown = federate(table, *given)
    assert shown.exit_code == code, shown.output
    assert said in plain(shown.stderr)
    assert files(table.parent) == ["data.csv"]


def test_one_local_step_is_training_by_user(table):
    """The same clip and rate: `train --user` and a federation of one local step agree."""
    one_step = ("--local-batch-size", 1000, "--ledger-budget", 20)
    told = told_by(federate(table, "--method", "dp-sgd", *one_step))
    columns = ("--text", "review", "--label", "stars", "--classes", "one,five")
    users = ("--user", "author", "--users", USERS, "--rows-per-user", 1000, "--words", 300)
    sizes = ("--method", "dp-sgd", "--epsilon", 8, "--batch-size", 40, "--epochs", 480 / USERS)
    places = ("--ledger", table.parent / "paid", "--out", table.parent / "other", "--json")
    given = ("train", table, *columns, *users, *sizes, *places)
    other = json.loads(runner.invoke(app, [str(one) for one in given]).stdout)
    assert other["privacy"]["steps"] == 12
    lr, clip = other["settings"]["lr"], told["privacy"]["clip_norm"]
    assert clip == pytest.approx(lr * other["privacy"]["clip_norm"], rel=1e-6)
    assert told["privacy"]["noise_multiplier"] == other["privacy"]["noise_multiplier"]
