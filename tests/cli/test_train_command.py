"""`adadps train` and `adadps predict`: from a table to a model, and to predictions."""

import json
import re
import shlex
import signal
import sqlite3
import sys
import time
from contextlib import closing

import pytest

from adadps import load_result
from adadps.data.tables import read_table
from adadps.errors import AssumedPublicWarning
from adadps.types import Method
from support.commands import (
    app,
    arguments,
    files,
    in_another_process,
    plain,
    rows,
    runner,
    train,
    write,
)


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data.csv", rows(400))


@pytest.mark.parametrize("method", list(Method))
def test_every_method_learns_the_obvious(tmp_path, data, method):
    test = write(tmp_path / "test.csv", rows(100, first=1000))
    options = ("--method", method.value, "--test", test, "--classes", "fruit,tools", "--json")
    shown = train(data, tmp_path / "model", *options, briefly=False)
    assert shown.exit_code == 0, shown.output
    assert shown.stderr == "", "quiet when piped"
    told = json.loads(shown.stdout)
    assert 3.9 < told["privacy"]["epsilon"] <= 4.0
    assert told["privacy"]["delta"] == 1 / 4000
    assert told["privacy"]["accountant"] == "pld"
    assert [(m["metric"], m["declared"]) for m in told["history"]] == [
        ("accuracy", "held out"),
        ("accuracy of always guessing the commonest class", "held out"),
    ]
    assert told["history"][0]["value"] > 0.9
    assert told["history"][1]["value"] == 0.5
    assert files(tmp_path / "model") == [
        *("card.json", "card.md", "ledger", "model.json", "report.html", "result.json"),
        "weights.safetensors",
    ]
    assert load_result(tmp_path / "model").privacy.private

    out = tmp_path / "predicted.tsv"
    told = runner.invoke(app, ["predict", str(tmp_path / "model"), str(test), "--out", str(out)])
    assert (told.exit_code, told.output) == (0, "")
    table = read_table(out)
    assert table.header == ("id", "text", "label", "prediction")
    right = [a == b for a, b in zip(*map(table.column, ("label", "prediction")), strict=True)]
    assert sum(right) > 90


def test_what_is_assumed_public_is_said(tmp_path, data):
    train(data, tmp_path / "read")
    assumed = load_result(tmp_path / "read").privacy.assumed_public
    assert "the classes, read off the data: fruit, tools" in assumed
    assert sum("number of examples" in fact for fact in assumed) == 1
    assert assumed[0].startswith("the number of examples, read off the data: ")
    train(data, tmp_path / "said", "--classes", "tools,fruit,other", "--examples", 500)
    declared = load_result(tmp_path / "said").privacy
    assert "the classes, declared: tools, fruit, other" in declared.assumed_public
    assert not any("examples, read off" in fact for fact in declared.assumed_public)
    assert (declared.sampler["examples"], declared.delta) == (500, 1 / 5000)


def test_nothing_private_is_shown_or_stored(tmp_path):
    """Two data sets that differ in texts and in how often each class occurs: same public facts."""
    texts = []
    for name, swap in (("one", False), ("two", True)):
        content = list(rows(400))
        for row in content[:150] if swap else []:
            row[1:] = ["apple zebra zebra", "fruit"]
        file, folder = write(tmp_path / f"{name}.csv", content), tmp_path / "model"
        shown = train(file, folder, "--ledger", tmp_path / f"{name}.ledger")
        assert shown.exit_code == 0, shown.output
        kept = [(folder / part).read_text(encoding="utf-8") for part in ("model.json",)]
        texts.append([shown.stdout, *kept, load_result(folder).describe()])
        folder.rename(tmp_path / name)
    assert texts[0] == texts[1]


def test_an_out_folder_that_exists_is_refused_and_left_alone(tmp_path, data):
    (tmp_path / "model").mkdir()
    shown = train(data, tmp_path / "model", "--ledger", tmp_path / "l")
    assert shown.exit_code == 1
    assert "does not exist yet" in plain(shown.stderr)
    assert files(tmp_path) == ["data.csv", "model"]


