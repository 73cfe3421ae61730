"""Run independent pieces of an experiment on the cores there are, with a progress bar."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

import torch

from adadps.errors import DataError
from adadps.tensors.threads import usable_cores
from adadps.training.progress import progress_bar
from adadps_experiments.reproduce.records import Record, RecordFile

Answer = TypeVar("Answer")


def run_all(
    work: Callable[..., Answer],
    jobs: Sequence[tuple[Any, ...]],
    label: str,
    done: Callable[[Answer], None] | None = None,
    most: int | None = None,
) -> list[Answer]:
    """``[work(*job) for job in jobs]``, one process a core, one thread a process.

    There are at most ``most`` processes; by default as many as this process may use cores.
    ``done`` is called here with each answer as it comes; jobs that have not begun are dropped if
    one fails.
    """
    if not jobs:
        return []
    answers: dict[int, Answer] = {}
    workers = min(len(jobs), most or usable_cores())
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool,
        progress_bar(len(jobs), label=label) as bar,
    ):
        futures = {pool.submit(work, *job): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                answers[futures[future]] = future.result()
                if done is not None:
                    done(answers[futures[future]])
                bar.advance()
        except BrokenProcessPool as error:
            raise DataError(
                f"Expected {label} to run to its end, found that a worker process was killed, "
                "perhaps for lack of memory. What has ended is kept: repeat the command to go on. "
                f"It ran {workers} at once; --workers sets how many, and fewer need less memory."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():  # their runs would be for nobody
                worker.terminate()
            raise
    return [answers[index] for index in range(len(jobs))]


def _begin() -> None:
    """One thread for the work, and one that ends the worker when nobody waits for it any more."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class DescribedJob(Protocol):
    """A job that says everything it depends on but its randomness."""

    def describe(self) -> Record:
        """The job as it is kept."""


Job = TypeVar("Job", bound=DescribedJob)


def run_missing(
    run: Callable[[Job], Record],
    jobs: Iterable[Job],
    kept: RecordFile,
    label: str,
    workers: int | None = None,
) -> None:
    """Run what is not kept, in processes of its own, and keep each record as it comes."""
    left = {str(job.describe()): job for job in jobs if kept.find(job.describe()) is None}
    run_all(run, [(job,) for job in left.values()], label, done=kept.add, most=workers)
