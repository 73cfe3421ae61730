"""Commands as people type them, on a small table of texts with two obvious classes."""

import csv
import os
import re
import subprocess
import sys

from typer.testing import CliRunner

from adadps.cli.main import app

runner = CliRunner()
FRUIT, TOOLS = ("apple pear plum cherry", "sweet juice"), ("hammer saw nail drill", "steel wood")


def plain(text):
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))


def rows(count, first=0):
    """Texts of two obvious classes."""
    kinds = ((FRUIT, "fruit"), (TOOLS, "tools"))
    for number in range(first, first + count):
        (words, more), label = kinds[number % 2]
        yield [str(number), f"{words} and {more} number{number}", label]


def write(path, content, header=("id", "text", "label")):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *content])
    return path


def arguments(data, out, *more, briefly=True):
    """For two epochs, where nothing else is given; as many as are usual, unless ``briefly``."""
    given = ["train", data, "--text", "text", "--label", "label", "--out", out, "--words", 3000]
    given += [] if "--epsilon" in more else ["--epsilon", 4]
    given += ["--epochs", 2] if briefly and "--epochs" not in more else []
    return [str(part) for part in (*given, *more)]


def train(data, out, *more, briefly=True):
    return runner.invoke(app, arguments(data, out, *more, briefly=briefly))


CHILD = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal
from support.coarse_accounting import use_coarse_accounting
use_coarse_accounting()
from adadps.cli.main import app
app()
"""


def in_another_process(*words):
    """A command that can be interrupted or killed; its standard error can be read."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, words)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )


def files(folder):
    return sorted(path.name for path in folder.rglob("*"))
