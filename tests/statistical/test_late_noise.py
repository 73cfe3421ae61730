"""Noise that is drawn when a row is read has the law of noise that is drawn at every step.

The last axis of every table is a sample: its columns are independent. Every test that can fail by
chance states how often it does so; a bound of 7 standard errors on a mean or covariance is passed
with probability below 3e-12, on a variance of 10,000 draws below 6e-12.
"""

import math
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adadps.engine.noise.late import LateRows
from adadps.engine.noise.randomness import secure
from adadps.tensors.sums import RowSparse
from support.late_tables import BOUND, Changed, departures

ROWS, COLUMNS = 5, 10_000
EVERYTHING = None


# --- the recursion w_t = k_t w_{t-1} + Δ_t + c_t z_t, by hand ---


@dataclass(frozen=True)
class Took:
    """One step."""

    rows: tuple[int, ...]
    deviation: float
    keep: float = 1.0


@dataclass(frozen=True)
class Read:
    rows: tuple[int, ...] | None = EVERYTHING


def start(row):
    return row - 1.7


def change(time, row):
    return (-1) ** (time + row) * (0.3 + 0.1 * time)


def expected(events):
    """(row, time) of every value that is read, its mean, and the covariances of all of them.

    A value that got no noise since it was last read is left out.
    """
    means, variances, kept = [[start(row) for row in range(ROWS)]], [0.0], [1.0]
    reads, last = [], dict.fromkeys(range(ROWS), 0)
    for event in events:
        time = len(kept) - 1
        if isinstance(event, Took):
            means.append(
                [
                    event.keep * mean + (change(time + 1, row) if row in event.rows else 0)
                    for row, mean in enumerate(means[-1])
                ]
            )
            variances.append(event.keep**2 * variances[-1] + event.deviation**2)
            kept.append(event.keep * kept[-1])
            continue
        for row in range(ROWS) if event.rows is EVERYTHING else event.rows:
            new = variances[time] - (kept[time] / kept[last[row]]) ** 2 * variances[last[row]]
            if new > 1e-9:
                reads.append((row, time))
                last[row] = time
    covariance = np.zeros((len(reads), len(reads)))
    for i, (row, s) in enumerate(reads):
        for j, (other, t) in enumerate(reads):
            if row == other and s <= t:
                covariance[i, j] = covariance[j, i] = kept[t] / kept[s] * variances[s]
    return reads, [means[t][row] for row, t in reads], covariance


class Eager:
    """The twin of `LateRows` that noises every row at every step."""

    def __init__(self, parameter, axis, noise):
        self.weights, self.noise = parameter.movedim(axis, 0), noise

    def settle(self, rows=None):
        pass

    def add(self, change, *, deviation, keep):
        total = torch.zeros_like(self.weights, dtype=torch.float64)
        total[change.rows] = change.values
        released = self.noise.release(total, standard_deviation=deviation)
        self.weights.mul_(keep).add_(released.to(self.weights.dtype))


def played(events, kind=LateRows, *, axis=0, steps=5, columns=COLUMNS, noise=None):
    """Every value that is read, by (row, time), with room for so many ``steps`` that wait."""
    starts = torch.tensor([[start(row)] for row in range(ROWS)], dtype=torch.float32)
    table = starts.repeat(1, columns)
    parameter = table if axis == 0 else table.T
    with (
        mock.patch("adadps.engine.noise.late.FLUSHED_AT_ONCE", 2 * columns),
        mock.patch("adadps.engine.noise.late.MOST_PENDING_STEPS", steps),
    ):
        late, found, time = kind(parameter, axis, noise or secure()), {}, 0
        for event in events:
            if isinstance(event, Read):
                rows = None if event.rows is EVERYTHING else torch.tensor(event.rows).long()
                late.settle(rows)
                for row in range(ROWS) if rows is None else event.rows:
                    found.setdefault((row, time), table[row].double().numpy())
                continue
            time += 1
            rows = torch.tensor(event.rows).long()
            values = torch.tensor([[change(time, row)] for row in event.rows]).double()
            values = values.reshape(-1, 1).repeat(1, columns)
            shape = tuple(parameter.shape)
            late.add(
                RowSparse(rows, values, shape, axis), deviation=event.deviation, keep=event.keep
            )
    return found


def departures_of(events, kind=LateRows, **options):
    reads, mean, covariance = expected(events)
    found = played(events, kind, **options)
    return departures([found[read] for read in reads], mean, covariance) if reads else {}


some_rows = st.lists(st.integers(0, ROWS - 1), unique=True).map(tuple)
steps = st.builds(Took, some_rows, st.sampled_from([0.0, 0.5, 1.0, 2.0]),
                  st.sampled_from([1.0, 1.0, 0.9, 0.5]))  # fmt: skip
