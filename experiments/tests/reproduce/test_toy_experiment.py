"""The toy problem of the paper: its data, and a tuned seed of the private panel."""

import json

import pytest
import torch

from adadps_experiments.reproduce.results import recorded_settings
from adadps_experiments.reproduce.toy import problem as toy_problem
from adadps_experiments.reproduce.toy import table as toy_table
from support.commands import app, plain, runner


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


def run_here(run, jobs, _label, *, done, **_):
    """In this process, without the seconds that another one takes to begin."""
    for job in jobs:
        done(run(*job))


@pytest.mark.usefixtures("real_accounting")
def test_the_toy_problem_quickly(tmp_path, monkeypatch):
    """One seed: AdaDPS ahead of DP-SGD, AdaS ahead of SGD, epsilon as in the paper.

    Private noise is fresh: a single run of AdaDPS was seen between 0.8 and 1.7, DP-SGD is near 2.0.
    """
    monkeypatch.setattr(toy_table, "QUICK_STEPS", 1000)  # of 4,000: AdaS is ahead by then
    monkeypatch.setattr(toy_table, "run_all", run_here)
    file = tmp_path / "rows" / "toy.json"
    shown = runner.invoke(app, ["reproduce", "toy", "--quick", "--json", str(file)])
    assert shown.exit_code == 0, shown.output
    rows = {row["method"]: row for row in json.loads(file.read_text(encoding="utf-8"))}
    assert set(rows) == {"sgd", "adas", "dp-sgd", "adadps"}
    for row in rows.values():
        assert {"experiment", "dataset", "method", "side", "metric", "mean", "std"} <= row.keys()
        assert {"seeds", "epsilon_pld", "epsilon_rdp", "delta", "paper", "settings"} <= row.keys()
    assert rows["adadps"]["epsilon_rdp"] == pytest.approx(4.13, abs=0.005)
    assert rows["dp-sgd"]["epsilon_pld"] == pytest.approx(3.42, abs=0.005)
    assert rows["sgd"]["epsilon_pld"] is None
    assert rows["adadps"]["mean"] < rows["dp-sgd"]["mean"]
    assert rows["dp-sgd"]["mean"] > 1.5
    assert rows["adas"]["mean"] < rows["sgd"]["mean"]
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_experiment_is_refused():
    shown = runner.invoke(app, ["reproduce", "nothing"])
    assert shown.exit_code == 2
    assert "Known: toy" in plain(shown.stderr)


def test_no_seeds_are_refused():
    assert runner.invoke(app, ["reproduce", "toy", "--seeds", "0"]).exit_code == 2
