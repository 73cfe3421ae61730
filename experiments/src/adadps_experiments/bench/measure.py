"""Measure contenders: median time per step and peak memory, each in a fresh process.

A contender that cannot run gives a row that says why.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from adadps.training.progress import progress_bar
from adadps_experiments.bench import machine
from adadps_experiments.bench.contenders import CONTENDERS, ours
from adadps_experiments.bench.contenders.trainer import Trainer
from adadps_experiments.bench.machine import OtherLoad
from adadps_experiments.bench.rows import Row
from adadps_experiments.bench.workloads import SEED, Workload


@dataclass(frozen=True)
class Timing:
    """How long to measure: at least ``seconds`` and five steps, or three if they are slow."""

    threads: int
    steps: int | None = None
    """The exact number of steps, if given."""
    seconds: float = 4.0
    slow: float = 10.0
    most: int = 1000


def prepare_process(threads: int) -> None:
    """Set what all contenders share: threads, seed, and a bound on memory.

    Denormal numbers are flushed to zero before any thread starts: the gradients of an untrained
    LSTM are that small, and would slow every contender down several times.
    """
    warnings.simplefilter("ignore")
    torch.set_flush_denormal(True)
    free = machine.free_memory()
    if free is not None:
        machine.limit_memory(int(machine.MEMORY_SHARE * free))
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)


def measure_steps(workload: Workload, name: str, timing: Timing) -> Row:
    """Measure single steps; memory is right only in a process that `prepare_process` has set up."""
    contender = CONTENDERS[name]
    tiny = workload.tiny()
    contender.prepare(tiny, tiny.data())().step()  # excludes what libraries load at first use
    data = workload.data()
    touched = data.touched(workload.batch)
    build = contender.prepare(workload, data)
    begin = machine.memory_baseline()
    running = build()
    _warm_up(running.step)
    others = OtherLoad(timing.threads)
    times = _times(running.step, timing)
    share = others.share()
    flush = None if running.weights is None else _timed(running.weights).wall
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
    extra = {
        "flush_ms": flush,
        "touched_rows": touched,
        "other_work": share,
        "engine": running.engine,
    }
    return row | {key: value for key, value in extra.items() if value is not None}


def measure_epoch(workload: Workload, name: str, timing: Timing) -> Row:
    """Measure one epoch, from the first step to the final weights.

    If ``timing`` has a number of steps, only these are measured, and the rest is extrapolated.
    """
    contender, tiny = CONTENDERS[name], workload.tiny()
    contender.prepare(tiny, tiny.data())().step()  # excludes what libraries load at first use
    data = workload.data()
    method = ours.METHODS.get(name)
    prepare = contender.prepare if method is None else partial(ours.prepare_epoch, method)
    build = prepare(workload, data)
    whole = ours.steps_of_epoch(workload)
    steps = min(timing.steps or whole, whole)
    begin = machine.memory_baseline()
    running = build()
    others = OtherLoad(timing.threads)
    start, used = time.perf_counter(), time.process_time()
    with progress_bar(steps, label="one epoch") as bar:
        for _ in range(steps):
            running.step()
            bar.advance()
    if running.weights is not None:
        running.weights()
    seconds = (time.perf_counter() - start) * whole / steps
    processor = (time.process_time() - used) / steps
    row: Row = {
        "workload": workload.name,
        "contender": name,
        "ms_per_step": 1000 * seconds / whole,
        "peak_mb": begin.peak() / 2**20,
        "cpu_ms_per_step": 1000 * processor,
        "steps": whole,
        "threads": timing.threads,
        "memory": begin.how,
        "seconds": seconds,
    }
    extra = {
        "engine": running.engine,
        "other_work": others.share(),
        "extrapolated": True if steps < whole else None,
    }
    return row | {key: value for key, value in extra.items() if value is not None}


def reason_not_to_run(contender: Trainer, workload: Workload) -> str | None:
    """Say why a contender cannot run on this machine, or return None."""
    if contender.package is not None and find_spec(contender.package) is None:
        hint = "(pip install 'adadps-experiments[bench]')"
        return f"cannot run: {contender.package} is not installed {hint}"
    free, needed = machine.free_memory(), contender.needs(workload)
    if free is not None and needed > machine.MEMORY_SHARE * free:
        return f"cannot run: needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
    return None


def _warm_up(step: Callable[[], object], seconds: float = 1.0, most: int = 10) -> None:
    start = time.perf_counter()
    for _ in range(most):
        step()
        if time.perf_counter() - start > seconds:
            return


def _times(step: Callable[[], object], timing: Timing) -> list[StepTime]:
    if timing.steps is not None:
        return [_timed(step) for _ in range(timing.steps)]
    times: list[StepTime] = []
    start = time.perf_counter()
    while len(times) < timing.most:
        times.append(_timed(step))
        spent = time.perf_counter() - start
        if len(times) >= (5 if spent < timing.slow else 3) and spent >= timing.seconds:
            break
    return times


class StepTime(NamedTuple):
    """Milliseconds of wall-clock time, and of processor time in all threads."""

    wall: float
    cpu: float


def _timed(work: Callable[[], object]) -> StepTime:
    start, used = time.perf_counter(), time.process_time()
    work()
    return StepTime(1000 * (time.perf_counter() - start), 1000 * (time.process_time() - used))


PATIENCE = 600.0
"""Seconds after which a contender is stopped."""


def measure_contender(workload: Workload, name: str, timing: Timing) -> Row:
    """Return the row of a contender, or a row that says why it could not be measured."""
    reason = reason_not_to_run(CONTENDERS[name], workload)
    if reason is not None:
        return failure_row(workload, name, reason)
    return in_fresh_process(measure_steps, workload, name, timing, patience=PATIENCE)


def measure_contender_epoch(workload: Workload, name: str, timing: Timing) -> Row:
    """Return the row of a contender's epoch, however long it takes, or the reason for having none.

    A row without numbers has no seconds either.
    """
    reason = reason_not_to_run(CONTENDERS[name], workload)
    if reason is None:
        row = in_fresh_process(measure_epoch, workload, name, timing, patience=None)
    else:
        row = failure_row(workload, name, reason)
    return {"seconds": None, **row}


def in_fresh_process(
    work: Callable[..., Row],
    workload: Workload,
    name: str,
    timing: Timing,
    *,
    patience: float | None,
) -> Row:
    """Call ``work(workload, name, timing)`` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    job = (theirs, work, workload, name, timing)
    process = context.Process(target=_answer, args=job, daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(patience):
            return failure_row(workload, name, f"cannot run: not done after {patience:.0f} s")
        answer: Row | str = ours.recv()
    except EOFError:
        process.join()
        return failure_row(workload, name, f"cannot run: ended by {_end(process.exitcode)}")
    finally:
        process.kill()
        process.join()
        ours.close()
    return failure_row(workload, name, answer) if isinstance(answer, str) else answer


def failure_row(workload: Workload, name: str, reason: str) -> Row:
    """Return a row that has a reason in place of numbers."""
    return {
        "workload": workload.name,
        "contender": name,
        "ms_per_step": None,
        "peak_mb": None,
        "error": reason,
    }


def failure_reason(error: BaseException) -> str:
    """Describe an error in a few words.

    >>> failure_reason(KeyError("weight"))
    "cannot run: KeyError: 'weight'"
    """
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "cannot run: out of memory"
    short = text if len(text) <= 120 else f"{text[:117]}..."
    return f"cannot run: {type(error).__name__}: {short}"


def _answer(
    connection: Connection[Any, Any],
    work: Callable[..., Row],
    workload: Workload,
    name: str,
    timing: Timing,
) -> None:
    """Do the work in the fresh process and send its row, or the reason of its failure."""
    try:
        prepare_process(timing.threads)
        connection.send(work(workload, name, timing))
    except Exception as error:  # the failure of one contender must not end the others
        connection.send(failure_reason(error))


def _end(code: int | None) -> str:
    return f"signal {-code} (out of memory?)" if code is not None and code < 0 else f"exit {code}"