reads = st.builds(Read, st.one_of(st.none(), some_rows))
patterns = st.lists(st.one_of(steps, reads), min_size=2, max_size=8)

REGIMES = {"all steps fit": 20, "old ones have to go": 3, "only the latest waits": 1}

BUSY = [
    Took((0, 1), 1.0),
    Took((1, 2), 0.5, 0.9),
    Read((1, 3)),
    Took((0, 1, 3), 2.0, 0.8),
    Took((), 0.0, 0.9),
    Read((0,)),
    Took((2, 0), 1.0),
    Took((3,), 1.5, 0.7),
    Read(),
    Took((1, 2, 3), 0.7),
    Took((4, 0, 2, 1), 1.0, 0.95),
    Read(),
]  # every kind of read, step and waiting


# --- the law ---


@pytest.mark.parametrize("room", REGIMES.values(), ids=REGIMES)
@settings(max_examples=30)
@given(events=patterns, axis=st.sampled_from([0, 1]))
def test_what_is_read_has_the_mean_and_covariance_of_the_recursion(room, events, axis):
    """90 patterns of at most 1,000 bounds of 7 standard errors: false alarms below 3e-7."""
    events = [*events, Read()]
    assert departures_of(events, axis=axis, steps=room) == {}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("room", REGIMES.values(), ids=REGIMES)
def test_late_and_eager_noise_have_the_same_law(room, axis):
    """6 times 2,000 bounds of 7 standard errors, 20 KS tests at 1e-9: false alarms below 3e-7."""
    late, eager = (played(BUSY, kind, axis=axis, steps=room) for kind in (LateRows, Eager))
    for found in (late, eager):
        order, mean, covariance = expected(BUSY)
        assert departures([found[read] for read in order], mean, covariance) == {}
    for read in expected(BUSY)[0]:
        ratio = np.log(late[read].var() / eager[read].var())
        assert abs(ratio) < BOUND * math.sqrt(4 / COLUMNS), read
        assert stats.ks_2samp(late[read], eager[read], method="asymp").pvalue > 1e-9, read


def test_noise_stays_when_later_steps_are_far_smaller():
    """A schedule that falls by eight orders of magnitude: the last step is noised like any other.

    Its change is far above the noise it must get. 15 bounds of 7 standard errors: below 1e-10.
    """
    table = torch.zeros(2, COLUMNS, dtype=torch.float64)
    late = LateRows(table, 0, secure())
    both, one = torch.tensor([0, 1]), torch.tensor([0])
    late.add(RowSparse(both, torch.zeros(2, COLUMNS).double(), (2, COLUMNS)), deviation=1, keep=1)
    late.settle()
    before, tiny = table.clone(), 1e-8
    step = torch.full((1, COLUMNS), 1000 * tiny, dtype=torch.float64)
    late.add(RowSparse(one, step, (2, COLUMNS)), deviation=tiny, keep=1)
    late.settle()
    moved = ((table - before) / tiny).numpy()
    assert departures(moved, [1000, 0], np.eye(2)) == {}


# --- the power of the test ---


class Forgetful(LateRows):
    """Leaves out the first step of a row that waits for two or more."""

    def _release(self, rows):
        self._since[rows] += self._history.now - self._since[rows] >= 2
        super()._release(rows)


class Unmoved(LateRows):
    """Draws what a row has gathered again when it is read again."""

    def _release(self, rows):
        since = self._since[rows].copy()
        super()._release(rows)
        self._since[rows] = since


class Undecayed(LateRows):
    """Forgets that noise decays with the weights."""

    def _release(self, rows):
        kept, deviation = self._history.gathered(self._since[rows])
        self._history.gathered = lambda _: (kept, deviation / kept)
        super()._release(rows)
        del self._history.gathered


def twice(z):
    return z + secure().normal(z.shape).numpy()


def alike(z):
    """The same noise for all rows."""
    return np.tile(z[:COLUMNS], len(z) // COLUMNS)


MISTAKES = {
    "the noise of one step is missing": (Forgetful, None),
    "a second read draws again": (Unmoved, None),
    "noise does not decay": (Undecayed, None),
    "noise is drawn twice": (LateRows, Changed(twice)),
    "rows share their noise": (LateRows, Changed(alike)),
}


@pytest.mark.parametrize(("kind", "noise"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_would_be_noticed(kind, noise):
    """The power of the tests above: variances are off by more than 10 standard errors."""
    assert departures_of(BUSY, kind, noise=noise) != {}
