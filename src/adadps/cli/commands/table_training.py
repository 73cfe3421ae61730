"""What `adadps train` and `adadps federate` do with a request: run it, and show the result."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adadps.cli.commands.console import (
    errors_as_messages,
    out,
    print_json,
    say,
    say_on_terminal,
    table_of_facts,
)
from adadps.errors import DataError

if TYPE_CHECKING:
    from adadps.estimators.tables.request import Request
    from adadps.report.result import Result


def train_and_show(request: Request, title: str, *, as_json: bool) -> None:
    """Train as requested; print a table of facts, or JSON."""
    from adadps.estimators.tables.from_table import kept_run, train_from_table
    from adadps.estimators.tables.survey import RareError

    with errors_as_messages(interrupted=lambda: kept_run(request).in_words(_this_command())):
        try:
            result = train_from_table(request, say_on_terminal)
        except RareError as error:
            paying = f"{_this_command()} --rare other"
            raise DataError(
                f"{error} Each column whose bounds, levels or classes you declare (--numeric "
                "NAME=LOW,HIGH, --categorical, --classes) is not paid for, and rarer levels of the "
                f"others are kept. To pay:\n{paying}"
            ) from error
        if as_json:
            print_json(result.describe())
        else:
            out.print(table_of_facts(title, _facts_of(result, request.out)))


def show_overlap(request: Request) -> None:
    """Say on standard error, and nowhere else, how many held-out rows are training rows."""
    from adadps.estimators.tables.overlap_check import overlap_in_words

    with errors_as_messages():
        say(overlap_in_words(request))


def _this_command() -> str:
    """The command line that was given, for a shell."""
    return shlex.join(["adadps", *sys.argv[1:]])


def _facts_of(result: Result, folder: Path) -> dict[str, Any]:
    """What may be shown: nothing here was computed from private data without noise."""
    from adadps.report.card.meaning import about_held_out
    from adadps.report.card.rendering import measured_on

    privacy = result.privacy
    measured = {
        f"{m.metric}, on {measured_on(m.data, m.declared)}": m.value for m in result.history
    }
    outside = about_held_out(m.declared for m in result.history)
    return {
        "model": str(folder),
        "guarantee": str(privacy),
        "method": result.method,
        "steps": privacy.steps,
        "steps paid": privacy.steps_paid,
        "noise multiplier": privacy.noise_multiplier,
        **measured,
        **({"not covered": outside[0]} if outside else {}),
        **{f"measured and paid for ({n})": fact for n, fact in enumerate(privacy.measured, 1)},
        **{f"assumed public ({n})": fact for n, fact in enumerate(privacy.assumed_public, 1)},
    }
