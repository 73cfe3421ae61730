"""A worker of `fit(processes=...)`: what it is sent, how it trains, and what it tells the caller.

The process that called `fit` (the *caller*) starts workers and sends each the same task. They train
as processes under torchrun do. The first one tells the caller how far it is; if the ledger is an
object in the caller's memory, it asks the caller to charge it (`RelayedLedger`). A worker ends when
its caller does, however that ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from dp_accounting import DpEvent
from rich.progress import TaskID
from torch import nn

from adadps.accounting.epsilon import Budget, Life
from adadps.accounting.ledger import DiskLedger, Ledger, RunFacts
from adadps.data.examples import Examples
from adadps.data.identity import take_over_key
from adadps.engine.losses import Loss
from adadps.errors import AdadpsError, ContractError
from adadps.training.evaluation import Evaluation
from adadps.training.fit import Interruption, PrivateRun, finish, take_all_steps
from adadps.training.progress import Progress
from adadps.types import Accountant, Relation

LOOPBACK = ("lo", "lo0")
"""The interface on which workers talk to each other, so that nobody else can listen."""


class Word(Enum):
    """What a worker tells its caller."""

    READY = auto()
    BEGUN = auto()
    STEP = auto()
    WARNING = auto()
    CHARGE = auto()
    RESULT = auto()
    FAILED = auto()
    INTERRUPTED = auto()


class WorkerLine:
    """Pickled messages between a worker and its caller."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def say(self, what: Any, content: Any = None) -> None:
        """Send a message; tensors are copied."""
        message = pickle.dumps((what, content))
        with self._lock:
            self.connection.send_bytes(message)

    def hear(self) -> tuple[Any, Any]:
        """Wait for a message."""
        heard: tuple[Any, Any] = pickle.loads(self.connection.recv_bytes())
        return heard


@dataclass(frozen=True)
class RelayedTerms:
    """Identity and budget of a ledger that the caller holds in memory."""

    identity: str
    budget: Budget | None


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker has to know before it can read its task."""

    threads: int
    dtype: torch.dtype
    key: bytes
    """The key of hashes by which rows are recognised (`adadps.data.identity`)."""
    shows: bool
    """Does the caller show the progress?"""


@dataclass(frozen=True)
class WorkerTask:
    """What is trained. ``ledger`` is a path, or the terms of a ledger that the caller holds."""

    model: nn.Module
    loss: Loss
    options: dict[str, Any]
    ledger: Path | RelayedTerms | None


@dataclass(frozen=True)
class WorkerFailure:
    """An error of a worker: its type, its text if it is one of ours, and where it was raised."""

    kind: str
    text: str
    trace: str
    is_ours: bool

    @classmethod
    def of(cls, error: BaseException) -> WorkerFailure:
        """Describe an error."""
        trace = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, str(error), trace, isinstance(error, AdadpsError))


class RelayedLedger:
    """The ledger of the caller, as workers see it: the first one asks the caller for each charge.

    A charge is recorded by the caller before the first worker hears of it, and nothing is drawn
    before that. What was charged stays charged if the workers are killed afterwards.
    """

    def __init__(self, terms: RelayedTerms, line: WorkerLine) -> None:
        self.identity, self.budget = terms.identity, terms.budget
        self._line = line

    def _asked(self, name: str, *arguments: Any, **named: Any) -> Any:
        self._line.say(Word.CHARGE, (name, arguments, named))
        error, answer = self._line.hear()
        if error is not None:
            raise error
        return answer

    @property
    def entries(self) -> int:
        """The number of charges."""
        return int(self._asked("entries"))

    def choose_accountant(self, fitting: Sequence[Accountant]) -> Accountant:
        """Return the accountant of the ledger, or the preferred one."""
        return Accountant(self._asked("choose_accountant", tuple(fitting)))

    def open(
        self,
        run: str,
        relation: Relation,
        accountant: Accountant,
        facts: RunFacts | None = None,
    ) -> None:
        """Begin or continue a run."""
        self._asked("open", run, relation, accountant, facts or RunFacts())

    def authorise(
        self, event: DpEvent, *, run: str | None = None, ahead: int = 1, at_once: int = 1
    ) -> None:
        """Charge ``event``; return when the caller has recorded it."""
        self._asked("authorise", event, run=run, ahead=ahead, at_once=at_once)

    def charged(self, run: str) -> tuple[tuple[DpEvent, int], ...]:
        """Return all charges of a run."""
        return tuple(self._asked("charged", run))

    def lives(self, run: str) -> tuple[Life, ...]:
        """Return what each life of a run has been charged for."""
        return tuple(self._asked("lives", run))

    def room(self, event: DpEvent, wanted: int) -> int:
        """Return how many of ``wanted`` such events fit now."""
        return int(self._asked("room", event, wanted))

    def epsilon(self, delta: float) -> float:
        """Return epsilon of all charges."""
        return float(self._asked("epsilon", delta))


@dataclass(frozen=True)
class RelayedProgress(Progress):
    """The bar that the caller shows."""

    line: WorkerLine

    @property
    def shown(self) -> bool:
        """Somebody sees it."""
        return True

    def advance(self, note: str | None = None) -> None:
        """Tell the caller of a step."""
        self.line.say(Word.STEP, note)


def work(
    rank: int, count: int, meeting_place: str, connection: Connection[Any, Any], orders: Any
) -> None:
    """Do what a worker does, from its start to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who tells us
    interruption, line, code = Interruption(), WorkerLine(connection), 1
    threading.Thread(target=_obey, args=(orders, interruption), daemon=True).start()
    try:
        line.say(Word.READY)
        join_others(rank, count, meeting_place)
        _train(rank, line, interruption)
        code = 0
    except KeyboardInterrupt:
        line.say(Word.INTERRUPTED)
    except BaseException as error:
        line.say(Word.FAILED, WorkerFailure.of(error))
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)  # without waiting for threads of gloo, whose peers may be gone


