"""One call of `adadps bench`: what it measures, in what order, and where the rows go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adadps.errors import SettingError
from adadps.tensors.loops import usable_cores
from adadps.training.progress import progress_bar
from adadps_experiments.bench.contenders import CONTENDERS, OURS
from adadps_experiments.bench.contenders.ours import MOST_STEPS, steps_of_epoch
from adadps_experiments.bench.measure import (
    Timing,
    measure_contender,
    measure_contender_epoch,
)
from adadps_experiments.bench.rows import Row, RowFile, load, measured, one_line
from adadps_experiments.bench.workloads import WORKLOADS, Workload
from adadps_experiments.bench.workloads.imdb import ImdbLstm

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
    require_known(workloads, [*WORKLOADS, *(epoch.name for epoch in EPOCHS.values())], "workload")
    require_known(contenders, CONTENDERS, "contender")
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
    require_known(workloads, WORKLOADS, "workload")
    require_known(contenders, CONTENDERS, "contender")
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


@dataclass(frozen=True)
class Epoch:
    """A workload with its contenders by default: for whole epochs, and to be extrapolated."""

    workload: Workload
    whole: tuple[str, ...]
    extrapolated: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of its rows."""
        return f"{self.workload.name}-epoch"


EPOCHS: dict[str, Epoch] = {
    "logreg-10k": Epoch(WORKLOADS["logreg-10k"], (OURS,), extrapolated=("opacus-hooks",)),
    "lstm-imdb": Epoch(
        ImdbLstm("lstm-imdb", examples=25_000, batch=64),
        (OURS, "torch", "opacus-hooks", "opacus-ghost"),
    ),
}
"""What `adadps bench --epoch` measures; the first by default."""


def epochs_to_measure(workloads: Sequence[str], contenders: Sequence[str]) -> list[Epoch]:
    """Return the epochs of the named workloads, or the first one, with the named contenders."""
    require_known(workloads, EPOCHS, "workload")
    require_known(contenders, CONTENDERS, "contender")
    chosen = [EPOCHS[name] for name in dict.fromkeys(workloads or [next(iter(EPOCHS))])]
    if not contenders:
        return chosen
    return [
        replace(
            epoch,
            whole=tuple(name for name in contenders if name not in epoch.extrapolated),
            extrapolated=tuple(name for name in contenders if name in epoch.extrapolated),
        )
        for epoch in chosen
    ]


def measure_epochs(epochs: Sequence[Epoch], timing: Timing, file: RowFile, say: Say) -> list[Row]:
    """Measure whole epochs, and extrapolate those that would take hours from a few steps."""
    for epoch in epochs:
        for name in (*epoch.whole, *epoch.extrapolated):
            if file.has(epoch.name, name, timing.threads):
                continue
            say(f"{epoch.name}, {name}: begun")
            if name in epoch.whole:
                row = measure_contender_epoch(epoch.workload, name, timing)
            else:
                row = _extrapolated(measure_contender(epoch.workload, name, timing), epoch)
            file.put({**row, "workload": epoch.name})
            say(f"{epoch.name}, {name}: {row.get('error') or 'done'}")
    return file.rows


def _extrapolated(row: Row, epoch: Epoch) -> Row:
    if not measured(row):
        return {**row, "seconds": None}
    steps = steps_of_epoch(epoch.workload)
    seconds = steps * row["ms_per_step"] / 1000
    return {**row, "steps": steps, "seconds": seconds, "extrapolated": True}


def require_known(names: Sequence[str], known: Collection[str], what: str) -> None:
    """Refuse a name that does not exist."""
    for name in names:
        if name not in known:
            raise SettingError(
                f"Expected a {what} among {', '.join(known)}, found '{name}'. Name one of them, or "
                f"leave --{what} out for all."
            )
