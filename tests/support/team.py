"""Processes that train together, started once for many checks.

Each is started as torchrun starts it, by environment variables, and then calls what the test sends:
the same function with the same arguments in every process.
"""

import multiprocessing
import os
import socket
import traceback
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Raised:
    """An error in one of the processes."""

    kind: str
    text: str
    trace: str


class Team:
    """``size`` processes that do what they are told; use it as a context."""

    def __init__(self, size, patience=300):
        self.size, self._patience = size, patience
        context = multiprocessing.get_context("spawn")
        port = str(free_port())
        self._pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": "a test",
                "TORCHELASTIC_RESTART_COUNT": "0",
                "TORCHELASTIC_USE_AGENT_STORE": "False",
            }
            process = context.Process(target=_work, args=(theirs, variables))
            process.start()
            self._pipes.append(ours)
            self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def tell(self, function, *args):
        """Let all call it, and do not wait for the answers."""
        for pipe in self._pipes:
            pipe.send((function, args))

    def answer(self, rank):
        """What the process returned or raised; None if it is gone."""
        pipe = self._pipes[rank]
        assert pipe.poll(self._patience), f"process {rank} does not answer"
        try:
            return pipe.recv()
        except EOFError:
            return None

    def outcomes(self, function, *args):
        """What each process returned or raised (`Raised`)."""
        self.tell(function, *args)
        return [self.answer(rank) for rank in range(self.size)]

    def run(self, function, *args):
        """What each process returned; an error in one of them is raised here."""
        found = self.outcomes(function, *args)
        for rank, one in enumerate(found):
            if isinstance(one, Raised):
                raise AssertionError(f"process {rank}: {one.trace}")
        return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _work(pipe, variables):
    os.environ.update(variables)
    import torch

    from support.coarse_accounting import use_coarse_accounting

    torch.set_num_threads(1)
    use_coarse_accounting()
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            answer = function(*args)
        except BaseException as error:
            answer = Raised(type(error).__name__, str(error), traceback.format_exc())
        pipe.send(answer)


@pytest.fixture(scope="session")
def team():
    """Two processes for all tests of this worker: they take seconds to start."""
    with Team(2) as started:
        yield started
