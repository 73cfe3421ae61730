"""Measure one contender in this process: median time of a step, and the peak of memory."""

from __future__ import annotations

import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from adadps.data.examples import examples
from adadps.training.progress import progress_bar
from adadps_experiments.bench import machine
from adadps_experiments.bench.contenders import CONTENDERS, ours
from adadps_experiments.bench.contenders.trainer import Trainer
from adadps_experiments.bench.machine import OtherLoad
from adadps_experiments.bench.rows import Row
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
    free = machine.free_memory()
    if free is not None:
        machine.limit_memory(int(machine.MEMORY_SHARE * free))
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)


def measure_steps(workload: Workload, name: str, timing: Timing) -> Row:
    """A row of results; in a fresh process, after `settle`, also of memory."""
    contender = CONTENDERS[name]
    tiny = workload.tiny()
    contender.prepare(tiny, tiny.data())().step()  # what libraries load at first use is not counted
    data = workload.data()
    touched = data.touched(workload.batch)
    build = contender.prepare(workload, data)
    begin = machine.memory_baseline()
    running = build()
    _warm_up(running.step)
    others = OtherLoad(timing.threads)
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
    begin = machine.memory_baseline()
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


def reason_against(contender: Trainer, workload: Workload) -> str | None:
    """Why a contender cannot be tried on this machine, in a few words."""
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
        return [_took(step) for _ in range(timing.steps)]
    times: list[StepTime] = []
    start = time.perf_counter()
    while len(times) < timing.most:
        times.append(_took(step))
        spent = time.perf_counter() - start
        if len(times) >= (5 if spent < timing.slow else 3) and spent >= timing.seconds:
            break
    return times


class StepTime(NamedTuple):
    """Milliseconds by the clock, and of the processor in all threads."""

    wall: float
    cpu: float


def _took(work: Callable[[], object]) -> StepTime:
    start, used = time.perf_counter(), time.process_time()
    work()
    return StepTime(1000 * (time.perf_counter() - start), 1000 * (time.process_time() - used))


PATIENCE = 600.0
"""Seconds after which a contender is given up."""


def attempt(workload: Workload, name: str, timing: Timing) -> Row:
    """The row of a contender, or a row that says why there is none."""
    contender = CONTENDERS[name]
    if contender.package is not None and find_spec(contender.package) is None:
        hint = f"cannot run: {contender.package} is not installed (pip install 'adadps[bench]')"
        return failure(workload, name, hint)
    reason = reason_against(contender, workload)
    if reason is not None:
        return failure(workload, name, reason)
    return apart(measure_steps, workload, name, timing, patience=PATIENCE)


def apart(
    work: Callable[..., Row],
    workload: Workload,
    name: str,
    timing: Timing,
    *,
    patience: float | None,
) -> Row:
    """``work(workload, name, timing)`` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    job = (theirs, work, workload, name, timing)
    process = context.Process(target=_answer, args=job, daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(patience):
            return failure(workload, name, f"cannot run: not done after {patience:.0f} s")
        answer: Row | str = ours.recv()
    except EOFError:
        process.join()
        return failure(workload, name, f"cannot run: ended by {_end(process.exitcode)}")
    finally:
        process.kill()
        process.join()
        ours.close()
    return failure(workload, name, answer) if isinstance(answer, str) else answer


def failure(workload: Workload, name: str, reason: str) -> Row:
    """A row without numbers."""
    return {
        "workload": workload.name,
        "contender": name,
        "ms_per_step": None,
        "peak_mb": None,
        "error": reason,
    }


def reason_of(error: BaseException) -> str:
    """An error in a few words.

    >>> reason_of(KeyError("weight"))
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
    """What the fresh process does."""
    try:
        settle(timing.threads)
        connection.send(work(workload, name, timing))
    except Exception as error:  # any error of a contender is an answer
        connection.send(reason_of(error))


def _end(code: int | None) -> str:
    return f"signal {-code} (out of memory?)" if code is not None and code < 0 else f"exit {code}"
