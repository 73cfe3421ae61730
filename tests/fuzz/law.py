"""What every input must end with, and how a breach is told."""

from __future__ import annotations

import os
import re
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from adadps.cli.main import app
from adadps.errors import AdadpsError

SECONDS_FOR_ONE = 240
ENDINGS: Counter[str] = Counter()
"""How many calls of this process succeeded, and how many were refused: fuzzing needs both."""
_WARNED = re.compile(r"(?:Warning: [^\n]*\n)*")  # before what was refused
_TOLD = re.compile(r"(\w+Error: |Usage: |╭─ Error)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RUNNER = CliRunner()


class BreachError(AssertionError):
    """An input that did not end as it must."""


@dataclass(frozen=True)
class Ending:
    """How an input ended: what it gave, or which error of ours."""

    value: Any = None
    error: AdadpsError | None = None


def ending_of(call: Callable[[], Any]) -> Ending:
    """Success or an error of our own that says something; anything else is a breach."""
    try:
        ended = Ending(call())
        ENDINGS["well"] += 1
        return ended
    except AdadpsError as error:
        ENDINGS["refused"] += 1
        str(error).encode("utf-8", "backslashreplace")
        if not str(error).strip():
            raise BreachError(f"{type(error).__name__} without a message") from error
        return Ending(error=error)


def command_ends_well(arguments: list[str], folder: Path, kept: tuple[str, ...] = ()) -> Result:
    """Run a command; after an error the folder must be as it was, apart from names in ``kept``."""
    before = _content(folder)
    shown = _RUNNER.invoke(app, arguments)
    ENDINGS["refused" if shown.exit_code else "well"] += 1
    told = _COLOURS.sub("", shown.stderr)
    if shown.exception is not None and not isinstance(shown.exception, SystemExit):
        raise shown.exception
    if "Traceback" in told or "Traceback" in shown.stdout:
        raise BreachError(f"a traceback was printed for {arguments}: {told}")
    if shown.exit_code not in (0, 1, 2):
        raise BreachError(f"exit code {shown.exit_code} for {arguments}: {told}")
    if shown.exit_code and not _TOLD.match(_WARNED.sub("", told.lstrip())):
        raise BreachError(f"exit code {shown.exit_code} with message {told!r} for {arguments}")
    if shown.exit_code:
        after = _content(folder)
        changed = {
            name
            for name in before.keys() | after.keys()
            if before.get(name) != after.get(name) and not name.startswith(kept or ("\0",))
        }
        if changed:
            raise BreachError(f"an error left or changed {changed} for {arguments}: {told}")
    return shown


def _content(folder: Path) -> dict[str, bytes | str]:
    return {
        os.path.relpath(path, folder): path.read_bytes() if path.is_file() else "a folder"
        for path in folder.rglob("*")
    }


@contextmanager
def bounded() -> Iterator[None]:
    """Warnings are errors, and an input that takes too long is a breach."""

    def too_long(*_: object) -> None:
        raise BreachError(f"took longer than {SECONDS_FOR_ONE} seconds")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS_FOR_ONE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
