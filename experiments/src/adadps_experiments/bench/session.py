"""One call of `adadps bench`: what it measures, in what order, and where the rows go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from adadps.errors import SettingError
from adadps.tensors.loops import usable_cores
from adadps.training.progress import progress_bar
from adadps_experiments.bench.contenders import CONTENDERS, OURS
from adadps_experiments.bench.contenders.ours import MOST_STEPS
from adadps_experiments.bench.measure import (
    Timing,
    in_fresh_process,
    measure_contender,
    measure_epoch,
)
from adadps_experiments.bench.rows import Row, RowFile, find, load, measured, one_line
from adadps_experiments.bench.workloads import WORKLOADS, Workload

EPOCH_OF = "logreg-10k"
EXTRAPOLATED = "opacus-hooks"
Say = Callable[[str], object]


def timing_of(steps: int | None, threads: int | None) -> Timing:
    """Check the options; the default for threads is all usable cores."""
    for name, value, most in (("steps", steps, MOST_STEPS // 2), ("threads", threads, 1024)):
        if value is not None and not 1 <= value <= most:
            raise SettingError(
                f"Expected --{name} between 1 and {most}, found {value}. Change it or leave it out."
            )
    return Timing(threads=threads or usable_cores(), steps=steps)


def require_alone(*others: object) -> None:
    """Refuse ``--check`` together with other options, because what it measures is fixed."""
    if any(others):
        raise SettingError(
            "Expected --check alone, found other options as well. It measures a few fixed pairs: "
            "leave --check out to choose your own."
        )


def stored_rows(path: Path, workloads: Sequence[str], contenders: Sequence[str]) -> list[Row]:
    """Return the rows of a file: those of the named workloads and contenders, or all."""
    _require_known(workloads, [*WORKLOADS, f"{EPOCH_OF}-epoch"], "workload")
    _require_known(contenders, CONTENDERS, "contender")
    return [
        row
        for row in load(path)
        if (not workloads or row["workload"] in workloads)
        and (not contenders or row["contender"] in contenders)
    ]


def pairs_to_measure(
    workloads: Sequence[str], contenders: Sequence[str]
) -> list[tuple[Workload, str]]:
    """Return the pairs to measure: those named, or all that exist."""
    _require_known(workloads, WORKLOADS, "workload")
    _require_known(contenders, CONTENDERS, "contender")
    jobs = [
        (WORKLOADS[workload], name)
        for workload in dict.fromkeys(workloads or WORKLOADS)
        for name in dict.fromkeys(contenders or CONTENDERS)
        if CONTENDERS[name].exists(WORKLOADS[workload])
    ]
    if not jobs:
        raise SettingError(
            f"Expected something to measure, found no {', '.join(contenders)} for "
            f"{', '.join(workloads)}. It has no sparse layer: choose another workload."
        )
    return jobs


def measure_all(
    jobs: Sequence[tuple[Workload, str]], timing: Timing, file: RowFile, say: Say
) -> list[Row]:
    """Measure one pair after the other, and write each row as soon as it is measured."""
    left = [job for job in jobs if not file.has(job[0].name, job[1], timing.threads)]
    with progress_bar(len(left), label="bench") as bar:
        for workload, name in left:
            bar.note(f"{workload.name}: {name}")
            row = measure_contender(workload, name, timing)
            file.put(row)
            bar.advance()
            if not bar.shown:
                say(one_line(row))
    return file.rows


def measure_an_epoch(timing: Timing, file: RowFile, say: Say) -> list[Row]:
    """Measure an epoch with AdaDPS, and extrapolate that of Opacus from a few of its steps."""
    workload = WORKLOADS[EPOCH_OF]
    name = f"{EPOCH_OF}-epoch"
    if not file.has(name, OURS, timing.threads):
        row = in_fresh_process(measure_epoch, workload, OURS, timing, patience=None)
        file.put(_finished(row, name))
        say(f"{name}: {row.get('error') or 'done'}")
    ours = find(file.rows, name, OURS)
    if not file.has(name, EXTRAPOLATED, timing.threads) and ours is not None and measured(ours):
        say(f"{name}, {EXTRAPOLATED}: a few steps, to extrapolate from")
        row = measure_contender(workload, EXTRAPOLATED, timing)
        file.put(_extrapolated(_finished(row, name), ours["steps"]))
    return file.rows


def _finished(row: Row, name: str) -> Row:
    return {"seconds": None, **row, "workload": name}


def _extrapolated(row: Row, steps: int) -> Row:
    if not measured(row):
        return row
    return {
        **row,
        "steps": steps,
        "seconds": steps * row["ms_per_step"] / 1000,
        "extrapolated": True,
    }


def _require_known(names: Sequence[str], known: Collection[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise SettingError(
                f"Expected a {what} among {', '.join(known)}, found '{name}'. Name one of them, or "
                f"leave --{what} out for all."
            )
