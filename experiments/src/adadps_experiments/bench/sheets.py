"""Rows as tables to read: one for each workload, the targets, and the epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adadps_experiments.bench.contenders import CONTENDERS, OURS
from adadps_experiments.bench.rows import Row, disturbed, find, measured
from adadps_experiments.bench.targets import verdicts

Column = Callable[[Row], str]


@dataclass(frozen=True)
class Sheet:
    """A title, headings, and lines of text."""

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]


def sheets(rows: Sequence[Row]) -> list[Sheet]:
    """Every table that the rows have something for."""
    steps = [row for row in rows if "seconds" not in row]
    epochs = [row for row in rows if "seconds" in row]
    names = dict.fromkeys(row["workload"] for row in steps)
    made = [_workload(name, [row for row in steps if row["workload"] == name]) for name in names]
    made += [_targets(steps)] if verdicts(steps) else []
    made += [_epoch(epochs)] if epochs else []
    made += [_disturbed(rows)] if any(map(disturbed, rows)) else []
    return made


def line(row: Row) -> str:
    """A row in one line, for those who wait."""
    found = row.get("error") or f"{number(row['ms_per_step'])} ms, {row['peak_mb']:.0f} MB"
    return f"{row['workload']}, {row['contender']}: {found}"


def _workload(name: str, rows: Sequence[Row]) -> Sheet:
    columns: dict[str, Column] = {
        "contender": lambda row: str(row["contender"]),
        "ms per step": lambda row: number(row["ms_per_step"]),
        "peak MB": lambda row: number(row["peak_mb"]),
        f"× {OURS}": _ratio_to(find(rows, name, OURS)),
        "× torch": _ratio_to(find(rows, name, "torch")),
    }
    if any("touched_rows" in row for row in rows):
        columns["µs / touched row"] = _per_touched_row
    if any("flush_ms" in row for row in rows):
        columns["flush ms"] = lambda row: number(row.get("flush_ms"))
    lines = [
        [column(row) for column in columns.values()] if measured(row) else _failed(row, columns)
        for row in sorted(rows, key=_place)
    ]
    return Sheet(_title(name, rows), list(columns), lines)


def _title(name: str, rows: Sequence[Row]) -> str:
    touched = [row["touched_rows"] for row in rows if "touched_rows" in row]
    threads = sorted({row["threads"] for row in rows if "threads" in row})
    facts = [f"{touched[0]:,.0f} rows touched by a batch"] if touched else []
    facts += [f"threads: {', '.join(map(str, threads))}"] if threads else []
    return f"{name} ({', '.join(facts)})" if facts else name


def _targets(rows: Sequence[Row]) -> Sheet:
    lines = [
        [
            verdict.target.workload,
            verdict.target.compared,
            verdict.target.goal,
            number(verdict.ratio),
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
            number(row["seconds"]) if measured(row) else "–",
            _how(row),
        ]
        for row in rows
    ]
    return Sheet("One epoch", ("workload", "contender", "seconds", "how"), lines)


def _disturbed(rows: Sequence[Row]) -> Sheet:
    lines = [
        [str(row["workload"]), str(row["contender"]), f"{row['other_work']:.0%}"]
        for row in rows
        if disturbed(row)
    ]
    title = "Disturbed: measure these again (--json FILE --resume)"
    return Sheet(title, ("workload", "contender", "of its cores taken by other work"), lines)


def _how(row: Row) -> str:
    if not measured(row):
        return str(row["error"])
    if row.get("extrapolated"):
        return f"extrapolated: {row['steps']:,} × {number(row['ms_per_step'])} ms"
    return f"measured: {row['steps']:,} steps"


def _failed(row: Row, columns: dict[str, Column]) -> list[str]:
    return [str(row["contender"]), str(row.get("error", "–")), *["–"] * (len(columns) - 2)]


def _ratio_to(base: Row | None) -> Column:
    def column(row: Row) -> str:
        if base is None or not measured(base):
            return "–"
        return number(row["ms_per_step"] / base["ms_per_step"])

    return column


def _per_touched_row(row: Row) -> str:
    touched = row.get("touched_rows")
    return number(1000 * row["ms_per_step"] / touched if touched else None)


def _place(row: Row) -> int:
    names = list(CONTENDERS)
    return names.index(row["contender"]) if row["contender"] in names else len(names)


def number(value: float | None) -> str:
    """Three digits that can be read.

    >>> number(12345.6), number(0.01234), number(None)
    ('12,346', '0.0123', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
