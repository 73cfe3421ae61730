"""Ctrl-C, signal handlers, other threads, at any moment: no change comes out with too little noise.

Interrupts are raised at every single line that a step of late noise runs through.
"""

import signal
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from dp_accounting import NoOpDpEvent
from torch import nn

from adadps import PrivateRun, chain, examples, losses, poisson, privatize
from adadps.data.provenance import Provenance
from adadps.data.sparse_rows import SparseRows
from adadps.engine.noise import late as late_room
from adadps.engine.noise import normals as normals_room
from adadps.engine.noise.late import LateRows
from adadps.engine.noise.normals import BLOCK, Normals
from adadps.engine.noise.randomness import secure
from adadps.errors import DataError
from adadps.methods.side.source import Transform
from adadps.methods.stages import precondition, sgd
from adadps.tensors import loops
from adadps.tensors.sums import RowSparse
from support.late_tables import Changed

ROWS, WIDTH = 6, 3
FILES = {late_room.__file__}


class Interrupt(BaseException):
    """Like Ctrl-C."""


def interrupted(action, line):
    """Raise at the ``line``-th line of the files of late noise; False if it ended before that."""
    seen = 0

    def trace(frame, event, _argument):
        nonlocal seen
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        action()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def touched(*rows):
    values = torch.full((len(rows), WIDTH), 1000.0, dtype=torch.float64)
    return RowSparse(torch.tensor(rows), values, (ROWS, WIDTH))


def begun(steps=3):
    table = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    held = LateRows(table, 0, Changed(np.ones_like))  # all normals are 1: noise can be read off
    for rows in [(0, 1), (1, 2), (3,)][:steps]:
        held.add(touched(*rows), deviation=1.0, keep=0.5)
    return table, held


def require_sound(held):
    """Every row that waits has noise coming, and points into its own step."""
    waiting_rows = np.flatnonzero(held._pending._slot >= 0)
    for row in waiting_rows:
        step = held._pending._steps[int(held._pending._slot[row])]
        assert held._since[row] < held._history.now
        assert step.rows[held._pending._place[row]] == row
    variance = held._history._variance[: held._history.now + 1]
    assert (np.diff(variance) <= 0).all()  # who waits longer has more
    assert len(variance) == 1 or variance[-2] >= 1.0 - 1e-12  # the last step's noise is all there


def test_a_step_can_be_interrupted_at_any_line():
    line, found = 0, True
    while found:
        line += 1
        _, held = begun()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(late_room, "MOST_PENDING_STEPS", 2 + line % 3)
            found = interrupted(partial(held.add, touched(1, 3, 5), deviation=1.0, keep=1.0), line)
            require_sound(held)
            held.add(touched(0, 5), deviation=1.0, keep=1.0)
            require_sound(held)
        held.settle()
    assert line > 40  # it did go through all of it


def test_a_read_can_be_interrupted_at_any_line():
    """Afterwards every row that had a change has its noise, too, or neither."""
    line, found = 0, True
    while found:
        line += 1
        table, held = begun()
        found = interrupted(held.settle, line)
        seen = table.clone()
        changed = seen.abs() > 100
        # A change of 1000 comes with noise of at least 1: everything else is 0 or noise alone.
        assert ((seen[changed] % 125 >= 0.9).all()) or not changed.any()
        require_sound(held)
        held.settle()
        assert (table != 0).all()
    assert line > 15


class Slow(Changed):
    """Noise that takes a moment, so that others come in between."""

    def draw(self, count, use):
        time.sleep(0.0005)
        secure().draw(count, use)


def test_a_thread_that_reads_takes_no_noise_away():
    """Variances of 60 steps within 6 standard errors: false alarms below 1e-8."""
    rows, width, steps = 400, 60, 60
    table = torch.zeros(rows, width, dtype=torch.float64)
    held, stop = LateRows(table, 0, Slow()), threading.Event()

    def read():
        while not stop.is_set():
            held.settle()

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(steps):
        some = torch.arange(step % 7, rows, 7)
        nothing = torch.zeros(len(some), width, dtype=torch.float64)
        held.add(RowSparse(some, nothing, (rows, width)), deviation=1.0, keep=1.0)
    stop.set()
    reader.join()
    held.settle()
    variance = table.square().mean() / steps
    assert abs(float(variance) - 1) * (rows * width / 2) ** 0.5 < 6


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer")
def test_hazard_16_a_signal_handler_that_draws_repeats_nothing_and_ends(monkeypatch):
    monkeypatch.setattr(loops, "usable_cores", lambda: 8)  # blocks are drawn ahead
    source, inside = secure(), []
    before = signal.signal(
        signal.SIGALRM, lambda *_: inside.append(source.normal((BLOCK,)).numpy().copy())
    )
    try:
        outside = []
        for _ in range(150):
            signal.setitimer(signal.ITIMER_REAL, float(np.random.default_rng().uniform(1e-5, 2e-3)))
            outside.append(source.normal((3 * BLOCK,)).numpy()[::97])
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(inside) > 20
    taken = np.concatenate([*outside, *(part[::97] for part in inside)])
    every = np.concatenate(inside)
    assert len(np.unique(every)) == len(every)
    assert len(np.unique(taken)) >= len(taken) - 1  # by chance at most one pair of 1e6


