"""Commands on a table and on the table plus one row, or one user.

Noise is off and chance is fixed: everything that leaves has to be the same in both worlds, but for
weights (`two_worlds.py` says how that is compared).
"""

import csv
import io
import shutil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from adadps import load_result
from adadps.cli import main as consoles
from adadps.cli.main import app
from adadps.estimators.tables import features as table_features
from support.small_choices import small_choices
from support.two_worlds import THE_ONE, left_by, metrics
from support.two_worlds_problems import (
    same,
    tried,
)

HEADER = ["who", "text", "age", "ward", "label"]
ROW = st.tuples(
    st.sampled_from(["u1", "u2", "u3"]),
    st.sampled_from(["good time", "bad day", "zzzz", "the " * 60, "naïve 😀, 'so'", 'a "b"\nc']),
    st.sampled_from(["20", "18.5", "-7", "1e9", "99"]),
    st.sampled_from(["a", "b", "elsewhere"]),
    st.sampled_from(["y", "n"]),
).map(list)
COLUMNS = ("--text", "text", "--label", "label", "--words", 60)
DECLARED = ("--numeric", "age=18,100", "--categorical", "ward=a,b,other", "--classes", "y,n")


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return path


def invoked(world, *lines):
    """Commands one after the other, as on a terminal: what is said to people is heard as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_features, "accuracy", metrics()["accuracy"])
        patch.setattr(table_features.Targets, "_absolute_error", lambda *_: 0.5)
        for line in lines:
            heard = io.StringIO()
            patch.setattr(consoles, "err", Console(file=heard, force_terminal=True, width=120))
            done = CliRunner().invoke(app, [str(part) for part in line])
            world.tell(done.exit_code, done.stdout, done.stderr, heard.getvalue())
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception


def command(name, *more, test=False, public=()):
    """A command on a private table, and whatever looks at the model afterwards."""

    def pipeline(world, given):
        rows, as_json = given
        place = world.folder.with_name(world.folder.name + "-input")
        place.mkdir(exist_ok=True)
        line = [name, write(place / "private.csv", rows), *COLUMNS, "--epsilon", 4, *more]
        if test:
            line += ["--test", write(place / "test.csv", TESTED)]
        if public:
            line += ["--public", write(place / "public.csv", public), "--public-because", "it is"]
        model, paid = world.folder / "model", world.folder / "paid"
        places = ["--out", model, "--ledger", paid, "--ledger-budget", 99]
        invoked(
            world,
            [*line, *places, *(["--json"] if as_json else [])],
            ["card", model],
            ["card", model, "--check", "--json"],
            ["report", model, "--out", world.folder / "page.html"],
            ["ledger", "show", paid],
        )
        shutil.rmtree(place)
        world.take_weights(load_result(model).params if model.exists() else {})

    return pipeline


KNOWN = [
    [f"u{row % 3}", text, str(20 + row), ward, label]
    for row, (text, ward, label) in enumerate(
        [("good time", "a", "y"), ("bad day", "b", "n"), ("a long day", "a", "n")] * 4
    )
]
TESTED = [["v1", "good time", "21", "a", "y"], ["v2", "bad day", "44", "b", "y"],
          ["v3", "the " * 60, "99", "a", "n"], ["v4", "zzzz", "20", "b", "n"]]  # fmt: skip

EXAMPLES = ("--examples", 12, "--strict", "--batch-size", 3, "--epochs", 1)
OF_USERS = ("--user", "who", "--users", 3, "--strict", "--batch-size", 2, "--epochs", 2)
ROUNDS = ("--user", "who", "--users", 3, "--strict", "--cohort", 2, "--rounds", 2)
REGRESSION = ("--label", "age", "--regression", "--label-bounds", "18,100")
PAID = (
    *("--numeric", "age=18,100", "--categorical", "ward", "--classes", "y,n"),
    *("--rare", "other", "--epsilon", 40),  # enough that the threshold is far from all counts
)
COMMANDS = {
    "train": command("train", *DECLARED, *EXAMPLES),
    "train, adadps": command("train", *DECLARED, *EXAMPLES, "--method", "adadps"),
    "train, held-out rows": command("train", *DECLARED, *EXAMPLES, test=True),
    "train, paid levels": command("train", *PAID, *EXAMPLES),
    "train, regression": command("train", *REGRESSION, *EXAMPLES, test=True),
    "train, public texts": command("train", "--classes", "y,n", *EXAMPLES, public=TESTED),
    "train, fitted vectors": command("train", "--classes", "y,n", *EXAMPLES, public=TESTED * 300),
}


def choosing(pipeline):
    """The same pipeline, with trials of two steps on however few rows."""

    def chosen(world, given):
        with small_choices():
            pipeline(world, given)

    return chosen


CHOOSE = ("--features", "choose")
COMMANDS["train, features chosen"] = choosing(command("train", *DECLARED, *EXAMPLES, *CHOOSE))
USER_COMMANDS = {
    "train, users, features chosen": choosing(command("train", *DECLARED, *OF_USERS, *CHOOSE)),
    "train, users": command("train", *DECLARED, *OF_USERS),
    "train, users, held-out rows": command("train", *DECLARED, *OF_USERS, test=True),
    "federate": command("federate", *DECLARED, *ROUNDS),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_the_same_with_one_row_more(name):
    pipeline = COMMANDS[name]

    @tried(name == "train")
    @given(ROW, st.integers(0, len(KNOWN)), st.just(False))
    @example(["u1", *TESTED[0][1:]], len(KNOWN), True)
    def leaves_the_same(row, place, as_json):
        more, names = [*KNOWN[:place], row, *KNOWN[place:]], list(range(len(KNOWN)))
        named = [*names[:place], THE_ONE, *names[place:]]
        one = left_by(pipeline, (KNOWN, as_json), names)
        other = left_by(pipeline, (more, as_json), named)
        same((one, other))
        assert one.told[0] == "0", one.told[2]

    leaves_the_same()


@pytest.mark.parametrize("name", USER_COMMANDS)
def test_a_command_leaves_the_same_with_one_user_more(name):
    pipeline = USER_COMMANDS[name]

    @tried(name == "federate")
    @given(st.lists(ROW, min_size=1, max_size=3), st.just(False))
    @example([TESTED[0]], True)
    def leaves_the_same(rows, as_json):
        whose = TESTED[0][0]
        more = [*KNOWN, *([whose, *rest] for _, *rest in rows)]
        names = list(dict.fromkeys(row[0] for row in KNOWN))
        one = left_by(pipeline, (KNOWN, as_json), names)
        other = left_by(pipeline, (more, as_json), [*names, THE_ONE])
        same((one, other))
        assert one.told[0] == "0", one.told[2]

    leaves_the_same()


WRONG = {
    "a label": ["u1", "good time", "20", "a", "maybe"],
    "a number": ["u1", "good time", "many", "a", "y"],
    "an empty cell": ["u1", "good time", "20", "a", ""],
}


@pytest.mark.parametrize("row", WRONG.values(), ids=WRONG)
def test_a_wrong_row_is_refused_in_the_same_words(row):
    """It is an error of the table, said to whoever runs the training; one row more says no more."""
    pipeline = command("train", *DECLARED, *EXAMPLES)
    wrong = [*KNOWN[:3], row, *KNOWN[3:]]
    worlds = [left_by(pipeline, (rows, False)) for rows in (wrong, [*wrong, KNOWN[0]])]
    one, _ = same(worlds)
    assert one.told[0] == "1"
    assert "line 5" in one.told[2] + one.told[3]
