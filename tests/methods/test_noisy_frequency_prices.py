"""What measured frequencies cost, and that they are paid before they are drawn."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from torch import nn

from adadps import (
    Accountant,
    Budget,
    BudgetError,
    DiskLedger,
    PrivateRun,
    Relation,
    adadps,
    calibrate_noise,
    fixed_size,
    load_result,
    poisson,
    privatize,
    shuffled,
    side,
)
from adadps.accounting.contract import ALL_EXAMPLES, measurement_divisor
from adadps.accounting.epsilon import calibrate_side_noise, epsilon_of
from adadps.accounting.ledger import MemoryLedger
from adadps.accounting.ledger.summary import summarise
from adadps.errors import SideInformationError
from support.noisy_counts import (
    ADD,
    DELTA,
    DOORS,
    PLD,
    PRIVACY,
    RDP,
    REPLACE,
    SAMPLER,
    SIGMA,
    STEPS,
    ZERO,
    data,
    is_drawn,
    measured,
    trained,
)
from support.problems import squared

SAMPLED = PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0))
FIXED = SampledWithoutReplacementDpEvent(40, 4, GaussianDpEvent(1.0))


@dataclass(frozen=True)
class Terms:
    sampler: object
    accountant: Accountant
    side: float
    step: object
    charges: int = STEPS


TERMS = {
    "poisson, PLD": Terms(SAMPLER, PLD, SIGMA, SAMPLED),
    "poisson, RDP": Terms(SAMPLER, RDP, SIGMA, SAMPLED),
    "poisson, replace one": Terms(
        poisson(examples=40, expected_size=4, relation=REPLACE), PLD, SIGMA, SAMPLED
    ),
    "poisson, zero out": Terms(
        poisson(examples=40, expected_size=4, relation=ZERO), RDP, SIGMA, SAMPLED
    ),
    "fixed": Terms(fixed_size(examples=40, expected_size=4), RDP, SIGMA / 2, FIXED),
    "shuffled": Terms(shuffled(examples=40, expected_size=20), PLD, SIGMA, GaussianDpEvent(2.0), 2),
    "shuffled, replace one, RDP": Terms(
        shuffled(examples=40, expected_size=20, relation=REPLACE),
        RDP,
        SIGMA / 2,
        GaussianDpEvent(1.0),
        2,
    ),
}


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_hazard_20_the_price_is_composed_with_the_steps(terms):
    ledger, source = MemoryLedger(), measured()
    result = trained(
        adadps(source, PRIVACY, lr=0.1),
        sampler=terms.sampler,
        accountant=terms.accountant,
        ledger=ledger,
    )
    parts = [GaussianDpEvent(terms.side), SelfComposedDpEvent(terms.step, terms.charges)]
    expected = epsilon_of(
        ComposedDpEvent(parts),
        delta=result.privacy.delta,
        accountant=terms.accountant,
        relation=terms.sampler.relation,
    )
    assert result.privacy.epsilon == expected
    assert ledger.entries == STEPS + 1
    assert ledger.epsilon(result.privacy.delta) == pytest.approx(expected, rel=1e-9)


def test_one_sum_over_all_examples_has_a_divisor_for_every_relation_and_accountant():
    assert {relation: dict(row) for relation, row in ALL_EXAMPLES.items()} == {
        ADD: {PLD: 1, RDP: 1},
        ZERO: {PLD: 1, RDP: 1},
        REPLACE: {PLD: 1, RDP: 2},
    }


@pytest.mark.parametrize("accountant", Accountant)
def test_replacing_one_costs_what_half_the_noise_costs(accountant):
    """PLD doubles by itself, RDP by the table: either way a replaced document moves 2C."""

    def price(relation, noise_multiplier):
        event = GaussianDpEvent(noise_multiplier / measurement_divisor(relation, accountant))
        return epsilon_of(event, delta=DELTA, accountant=accountant, relation=relation)

    assert price(REPLACE, 6.0) == pytest.approx(price(ADD, 3.0), rel=1e-3)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("accountant", Accountant)
def test_the_noise_for_a_slice_of_epsilon(relation, accountant):
    budget = Budget(0.5, DELTA)
    sigma = calibrate_side_noise(budget=budget, accountant=accountant, relation=relation)

    def price(noise_multiplier):
        event = measured(noise_multiplier=noise_multiplier).event_under(relation, accountant)
        return epsilon_of(event, delta=DELTA, accountant=accountant, relation=relation)

    assert price(sigma) <= 0.5 < price(sigma - 3e-4)


def test_a_slice_and_the_steps_fill_one_budget():
    budget = Budget(1.0, DELTA)
    slice_of_it = Budget(0.3, DELTA)
    sigma = calibrate_side_noise(budget=slice_of_it, accountant=PLD, relation=ADD)
    source = measured(noise_multiplier=sigma)
    noise = calibrate_noise(
        SAMPLER, STEPS, budget=budget, accountant=PLD, besides=[source.event_under(ADD, PLD)]
    )
    privacy = privatize(clip_norm=1.0, noise_multiplier=noise)
    result = trained(adadps(source, privacy, lr=0.1), budget=budget)
    assert 0.999 < result.privacy.epsilon <= 1.0
    assert noise > calibrate_noise(SAMPLER, STEPS, budget=budget, accountant=PLD)


# --- paid before it is drawn ---


@pytest.mark.parametrize("build", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("epsilon", [0.1, 0.9], ids=["not even itself", "itself, but no steps"])
@pytest.mark.parametrize("keep", ["budget", "ledger"])
def test_hazard_20_a_budget_that_is_too_small_is_refused_before_anything_is_drawn(
    build, epsilon, keep
):
    source, budget = measured(), Budget(epsilon, DELTA)
    alone = epsilon_of(source.event, delta=DELTA, accountant=RDP, relation=ADD)
    assert 0.1 < alone < 0.9
    ledger = MemoryLedger(budget)
    options = {"budget": budget} if keep == "budget" else {"ledger": ledger}
    with pytest.raises(BudgetError, match="Nothing was drawn"):
        trained(build(source, PRIVACY, lr=0.1), steps=400, accountant=RDP, **options)
    assert not is_drawn(source)
    assert ledger.entries == 0


@pytest.mark.parametrize("build", DOORS.values(), ids=DOORS)
def test_a_run_by_hand_pays_before_it_draws(build):
    source = measured()

    def run(budget):
        return PrivateRun(
            nn.Linear(4, 1),
            squared,
            data(),
            method=build(source, PRIVACY, lr=0.1),
            sampler=SAMPLER,
            steps=2,
            budget=budget,
        )

    with pytest.raises(BudgetError):
        run(Budget(0.1, DELTA))
    assert not is_drawn(source)
    begun = run(Budget(5.0, DELTA))
    assert begun.ledger.entries == 1
    for batch in begun.batches():
        begun.step(batch)
    assert is_drawn(source)
    assert begun.ledger.entries == 3


def test_a_model_that_does_not_fit_is_found_before_paying():
    ledger, source = MemoryLedger(), measured(np.ones((40, 7)))
    with pytest.raises(SideInformationError, match=r"\(1, 4\)"):
        trained(adadps(source, PRIVACY, lr=0.1), ledger=ledger)
    assert ledger.entries == 0
    assert not is_drawn(source)


# --- what results and cards state ---


def test_hazard_20_the_price_stands_in_the_result_and_survives(tmp_path):
    result = trained(adadps(measured(), PRIVACY, lr=0.1))
    (known,) = result.side_information
    assert known["price"] == "one Gaussian release with noise multiplier 6"
    assert "word counts, measured with noise" in known["source"]
    assert "part of epsilon" in known["public_because"]
    assert known["digest"] is None, "no hash of private data"
    again = load_result(result.save(tmp_path / "run"))
    assert again.side_information == result.side_information
    assert again.privacy == result.privacy
    assert result.privacy.private


def test_what_is_public_has_no_price():
    free = side.fixed({"weight": (torch.ones(4), 1)}, source="a", public_because="b")
    assert "price" not in trained(adadps(free, PRIVACY, lr=0.1)).side_information[0]


def test_a_ledger_on_disk_remembers_the_price(tmp_path):
    path = tmp_path / "budget.ledger"
    with DiskLedger(path, budget=Budget(3.0, DELTA)) as ledger:
        result = trained(adadps(measured(), PRIVACY, lr=0.1), ledger=ledger)
        spent = ledger.epsilon(DELTA)
    assert spent == pytest.approx(result.privacy.epsilon, rel=1e-9)
    with DiskLedger(path) as ledger:
        assert ledger.entries == 1 + STEPS
        assert ledger.epsilon(DELTA) == spent
    (run,) = summarise(path)["runs"]
    assert run["side_information"][0]["price"] == "one Gaussian release with noise multiplier 6"
