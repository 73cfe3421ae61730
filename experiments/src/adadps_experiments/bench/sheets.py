"""Measured rows as tables (terminal, Markdown) and as a bar chart."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from adadps.errors import DataError
from adadps_experiments.bench.contenders import CONTENDERS, OURS
from adadps_experiments.bench.rows import Row, disturbed, find, measured, readable
from adadps_experiments.bench.targets import RatioVerdict, verdicts

Column = Callable[[Row], str]


@dataclass(frozen=True)
class Sheet:
    """A title, headings, and lines of text."""

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]


def sheets_of(rows: Sequence[Row]) -> list[Sheet]:
    """Return every table for which there are rows."""
    together = [row for row in rows if "processes" in row]
    rows = [row for row in rows if "processes" not in row]
    steps = [row for row in rows if "seconds" not in row]
    epochs = [row for row in rows if "seconds" in row]
    names = dict.fromkeys(row["workload"] for row in steps)
    made = [_workload(name, [row for row in steps if row["workload"] == name]) for name in names]
    made += [_targets(steps)] if verdicts(steps) else []
    made += [_epoch(epochs)] if epochs else []
    made += [_together(together)] if together else []
    every = [*rows, *together]
    made += [_disturbed(every)] if any(map(disturbed, every)) else []
    return made


def _together(rows: Sequence[Row]) -> Sheet:
    """Return the table of several processes; "×" is the rate beside that of one process."""

    def cells(row: Row) -> list[str]:
        if not measured(row):
            return [str(row["error"]), *["–"] * 4]
        one = find(rows, row["workload"], row["contender"], 1)
        faster = None if one is None or not measured(one) else one["ms_per_step"]
        return [
            readable(row["steps_per_second"]),
            readable(row["ms_per_step"]),
            readable(None if faster is None else faster / row["ms_per_step"]),
            f"{row['bytes_per_step']:,.0f}",
            readable(row["peak_mb"]),
        ]

    headings = ("steps / s", "ms per step", "×", "bytes sent per step", "peak MB")
    lines = [
        [str(row["workload"]), str(row["contender"]), str(row["processes"]), *cells(row)]
        for row in rows
    ]
    threads = sorted({row["threads"] for row in rows if "threads" in row})
    title = f"Several processes (threads of each: {', '.join(map(str, threads)) or '–'})"
    return Sheet(title, ("workload", "contender", "processes", *headings), lines)


def _workload(name: str, rows: Sequence[Row]) -> Sheet:
    columns: dict[str, Column] = {
        "contender": lambda row: str(row["contender"]),
        "ms per step": lambda row: readable(row["ms_per_step"]),
        "peak MB": lambda row: readable(row["peak_mb"]),
        f"× {OURS}": _ratio_to(find(rows, name, OURS)),
        "× torch": _ratio_to(find(rows, name, "torch")),
    }
    if any("touched_rows" in row for row in rows):
        columns["µs / touched row"] = _per_touched_row
    if any("flush_ms" in row for row in rows):
        columns["flush ms"] = lambda row: readable(row.get("flush_ms"))
    lines = [
        [column(row) for column in columns.values()] if measured(row) else _failed(row, columns)
        for row in sorted(rows, key=_place)
    ]
    return Sheet(_title(name, rows), list(columns), lines)


def _title(name: str, rows: Sequence[Row]) -> str:
    touched = [row["touched_rows"] for row in rows if "touched_rows" in row]
    threads = sorted({row["threads"] for row in rows if "threads" in row})
    facts = [f"{touched[0]:,.0f} rows touched per batch"] if touched else []
    engines = list(dict.fromkeys(row["engine"] for row in rows if "engine" in row))
    facts += [f"engine: {' or '.join(engines)}"] if engines else []
    facts += [f"threads: {', '.join(map(str, threads))}"] if threads else []
    return f"{name} ({', '.join(facts)})" if facts else name


def _targets(rows: Sequence[Row]) -> Sheet:
    lines = [
        [
            verdict.target.workload,
            verdict.target.compared,
            verdict.target.goal,
            readable(verdict.ratio),
            verdict.outcome,
        ]
        for verdict in verdicts(rows)
    ]
    return Sheet("Targets", ("workload", "ratio", "target", "measured", "verdict"), lines)


def _epoch(rows: Sequence[Row]) -> Sheet:
    lines = [
        [
            str(row["workload"]),
            str(row["contender"]),
            readable(row["seconds"]) if measured(row) else "–",
            readable(row["peak_mb"]),
            _how(row),
        ]
        for row in rows
    ]
    return Sheet("One epoch", ("workload", "contender", "seconds", "peak MB", "how"), lines)


def _disturbed(rows: Sequence[Row]) -> Sheet:
    lines = [
        [
            str(row["workload"]),
            str(row["contender"]) + (f" × {row['processes']}" if "processes" in row else ""),
            f"{row['other_work']:.0%}",
        ]
        for row in rows
        if disturbed(row)
    ]
    title = "Disturbed: measure these again (--json FILE --resume)"
    return Sheet(
        title, ("workload", "contender", "share of its cores taken by other processes"), lines
    )


def _how(row: Row) -> str:
    if not measured(row):
        return str(row["error"])
    if row.get("extrapolated"):
        return f"extrapolated: {row['steps']:,} × {readable(row['ms_per_step'])} ms"
    return f"measured: {row['steps']:,} steps"


def _failed(row: Row, columns: dict[str, Column]) -> list[str]:
    return [str(row["contender"]), str(row.get("error", "–")), *["–"] * (len(columns) - 2)]


def _ratio_to(base: Row | None) -> Column:
    def column(row: Row) -> str:
        if base is None or not measured(base):
            return "–"
        return readable(row["ms_per_step"] / base["ms_per_step"])

    return column


def _per_touched_row(row: Row) -> str:
    touched = row.get("touched_rows")
    return readable(1000 * row["ms_per_step"] / touched if touched else None)


def _place(row: Row) -> int:
    names = list(CONTENDERS)
    return names.index(row["contender"]) if row["contender"] in names else len(names)


def promise_sheet(verdicts: list[RatioVerdict]) -> Sheet:
    """Return the verdicts on the promises as a table."""
    headings = ("workload", "ratio", "promised", "measured", "verdict")
    lines = [
        [
            verdict.target.workload,
            verdict.target.compared,
            verdict.target.goal,
            readable(verdict.ratio),
            verdict.outcome,
        ]
        for verdict in verdicts
    ]
    return Sheet("Promises (processor time, one thread)", headings, lines)


_WHOLE = ("workload", "contender")


def as_rich(sheet: Sheet) -> Table:
    """Return a table for a terminal."""
    table = Table(title=sheet.title)
    for heading in sheet.headings:
        table.add_column(heading, overflow="fold", no_wrap=heading in _WHOLE)
    for line in sheet.lines:
        table.add_row(*map(escape, line))
    return table


def as_markdown(sheets: Sequence[Sheet]) -> str:
    """Return tables in Markdown.

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


