"""Who adds the noise: it is there once, and enough of it."""

import math
from dataclasses import replace

import pytest
import torch

from adadps import (
    fixed_size,
    poisson,
    shuffled,
)
from adadps.federated.answers import longest, sound
from adadps.federated.task import task_of
from adadps.row_sparse import RowSparse
from adadps.stages import (
    by_each_device,
    by_server,
    chain,
    in_shares,
    sgd,
    train_locally,
)
from federations import EVERYBODY, LABELS, QUIET, WORDS, answer_of, federated, method

C, SIGMA = 0.5, 1.5


def noise_on(noise, sampler, answering, *, rounds=1):
    """Mean square of what one round adds to a million weights, from devices that bring nothing."""
    wide = torch.nn.Linear(1000, 1000, bias=False)
    torch.nn.init.zeros_(wide.weight)
    chosen = method(noise, clip_norm=C, noise_multiplier=SIGMA, last=(sgd(1.0),), before=())
    chosen = chain(train_locally(lr=1.0, batch_size=1), *chosen.steps)
    run = federated(chosen, sampler, rounds=rounds, weights=wide)
    deviation = run.task.noise * C
    generator = torch.Generator().manual_seed(1)
    for batch in run.batches():
        cohort = run.cohort(batch, range(sampler.examples))
        for node in cohort[:answering]:
            own = torch.randn(1000, 1000, generator=generator) * deviation
            run.answer(batch, node, {"weight": own})
        run.step(batch)
    size = sampler.expected_size
    return run, float((run.params["weight"] * size).double().square().mean())


WITHIN = 6 * math.sqrt(2 / 1e6)
"""Six deviations of the mean of a million squares: false alarms below 1e-8."""


@pytest.mark.parametrize(
    ("noise", "sampler", "answering", "expected"),
    [
        (by_server(), poisson(users=6, expected_size=6), 6, SIGMA),
        (by_server(), poisson(users=6, expected_size=6), 0, SIGMA),
        (in_shares(minimum=3), fixed_size(users=6, expected_size=6), 3, SIGMA),
        (in_shares(minimum=3), fixed_size(users=6, expected_size=6), 6, SIGMA * math.sqrt(2)),
        (in_shares(minimum=2, share=0.5), fixed_size(users=6, expected_size=6), 4, SIGMA),
        (by_each_device(), shuffled(users=6, expected_size=6), 4, SIGMA * 2),
    ],
)
def test_noise_is_there_once(noise, sampler, answering, expected):
    """Devices' noise is not added again, what they leave out is topped up, nothing is clipped."""
    _, found = noise_on(noise, sampler, answering)
    assert abs(found / (C * expected) ** 2 - 1) < WITHIN


def test_too_few_shares_are_discarded_and_stay_paid():
    run, found = noise_on(in_shares(minimum=3), fixed_size(users=6, expected_size=6), 2, rounds=2)
    assert found == 0
    assert run.discarded == 2
    assert run.result().privacy.steps_paid == 2


def test_without_any_answer_by_each_device_nothing_is_added():
    run, found = noise_on(by_each_device(), shuffled(users=6, expected_size=6), 0)
    assert (found, run.discarded) == (0, 0)


@pytest.mark.parametrize("noise", [in_shares(minimum=2), by_each_device()])
def test_an_honest_answer_with_noise_is_taken_as_it_is(noise):
    """Far longer than C, and neither clipped nor refused; ten times as much noise is refused."""
    params = {"weight": torch.zeros(100, 100)}
    task = task_of(method(noise, clip_norm=C, noise_multiplier=SIGMA))
    answer = {"weight": torch.randn(100, 100) * task.noise * C}
    assert float(answer["weight"].norm()) > 10 * C
    assert sound(answer, params, longest(task, params)) == answer
    wild = {"weight": 10 * answer["weight"]}
    assert sound(wild, params, longest(task, params)) is None


def test_a_refused_answer_does_not_count_as_noise():
    """Four answers, one of them beyond what is honest: the server tops up for three."""
    sampler = fixed_size(users=6, expected_size=6)
    chosen = method(in_shares(minimum=1, share=0.5), clip_norm=C, noise_multiplier=SIGMA)
    chosen = chain(train_locally(lr=1.0, batch_size=1), chosen.release, sgd(1.0))
    wide = torch.nn.Linear(1000, 1000, bias=False)
    torch.nn.init.zeros_(wide.weight)
    run = federated(chosen, sampler, rounds=1, weights=wide)
    for batch in run.batches():
        first, *others = run.cohort(batch, range(6))
        run.answer(batch, first, {"weight": torch.full((1000, 1000), 1e6)})
        for node in others[:3]:
            run.answer(batch, node, {"weight": torch.zeros(1000, 1000)})
        run.step(batch)
    found = float((run.params["weight"] * 6).double().square().mean())
    assert abs(found / (C**2 * (SIGMA**2 - 3 * 0.25)) - 1) < WITHIN


def test_a_device_clips_before_its_noise():
    """The mean of many noisy answers is the clipped update: no bias from the noise."""
    run = federated(method(**QUIET), EVERYBODY)
    wanted = answer_of(run, 3)
    found = [answer_of(run, 3, task=replace(run.task, noise=0.01)) for _ in range(40)]
    bias = torch.stack([answer["bias"] for answer in found]).double().mean(0)
    tolerance = 6 * 0.01 * 0.3 / math.sqrt(40)
    assert torch.allclose(bias, wanted["bias"].double(), rtol=0, atol=tolerance)
    assert all(isinstance(answer["weight"], torch.Tensor) for answer in found), "noise everywhere"
    assert isinstance(wanted["weight"], RowSparse), "own words alone"


def test_a_device_brings_at_most_so_many_rows():
    chosen = method(most=1, clip_norm=math.inf, noise_multiplier=0.0)
    run = federated(chosen, EVERYBODY)
    seen = {tuple(answer_of(run, 3)["weight"].rows.tolist()) for _ in range(60)}
    own = WORDS[LABELS.shape[0] - 10 : LABELS.shape[0] - 3]
    assert seen == {tuple(row.indices.tolist()) for row in own.sorted_indices()}
