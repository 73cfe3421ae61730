"""Simulated private runs: the right noise, batches that stand in for others, nothing spent."""

import math

import numpy as np
import pytest
import torch
from scipy import sparse

from adadps import Accountant, Budget, calibrate_noise, side
from adadps.estimators.doctor import before_the_clip, no_side_information, public_gradients
from adadps.estimators.doctor.case import case_of
from adadps.estimators.doctor.plans import plan_for
from adadps.estimators.doctor.simulation import (
    MOST_ROWS_PER_BATCH,
    StandIns,
    simulated_accuracy,
    simulated_run,
    simulated_size,
    splits,
)
from adadps.types import Relation

BUDGET = Budget(1.0, 1e-6)


def case(rows, examples, steps=10, **given):
    return case_of(
        rows, np.arange(rows.shape[0]) % 2, examples=examples, budget=BUDGET, steps=steps, **given
    )


@pytest.mark.parametrize("examples", [3_000, 40_000])
def test_noise_is_that_of_the_private_run(examples):
    """Rows without words have no gradient: weights are T draws of N(0, (lr σC/b)²), summed.

    8,000 weights: their standard deviation is off by 7 % with probability below 1e-17, and at
    40,000 examples the private batch is larger than what is simulated, so that σ must shrink.
    """
    held = case(sparse.csr_matrix((60, 4000)), examples)
    plan = plan_for(held, no_side_information())
    run = simulated_run(held, plan, splits(60, 3, seed=0)[0])
    for batch in run.batches():
        run.step(batch)
    settings = plan.settings
    b = settings.sampler.expected_size
    assert (b > MOST_ROWS_PER_BATCH) == (examples == 40_000)
    expected = settings.lr * settings.noise_multiplier * settings.clip_norm / b * math.sqrt(10)
    assert float(run.params["weight"].std()) == pytest.approx(expected, rel=0.07)


def test_batches_have_the_private_size_and_repeat_public_rows():
    sampler = StandIns(examples=10_000, expected_size=500, relation=Relation.ADD_OR_REMOVE_ONE)
    drawn = sampler.batches(40, np.random.default_rng(0))
    batches = [next(drawn) for _ in range(200)]
    sizes = np.array([len(batch) for batch in batches])
    # binomial(10,000, 0.05): standard deviation 21.8, so that 200 means are within 10 at 6.5 sigma
    assert abs(sizes.mean() - 500) < 10
    assert 10 < sizes.std() < 35
    rows = np.concatenate(batches)
    assert rows.min() == 0
    assert rows.max() == 39
    counts = np.bincount(rows, minlength=40)
    assert counts.min() > 0.8 * counts.mean(), "every public row stands in about equally often"


def test_a_simulated_run_spends_nothing_and_says_that_it_is_not_private():
    held = case(np.random.default_rng(0).normal(size=(60, 4)), 2_000)
    run = simulated_run(held, plan_for(held, no_side_information()), splits(60, 3, seed=0)[0])
    for batch in run.batches():
        run.step(batch)
    assert run.epsilon() == math.inf
    assert run.not_private_because
    assert run.ledger.budget is None


def test_parts_of_a_fold_do_not_overlap_and_every_row_is_held_out_once():
    found = splits(101, 4, seed=3)
    assert sorted(np.concatenate([one.held_out for one in found])) == list(range(101))
    for one in found:
        assert len(one.side) == pytest.approx(0.25 * (101 - len(one.held_out)), abs=1)
        everything = np.concatenate([one.trained, one.side, one.held_out])
        assert sorted(everything) == list(range(101))
    assert len({one.seed for one in found}) == 4


def test_rows_behind_the_side_information_still_stand_in_for_private_ones():
    """Frequencies of public rows name those rows; without them nothing would be left to train."""
    rng = np.random.default_rng(1)
    labels = rng.integers(2, size=200)
    rows = rng.random((200, 6)) < 0.5
    rows = np.hstack([rows, labels[:, None] == [0, 1]]).astype(np.float32)
    held = case_of(rows, labels, examples=5_000, budget=BUDGET, steps=40)
    known = side.corpus_frequencies(rows, source="the public rows", public_because="public")
    candidate = before_the_clip("rates", side.frequency(known, floor=0.1))
    split = splits(200, 4, seed=0)[0]
    assert simulated_accuracy(held, plan_for(held, candidate), split) > 0.9


def test_the_same_seed_gives_the_same_score():
    rng = np.random.default_rng(2)
    held = case(rng.normal(size=(80, 5)), 2_000)
    plan = plan_for(held, public_gradients())
    split = splits(80, 4, seed=5)[1]
    assert simulated_accuracy(held, plan, split) == simulated_accuracy(held, plan, split)


def test_the_clip_norm_follows_the_side_information():
    """D doubles every gradient, so the clip norm doubles and the learning rate halves."""
    rng = np.random.default_rng(3)
    held = case(rng.normal(size=(60, 4)), 2_000)
    half = side.fixed({"weight": (torch.full((4,), 0.5), 1)}, source="s", public_because="p")
    plain, doubled = (
        plan_for(held, no_side_information()).settings,
        plan_for(held, before_the_clip("h", half)),
    )
    assert doubled.settings.clip_norm == pytest.approx(2 * plain.clip_norm)
    assert doubled.settings.lr == pytest.approx(plain.lr / 2)
    assert doubled.settings.noise_multiplier == plain.noise_multiplier
    assert simulated_size(doubled) == plain.sampler.expected_size


def test_the_planned_noise_fits_the_budget_of_the_private_run():
    held = case(np.random.default_rng(4).normal(size=(60, 4)), 2_000)
    settings = plan_for(held, no_side_information()).settings
    known = calibrate_noise(settings.sampler, 10, budget=BUDGET, accountant=Accountant.PLD)
    assert settings.noise_multiplier == known
