"""Training in processes that are killed, and what is left of it on the disk.

A child notes every step that it has paid for, every batch and every block of noise, in a file that
survives it. Nothing in that file may occur twice, and no paid step may be missing on the ledger.
"""

import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from scipy import sparse

import adadps
from adadps import Checkpoints, DiskLedger, PrivateRun, examples, poisson, privatize, side
from adadps.engine.noise.normals import Normals
from adadps.report.saved_result import load_result
from support.problems import cross_entropy

EXAMPLES, FEATURES, CLASSES = 64, 40, 3
RNG = np.random.default_rng(11)
WORDS = sparse.random(
    EXAMPLES, FEATURES, density=0.2, format="csr", random_state=RNG, dtype=np.float32
)
DATA = examples(WORDS, RNG.integers(CLASSES, size=EXAMPLES))
FREQUENT = side.frequency(
    side.given_frequencies(np.arange(1, FEATURES + 1), source="a table", public_because="made up"),
    floor=0.01,
    power=0.5,
)
NOISE = privatize(clip_norm=1.0, noise_multiplier=3.0)
METHODS = {
    "late": adadps.adadps(FREQUENT, NOISE, lr=0.1),
    "adam": adadps.dp_adam(NOISE, lr=0.01),
}
SAMPLER = poisson(examples=EXAMPLES, expected_size=EXAMPLES / 2)


@dataclass(frozen=True)
class Scene:
    """One run in one folder."""

    folder: Path
    method: str = "late"
    steps: int = 400
    every: int = 20

    @property
    def checkpoints(self):
        return Checkpoints(self.folder / "run", every=self.every)

    @property
    def diary(self):
        return self.folder / "diary"

    @property
    def end(self):
        return self.folder / "end"


def train(scene, trace=None):
    """Begin the run, or go on with it, and save its result; the process may die at any moment."""
    diary = os.open(scene.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    note_draws(lambda kind, content: os.write(diary, f"{kind} {content}\n".encode()))
    sys.settrace(trace)
    torch.manual_seed(0)
    run = PrivateRun(
        adadps.sparse_linear(FEATURES, CLASSES, bias=False),
        cross_entropy,
        DATA,
        method=METHODS[scene.method],
        sampler=SAMPLER,
        steps=scene.steps,
        checkpoints=scene.checkpoints,
    )
    for batch in run.batches():
        run.step(batch)
    if not scene.end.exists():  # a kill right after it was written
        run.result().save(scene.end)
    sys.settrace(None)


def note_draws(note):
    """Write down what is paid, which rows are drawn, and the first number of each piece of noise.

    Only ever called in a child: nothing is put back.
    """
    pay, draw_rows, draw = PrivateRun._pay, PrivateRun._draw, Normals.draw

    def noting_pay(run):
        pay(run)
        note("paid", run.name)

    def noting_rows(run):
        drawn = draw_rows(run)
        note("batch", drawn.rows.numpy().tobytes().hex())
        return drawn

    def noting_noise(normals, count, use):
        def noted(start, values):
            note("noise", np.asarray(values[:1]).tobytes().hex())
            return use(start, values)

        return draw(normals, count, noted)

    PrivateRun._pay, PrivateRun._draw, Normals.draw = noting_pay, noting_rows, noting_noise


def in_a_fork(action):
    """The process id of a child that does ``action`` and ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the parent has threads, all idle
        child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def killed_after(action, seconds):
    """Kill a child that does ``action`` after some time; False if it ended by itself before."""
    child = in_a_fork(action)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0, "the child failed by itself"
            return False
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), "the child failed by itself"
    return code != 0


def killed_at_line(action, files, line):
    """Kill a child at the ``line``-th line of these files; False if it ended before that."""

    def traced():
        seen = 0

        def trace(frame, event, _argument):
            nonlocal seen
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                seen += 1
                if seen == line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        action(trace)

    _, status = os.waitpid(in_a_fork(traced), 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), "the child failed by itself"
    return code != 0


@dataclass
class Findings:
    """What is left after kills: all of these must be zero."""

    kills: int = 0
    runs: int = 0
    lost_reservations: int = 0
    repeated_draws: int = 0
    undercounted: int = 0
    seen: set = field(default_factory=set, repr=False)

    def examine(self, scene):
        """Look at a run that has ended."""
        self.runs += 1
        lines = [line.split(" ", 1) for line in scene.diary.read_text().splitlines()]
        paid = sum(kind == "paid" for kind, _ in lines)
        result = load_result(scene.end).privacy
        with DiskLedger(scene.checkpoints.ledger) as ledger:
            reserved, spent = ledger.entries, ledger.epsilon(result.delta)
        self.lost_reservations += max(0, paid - reserved)
        for kind, content in lines:
            if kind in ("batch", "noise") and content:
                self.repeated_draws += (kind, content) in self.seen
                self.seen.add((kind, content))
        executed = adadps.epsilon_of_run(
            METHODS[scene.method],
            SAMPLER,
            paid,
            delta=result.delta,
            accountant=adadps.Accountant.PLD,
        )
        honest = result.epsilon >= executed and abs(result.epsilon - spent) < 1e-9
        self.undercounted += not (honest and result.steps_paid == reserved >= paid)

    def __str__(self):
        return (
            f"{self.kills} kills in {self.runs} runs: {self.lost_reservations} reservations lost, "
            f"{self.repeated_draws} repeated draws, epsilon under-counted {self.undercounted} times"
        )