def test_hazard_16_a_block_drawn_ahead_knows_its_own_number(monkeypatch):
    """Whoever is interrupted on the way to it loses it; nobody draws it again."""
    monkeypatch.setattr(loops, "usable_cores", lambda: 8)
    source, numbers, draw = Normals(bytes(32)), [], normals_room._BlockBuffer.draw

    def spy(desk, key, number, size):
        numbers.append(number)
        return draw(desk, key, number, size)

    monkeypatch.setattr(normals_room._BlockBuffer, "draw", spy)
    for _ in range(5):
        source.draw(2 * BLOCK, lambda _start, _values: None)
        if source._ahead:
            source._next_block()  # taken, and then interrupted
    loops.pools.ahead.submit(len, ()).result()
    assert len(set(numbers)) == len(numbers)


# --- D that changes behind torch's back ---


class Numpy:
    """Side information of one's own that keeps D in numpy and writes to it."""

    event = NoOpDpEvent()
    provenance = Provenance("mine", "made up", "0" * 64)

    def __init__(self, shape):
        self.diagonal = np.ones(shape)
        self.tensor = torch.from_numpy(self.diagonal)

    def init(self, _params):
        return None

    def observe(self, state, step):
        if step.index == 2:
            self.diagonal *= 1e6
        return Transform({"0.weight": self.tensor}), state


@pytest.mark.parametrize("shape", [(8, 1), (8, 3), (1, 3)])
def test_a_change_keeps_the_d_it_was_clipped_with_whoever_writes_to_it(shape):
    model = nn.Sequential(nn.EmbeddingBag(8, 3, mode="sum"))
    nn.init.zeros_(model[0].weight)
    run = PrivateRun(
        model,
        losses.cross_entropy,
        examples(torch.arange(8).unsqueeze(1), torch.zeros(8, dtype=torch.int64)),
        method=chain(precondition(Numpy(shape)), privatize(clip_norm=1.0, noise_multiplier=1.0),
                     sgd(4.0)),
        sampler=poisson(examples=8, expected_size=4),
        steps=2,
    )  # fmt: skip
    run._stepper.batches._batches = iter([np.array([0]), np.array([1])])
    for batch in run.batches():
        run.step(batch)
    assert float(run.params["0.weight"].norm()) < 1 + 1 + 12 * (2 * 24) ** 0.5


# --- what loops cannot look at ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_other_precisions_train(dtype, mode):
    model = nn.Sequential(nn.EmbeddingBag(9, 3, mode=mode)).to(dtype)
    before = model[0].weight.detach().clone()
    run = PrivateRun(
        model,
        losses.cross_entropy,
        examples(torch.randint(9, (20, 4)), torch.zeros(20, dtype=torch.int64)),
        method=chain(privatize(clip_norm=1.0, noise_multiplier=1.0), sgd(0.5)),
        sampler=poisson(examples=20, expected_size=5),
        steps=3,
    )
    for batch in run.batches():
        run.step(batch)
    assert model[0].weight.dtype is dtype
    assert (model[0].weight != before).any(1).all()


BY_HAND = {
    "a column outside": ([0, 1, 3], [0, 2**33, 1]),
    "a column below": ([0, 1, 3], [0, -1, 1]),
    "a column twice": ([0, 1, 3], [0, 2, 2]),
    "offsets that go back": ([0, 3, 1], [0, 1, 2]),
    "offsets that end early": ([0, 1, 2], [0, 1, 2]),
    "offsets that begin late": ([1, 2, 3], [0, 1, 2]),
}


@pytest.mark.parametrize(("offsets", "columns"), BY_HAND.values(), ids=BY_HAND)
def test_sparse_rows_made_by_hand_are_checked(offsets, columns):
    rows = SparseRows(torch.tensor(offsets), torch.tensor(columns), torch.ones(3), 5)
    with pytest.raises((DataError, IndexError)):
        examples(rows, torch.zeros(2))
    fine = SparseRows(torch.tensor([0, 1, 3]), torch.tensor([4, 0, 4]), torch.ones(3), 5)
    assert len(examples(fine, torch.zeros(2))) == 2
