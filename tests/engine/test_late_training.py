"""Late updates are the same training: as on dense features, in pieces, and with decay."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from adadps import (
    PrivateRun,
    chain,
    examples,
    fit,
    poisson,
    privatize,
    public_examples,
    reproducible_not_private,
    side,
    sparse_linear,
)
from adadps.engine.general import GeneralEngine
from adadps.errors import SettingError
from adadps.methods import plain_sgd
from adadps.methods.stages import average, precondition, pretrain, sgd
from support.problems import cross_entropy, squared

RNG = np.random.default_rng(0)
COUNTS = sparse.random(60, 20, density=0.15, format="csr", random_state=RNG, dtype=np.float32)
TOKENS = torch.from_numpy(RNG.integers(20, size=(60, 3)))
LABELS = torch.from_numpy(RNG.integers(2, size=60))


def words_linear():
    return nn.Linear(20, 2), nn.Linear(20, 2), COUNTS, COUNTS.toarray()


def words_laid_out():
    return sparse_linear(20, 2), nn.Linear(20, 2), COUNTS, COUNTS.toarray()


def words_bag():
    bag = nn.Sequential(nn.EmbeddingBag(20, 3, mode="sum"), nn.Tanh(), nn.Linear(3, 2))
    twin = nn.Sequential(nn.Linear(20, 3, bias=False), nn.Tanh(), nn.Linear(3, 2))
    return bag, twin, COUNTS, COUNTS.toarray()


def words_embedding():
    layers = [
        nn.Sequential(nn.Embedding(20, 3), nn.Flatten(), nn.Tanh(), nn.Linear(9, 2))
        for _ in range(2)
    ]
    return *layers, TOKENS, TOKENS


PAIRS = {"linear": words_linear, "feature by feature": words_laid_out, "bag": words_bag,
         "embedding": words_embedding}  # fmt: skip


def statistics(kind, features):
    public = public_examples(features, LABELS, source="a list", public_because="made up",
                             batch_size=9)  # fmt: skip
    given = {"mixing": 0.5, "first_decay": 0.9, "second_decay": 0.9}
    rule = {
        "rms": side.RMSPropStatistics(decay=0.9, epsilon=0.1),
        "adam": side.AdamStatistics(epsilon=0.1, **given),
    }[kind]
    return precondition(side.public(public, rule, refresh_every=2))


CLIPPED = privatize(clip_norm=0.2, noise_multiplier=0.0)
SLOWER = sgd(lambda t: 2.0 / t, weight_decay=0.2)
METHODS = {
    "plain": lambda _: plain_sgd(0.5),
    "average": lambda _: chain(average(), SLOWER),
    "clipped": lambda _: chain(CLIPPED, SLOWER),
    "public statistics": lambda features: chain(statistics("rms", features), CLIPPED, SLOWER),
    "public shift": lambda features: chain(statistics("adam", features), CLIPPED, SLOWER),
}


def trained(model, features, method, *, general=False, **options):
    """Fifteen steps; some batches are empty."""
    data = examples(features, LABELS)
    run = PrivateRun(
        model,
        cross_entropy,
        data,
        method=method,
        sampler=poisson(examples=60, expected_size=2.5),
        steps=15,
        randomness=reproducible_not_private(3),
        **options,
    )
    if general:
        run._stepper.objective = replace(run.objective, engine=GeneralEngine(model, cross_entropy))
    for batch in run.batches():
        run.step(batch)
    return [parameter.detach() for parameter in model.parameters()]


def twins(make):
    one, other, few, full = make()
    own, theirs = list(one.parameters()), list(other.parameters())
    with torch.no_grad():
        for p, q in zip(own, theirs, strict=True):
            q.copy_(p if p.shape == q.shape else p.T)
    return one, other, few, full


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_late_updates_without_noise_are_the_same_training(make, method):
    one, other, few, full = twins(make)
    start = [parameter.detach().clone() for parameter in one.parameters()]
    late = trained(one, few, method(few))
    dense = trained(other, full, method(full), general=True)
    for before, p, q in zip(start, late, dense, strict=True):
        assert not torch.equal(before, p)
        torch.testing.assert_close(p if p.shape == q.shape else p.T, q, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("pieces", [1, 2])
def test_the_physical_batch_size_changes_nothing(make, pieces):
    one, _, few, _ = make()
    whole = trained(copy.deepcopy(one), few, METHODS["clipped"](few))
    parts = trained(one, few, METHODS["clipped"](few), physical_batch_size=pieces)
    for p, q in zip(whole, parts, strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5)


# --- decoupled decay ---


@pytest.mark.parametrize("decay", [-0.1, float("inf"), float("nan")])
def test_a_decay_must_be_a_number_from_zero_on(decay):
    with pytest.raises(SettingError, match="weight_decay"):
        sgd(0.1, weight_decay=decay)


@pytest.mark.parametrize("lr", [2.0, lambda t: 1.0 * t])
def test_a_decay_that_leaves_nothing_is_refused(lr):
    data = examples(torch.zeros(4, 3), torch.zeros(4, 1))
    method = chain(average(), sgd(lr, weight_decay=0.5))
    with pytest.raises(SettingError, match="lr · weight_decay < 1"):
        fit(nn.Linear(3, 1), squared, data, method=method, steps=3,
            sampler=poisson(examples=4, expected_size=4))  # fmt: skip


def test_weights_decay_before_the_step():
    layer, data = nn.Linear(3, 1, bias=False), examples(torch.zeros(4, 3), torch.zeros(4, 1))
    before = layer.weight.detach().clone()
    method = chain(average(), sgd(lambda t: 0.4 / t, weight_decay=0.5))
    fit(layer, squared, data, method=method, steps=2,
        sampler=poisson(examples=4, expected_size=4))  # fmt: skip
    torch.testing.assert_close(layer.weight.detach(), before * (1 - 0.2) * (1 - 0.1))


def test_pretraining_decays_too():
    layer = nn.Linear(3, 1, bias=False)
    public = public_examples(torch.zeros(4, 3), torch.zeros(4, 1), source="a list",
                             public_because="made up", batch_size=4)  # fmt: skip
    before = layer.weight.detach().clone()
    first = pretrain(public, sgd(0.4, weight_decay=0.5), epochs=1)
    PrivateRun(layer, squared, examples(torch.zeros(4, 3), torch.zeros(4, 1)),
               method=chain(first, average(), sgd(0.1)), steps=1,
               sampler=poisson(examples=4, expected_size=4))  # fmt: skip
    torch.testing.assert_close(layer.weight.detach(), before * (1 - 0.2))


@pytest.mark.parametrize(
    ("lr", "dtype", "waits"),
    [
        (0.1, torch.float32, True),
        (1e-8, torch.float32, True),
        (1e-13, torch.float32, False),
        (1e-40, torch.float32, False),
        (0.1, torch.bfloat16, False),
    ],
)
def test_hazard_18_weights_that_would_be_rounded_when_they_are_read_do_not_wait(lr, dtype, waits):
    """How often a row was read, and rounded, would show in it."""
    layer = sparse_linear(20, 2, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    layer = layer.to(dtype)
    run = PrivateRun(
        layer,
        cross_entropy,
        examples(COUNTS, LABELS),
        method=chain(privatize(clip_norm=1.0, noise_multiplier=1.0), sgd(lr)),
        sampler=poisson(examples=60, expected_size=6),
        steps=5,
    )
    for batch in run.batches():
        run.step(batch)
        if batch.index == 3:
            assert bool(run._stepper.weights._late) is waits
            assert (type(layer.weight) is nn.Parameter) is not waits


def test_hazard_18_a_rate_that_falls_ends_the_waiting():
    layer = sparse_linear(20, 2, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    run = PrivateRun(
        layer,
        cross_entropy,
        examples(COUNTS, LABELS),
        method=chain(
            privatize(clip_norm=1.0, noise_multiplier=1.0), sgd(lambda t: 0.1 * 0.1 ** (2 * t))
        ),
        sampler=poisson(examples=60, expected_size=30),  # none of six batches is empty
        steps=6,
    )
    waiting = []
    for batch in run.batches():
        run.step(batch)
        waiting.append(bool(run._stepper.weights._late))
    assert waiting[0]
    assert not waiting[4]
