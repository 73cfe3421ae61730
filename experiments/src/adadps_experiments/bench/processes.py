"""Each measurement in its own fresh process, one after the other; what fails becomes a row."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

from adadps_experiments.bench.contenders import CONTENDERS
from adadps_experiments.bench.measure import Timing, measure, reason_against, settle
from adadps_experiments.bench.rows import Row
from adadps_experiments.bench.workloads import Workload

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
    return apart(measure, workload, name, timing, patience=PATIENCE)


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
