"""Published results: beside which rows they stand, and what their settings cost."""

import pytest

from adadps.accounting.epsilon import epsilon_of_run
from adadps.accounting.samplers import poisson
from adadps.methods.paper import dp_sgd
from adadps.methods.stages import privatize
from adadps.types import Accountant
from adadps_experiments.reproduce import published
from adadps_experiments.reproduce.published import PublishedRun
from adadps_experiments.reproduce.text import recipes, tables
from adadps_experiments.reproduce.text.experiments import EXPERIMENTS, PAPER, TableLine
from adadps_experiments.reproduce.text.problem import ONE_PERCENT
from adadps_experiments.reproduce.text.tuning import TunedSetting


@pytest.mark.parametrize(
    ("dataset", "its_own"),
    [
        ("imdb", True),
        ("imdb-private-words", True),
        ("stackoverflow", True),
        ("so-titles", False),
        ("so-titles-general-words", False),
        ("debian-tags", False),
    ],
)
def test_published_numbers_stand_beside_the_papers_own_data_sets(dataset, its_own, monkeypatch):
    monkeypatch.setattr(published, "_epsilon", lambda *_: 7.25)
    line = TableLine(dataset, PAPER, "dp-sgd", 2.0, ONE_PERCENT, 0.63)
    record = {
        "job": {"steps": 20},
        "values": {"accuracy": 0.5, "recall@5": 0.25},
        "examples": 100,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "private": True,
        "epsilon_pld": 1.0,
        "epsilon_rdp": 2.0,
        "seconds": 1.0,
    }
    choice = TunedSetting(recipes.PAPER, {"clip": 0.5, "length": 3.0})
    row = tables._row(EXPERIMENTS["imdb"], line, choice, [record], "accuracy")
    assert row["paper"] == (0.63 if its_own else None)
    beside = row["settings"].get("paper_on_stackoverflow")
    assert beside == (None if its_own else 0.63)
    assert tables._row(EXPERIMENTS["imdb"], line, choice, [record], "recall@5")["paper"] is None


def test_the_cost_by_pld_is_the_best_that_can_be_proved():
    """Means of k clipped as one have twice the sensitivity: half the noise multiplier."""
    run = PublishedRun("made up", 4000, 100, 3, 2.0, 4)
    found = run.cost()
    sampler, steps = poisson(examples=4000, expected_size=100), 3 * 40

    def expected(sigma, accountant):
        chain = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=sigma), lr=1.0)
        return epsilon_of_run(chain, sampler, steps, delta=1 / 4000, accountant=accountant)

    for name, sigma, accountant in (
        ("published_epsilon_claimed", 2.0, Accountant.RDP),
        ("published_epsilon_claimed_by_pld", 2.0, Accountant.PLD),
        ("published_epsilon_if_poisson", 1.0, Accountant.PLD),
        ("published_epsilon_if_poisson_by_rdp", 1.0, Accountant.RDP),
    ):
        assert found[name] == pytest.approx(expected(sigma, accountant)), name
    ordered = ("claimed_by_pld", "claimed", "if_poisson", "if_poisson_by_rdp", "as_is")
    values = [found[f"published_epsilon_{name}"] for name in ordered]
    assert values == sorted(values)
    assert len(set(values)) == len(values)
    describe = run.describe()
    for name, digits in (("claimed", 2), ("if_poisson", 1), ("as_is", 0)):
        assert f"{found[f'published_epsilon_{name}']:.{digits}f}" in describe
