"""Noise that is drawn when a row is read has the law of noise that is drawn at every step.

The last axis of every table is a sample: its columns are independent. Every test that can fail by
chance states how often it does so; a bound of 7 standard errors is passed with probability below
6e-12 (the third cumulant of a variance of 20,000 or more draws included).
"""

import copy
import io
import math
import pickle
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats
from scipy.linalg import solve_triangular

from adadps import chain, on_public, privatize, public_examples, secure, side
from adadps.late import LateRows
from adadps.row_sparse import RowSparse
from adadps.stages import adagrad, adam, mix, momentum, precondition, rmsprop, sgd
from late_tables import CLIP, LR, NOISE, SIGMA, SIZE, TABLES, WORDS, begun, noisy, take

BOUND = 7.0
ROWS, COLUMNS = 5, 10_000
EVERYTHING = None


def departures(samples, mean, covariance):
    """Where means, variances and covariances are not what they should be, in standard errors.

    Samples are made white with the exact covariance; what comes out must have covariance 1.
    """
    white = solve_triangular(
        np.linalg.cholesky(covariance), np.asarray(samples) - np.asarray(mean)[:, None], lower=True
    )
    count, draws = white.shape
    errors = (white @ white.T / draws - np.eye(count)) * math.sqrt(draws)
    errors[np.diag_indices(count)] /= math.sqrt(2)
    found = {
        ("mean", i): z for i, z in enumerate(white.mean(1) * math.sqrt(draws)) if abs(z) > BOUND
    }
    far = np.argwhere(np.tril(np.abs(errors)) > BOUND)
    return found | {("covariance", int(i), int(j)): errors[i, j] for i, j in far}


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


