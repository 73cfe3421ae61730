"""`fit(processes=2)`: worker processes on this machine, started and ended by the caller.

Each worker is a fresh process that trains as one under torchrun does (`adadps.training.processes`):
it takes its slice of the rows, and draws its own batches. The caller sends the task, keeps the
ledger if that is an object in its memory, shows the progress, and takes over the trained weights.
Rows are sent through shared memory; the model, the loss and the method are copied into each worker.

Whatever ends the caller's waiting (an error, Ctrl-C, a worker that dies) ends the workers, and what
was paid stays paid. See docs/processes.md.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import current_process, get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from rich.progress import TaskID
from torch import nn

from adadps.accounting.ledger import DiskLedger, Ledger
from adadps.accounting.samplers import poisson
from adadps.data.examples import Examples, require_examples
from adadps.data.fields import tensors_of
from adadps.data.identity import key_for_workers
from adadps.engine.group import Group
from adadps.engine.losses import Loss
from adadps.errors import AdadpsError, ContractError, DataError, ModelError, require
from adadps.report.result import Result
from adadps.training.evaluation import Evaluation
from adadps.training.fit import Interruption, awaiting_the_step
from adadps.training.processes import Shard, number_of_processes, require_possible
from adadps.training.progress import Progress, progress_bar
from adadps.training.sent_task import SentTask
from adadps.training.worker_process import (
    RelayedTerms,
    Word,
    WorkerFacts,
    WorkerFailure,
    WorkerLine,
    WorkerTask,
    work,
)

UNGUARDED = 74
"""How a worker ends that was about to start workers itself, while it imports the script."""
GRACE = 3.0
"""Seconds in which the other workers may say what they know about a failure."""
PATIENCE = 0.2
"""Seconds after which the caller looks whether it was interrupted."""
GUARD = (
    "A worker imports the script that has started it. Put what the script does under "
    '`if __name__ == "__main__":`, so that only imports and definitions are repeated.'
)


class AwaitedGroup(Group):
    """The workers before they are started, of whom only one thing is known."""

    is_alone = False


def fit_in_workers(
    processes: int,
    model: nn.Module,
    loss: Loss,
    data: Examples | Shard,
    options: Mapping[str, Any],
    evaluate: Sequence[Evaluation],
    *,
    progress: bool | None,
    settings: dict[str, Any] | None,
) -> Result:
    """Train ``model`` in place with worker processes; ``options`` are those of `PrivateRun`."""
    if getattr(current_process(), "_inheriting", False):
        raise SystemExit(UNGUARDED)
    held = _require_startable(processes, model, data, options)
    ledger: Ledger | None = options["ledger"]
    task = _task(model, loss, options)
    sent = SentTask.of(task, held, evaluate)
    is_kept = options["checkpoints"] is not None
    with (
        awaiting_the_step(is_kept) as interruption,
        _Crew(processes) as crew,
        _Screen(progress) as screen,
    ):
        crew.send(sent, shows=screen.is_shown)
        result = crew.result(ledger, screen, interruption)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in result.params.items():
            named[name].copy_(value)
    return replace(result, settings={**result.settings, **(settings or {})})


def _require_startable(
    processes: int, model: nn.Module, data: Examples | Shard, options: Mapping[str, Any]
) -> Examples:
    """Refuse what cannot be trained by workers, before any is started."""
    is_count = isinstance(processes, int) and not isinstance(processes, bool)
    require(
        is_count and processes >= 1,
        "processes >= 1",
        processes,
        "It is how many processes train together on this machine.",
    )
    if number_of_processes() > 1:
        raise ContractError(
            f"Expected processes from torchrun or from `processes={processes}`, found both. Leave "
            "`processes` out under torchrun: its processes train together."
        )
    if isinstance(data, Shard):
        raise DataError(
            "Expected all rows for local processes, found a shard. Give `examples(...)`: each "
            "process takes its slice. Shards are for processes that torchrun has started."
        )
    if options["randomness"] is not None:
        raise ContractError(
            "Expected no `randomness` with local processes, found one: it stays in the process "
            "that made it. Leave it out; each process draws from keys of its own."
        )
    held = require_examples(data)
    parts = [*model.parameters(), *model.buffers(), *tensors_of(held.features), held.targets]
    devices = {part.device.type for part in parts}
    if devices - {"cpu"}:
        raise ModelError(
            f"Expected model and data on the CPU for local processes, found {sorted(devices)}. "
            "Move them there, or start the script with torchrun, one process for each GPU."
        )
    if any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        raise ModelError(
            "Expected a whole model for local processes, found one that `fully_shard` has sharded. "
            "Leave `fully_shard` out, or start the script with torchrun."
        )
    require_possible(
        AwaitedGroup(),
        model,
        options["method"],
        options["sampler"] or poisson(examples=2, expected_size=1),
        data,
        debug=options["debug"],
    )
    return held


def _task(model: nn.Module, loss: Loss, options: Mapping[str, Any]) -> WorkerTask:
    given = {name: value for name, value in options.items() if name != "ledger"}
    for name in ("assumed_public", "feature_sources"):
        given[name] = given[name] if isinstance(given[name], str) else tuple(given[name])
    ledger: Ledger | None = options["ledger"]
    if ledger is None:
        return WorkerTask(model, loss, given, None)
    if isinstance(ledger, DiskLedger):
        return WorkerTask(model, loss, given, ledger.path.absolute())
    return WorkerTask(model, loss, given, RelayedTerms(ledger.identity, ledger.budget))


# --- the workers ---


class StartedWorker:
    """One worker, its lines, and what became of it."""

    def __init__(self, rank: int, count: int, meeting_place: str) -> None:
        context = get_context("spawn")
        self.rank = rank
        ours, theirs = context.Pipe()
        orders, self._orders = context.Pipe(duplex=False)
        self.line = WorkerLine(ours)
        self.process: BaseProcess = context.Process(
            target=work,
            args=(rank, count, meeting_place, theirs, orders),
            name=f"adadps worker {rank}",
        )
        self.process.start()
        theirs.close()
        orders.close()
        self.is_ready = self.is_over = False
        self.failure: WorkerFailure | None = None

    def order_end(self) -> None:
        """Ask for an end after the steps that are paid for."""
        with suppress(OSError):
            self._orders.send_bytes(b"end")

    @property
    def was_killed(self) -> bool:
        """Did a signal end it?"""
        return (self.process.exitcode or 0) < 0

    def in_words(self) -> str:
        """Describe how it has ended, having said nothing."""
        code = self.process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"ended by {signal.Signals(-code).name} (out of memory, if nobody killed it)"
        return f"ended with exit code {code}"

    def end(self) -> None:
        """Kill the process, and close what belongs to it."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.line.connection.close()
        self._orders.close()


