"""The commands on the page about tables do what they say."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from adadps.data.tables import read_table
from support.commands import write
from support.mixed_tables import call

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(command.replace("\\\n", " "))[1:]
    for command in re.findall(r"^ {4}(adadps (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
]
QUICKLY = ("--words", "200", "--epochs", "2")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notes = [["needs rest and sleep", 60 + n % 30, "de", "old"] for n in range(200)]
    notes += [["may run and play", 20 + n % 30, "fr", "young"] for n in range(200)]
    write(tmp_path / "visits.csv", notes, ("note", "age", "country", "outcome"))
    write(tmp_path / "held-out.csv", notes[5:45], ("note", "age", "country", "outcome"))
    write(tmp_path / "leaflets.csv", [[row[0]] for row in notes[10:50]], ("note",))
    reviews = [["good film", "5"], ["bad film", "1"]] * 40
    write(tmp_path / "reviews.csv", reviews, ("review", "stars"))
    write(tmp_path / "new.csv", [["a film"]], ("review",))
    namespace = {}
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "schema =" in b)
    exec("from pathlib import Path\n" + block, namespace)
    return tmp_path


def test_all_commands_of_the_page_run(folder):
    trainings = [command for command in COMMANDS if command[0] == "train"]
    predictions = [command for command in COMMANDS if command[0] == "predict"]
    checks = [command for command in trainings if "--check-overlap" in command]
    trainings = [command for command in trainings if command not in checks]
    assert (len(trainings), len(checks), len(predictions)) == (6, 1, 2)
    shutil.rmtree(folder / "model", ignore_errors=True)
    for number, command in enumerate(trainings):
        shown = call(*command, *QUICKLY, "--ledger", f"{number}.ledger")
        assert shown.exit_code == 0, shown.output
        out = command[command.index("--out") + 1]
        Path(out).rename(f"{number}.model")
    shown = call(*checks[0])
    assert (shown.exit_code, shown.stderr.split(" held-out")[0]) == (0, "40 of 40")
    Path("0.model").rename("model")  # the one that reads reviews
    for command in predictions:
        shown = call(*command)
        assert shown.exit_code == 0, shown.output
        assert "prediction" in read_table(command[command.index("--out") + 1]).header
