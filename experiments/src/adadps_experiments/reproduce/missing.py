"""Jobs of which there is no record yet: run each once, and keep what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from adadps_experiments.reproduce.keeping import Kept, Record
from adadps_experiments.reproduce.workers import run_all


class Describes(Protocol):
    """A job that says everything it depends on but its randomness."""

    def describe(self) -> Record:
        """The job as it is kept."""


Job = TypeVar("Job", bound=Describes)


def run_missing(
    run: Callable[[Job], Record],
    jobs: Iterable[Job],
    kept: Kept,
    label: str,
    workers: int | None = None,
) -> None:
    """Run what is not kept, in processes of its own, and keep each record as it comes."""
    left = {str(job.describe()): job for job in jobs if kept.find(job.describe()) is None}
    run_all(run, [(job,) for job in left.values()], label, done=kept.add, most=workers)