REFUSED = {
    "no such method": (2, ["--method", "magic"]),
    "epsilon": (2, ["--epsilon", "0"]),
    "epsilon that is no number": (2, ["--epsilon", "nan"]),
    "epsilon out of reach": (2, ["--epsilon", "1e-9", "--delta", "1e-12"]),
    "delta": (2, ["--delta", "1"]),
    "a batch larger than the data": (2, ["--batch-size", "401"]),
    "epochs": (2, ["--epochs", "0"]),
    "clip norm": (2, ["--clip-norm", "-1"]),
    "learning rate": (2, ["--lr", "inf"]),
    "one class": (2, ["--classes", "fruit"]),
    "a class twice": (2, ["--classes", "fruit,fruit"]),
    "a label outside of the classes": (1, ["--classes", "fruit,berries"]),
    "a class that is spelled otherwise": (1, ["--classes", "fruit,tool"]),
    "side information for dp-sgd": (2, ["--method", "dp-sgd", "--side", "wordfreq"]),
    "no side information for adadps": (2, ["--method", "adadps", "--side", "none"]),
    "side information without source": (1, ["--side", "words.csv"]),
    "no side file": (1, ["--side", "nowhere", "--side-source", "x", "--side-because", "y"]),
    "language": (1, ["--language", "xx"]),
    "a column that is not there": (1, ["--label", "stars"]),
    "test file": (1, ["--test", "nowhere.csv"]),
    "budget of a ledger without one": (2, ["--ledger-budget", "3"]),
    "budget of a ledger below the run's": (2, ["--ledger", "l", "--ledger-budget", "3"]),
    "labels that are texts": (1, ["--label", "id", "--epsilon", "4"]),
}


@pytest.mark.parametrize(("code", "options"), REFUSED.values(), ids=REFUSED)
def test_refusals_leave_nothing_behind(tmp_path, monkeypatch, code, options):
    monkeypatch.chdir(tmp_path)
    data = write(tmp_path / "data.csv", rows(400 if "id" not in options else 1200))
    shown = train(data, tmp_path / "new" / "model", *options)
    assert shown.exit_code == code, shown.output
    said = plain(shown.stderr)  # the latest refusal comes after the warning of what is read off
    refusal = r"(Warning: Read off .*refuses instead\. )?(\w+Error: Expected .*found .*|Usage: )"
    assert re.match(refusal, said), shown.stderr
    assert ("Did you mean 'tool'?" in plain(shown.stderr)) is ("fruit,tool" in options)
    assert files(tmp_path) == ["data.csv"]


def word_list(tmp_path, *lines):
    return write(tmp_path / "words.csv", [line.split() for line in lines], ("word", "frequency"))


SOURCE = ("--side-source", "a shop's catalogue", "--side-because", "it is printed")


def test_side_information_from_a_file(tmp_path, data):
    words = word_list(tmp_path, "and 0.1", "apple 1e-5", "unheardof 0.9")
    shown = train(data, tmp_path / "model", "--side", words, *SOURCE)
    assert shown.exit_code == 0, shown.output
    side, _ = load_result(tmp_path / "model").side_information
    assert side["source"].startswith("a shop's catalogue")
    assert side["public_because"] == "it is printed"


BAD_WORDS = {
    "no number": ("apple x", "'x' on line 2"),
    "negative": ("apple -1", "'-1' on line 2"),
    "not finite": ("apple 1e999", "'1e999' on line 2"),
    "only zeros": ("apple 0", "above zero"),
    "no known word": ("Apple 1", "above zero"),
    "counts": ("apple 50000", "found a sum of 50000. Divide counts by their total."),
}


@pytest.mark.parametrize(("line", "message"), BAD_WORDS.values(), ids=BAD_WORDS)
def test_bad_word_lists_are_refused(tmp_path, data, line, message):
    shown = train(data, tmp_path / "model", "--side", word_list(tmp_path, line), *SOURCE)
    assert shown.exit_code == 1
    assert message in plain(shown.stderr)


def test_a_repeated_word_is_refused(tmp_path, data):
    words = word_list(tmp_path, "apple 0.1", "apple 0.2")
    shown = train(data, tmp_path / "model", "--side", words, *SOURCE)
    assert shown.exit_code == 1
    assert "every word once" in plain(shown.stderr)


def test_an_empty_line_in_a_table_is_refused_by_its_number(tmp_path, data):
    lines = data.read_text(encoding="utf-8").splitlines()
    broken = tmp_path / "broken.csv"
    broken.write_text("\n".join([*lines[:4], "", *lines[4:]]), encoding="utf-8")
    shown = train(broken, tmp_path / "model")
    assert shown.exit_code == 1
    assert "found line 5 empty" in plain(shown.stderr)
    assert not (tmp_path / "model").exists()


