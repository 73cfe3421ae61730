"""Runs on tables of words: whoever reads the weights sees all their noise, and sees it once.

The last axis of every table is a sample: its 4,000 columns are independent. A bound of 7 standard
errors is passed with probability below 2e-11.
"""

import copy
import io
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from adadps import chain, on_public, privatize, public_examples, side
from adadps.methods.stages import adagrad, adam, mix, momentum, precondition, rmsprop, sgd
from support.late_tables import (
    BOUND,
    CLIP,
    LR,
    NOISE,
    SIGMA,
    SIZE,
    TABLES,
    WORDS,
    begun,
    departures,
    noisy,
    take,
)

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
    "attribute": lambda table, _: table.parameter,
    "state_dict": lambda table, _: table.model.state_dict()[table.name],
    "deepcopy": lambda table, _: copy.deepcopy(table.model).get_parameter(table.name),
    "pickle": lambda table, _: sent(table.model).get_parameter(table.name),
    "torch.save": lambda table, _: saved(table.model.state_dict())[table.name],
    "forward": lambda table, _: table.model(table.inputs).movedim(0, table.axis),
    "evaluate": evaluated,
    "params": lambda table, run: run.params[table.name],
    "result": lambda table, run: run.result().params[table.name],
    "parameters": lambda table, _: torch.stack([p * 1 for p in table.model.parameters()])[0],
    "kept reference": lambda table, _: table.kept,
    "cat": lambda table, _: torch.cat([table.kept, table.kept])[: len(table.kept)],
    "data": lambda table, _: table.parameter.data,
    "numpy": lambda table, _: torch.from_numpy(table.parameter.detach().numpy().copy()),
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

    run._stepper.objective = replace(run.objective, engine=Spy())
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
    return lambda g, m, v, _: (
        m, share * v + (1 - share) * g**2, g / (np.sqrt(share * v + (1 - share) * g**2) + 1e-8)
    )  # fmt: skip


EAGER = {
    "momentum": (lambda _: [momentum(0.7), sgd(LR)],
                 lambda g, m, v, _: (0.7 * m + 0.3 * g, v, 0.7 * m + 0.3 * g)),
    "adam": (lambda _: [adam(LR)], adam_step),
    "rmsprop": (lambda _: [rmsprop(LR, decay=0.9)], decayed(0.9)),
    "adagrad": (lambda _: [adagrad(LR)],
                lambda g, m, v, _: (m, v + g**2, g / (np.sqrt(v + g**2) + 1e-8))),
    "precondition after": (lambda table: [precondition(halved(table)), sgd(LR)],
                           lambda g, m, v, _: (m, v, g / 2)),
    "mix": (lambda table: [mix(zero_public(table), 0.6), sgd(LR)],
            lambda g, m, v, _: (m, v, 0.6 * g)),
}  # fmt: skip


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize(("stages", "update"), EAGER.values(), ids=EAGER)
def test_other_updates_noise_every_row_at_every_step(make, stages, update):
    """18 times 12 bounds of 7 standard errors and one KS test at 1e-9: false alarms below 1e-7."""
    table = make(WIDTH)
    method = chain(privatize(clip_norm=CLIP, noise_multiplier=SIGMA), *stages(table))
    assert not method.allows_late_noise
    run, leaves = begun(table, method), []
    apply = run._stepper.weights.apply
    run._stepper.weights.apply = lambda u, late: leaves.extend(u.values()) or apply(u, late)
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
    apply = run._stepper.weights.apply
    run._stepper.weights.apply = lambda u, late: leaves.extend(u.values()) or apply(u, late)
    take(run, 3)
    assert {type(leaf.total) for leaf in leaves} == {torch.Tensor}
    found = table.rows(table.parameter).double()
    assert departures(found, np.zeros(WORDS), 3 * NOISE**2 * np.eye(WORDS)) == {}