_COLOURS = {"adadps": "#54a24b", "torch": "#9d9d9d", "opacus": "#4c78a8", "microbatch": "#f58518"}


def draw_chart(rows: Sequence[Row]) -> bytes:
    """Draw the times per step on a logarithmic scale, one panel per workload, as PNG."""
    others = ("seconds", "processes")
    shown = [row for row in rows if measured(row) and not any(key in row for key in others)]
    names = list(dict.fromkeys(row["workload"] for row in shown))
    if not names:
        raise DataError(
            "Expected at least one measured row to draw, found none. The table has the reasons."
        )
    across = min(3, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(4.6 * across, 2.9 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for axis, name in zip(axes, names, strict=False):
        _panel(axis, name, shown)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _panel(axis: Any, workload: str, rows: Sequence[Row]) -> None:
    found = [row for name in CONTENDERS if (row := find(rows, workload, name)) is not None]
    labels = [row["contender"] for row in found]
    times = [row["ms_per_step"] for row in found]
    colours = [_COLOURS[label.split("-")[0]] for label in labels]
    bars = axis.barh(labels, times, color=colours)
    axis.bar_label(bars, [readable(t) for t in times], padding=3, fontsize=8)
    axis.set_xscale("log")
    axis.set_xlim(min(times) / 3, max(times) * 6)
    axis.invert_yaxis()
    axis.set(title=workload, xlabel="milliseconds per step")
    axis.grid(axis="x", alpha=0.3)
