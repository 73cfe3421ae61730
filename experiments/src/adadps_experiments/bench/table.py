"""Sheets on a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from adadps_experiments.bench.sheets import Sheet

_WHOLE = ("workload", "contender")


def as_rich(sheet: Sheet) -> Table:
    """A table for a terminal."""
    table = Table(title=sheet.title)
    for heading in sheet.headings:
        table.add_column(heading, overflow="fold", no_wrap=heading in _WHOLE)
    for line in sheet.lines:
        table.add_row(*map(escape, line))
    return table


def as_markdown(sheets: Sequence[Sheet]) -> str:
    """Tables for a page.

    >>> print(as_markdown([Sheet("Title", ["a", "b"], [["1", "2"]])]))
    ### Title
    <BLANKLINE>
    | a | b |
    |---|---|
    | 1 | 2 |
    <BLANKLINE>
    """
    return "\n".join(_one(sheet) for sheet in sheets)


def _one(sheet: Sheet) -> str:
    written = [f"| {' | '.join(line)} |" for line in (sheet.headings, *sheet.lines)]
    rule = f"|{'---|' * len(sheet.headings)}"
    return "\n".join([f"### {sheet.title}", "", written[0], rule, *written[1:], ""])
