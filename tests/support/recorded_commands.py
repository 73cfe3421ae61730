"""Commands on a private table, for pipelines that record every access (`recorded_pipelines`)."""

import csv

from typer.testing import CliRunner

from adadps.cli.main import app
from support.small_choices import small_choices

HEADER = ["who", "text", "age", "ward", "label"]
KINDS = (("good time", "a", "y"), ("bad day", "b", "n"))
TABLE = [
    [f"u{row % 8}", f"word {text}", str(20 + row), ward, label]
    for row in range(40)
    for text, ward, label in [KINDS[row % 2]]
]
DECLARED = ("--numeric", "age=18,100", "--categorical", "ward=a,b,other", "--classes", "y,n")
SMALL = ("--text", "text", "--label", "label", "--epsilon", 4, "--words", 200)


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return path


def called(recording, folder, command, *more):
    """A command on a private table, and then whatever looks at the model."""
    private, model = write(folder / "private.csv", TABLE), folder / "model"
    recording.files.add(str(private))
    places = (private, "--out", model, "--ledger", folder / "paid", "--json")
    for line in (
        [command, *places, *SMALL, *more],
        ["card", model, "--check"],
        ["report", model, "--out", folder / "page.html"],
        ["ledger", "show", folder / "paid"],
    ):
        done = CliRunner().invoke(app, [str(part) for part in line], catch_exceptions=False)
        assert done.exit_code == 0, done.output


def command(name, *more):
    return lambda recording, folder: called(recording, folder, name, *more)


def command_that_chooses(recording, folder):
    with small_choices():
        called(recording, folder, "train", *DECLARED, "--examples", 40, "--strict",
               "--features", "choose")  # fmt: skip


def command_with_test(recording, folder):
    other = write(
        folder / "test.csv", [["v", f"{text} again", *more] for _, text, *more in TABLE[:6]]
    )
    called(recording, folder, "train", *DECLARED, "--examples", 40, "--strict", "--test", other)


def doctor(recording, folder):
    """It looks at public data alone; a private table beside it stays shut."""
    recording.files.add(str(write(folder / "private.csv", TABLE)))
    public = write(folder / "public.csv", [*TABLE, *TABLE])
    line = ["doctor", public, "--text", "text", "--label", "label", "--examples", 500,
            "--epsilon", 2, "--words", 200, "--folds", 3, "--steps", 1,
            "--batch-size", 500]  # fmt: skip
    done = CliRunner().invoke(app, [str(part) for part in line], catch_exceptions=False)
    assert done.exit_code == 0, done.output
