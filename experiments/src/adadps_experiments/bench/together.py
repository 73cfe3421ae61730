"""`adadps bench --processes 1,2`: steps of processes that train one model together.

The processes are fresh ones on this machine. Each has one thread, unless told otherwise, and a
slice of the rows; the batch is that of the workload, shared among them. All take the same number of
steps, which the first one chooses. Time is that of the first process, memory the largest peak.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from adadps.data.examples import examples
from adadps.engine.group import Meeting, ProcessGroup
from adadps.errors import SettingError
from adadps.tensors.loops import usable_cores
from adadps.training.fit import PrivateRun
from adadps.training.progress import progress_bar
from adadps.training.worker_process import join_others
from adadps_experiments.bench import machine
from adadps_experiments.bench.contenders import OURS, ours
from adadps_experiments.bench.machine import OtherLoad
from adadps_experiments.bench.measure import (
    PATIENCE,
    failure_reason,
    failure_row,
    prepare_process,
)
from adadps_experiments.bench.rows import Row, RowFile, one_line
from adadps_experiments.bench.session import require_known
from adadps_experiments.bench.workloads import WORKLOADS, Workload

DENSE_AND_SPARSE = ("autoencoder-256", "logreg-10k")
"""What is measured by default."""
MOST = 64
"""The largest number of processes."""
WARM_UP, FEWEST, LONGEST, SECONDS = 3, 10, 1000, 4.0

Say = Callable[[str], object]


def counts_of(given: str, threads: int | None, *, epoch: bool) -> list[int]:
    """Return the numbers of processes in a text such as "1,2".

    >>> counts_of("1,2,4", None, epoch=False)
    [1, 2, 4]
    """
    parts = [part.strip() for part in given.split(",")]
    counts = [int(part) for part in parts if part.isdecimal()]
    if len(counts) != len(parts) or not all(1 <= count <= MOST for count in counts):
        raise SettingError(
            f"Expected --processes as numbers between 1 and {MOST}, such as 1,2, found '{given}'. "
            "Separate them by commas."
        )
    if epoch:
        raise SettingError(
            "Expected --processes or --epoch, found both. Epochs are timed in one process: leave "
            "one of them out."
        )
    if threads is not None and not 1 <= threads <= usable_cores():
        raise SettingError(
            f"Expected --threads of each process between 1 and {usable_cores()}, found {threads}. "
            "Change it, or leave it out for one."
        )
    return list(dict.fromkeys(counts))


def pairs_to_measure(
    workloads: Sequence[str], contenders: Sequence[str]
) -> list[tuple[Workload, str]]:
    """Return the pairs to measure: those named, or `DENSE_AND_SPARSE` with ours."""
    require_known(workloads, WORKLOADS, "workload")
    require_known(contenders, ours.METHODS, "contender")
    return [
        (WORKLOADS[workload], name)
        for workload in dict.fromkeys(workloads or DENSE_AND_SPARSE)
        for name in dict.fromkeys(contenders or [OURS])
    ]


def measure_all(
    jobs: Sequence[tuple[Workload, str]],
    counts: Sequence[int],
    steps: int | None,
    threads: int,
    file: RowFile,
    say: Say,
) -> list[Row]:
    """Measure each pair with each number of processes, and write each row as it is measured."""
    left = [
        (workload, name, count)
        for workload, name in jobs
        for count in counts
        if not file.has(workload.name, name, threads, count)
    ]
    with progress_bar(len(left), label="bench") as bar:
        for workload, name, count in left:
            bar.note(f"{workload.name}: {count} processes")
            row = measure_processes(workload, name, count, steps=steps, threads=threads)
            file.put(row)
            bar.advance()
            if not bar.shown:
                say(one_line(row))
    return file.rows


def measure_processes(
    workload: Workload, name: str, count: int, *, steps: int | None, threads: int
) -> Row:
    """Return the row of ``count`` processes, or the reason for having none."""
    context = multiprocessing.get_context("spawn")
    started, lines = [], []
    with tempfile.TemporaryDirectory(prefix="adadps-bench-") as folder:
        place = str(Path(folder) / "meeting")
        try:
            for rank in range(count):
                line, theirs = context.Pipe(duplex=False)
                job = (theirs, workload, name, (rank, count, place), steps, threads)
                process = context.Process(target=_answer, args=job, daemon=True)
                process.start()
                theirs.close()
                started.append(process)
                lines.append(line)
            found = [_heard(line) for line in lines]
        finally:
            for process in started:
                process.kill()
                process.join()
            for line in lines:
                line.close()
    for one in found:
        if isinstance(one, str):
            return {**failure_row(workload, name, one), "processes": count, "threads": threads}
    rows = [one for one in found if not isinstance(one, str)]
    return {**rows[0], "peak_mb": max(row["peak_mb"] for row in rows)}


def _heard(line: Connection[Any, Any]) -> Row | str:
    if not line.poll(PATIENCE):
        return f"cannot run: not done after {PATIENCE:.0f} s"
    try:
        heard: Row | str = line.recv()
    except EOFError:
        return "cannot run: a process has ended"
    return heard


def _answer(
    line: Connection[Any, Any],
    workload: Workload,
    name: str,
    place: tuple[int, int, str],
    steps: int | None,
    threads: int,
) -> None:
    """Be one of the processes, and send its row, or the reason of its failure."""
    try:
        prepare_process(threads)
        if place[1] > 1:
            join_others(*place)
        line.send(_measured(workload, name, place[1], steps, threads))
        time.sleep(PATIENCE)  # the others may still talk to this process; its parent ends it
    except Exception as error:  # the row says why there is none
        line.send(failure_reason(error))


def _measured(workload: Workload, name: str, count: int, steps: int | None, threads: int) -> Row:
    data = workload.data()
    held = examples(data.features, data.targets)
    begin = machine.memory_baseline()
    run = ours.private_run(workload, held, ours.METHODS[name], ours.MOST_STEPS)
    batches = run.batches()

    def step() -> float:
        start = time.perf_counter()
        run.step(next(batches))
        return time.perf_counter() - start

    warm = min(step() for _ in range(WARM_UP))
    by_time = min(LONGEST, max(FEWEST, round(SECONDS / warm)))
    wanted = steps or int(run.group.tell(Meeting.WORD, lambda: by_time))
    others = OtherLoad(min(usable_cores(), count * threads))
    sent, used = _bytes_sent(run), time.process_time()
    times = [step() for _ in range(wanted)]
    processor = time.process_time() - used
    share = others.share(sum(run.group.gather(Meeting.WORD, processor)) - processor)
    row: Row = {
        "workload": workload.name,
        "contender": name,
        "processes": count,
        "ms_per_step": 1000 * statistics.median(times),
        "steps_per_second": wanted / sum(times),
        "bytes_per_step": (_bytes_sent(run) - sent) / wanted,
        "peak_mb": begin.peak() / 2**20,
        "cpu_ms_per_step": 1000 * processor / wanted,
        "steps": wanted,
        "threads": threads,
        "memory": begin.how,
    }
    return row if share is None else {**row, "other_work": share}


def _bytes_sent(run: PrivateRun) -> int:
    """Return what this process has given to collective operations so far."""
    return run.group.bytes_sent if isinstance(run.group, ProcessGroup) else 0