def played(events, kind=LateRows, *, axis=0, capacity=ROWS, columns=COLUMNS, noise=None):
    """Every value that is read, by (row, time), with room for ``capacity`` waiting rows."""
    starts = torch.tensor([[start(row)] for row in range(ROWS)], dtype=torch.float32)
    table = starts.repeat(1, columns)
    parameter = table if axis == 0 else table.T
    with mock.patch.multiple(
        "adadps.late", WAITING_BYTES=8 * columns * capacity, FLUSHED_AT_ONCE=2 * columns
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

REGIMES = {"all rows fit": ROWS, "a ring that evicts": 3, "batches larger than the ring": 1}

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


@pytest.mark.parametrize("capacity", REGIMES.values(), ids=REGIMES)
@settings(max_examples=30)
@given(events=patterns, axis=st.sampled_from([0, 1]))
def test_what_is_read_has_the_mean_and_covariance_of_the_recursion(capacity, events, axis):
    """90 patterns of at most 1,000 bounds of 7 standard errors: false alarms below 1e-6."""
    events = [*events, Read()]
    assert departures_of(events, axis=axis, capacity=capacity) == {}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("capacity", REGIMES.values(), ids=REGIMES)
def test_late_and_eager_noise_have_the_same_law(capacity, axis):
    """6 times 2,000 bounds of 7 standard errors, 20 KS tests at 1e-9: false alarms below 3e-7."""
    late, eager = (played(BUSY, kind, axis=axis, capacity=capacity) for kind in (LateRows, Eager))
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

    def _release(self, rows, values):
        self._since[rows] += (self._past.now - self._since[rows] >= 2).int()
        return super()._release(rows, values)


class Unmoved(LateRows):
    """Draws what a row has gathered again when it is read again."""

    def _release(self, rows, values):
        since = self._since[rows].clone()
        released = super()._release(rows, values)
        self._since[rows] = since
        return released


class Undecayed(LateRows):
    """Forgets that noise decays with the weights."""

    def _release(self, rows, values):
        kept, deviation = self._past.gathered(self._since[rows])
        self._past.gathered = lambda _: (kept, deviation / kept if kept is not None else deviation)
        released = super()._release(rows, values)
        del self._past.gathered
        return released


class Twice:
    def release(self, total, **options):
        return secure().release(secure().release(total, **options), **options)


class Alike:
    """The same noise for all rows."""

    def release(self, total, **options):
        start = total.clone()
        released = secure().release(total, **options)
        return released.copy_(start + (released - start)[:1])


MISTAKES = {
    "the noise of one step is missing": (Forgetful, None),
    "a second read draws again": (Unmoved, None),
    "noise does not decay": (Undecayed, None),
    "noise is drawn twice": (LateRows, Twice()),
    "rows share their noise": (LateRows, Alike()),
}


@pytest.mark.parametrize(("kind", "noise"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_would_be_noticed(kind, noise):
    """The power of the tests above: variances are off by more than 10 standard errors."""
    assert departures_of(BUSY, kind, noise=noise) != {}


# --- reads of a run ---

WIDTH = 4000


def sent(thing):
    return pickle.loads(pickle.dumps(thing))


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def evaluated(table, run):
    seen = []
    targets = torch.zeros(WORDS)
    see = on_public("all", table.features, targets, see=lambda out, _: seen.append(out) or 0.0)
    run.evaluate(see)
    return seen[0].movedim(0, table.axis)


READS = {
    "attribute": lambda table, run: table.parameter,
    "state_dict": lambda table, run: table.model.state_dict()[table.name],
    "deepcopy": lambda table, run: copy.deepcopy(table.model).get_parameter(table.name),
    "pickle": lambda table, run: sent(table.model).get_parameter(table.name),
    "torch.save": lambda table, run: saved(table.model.state_dict())[table.name],
    "forward": lambda table, run: table.model(table.inputs).movedim(0, table.axis),
    "evaluate": evaluated,
    "params": lambda table, run: run.params[table.name],
    "result": lambda table, run: run.result().params[table.name],
    "parameters": lambda table, run: torch.stack([p * 1 for p in table.model.parameters()])[0],
    "kept reference": lambda table, run: table.kept,
    "cat": lambda table, run: torch.cat([table.kept, table.kept])[: len(table.kept)],
    "data": lambda table, run: table.parameter.data,
    "numpy": lambda table, run: torch.from_numpy(table.parameter.detach().numpy().copy()),
}


def departures_of_reads(first, second, variances):
    """Two reads of all rows; ``variances`` are those of the first and of what came after."""
    one, both = variances[0], sum(variances)
    covariance = np.kron([[one, one], [one, both]], np.eye(len(first)))
    return departures(torch.cat([first, second]).double(), np.zeros(2 * len(first)), covariance)


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_read_sees_all_noise_in_place(make, read):
    """42 times 325 bounds of 7 standard errors: false alarms below 1e-7."""
    table = make(WIDTH)
    run = begun(table)
    take(run, 3)
    first = table.rows(read(table, run))
    assert torch.equal(first, table.rows(read(table, run)))
    assert torch.equal(first, table.rows(table.kept))
    take(run, 2)
    second = table.rows(read(table, run))
    assert torch.equal(second, table.rows(table.kept))
    assert departures_of_reads(first, second, (3 * NOISE**2, 2 * NOISE**2)) == {}
    take(run, 1)
    last = table.rows(read(table, run))
    assert departures_of_reads(second, last, (5 * NOISE**2, NOISE**2)) == {}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("every", [1, 3])
def test_public_statistics_read_released_rows(make, every):
    """The rows that the public batch reads have all their noise. False alarms below 1e-8."""
    table = make(WIDTH)
    words = [1, 6, 7]
    features = table.data().take(torch.tensor(words)).features
    public = public_examples(features, torch.zeros(3, 1), source="a list", public_because="made up",
                             batch_size=3)  # fmt: skip
    statistics = side.RMSPropStatistics(decay=0.9, epsilon=1.0)
    before = precondition(side.public(public, statistics, refresh_every=every))
    run, seen = begun(table, chain(before, *noisy().stages)), {}
    engine = run.objective.engine

    class Spy:
        def __getattr__(self, name):
            return getattr(engine, name)

        def mean_gradient(self, params, batch):
            seen[run._taken - 1] = table.rows(params[table.name])[words]
            return engine.mean_gradient(params, batch)

    run.objective = replace(run.objective, engine=Spy())
    take(run, 6)
    assert sorted(seen) == list(range(0, 6, every))
    final = table.rows(table.parameter)[words]
    for taken, rows in seen.items():
        if taken:
            variances = (taken * NOISE**2, (6 - taken) * NOISE**2)
            assert departures_of_reads(rows, final, variances) == {}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_schedules_decay_pieces_and_empty_batches_keep_the_variance(make):
    """Row by row, at two reads: 3 times 700 bounds of 7 standard errors, below 1e-7."""
    table = make(WIDTH)
    method = noisy(lambda t: LR / t, weight_decay=0.5)
    batches = ([], [0, 1], [1, 2, 3], [], [0, 5], [7, 8, 9])
    run = begun(table, method, batches, physical_batch_size=2)
    variance = 0.0
    for until in (4, 6):
        found = []
        while run._taken < until:
            take(run, 1)
            keep = 1 - LR / run._taken * 0.5
            variance = keep**2 * variance + (NOISE / run._taken) ** 2
        found = table.rows(table.parameter)
        assert departures(found.double(), np.zeros(WORDS), variance * np.eye(WORDS)) == {}


# --- eager where it must be ---


def zero_public(table):
    return public_examples(table.features, torch.zeros(WORDS, 1), source="a list",
                           public_because="made up", batch_size=5)  # fmt: skip


def halved(table):
    table_of_twos = torch.full(tuple(table.parameter.shape), 2.0)
    return side.fixed({table.name: table_of_twos}, source="a list", public_because="made up")


def by_moments(update):
    def walk(gradients):
        w, m, v = 0.0, 0.0, 0.0
        for t, g in enumerate(gradients, 1):
            m, v, moved = update(g, m, v, t)
            w = w - LR * moved
        return w

    return walk


def adam_step(g, m, v, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return m, v, m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)


def decayed(share):
    return lambda g, m, v, t: (
        m, share * v + (1 - share) * g**2, g / (np.sqrt(share * v + (1 - share) * g**2) + 1e-8)
    )  # fmt: skip


EAGER = {
    "momentum": (lambda table: [momentum(0.7), sgd(LR)],
                 lambda g, m, v, t: (0.7 * m + 0.3 * g, v, 0.7 * m + 0.3 * g)),
    "adam": (lambda table: [adam(LR)], adam_step),
    "rmsprop": (lambda table: [rmsprop(LR, decay=0.9)], decayed(0.9)),
    "adagrad": (lambda table: [adagrad(LR)],
                lambda g, m, v, t: (m, v + g**2, g / (np.sqrt(v + g**2) + 1e-8))),
    "precondition after": (lambda table: [precondition(halved(table)), sgd(LR)],
                           lambda g, m, v, t: (m, v, g / 2)),
    "mix": (lambda table: [mix(zero_public(table), 0.6), sgd(LR)],
            lambda g, m, v, t: (m, v, 0.6 * g)),
}  # fmt: skip


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize(("stages", "update"), EAGER.values(), ids=EAGER)
def test_other_updates_noise_every_row_at_every_step(make, stages, update):
    """18 times 12 bounds of 7 standard errors and one KS test at 1e-9: false alarms below 1e-7."""
    table = make(WIDTH)
    method = chain(privatize(clip_norm=CLIP, noise_multiplier=SIGMA), *stages(table))
    assert not method.allows_late_noise
    run, leaves = begun(table, method), []
    apply = run._weights.apply
    run._weights.apply = lambda u, late: leaves.extend(u.values()) or apply(u, late)
    take(run, 4)
    assert {type(leaf) for leaf in leaves} == {torch.Tensor}
    assert type(table.parameter) is torch.nn.Parameter
    gradients = np.random.default_rng(0).normal(size=(4, 100_000)) * (SIGMA * CLIP / SIZE)
    hand = by_moments(update)(gradients)
    square = np.mean(hand**2)
    error = math.sqrt((np.mean(hand**4) - square**2) * (1 / WIDTH + 1 / len(hand)))
    found = table.rows(table.parameter).double().numpy()
    assert np.abs(np.mean(found**2, axis=1) - square).max() < BOUND * error
    assert stats.ks_2samp(found.ravel(), hand, method="asymp").pvalue > 1e-9


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_a_shift_before_the_clip_is_dense_and_keeps_the_variance(make):
    """90 bounds of 7 standard errors each: false alarms below 1e-8."""
    table = make(WIDTH)
    statistics = side.AdamStatistics(mixing=0.5, first_decay=0.9, second_decay=0.9, epsilon=1.0)
    shifted = precondition(side.public(zero_public(table), statistics))
    run, leaves = begun(table, chain(shifted, *noisy().stages)), []
    apply = run._weights.apply
    run._weights.apply = lambda u, late: leaves.extend(u.values()) or apply(u, late)
    take(run, 3)
    assert {type(leaf.total) for leaf in leaves} == {torch.Tensor}
    found = table.rows(table.parameter).double()
    assert departures(found, np.zeros(WORDS), 3 * NOISE**2 * np.eye(WORDS)) == {}
