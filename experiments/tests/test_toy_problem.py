"""The toy problem of the paper: its data, and a tuned seed of the private panel."""

import pytest
import torch

from adadps_experiments.reproduce.results import recorded_settings
from adadps_experiments.reproduce.toy import problem as toy_problem


def test_the_data_is_as_the_paper_says():
    data = toy_problem.toy_data(0)
    rates = data.features.mean(0)
    assert rates[:50].mean() == pytest.approx(0.9, abs=0.01)
    assert rates[50:].mean() == pytest.approx(0.01, abs=0.001)
    w = torch.cat([torch.full((50,), 0.01), torch.ones(450)])
    residual = data.targets - data.features @ w
    assert residual.std() == pytest.approx(0.01, rel=0.1)
    assert not torch.equal(toy_problem.toy_data(1).features, data.features)


def test_side_information_is_one_or_a_hundredth():
    scale = toy_problem.frequent_or_rare().init({"weight": torch.zeros(1, 500)}).scale["weight"]
    assert scale[0, :50].unique().tolist() == pytest.approx([1.0])
    assert scale[0, 50:].unique().tolist() == pytest.approx([100.0])


def test_contenders_have_equal_trials_within_their_panel():
    sizes = {name: len(grid) for name, grid in toy_problem.GRIDS.items()}
    assert sizes["sgd"] == sizes["adas"]
    assert sizes["dp-sgd"] == sizes["adadps"]


def test_recorded_winners_come_from_the_grids():
    winners = recorded_settings("toy")
    for name, grid in toy_problem.GRIDS.items():
        assert winners[name] in grid
