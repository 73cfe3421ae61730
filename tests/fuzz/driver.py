"""Run many fuzzed inputs in several processes, and tell what came of them."""

from __future__ import annotations

import collections
import multiprocessing
import os
import resource
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.law import ENDINGS, bounded
from fuzz.targets import TARGETS, Target, run_one

MOST_MEMORY = 12 * 2**30
PIECE = 250
MEMORY = Path("/dev/shm")
SHOWN = 20


@dataclass
class Report:
    """What some inputs of a target came to."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    well: int = 0
    refused: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)


def run_some(target: Target, seed: int, first: int, count: int, until: float) -> Report:
    """Inputs ``first``, ``first + 1``, ... of a target, as long as there is time."""
    report, begin = Report(target.name), time.monotonic()
    well, refused = ENDINGS["well"], ENDINGS["refused"]
    with tempfile.TemporaryDirectory(prefix="adadps-fuzz-", dir=_quick_disk()) as folder:
        for number in range(first, first + count):
            if time.monotonic() > until:
                break
            report.inputs += 1
            try:
                with bounded():
                    run_one(target, seed, number, Path(folder))
            except Exception:
                report.failures.append((number, traceback.format_exc(limit=-12)))
    report.seconds = time.monotonic() - begin
    report.well, report.refused = ENDINGS["well"] - well, ENDINGS["refused"] - refused
    return report


def _quick_disk() -> str | None:
    """Memory that looks like a disk, if there is any: ledgers wait for the disk at every charge."""
    return str(MEMORY) if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None


def _job(job: tuple[str, int, int, int, float]) -> Report:
    name, *rest = job
    return run_some(target_called(name), *rest)


def target_called(name: str) -> Target:
    """The target of that name."""
    return next(target for target in TARGETS if target.name == name)


def _limit_memory() -> None:
    """A file that claims to be huge shall fail here, and not slow the machine down."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


def run_all(targets: list[Target], inputs: int, seconds: float, seed: int, processes: int) -> int:
    """Share inputs out to processes, tell what came of them, and return the exit code."""
    begin, jobs = time.monotonic(), []
    whole = sum(target.share for target in targets)
    for target in targets:
        count = round(inputs * target.share / whole)
        for first in range(0, count, PIECE):
            jobs.append((target.name, seed, first, min(PIECE, count - first), begin + seconds))
    jobs.sort(key=lambda job: (job[2], job[0]))  # all targets from the start, if time is short
    totals = {target.name: Report(target.name) for target in targets}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_limit_memory) as pool:
        for done in as_completed([pool.submit(_job, job) for job in jobs]):
            report = done.result()
            total = totals[report.target]
            total.inputs += report.inputs
            total.seconds += report.seconds
            total.well += report.well
            total.refused += report.refused
            total.failures += report.failures
            for number, trace in report.failures[: max(0, SHOWN - len(total.failures))]:
                print(f"--- {report.target} --at {number} --seed {seed}\n{trace}", flush=True)
    return _tell(list(totals.values()), seed, time.monotonic() - begin)


def _tell(totals: list[Report], seed: int, seconds: float) -> int:
    failures = 0
    for total in totals:
        each = 1000 * total.seconds / max(1, total.inputs)
        print(f"{total.target:14} {total.inputs:7d} inputs {each:8.2f} ms each", end="")
        print(f" {total.well:7d} calls well {total.refused:7d} refused", end="")
        print(f" {len(total.failures):5d} failures")
        for last, numbers in _by_last_line(total).items():
            print(f"    {len(numbers)} x {last[:150]}   e.g. --at {numbers[0]}")
        failures += len(total.failures)
    inputs = sum(total.inputs for total in totals)
    print(f"{inputs} fuzzed inputs: {failures} tracebacks ({seconds:.0f} s, seed {seed})")
    return 1 if failures or not inputs else 0


def _by_last_line(total: Report) -> dict[str, list[int]]:
    found: dict[str, list[int]] = collections.defaultdict(list)
    for number, trace in total.failures:
        found[trace.strip().splitlines()[-1]].append(number)
    return found
