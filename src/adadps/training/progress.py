"""Progress bars for long work: shown on a terminal, silent when piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress


@dataclass(frozen=True)
class Progress:
    """A bar that can be moved, or nothing at all."""

    bar: RichProgress | None
    task: TaskID

    @property
    def shown(self) -> bool:
        """Does anybody see it?"""
        return self.bar is not None

    def advance(self, note: str | None = None) -> None:
        """Move by one step, and change the note if there is a new one."""
        if self.bar is not None:
            self.bar.advance(self.task)
            if note is not None:
                self.bar.update(self.task, note=note)

    def note(self, text: str) -> None:
        """Say what is under way."""
        if self.bar is not None:
            self.bar.update(self.task, note=text)


_is_silent = ContextVar("_is_silent", default=False)


@contextmanager
def silent() -> Iterator[None]:
    """Show nothing, whatever is asked for: another process speaks for all."""
    before = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(before)


@contextmanager
def progress_bar(
    total: int, shown: bool | None = None, label: str = "training"
) -> Iterator[Progress]:
    """A bar over ``total`` steps; by default only where standard error is a terminal."""
    console = Console(stderr=True)
    if _is_silent.get() or not (console.is_terminal if shown is None else shown):
        yield Progress(None, TaskID(0))
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),  # leaves room for the note on 80 columns
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with RichProgress(*columns, console=console, transient=True) as bar:
        yield Progress(bar, bar.add_task(label, total=total, note=""))


@contextmanager
def at_work(
    label: str, shown: bool | None = None, *, rows: int | None = None
) -> Iterator[Callable[[int], None]]:
    """A spinner and the time that has passed; with a public number of ``rows``, a bar over them.

    Call what it gives with how many rows are done. A bar tells a share of the public number, and a
    spinner nothing about how many rows there are.

    >>> with at_work("embedding texts", shown=False) as done:
    ...     done(100)
    """
    console = Console(stderr=True)
    if _is_silent.get() or not (console.is_terminal if shown is None else shown):
        yield lambda _rows: None
        return
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    if rows is not None:
        columns += [BarColumn(bar_width=24), TaskProgressColumn()]
    with RichProgress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(label, total=rows)
        yield lambda done: bar.advance(task, done)


@contextmanager
def progress_of_bytes(
    label: str, shown: bool | None = None
) -> Iterator[Callable[[int, int | None], None]]:
    """A bar over bytes: call what it gives with how many are there and, if known, of how many.

    >>> with progress_of_bytes("fetching", shown=False) as moved:
    ...     moved(10, 100)
    """
    console = Console(stderr=True)
    if _is_silent.get() or not (console.is_terminal if shown is None else shown):
        yield lambda _held, _total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda held, total: bar.update(task, completed=held, total=total)