def _obey(orders: Connection[Any, Any], interruption: Interruption) -> None:
    """Note that the caller asks for an end; end at once if it is gone."""
    caller = parent_process()
    watched: list[Any] = [orders] if caller is None else [orders, caller.sentinel]
    while orders in wait(watched):
        try:
            orders.recv_bytes()
        except (EOFError, OSError):
            break
        interruption.asked = True
    os._exit(1)


def join_others(rank: int, count: int, meeting_place: str) -> None:
    """Meet the other workers at a file, and talk to them on the loopback interface alone."""
    from torch._C._distributed_c10d import FileStore

    known = {name for _, name in socket.if_nameindex()}
    for name in LOOPBACK:
        if name in known:
            os.environ["GLOO_SOCKET_IFNAME"] = name
    store = FileStore(meeting_place, count)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count)


def _train(rank: int, line: WorkerLine, interruption: Interruption) -> None:
    facts: WorkerFacts = line.hear()[0]
    torch.set_num_threads(facts.threads)
    torch.set_default_dtype(facts.dtype)
    take_over_key(facts.key)
    if rank == 0:
        _relay_warnings(line)
    else:
        warnings.simplefilter("ignore")
    task, (data, evaluate) = _received(line)
    ledger = _ledger_of(task, line)
    run = PrivateRun(task.model, task.loss, data, **task.options, ledger=ledger)
    bar = Progress(None, TaskID(0))
    if rank == 0 and facts.shows:
        line.say(Word.BEGUN, run.steps)
        bar = RelayedProgress(None, TaskID(0), line)
    kept = task.options["checkpoints"] is not None
    take_all_steps(run, evaluate, bar, interruption if kept else None)
    result = finish(run, evaluate, None, closes=ledger is None)
    line.say(Word.RESULT, result if rank == 0 else None)


def _received(line: WorkerLine) -> tuple[WorkerTask, tuple[Examples, Sequence[Evaluation]]]:
    """Read the task; what it names must be found where the caller has found it."""
    try:
        return (
            pickle.loads(line.connection.recv_bytes()),
            pickle.loads(line.connection.recv_bytes()),
        )
    except (AttributeError, ImportError) as error:
        raise ContractError(
            "Expected a model, loss, method, data and metrics whose functions and classes a worker "
            f"process can import, found {error}. Define them in a module, or at the top level of "
            "the script; what is defined in a notebook or a console cannot be found."
        ) from error


def _ledger_of(task: WorkerTask, line: WorkerLine) -> Ledger | None:
    if isinstance(task.ledger, RelayedTerms):
        return RelayedLedger(task.ledger, line)
    return None if task.ledger is None else DiskLedger(task.ledger)


def _relay_warnings(line: WorkerLine) -> None:
    """Let the caller show our warnings; whether and where is up to its filters."""
    usual = warnings.showwarning

    def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
        if category.__module__ == AdadpsError.__module__:
            line.say(Word.WARNING, (category, str(message)))
        else:
            usual(message, category, *where, **more)

    warnings.showwarning = show
    for category in (UserWarning, RuntimeWarning):
        warnings.simplefilter("always", category)
