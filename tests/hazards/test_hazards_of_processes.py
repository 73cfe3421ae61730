"""Several processes: noise once, batches that are independent, and broken groups that are caught.

Statistical tests here have a false-alarm rate of 1e-6 each.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from support import sharded_work as sharded
from support import team_work as work
from support.team import Raised

FALSE_ALARMS = 1e-6


def has_variance(noise, expected):
    """Is Σ z² / expected what a χ² with as many degrees of freedom would be?"""
    squares = float((noise.double() ** 2).sum()) / expected
    low, high = stats.chi2.ppf([FALSE_ALARMS / 2, 1 - FALSE_ALARMS / 2], len(noise))
    return low < squares < high


@pytest.mark.parametrize("late", [False, True])
def test_hazard_17_noise_is_added_once_whatever_the_number_of_processes(late, team):
    steps = 3
    alone = work.released_noise(steps, late)
    first, second = team.run(work.released_noise, steps, late)
    assert torch.equal(first, second)
    assert len(first) == work.WIDE
    assert has_variance(alone, steps)
    assert has_variance(first, steps)
    assert not has_variance(first, steps / 2)  # the test sees a factor of two
    assert not has_variance(first, 2 * steps)


def test_hazard_17_the_museum_noise_on_every_rank_divided_wrongly(team):
    first, second = team.run(work.noise_of_every_process, 1)
    assert torch.equal(first, second)
    assert not has_variance(first, 1)
    assert has_variance(first, 1 / 2)


@pytest.mark.parametrize("draws", [False, True])
def test_hazard_17_the_museum_noise_missing_on_one_rank(draws, team):
    words = "the same weights" if draws else "numbers of noise"
    for found in team.outcomes(work.noise_missing_in_the_second, draws):
        assert found.kind == "ContractError"
        assert words in found.text


def test_hazard_17_the_museum_a_key_on_every_rank(team):
    for found in team.outcomes(work.own_noise):
        assert found.kind == "ContractError"
        assert "the same weights" in found.text


def test_hazard_17_the_museum_late_rows_settled_on_one_rank_only(team):
    for found in team.outcomes(work.settled_in_one_process):
        assert found.kind == "ContractError"
        # Where both processes happen to settle equally many rows, weights differ and counts do not.
        assert "numbers of noise" in found.text or "the same weights" in found.text


# --- models in shards ---


def is_correlated(one, other):
    together = float(torch.corrcoef(torch.stack([one, other]))[0, 1])
    return abs(together) > stats.norm.isf(FALSE_ALARMS / 2) / math.sqrt(len(one))


def test_hazard_17_every_shard_has_noise_once_and_its_own(team):
    """The first process holds two of three rows, the second the other one."""
    steps = 3
    first, second = team.run(sharded.released_noise, steps)
    assert torch.equal(first, second)
    assert first.shape == (sharded.ROWS_OF_NOISE, sharded.WIDTH)
    for row in first:
        assert has_variance(row, steps)
        assert not has_variance(row, steps / 2)
        assert not has_variance(row, 2 * steps)
    assert not any(is_correlated(first[one], first[two]) for one, two in ((0, 1), (0, 2), (1, 2)))


def test_hazard_17_the_museum_one_stream_for_all_shards(team):
    first, _ = team.run(sharded.of_one_key)
    assert is_correlated(first[0], first[2])


def test_hazard_17_the_museum_noise_missing_on_one_shard(team):
    for found in team.outcomes(sharded.missing_in_the_second, False):
        assert isinstance(found, Raised)
        assert "numbers of noise" in found.text
    first, _ = team.run(sharded.missing_in_the_second, True)  # no other process could notice
    assert has_variance(first[0], 3)
    assert not has_variance(first[2], 3)


def test_hazard_16_sharded_runs_do_not_repeat_noise(team):
    (one, _), (other, _) = (team.run(sharded.released_noise, 1) for _ in range(2))
    assert not any(is_correlated(*pair) for pair in zip(one, other, strict=True))


# --- restarts ---


def test_hazard_16_no_run_of_a_group_repeats_noise(team):
    """Also runs of the same processes one after the other, and runs that are resumed."""
    (one, _), (other, _) = (team.run(work.released_noise, 1, False) for _ in range(2))
    together = float(torch.corrcoef(torch.stack([one, other]))[0, 1])
    assert abs(together) < stats.norm.isf(FALSE_ALARMS / 2) / math.sqrt(work.WIDE)


def test_hazard_02_two_processes_draw_one_poisson_sample(team):
    """Each row with probability q, independently, also of rows that another process holds."""
    times, share = 4000, 0.3
    (first, sizes), (second, others) = team.run(work.drawn_rows, times, share)
    assert not np.any((first > 0) & (second > 0))
    counts = first + second
    limit = stats.norm.isf(FALSE_ALARMS / 2 / work.ROWS)
    assert np.all(np.abs(counts - times * share) < limit * math.sqrt(times * share * (1 - share)))
    sizes, others = np.array(sizes), np.array(others)
    assert has_variance(
        torch.from_numpy(sizes + others - work.ROWS * share), work.ROWS * share * (1 - share)
    )
    together = np.corrcoef(sizes, others)[0, 1]
    assert abs(together) < stats.norm.isf(FALSE_ALARMS / 2) / math.sqrt(times)