def test_runs_share_a_ledger_until_its_budget_is_spent(tmp_path, data):
    ledger = tmp_path / "shared.ledger"
    options = ("--ledger", ledger, "--epsilon", 1)
    first = train(data, tmp_path / "one", *options, "--ledger-budget", 1.6, "--json")
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)["privacy"]
    assert told["accountant"] == "rdp"
    assert 0.97 < told["epsilon"] <= 1.0

    second = train(data, tmp_path / "two", *options, "--method", "dp-sgd")
    assert second.exit_code == 0, second.output
    claimed = load_result(tmp_path / "two")
    assert claimed.privacy.epsilon == 1.6, "the whole budget, beside another run"
    assert 0.97 < claimed.settings["epsilon_of_this_run"] <= 1.0
    checked = runner.invoke(app, ["card", str(tmp_path / "two"), "--check"])
    assert "NOT CHECKED: epsilon is the whole budget of the ledger" in plain(checked.stdout)
    assert "card.json and card.md state the same" in plain(checked.stdout)
    third = train(data, tmp_path / "three", *options, "--method", "dp-adam")
    assert third.exit_code == 1
    assert re.search(r"BudgetError: .*Nothing was drawn.*Left: epsilon = \d", plain(third.stderr))
    assert not (tmp_path / "three").exists()
    shown = runner.invoke(app, ["ledger", "show", str(ledger), "--json"])
    seen = json.loads(shown.stdout)
    assert seen["budget"] == {"epsilon": 1.6, "delta": 1 / 4000}
    steps = [(run["steps_reserved"], run["steps_planned"]) for run in seen["runs"]]
    planned = told["steps"]
    assert steps == [(planned, planned), (planned, planned), (0, planned)]
    assert seen["entries"] == 2 * planned


def test_a_new_ledger_has_the_budget_of_its_first_run(tmp_path, data):
    ledger = tmp_path / "one.ledger"
    assert train(data, tmp_path / "one", "--ledger", ledger).exit_code == 0
    again = train(data, tmp_path / "two", "--ledger", ledger, "--epsilon", 0.5)
    assert again.exit_code == 1
    assert "BudgetError" in again.stderr


def test_the_budget_of_a_ledger_cannot_be_changed_by_a_later_run(tmp_path, data):
    ledger = tmp_path / "one.ledger"
    assert train(data, tmp_path / "one", "--ledger", ledger).exit_code == 0
    again = train(data, tmp_path / "two", "--ledger", ledger, "--ledger-budget", 100)
    assert again.exit_code == 2


def test_ctrl_c_ends_with_130_one_line_and_no_folder(tmp_path, data, monkeypatch):
    from adadps.estimators.tables import training

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "fit", interrupted)
    monkeypatch.setattr(sys, "argv", ["adadps", "train", "my data.csv", "--epsilon", "1"])
    shown = train(data, tmp_path / "new" / "model", "--classes", "fruit,tools")
    assert shown.exit_code == 130
    assert plain(shown.stderr).strip() == (
        "Interrupted: no model was written, and nothing was spent. To start again: "
        "adadps train 'my data.csv' --epsilon 1"
    )
    assert files(tmp_path) == ["data.csv"]


@pytest.mark.parametrize("shared", [True, False], ids=["with a ledger", "alone"])
def test_a_real_ctrl_c_ends_with_130_and_keeps_what_was_paid(tmp_path, data, shared):
    """A process of its own, interrupted in the middle of its steps."""
    with_ledger = ("--ledger", tmp_path / "l.ledger") if shared else ()
    epochs = 10_000 if shared else 500  # PLD takes its time for more
    known = ("--classes", "fruit,tools")
    given = arguments(data, tmp_path / "model", *with_ledger, *known, "--epochs", epochs)
    ledger = tmp_path / ("l.ledger" if with_ledger else "model.checkpoint/ledger")
    process = in_another_process(*given)
    try:
        deadline = time.monotonic() + 200
        while not _charges(ledger) and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, told
    kept = re.fullmatch(
        r"Interrupted: no model was written; (\d+) of (\d+) steps are kept in (\S+), and (\d+) "
        r"steps stay paid for. To resume: adadps (.*)",
        plain(told).strip(),
    )
    assert kept is not None, told
    assert kept[3] == str(tmp_path / "model.checkpoint")
    assert int(kept[1]) == int(kept[4]) == _charges(ledger) > 0, "each paid step is kept"
    assert shlex.split(kept[5]) == given
    assert not (tmp_path / "model").exists()
    assert not list(tmp_path.glob(".adadps*")), "no rows and no draft are left"


