"""Measure one contender in this process: median time of a step, and the peak of memory."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from adadps.data.examples import examples
from adadps.training.progress import progress_bar
from adadps_experiments.bench import memory, ours
from adadps_experiments.bench.contenders import CONTENDERS
from adadps_experiments.bench.machine import Others
from adadps_experiments.bench.rows import Row
from adadps_experiments.bench.types import Contender
from adadps_experiments.bench.workloads import SEED, Workload


@dataclass(frozen=True)
class Timing:
    """How long to measure: at least ``seconds`` and five steps, or three steps if they are slow."""

    threads: int
    steps: int | None = None
    """An exact number of steps instead."""
    seconds: float = 4.0
    slow: float = 10.0
    most: int = 1000


def settle(threads: int) -> None:
    """The same surroundings for everybody: threads, seed, and a bound on memory.

    Denormal numbers count as zero, before any thread begins: the gradients of an untrained LSTM
    are that small, and would cost everybody several times the time.
    """
    warnings.simplefilter("ignore")
    torch.set_flush_denormal(True)
    free = memory.free()
    if free is not None:
        memory.limit(int(memory.SHARE * free))
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)


def measure(workload: Workload, name: str, timing: Timing) -> Row:
    """A row of results; in a fresh process, after `settle`, also of memory."""
    contender = CONTENDERS[name]
    tiny = workload.tiny()
    contender.prepare(tiny, tiny.data())().step()  # what libraries load at first use is not counted
    data = workload.data()
    touched = data.touched(workload.batch)
    build = contender.prepare(workload, data)
    begin = memory.baseline()
    running = build()
    _warm_up(running.step)
    others = Others(timing.threads)
    times = _times(running.step, timing)
    share = others.share()
    flush = None if running.weights is None else _took(running.weights).wall
    row: Row = {
        "workload": workload.name,
        "contender": name,
        "ms_per_step": statistics.median(took.wall for took in times),
        "peak_mb": begin.peak() / 2**20,
        "cpu_ms_per_step": statistics.median(took.cpu for took in times),
        "fastest_ms": min(took.wall for took in times),
        "steps": len(times),
        "threads": timing.threads,
        "memory": begin.how,
    }
    extra = {"flush_ms": flush, "touched_rows": touched, "other_work": share}
    return row | {key: value for key, value in extra.items() if value is not None}


def measure_epoch(workload: Workload, name: str, timing: Timing) -> Row:
    """One whole epoch of a contender of ours, from the first step to the weights."""
    data = workload.data()
    held = examples(data.features, data.targets)
    begin = memory.baseline()
    run = ours.private_run(workload, held, ours.METHODS[name], steps=None)
    start = time.perf_counter()
    with progress_bar(run.steps, label="one epoch") as bar:
        for batch in run.batches():
            run.step(batch)
            bar.advance()
    _ = run.params
    seconds = time.perf_counter() - start
    return {
        "workload": workload.name,
        "contender": name,
        "ms_per_step": 1000 * seconds / run.steps,
        "peak_mb": begin.peak() / 2**20,
        "steps": run.steps,
        "threads": timing.threads,
        "memory": begin.how,
        "seconds": seconds,
    }


def reason_against(contender: Contender, workload: Workload) -> str | None:
    """Why a contender cannot be tried on this machine, in a few words."""
    free, needed = memory.free(), contender.needs(workload)
    if free is not None and needed > memory.SHARE * free:
        return f"cannot run: needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
    return None


def _warm_up(step: Callable[[], object], seconds: float = 1.0, most: int = 10) -> None:
    start = time.perf_counter()
    for _ in range(most):
        step()
        if time.perf_counter() - start > seconds:
            return


def _times(step: Callable[[], object], timing: Timing) -> list[Took]:
    if timing.steps is not None:
        return [_took(step) for _ in range(timing.steps)]
    times: list[Took] = []
    start = time.perf_counter()
    while len(times) < timing.most:
        times.append(_took(step))
        spent = time.perf_counter() - start
        if len(times) >= (5 if spent < timing.slow else 3) and spent >= timing.seconds:
            break
    return times


class Took(NamedTuple):
    """Milliseconds by the clock, and of the processor in all threads."""

    wall: float
    cpu: float


def _took(work: Callable[[], object]) -> Took:
    start, used = time.perf_counter(), time.process_time()
    work()
    return Took(1000 * (time.perf_counter() - start), 1000 * (time.process_time() - used))
