"""Who adds the noise: it is there once, and enough of it."""

import math
from dataclasses import replace

import pytest
import torch

from adadps import examples, poisson, shuffled
from adadps.methods.stages import by_each_device, by_server, chain, in_shares, sgd, train_locally
from adadps.report.card import card_of
from adadps.tensors.sums import RowSparse
from adadps.training.federated import empty_update, local_update
from adadps.training.federated.answers import checked_update, largest_honest_norm
from adadps.training.federated.server import WHO_TAKES_PART
from adadps.training.federated.task import task_of
from support.federations import (
    EVERYBODY,
    LABELS,
    QUIET,
    SOME,
    USERS,
    WORDS,
    answer_of,
    federated,
    method,
)
from support.problems import cross_entropy

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
        cohort = run.cohort(batch, range(sampler.examples) if answering else ())
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
        (in_shares(minimum=3), shuffled(users=6, expected_size=6), 3, SIGMA),
        (in_shares(minimum=3), shuffled(users=6, expected_size=6), 6, SIGMA * math.sqrt(2)),
        (in_shares(minimum=2, share=0.5), shuffled(users=6, expected_size=6), 4, SIGMA),
        (by_each_device(), shuffled(users=6, expected_size=6), 4, SIGMA * 2),
    ],
)
def test_noise_is_there_once(noise, sampler, answering, expected):
    """Devices' noise is not added again, what they leave out is topped up, nothing is clipped."""
    _, found = noise_on(noise, sampler, answering)
    assert abs(found / (C * expected) ** 2 - 1) < WITHIN


def test_too_few_shares_are_discarded_and_stay_paid():
    run, found = noise_on(in_shares(minimum=3), shuffled(users=6, expected_size=6), 2, rounds=2)
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
    most = largest_honest_norm(task, params)
    assert checked_update(answer, params, most, {"weight": 1}) == answer
    wild = {"weight": 10 * answer["weight"]}
    assert checked_update(wild, params, most, {"weight": 1}) is None


def test_a_refused_answer_does_not_count_as_noise():
    """Four answers, one of them beyond what is honest: the server tops up for three."""
    sampler = shuffled(users=6, expected_size=6)
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


NOISES = [(in_shares(minimum=3), SIGMA / math.sqrt(3)), (by_each_device(), SIGMA)]
WIDTH = 300


def wide_answers(noise, count=2):
    """What a device with one row of zeros answers, which has nothing to bring: its noise."""
    wide = torch.nn.Linear(WIDTH, WIDTH)
    chosen = chain(train_locally(lr=1.0, batch_size=1), method(
        noise, clip_norm=C, noise_multiplier=SIGMA).release, sgd(1.0))  # fmt: skip
    silent = examples(torch.zeros(1, WIDTH), torch.zeros(1, dtype=torch.int64))
    task = task_of(chosen)
    return [local_update(task, wide, no_loss, silent) for _ in range(count)]


def no_loss(outputs, targets):
    """Has no gradient."""
    return (0 * outputs).sum(1) + 0 * targets


@pytest.mark.parametrize(("noise", "share"), NOISES)
def test_hazard_15_the_noise_of_a_device_follows_from_its_clip(noise, share):
    """Its variance, in every answer, within six deviations of the mean of 90,000 squares."""
    first, second = (answer["weight"].double() / C for answer in wide_answers(noise))
    for found in (first, second):
        assert abs(found.square().mean() / share**2 - 1) < 6 * math.sqrt(2 / WIDTH**2)
    together = (first * second).mean() / share**2
    assert abs(together) < 6 / WIDTH, "fresh noise in every answer"


@pytest.mark.parametrize(("noise", "share"), NOISES)
def test_a_device_clips_before_its_noise(noise, share):
    """A long update: clipped after the noise, the answer would have norm C."""
    wide = torch.nn.Linear(WIDTH, WIDTH)
    chosen = chain(train_locally(lr=1e3, batch_size=1), method(
        noise, clip_norm=C, noise_multiplier=SIGMA).release, sgd(1.0))  # fmt: skip
    row = examples(torch.ones(1, WIDTH), torch.zeros(1, dtype=torch.int64))
    found = local_update(task_of(chosen), wide, cross_entropy, row)
    square = sum(float(part.double().square().sum()) for part in found.values())
    expected = share * C * math.sqrt(WIDTH**2 + WIDTH)
    assert math.sqrt(square) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("noise", "share"), NOISES)
def test_a_device_that_has_nothing_to_bring_is_noised_alike(noise, share):
    wide = torch.nn.Linear(WIDTH, WIDTH)
    chosen = method(noise, clip_norm=C, noise_multiplier=SIGMA)
    found = empty_update(task_of(chosen), wide)
    assert {name: part.shape for name, part in found.items()} == {
        name: value.shape for name, value in wide.named_parameters()
    }
    square = (found["weight"].double() / C).square().mean()
    assert abs(square / share**2 - 1) < 6 * math.sqrt(2 / WIDTH**2)


def test_without_noise_a_device_sends_its_own_words_alone():
    run = federated(method(**QUIET), EVERYBODY)
    assert isinstance(answer_of(run, 3)["weight"], RowSparse)
    noisy = answer_of(run, 3, task=replace(run.task, noise=1.0))
    assert isinstance(noisy["weight"], torch.Tensor), "noise everywhere"


@pytest.mark.parametrize(("noise", "_share"), NOISES)
def test_who_takes_part_is_said_to_be_assumed_public(noise, _share):
    """With one device less there is less noise, or a discarded round: ε does not cover that."""
    sampler = shuffled(users=USERS, expected_size=USERS)
    said = federated(method(noise), sampler).result().privacy.assumed_public
    assert WHO_TAKES_PART in said
    assert WHO_TAKES_PART not in federated(method(), SOME).result().privacy.assumed_public


def test_a_device_brings_at_most_so_many_rows():
    chosen = method(most=1, clip_norm=math.inf, noise_multiplier=0.0)
    run = federated(chosen, EVERYBODY)
    seen = {tuple(answer_of(run, 3)["weight"].rows.tolist()) for _ in range(60)}
    own = WORDS[LABELS.shape[0] - 10 : LABELS.shape[0] - 3]
    assert seen == {tuple(row.indices.tolist()) for row in own.sorted_indices()}


@pytest.mark.parametrize(
    ("noise", "sampler", "said"),
    [
        (by_server(), SOME, "sees updates before noise is added"),
        (in_shares(minimum=2), shuffled(users=USERS, expected_size=USERS), "look at sums only"),
        (by_each_device(), shuffled(users=USERS, expected_size=USERS), "has to trust nobody else"),
    ],
)
def test_the_card_says_who_has_to_be_trusted(noise, sampler, said):
    card = card_of(federated(method(noise), sampler).result().describe())
    assert sum(said in gap for gap in card["not_covered"]) == 1