def _charges(ledger):
    if not ledger.exists():
        return 0
    with closing(sqlite3.connect(ledger)) as connection:
        return connection.execute("SELECT count(*) FROM reservations").fetchone()[0]


# Predicting


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert train(write(folder / "data.csv", rows(400)), folder / "model").exit_code == 0
    return folder / "model"


def predict(model, data, out, *more):
    return runner.invoke(app, ["predict", str(model), str(data), "--out", str(out), *more])


def test_predictions_are_not_overwritten_without_force(model, tmp_path, data):
    out = tmp_path / "out.csv"
    out.write_text("precious", encoding="utf-8")
    shown = predict(model, data, out)
    assert (shown.exit_code, out.read_text(encoding="utf-8")) == (1, "precious")
    assert "--force" in plain(shown.stderr)
    assert predict(model, data, out, "--force").exit_code == 0
    assert len(read_table(out)) == 400


def test_another_column_of_texts(model, tmp_path):
    file = write(tmp_path / "new.csv", [["apple juice"]], ("review",))
    assert predict(model, file, tmp_path / "out.csv").exit_code == 1
    assert predict(model, file, tmp_path / "out.csv", "--text", "review").exit_code == 0


WRONG = {
    "no model": lambda _, data: (data.parent, data),
    "no table": lambda model, data: (model, data.with_name("nowhere.csv")),
    "predictions there": lambda model, data: (
        model,
        write(data.with_name("p.csv"), [["a", "b"]], ("text", "prediction")),
    ),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_refused_predictions_leave_nothing_behind(model, tmp_path, data, make):
    given = make(model, data)
    before = files(tmp_path)
    shown = predict(*given, tmp_path / "new" / "out.csv")
    assert shown.exit_code == 1
    assert re.match(r"DataError: Expected .*found .*\.$", plain(shown.stderr).strip())
    assert files(tmp_path) == before


# What people are told


def test_it_is_quiet_when_piped_and_trials_stand_on_the_card(tmp_path, data):
    options = ("--ledger", tmp_path / "l", "--epsilon", 12, "--epochs", 2, "--trials", 3)
    shown = train(data, tmp_path / "one", *options, "--classes", "fruit,tools")
    assert shown.exit_code == 0, shown.output
    assert shown.stderr == ""
    assert load_result(tmp_path / "one").privacy.tuning_trials == 3


def test_people_are_told_what_is_read_off_and_what_promises_little(tmp_path, data):
    from adadps.estimators.tables.request import TrainingRequest
    from adadps.estimators.tables.training import train_from_table

    said = []
    request = TrainingRequest(
        data=data, epsilon=12.0, out=tmp_path / "one", texts=("text",), label="label", words=300,
        epochs=2.0, ledger=tmp_path / "l",
    )  # fmt: skip
    known = "assumed public: the classes, the number of examples"
    with pytest.warns(AssumedPublicWarning, match=known) as caught:
        train_from_table(request, said.append)
    assert len(caught) == 1
    assert said[0].startswith("ε = 12 promises little")


def test_the_bar_never_shows_more_than_was_asked_for(monkeypatch):
    """Its quick bound is by RDP, which may lie above what PLD has planned."""
    from types import SimpleNamespace

    from adadps import Accountant, Budget
    from adadps.training import run as room

    run = SimpleNamespace(
        sampler=SimpleNamespace(accountants=lambda _grouping: (Accountant.PLD, Accountant.RDP)),
        method=None,
        epsilon=lambda **_: 1.11,
        ledger=SimpleNamespace(budget=Budget(1.0, 1e-5)),
    )
    monkeypatch.setattr(room, "grouping_of", lambda _method: None)
    assert room.Run.epsilon_at_most(run) == 1.0
    run.ledger.budget = None
    assert room.Run.epsilon_at_most(run) == 1.11
