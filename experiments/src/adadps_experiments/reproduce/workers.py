"""Run independent jobs of an experiment in parallel processes, with a progress bar."""

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
from adadps.tensors.loops import usable_cores
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
    """Return ``[work(*job) for job in jobs]``, computed in processes of one thread each.

    There are at most ``most`` processes, by default one per usable core. ``done`` is called in this
    process with each answer as it arrives. If a job fails, those that have not started are dropped.
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
                f"Expected {label} to finish, found that a worker process was killed, perhaps for "
                "lack of memory. Finished runs are saved: repeat the command to resume. "
                f"{workers} ran at once; --workers sets how many, and fewer need less memory."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():  # nobody would read their answers
                worker.terminate()
            raise
    return [answers[index] for index in range(len(jobs))]


def _begin() -> None:
    """Limit the worker to one thread, and end it when its parent process ends."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class DescribedJob(Protocol):
    """A job that describes everything its run depends on except randomness."""

    def describe(self) -> Record:
        """Return the job as it is recorded."""


Job = TypeVar("Job", bound=DescribedJob)


def run_missing(
    run: Callable[[Job], Record],
    jobs: Iterable[Job],
    record_file: RecordFile,
    label: str,
    workers: int | None = None,
) -> None:
    """Run the jobs that have no record, and save each record as it arrives."""
    left = {str(job.describe()): job for job in jobs if record_file.find(job.describe()) is None}
    run_all(run, [(job,) for job in left.values()], label, done=record_file.add, most=workers)