class _Crew:
    """All workers; used as a context, after which none is left."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._workers: list[StartedWorker] = []

    def __enter__(self) -> _Crew:
        self._folder = tempfile.TemporaryDirectory(prefix="adadps-")
        place = str(Path(self._folder.name) / "meeting")
        try:
            with _ctrl_c_for_the_caller():
                for rank in range(self._count):
                    self._workers.append(StartedWorker(rank, self._count, place))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in self._workers:
            with suppress(ValueError):  # it was closed before
                worker.end()
        self._folder.cleanup()

    def send(self, sent: SentTask, *, shows: bool) -> None:
        """Send each worker its task once it is there."""
        threads = max(1, torch.get_num_threads() // self._count)
        facts = WorkerFacts(threads, torch.get_default_dtype(), key_for_workers(), shows)
        while not all(worker.is_ready for worker in self._workers):
            for worker, said in self._heard():
                worker.is_ready = said[0] is Word.READY
        for worker in self._workers:
            try:
                rows = sent.shared_rows()
                worker.line.say(facts)
                worker.line.connection.send_bytes(sent.task)
                worker.line.connection.send_bytes(rows)
            except OSError:
                continue  # it has ended, which is heard below

    def result(self, ledger: Ledger | None, screen: _Screen, interruption: Interruption) -> Result:
        """Serve the workers until the first one has the result."""
        asked = False
        while True:
            if interruption.asked and not asked:
                self._workers[0].order_end()
                asked = True
            for worker, (what, content) in self._heard():
                if what is Word.CHARGE:
                    self._charge(worker, ledger, content)
                elif what is Word.BEGUN:
                    screen.begin(content)
                elif what is Word.STEP:
                    screen.step(content)
                elif what is Word.WARNING:
                    warnings.warn(content[1], content[0], stacklevel=4)
                elif what in (Word.RESULT, Word.INTERRUPTED):
                    worker.is_over = True
                    if worker.rank == 0:  # it has written what there is to write
                        if what is Word.INTERRUPTED:
                            raise KeyboardInterrupt(
                                "what was paid for stays paid; with checkpoints, the same call "
                                "resumes"
                            )
                        found: Result = content
                        return found

    def _charge(self, worker: StartedWorker, ledger: Ledger | None, call: Any) -> None:
        name, arguments, named = call
        error, answer = None, None
        try:
            held: Any = getattr(ledger, name)
            answer = held(*arguments, **named) if callable(held) else held
        except Exception as raised:  # the worker raises it where it has asked
            error = raised
        with suppress(OSError):
            worker.line.say(error, answer)

    def _heard(self) -> Iterator[tuple[StartedWorker, tuple[Any, Any]]]:
        """Yield what workers say; raise the reason if one of them has failed."""
        lines: dict[Any, StartedWorker] = {
            worker.line.connection: worker for worker in self._workers if not worker.is_over
        }
        for connection in wait(list(lines), timeout=PATIENCE):
            worker = lines[connection]
            try:
                said = worker.line.hear()
            except (EOFError, OSError):
                said = (Word.FAILED, None)
            if said[0] is Word.FAILED:
                worker.is_over, worker.failure = True, said[1]
                raise self._reason()
            yield worker, said

    def _reason(self) -> AdadpsError:
        """Return why the workers have failed, by the one that knows best.

        Those whose peer is gone notice it, too, but do not know why.
        """
        until = time.monotonic() + GRACE
        while time.monotonic() < until and not all(worker.is_over for worker in self._workers):
            for worker in self._workers:
                if not worker.is_over and worker.line.connection.poll(PATIENCE / self._count):
                    with suppress(EOFError, OSError):
                        what, content = worker.line.hear()
                        if what is not Word.FAILED:
                            continue
                        worker.failure = content
                    worker.is_over = True
        silent = [worker for worker in self._workers if worker.is_over and not worker.failure]
        for worker in silent:
            worker.process.join(GRACE)
        for worker in silent:
            if worker.was_killed or not worker.is_ready:
                return _of_the_silent(worker, self._count)
        failures = [worker.failure for worker in self._workers if worker.failure]
        for failure in (*(one for one in failures if not one.is_ours), *failures):
            return _as_error(failure)
        return _of_the_silent(silent[0], self._count)


def _of_the_silent(worker: StartedWorker, count: int) -> ContractError:
    if worker.process.exitcode == UNGUARDED:
        return ContractError(
            "Expected `fit(processes=...)` to be called once, found that a worker process calls "
            f"it, too. {GUARD}"
        )
    if not worker.is_ready:
        return ContractError(
            f"Expected {count} worker processes to begin, found that worker {worker.rank} has "
            f"{worker.in_words()} before. Its own output says why. {GUARD}"
        )
    return ContractError(
        f"Expected all {count} worker processes to continue, found that worker {worker.rank} was "
        f"{worker.in_words()}. What was paid stays paid; with checkpoints, the same call resumes."
    )


def _as_error(failure: WorkerFailure) -> AdadpsError:
    ours = {one.__name__: one for one in AdadpsError.__subclasses__()}
    if failure.is_ours and failure.kind in ours:
        return ours[failure.kind](failure.text)
    error = ContractError(
        f"Expected all worker processes to continue, found {failure.kind} in one of them (its "
        "trace follows). What was paid stays paid; with checkpoints, the same call resumes."
    )
    error.add_note(failure.trace)
    return error


@contextmanager
def _ctrl_c_for_the_caller() -> Iterator[None]:
    """Start processes that ignore Ctrl-C from their first moment; the caller hears it."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is None:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


class _Screen:
    """The bar, which begins once the first worker knows how many steps there are."""

    def __init__(self, wanted: bool | None) -> None:
        self.is_shown = sys.stderr.isatty() if wanted is None else wanted
        self._bar = Progress(None, TaskID(0))
        self._opened: Any = None

    def __enter__(self) -> _Screen:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._opened is not None:
            self._opened.__exit__(*error)

    def begin(self, steps: int) -> None:
        """Show a bar over so many steps."""
        self._opened = progress_bar(steps, self.is_shown)
        self._bar = self._opened.__enter__()

    def step(self, note: str | None) -> None:
        """Move it."""
        self._bar.advance(note)
