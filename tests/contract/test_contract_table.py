"""The privacy contract, spelled out a second time, independently of `adadps.accounting.contract`.

One example can move the clipped sum by

* C, if it joins or leaves, or its gradient becomes zero;
* 2C, if another takes its place, or if it belongs to a clipped group, which can be reversed.

A user who is drawn and clipped as one affects the sum like an example: the rows are the same.

dp-accounting's PLD doubles the sensitivity for replace-one by itself, its RDP does not: that is why
the same combination may be charged with different events.
"""

import itertools
import math
from collections import Counter

import pytest
from dp_accounting import (
    GaussianDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from scipy import stats

from adadps.accounting.contract import Grouping, Sampling
from adadps.accounting.epsilon import epsilon_of
from adadps.accounting.groups import Groups, by_label, by_position, in_advance
from adadps.accounting.plan import make_plan
from adadps.accounting.samplers import FixedSize, Poisson, Shuffled
from adadps.errors import ContractError
from adadps.methods.stages.noise_place import by_each_device, by_server, in_shares
from adadps.methods.stages.users import by_user
from adadps.types import Accountant, Relation, Unit

SIGMA, EXAMPLES, BATCH, GROUP = 1.5, 1200, 60, 4
ADD, ZERO, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT, Relation.REPLACE_ONE
ALONE, LABELLED, IN_ADVANCE = Grouping.NONE, Grouping.LABELLED, Grouping.IN_ADVANCE
USERS = Grouping.USERS
IN_SHARES, EACH = Grouping.USERS_IN_SHARES, Grouping.USERS_ALONE
NOISE = {USERS: by_server(), IN_SHARES: in_shares(minimum=2), EACH: by_each_device()}
PLD, RDP = Accountant.PLD, Accountant.RDP

FULL, HALF = GaussianDpEvent(SIGMA), GaussianDpEvent(SIGMA / 2)
POISSON_FULL, POISSON_HALF = PoissonSampledDpEvent(0.05, FULL), PoissonSampledDpEvent(0.05, HALF)
FIXED_HALF = SampledWithoutReplacementDpEvent(EXAMPLES, BATCH, HALF)

EXPECTED = {
    (Sampling.POISSON, ADD, ALONE, PLD): POISSON_FULL,
    (Sampling.POISSON, ADD, ALONE, RDP): POISSON_FULL,
    (Sampling.POISSON, ZERO, ALONE, PLD): POISSON_FULL,
    (Sampling.POISSON, ZERO, ALONE, RDP): POISSON_FULL,
    (Sampling.POISSON, REPLACE, ALONE, PLD): POISSON_FULL,
    (Sampling.FIXED, REPLACE, ALONE, RDP): FIXED_HALF,
    (Sampling.SHUFFLED, ZERO, ALONE, PLD): FULL,
    (Sampling.SHUFFLED, ZERO, ALONE, RDP): FULL,
    (Sampling.SHUFFLED, REPLACE, ALONE, PLD): FULL,
    (Sampling.SHUFFLED, REPLACE, ALONE, RDP): HALF,
    # a group that is clipped as one moves by 2C with one of its examples
    (Sampling.POISSON, ADD, LABELLED, PLD): POISSON_HALF,
    (Sampling.POISSON, ADD, LABELLED, RDP): POISSON_HALF,
    (Sampling.POISSON, ZERO, LABELLED, PLD): POISSON_HALF,
    (Sampling.POISSON, ZERO, LABELLED, RDP): POISSON_HALF,
    (Sampling.SHUFFLED, ZERO, LABELLED, PLD): HALF,
    (Sampling.SHUFFLED, ZERO, LABELLED, RDP): HALF,
    # replaced in its own place and label, an example moves one group by 2C: no more than alone
    (Sampling.FIXED, REPLACE, LABELLED, RDP): FIXED_HALF,
    (Sampling.SHUFFLED, REPLACE, LABELLED, PLD): FULL,
    (Sampling.SHUFFLED, REPLACE, LABELLED, RDP): HALF,
    # the unit is the group, and the group is replaced
    (Sampling.POISSON, REPLACE, IN_ADVANCE, PLD): POISSON_FULL,
    # the unit is the user, drawn and clipped as an example is
    (Sampling.POISSON, ADD, USERS, PLD): POISSON_FULL,
    (Sampling.POISSON, ADD, USERS, RDP): POISSON_FULL,
    (Sampling.POISSON, ZERO, USERS, PLD): POISSON_FULL,
    (Sampling.POISSON, ZERO, USERS, RDP): POISSON_FULL,
    (Sampling.POISSON, REPLACE, USERS, PLD): POISSON_FULL,
    (Sampling.FIXED, REPLACE, USERS, RDP): FIXED_HALF,
    (Sampling.SHUFFLED, ZERO, USERS, PLD): FULL,
    (Sampling.SHUFFLED, ZERO, USERS, RDP): FULL,
    (Sampling.SHUFFLED, REPLACE, USERS, PLD): FULL,
    (Sampling.SHUFFLED, REPLACE, USERS, RDP): HALF,
    # noise of devices is paid per participation: how much there is depends on who answers
    (Sampling.SHUFFLED, ZERO, IN_SHARES, PLD): FULL,
    (Sampling.SHUFFLED, ZERO, IN_SHARES, RDP): FULL,
    (Sampling.SHUFFLED, REPLACE, IN_SHARES, PLD): FULL,
    (Sampling.SHUFFLED, REPLACE, IN_SHARES, RDP): HALF,
    # a server that sees who answers gets no amplification: paid per participation, once per epoch
    (Sampling.SHUFFLED, ZERO, EACH, PLD): FULL,
    (Sampling.SHUFFLED, ZERO, EACH, RDP): FULL,
    (Sampling.SHUFFLED, REPLACE, EACH, PLD): FULL,
    (Sampling.SHUFFLED, REPLACE, EACH, RDP): HALF,
}
SAMPLERS = {
    Sampling.POISSON: Poisson,
    Sampling.FIXED: FixedSize,
    Sampling.SHUFFLED: Shuffled,
}
ALL = list(itertools.product(Sampling, Relation, Grouping, Accountant))
REFUSED = [row for row in ALL if row not in EXPECTED]


def name(row):
    return "-".join(part.name.lower() for part in row)


def units(sampling, relation, grouping):
    """The sampler that draws: of examples, of groups that were fixed in advance, or of users."""
    unit = Unit.USER if grouping.by_user else Unit.EXAMPLE
    sampler = SAMPLERS[sampling](
        examples=EXAMPLES, expected_size=BATCH, relation=relation, unit=unit
    )
    grouped = groups(grouping)
    return sampler if grouped is None else grouped.units_of(sampler)


def groups(grouping):
    if grouping.by_user:
        return by_user(most=GROUP, noise=NOISE[grouping])
    return None if grouping is ALONE else Groups(GROUP, grouping)


def step_event(sampling, relation, grouping, accountant, index=1):
    sampler = units(sampling, relation, grouping)
    return sampler.step_event(SIGMA, index, accountant, grouping)


# --- the table ---


@pytest.mark.parametrize("row", EXPECTED, ids=name)
def test_hazard_01_every_row_is_charged_as_the_contract_says(row):
    assert step_event(*row) == EXPECTED[row]


@pytest.mark.parametrize("row", REFUSED, ids=name)
def test_hazard_01_everything_else_is_refused(row):
    with pytest.raises(ContractError, match=r"^Expected .+, found .+\. (Use|Choose) .+\.$"):
        step_event(*row)


@pytest.mark.parametrize("row", REFUSED, ids=name)
def test_hazard_01_a_refusal_names_what_fits(row):
    sampling, relation, grouping, _ = row
    with pytest.raises(ContractError) as refusal:
        step_event(*row)
    expected = str(refusal.value).split(", found")[0]
    fits = [known for known in EXPECTED if known[0] is sampling]
    if any(known[:3] == (sampling, relation, grouping) for known in fits):
        names = {k[3].value for k in fits if k[:3] == (sampling, relation, grouping)}
    else:
        names = {known[1].value for known in fits}
    assert all(word in expected for word in names)


@pytest.mark.parametrize("row", EXPECTED, ids=name)
def test_every_row_has_an_epsilon(row):
    """What the table allows, the accountant can compose."""
    event = units(*row[:3]).run_event(8.0, 40, row[3], row[2])
    epsilon = epsilon_of(event, delta=1e-3, accountant=row[3], relation=row[1])
    assert 0 < epsilon < math.inf


@pytest.mark.parametrize("sampling", Sampling)
def test_the_accountants_that_are_offered_are_those_of_the_table(sampling):
    for relation, grouping in itertools.product(Relation, Grouping):
        fits = {row[3] for row in EXPECTED if row[:3] == (sampling, relation, grouping)}
        if fits:
            assert set(units(sampling, relation, grouping).accountants(grouping)) == fits


@pytest.mark.parametrize("row", REFUSED, ids=name)
def test_hazard_01_a_plan_is_refused_as_well(row):
    sampling, relation, grouping, accountant = row
    with pytest.raises(ContractError):
        make_plan(
            **{"users" if grouping is USERS else "examples": EXAMPLES},
            batch_size=BATCH,
            steps=10,
            noise_multiplier=SIGMA,
            accountant=accountant,
            sampling=sampling,
            relation=relation,
            groups=None if grouping is USERS else groups(grouping),
        )


MISMATCHED = [
    (unit, grouping)
    for unit, grouping in itertools.product(Unit, Grouping)
    if (unit is Unit.USER) != grouping.by_user
]


@pytest.mark.parametrize(("unit", "grouping"), MISMATCHED)
@pytest.mark.parametrize("sampling", Sampling)
def test_hazard_01_what_is_drawn_is_what_is_clipped(unit, grouping, sampling):
    """Drawing users and clipping examples has no price, nor has the converse."""
    sampler = SAMPLERS[sampling](
        examples=EXAMPLES, expected_size=BATCH, relation=REPLACE, unit=unit
    )
    for price in (
        lambda: sampler.accountants(grouping),
        lambda: sampler.step_event(SIGMA, 1, RDP, grouping),
        lambda: sampler.run_event(SIGMA, 10, RDP, grouping),
    ):
        with pytest.raises(ContractError, match=r"^Expected .+ users? .+, found .+\. Use .+\.$"):
            price()


# --- is the factor of two where it belongs? ---


def gaussian_delta(epsilon, shift):
    """The exact delta of a Gaussian mechanism whose mean moves by ``shift`` standard deviations."""
    below = stats.norm.cdf(shift / 2 - epsilon / shift)
    return below - math.exp(epsilon) * stats.norm.cdf(-shift / 2 - epsilon / shift)


@pytest.mark.parametrize(
    ("relation", "grouping", "moved"),
    [(ZERO, ALONE, 1), (ZERO, LABELLED, 2), (REPLACE, ALONE, 2), (REPLACE, LABELLED, 2)],
)
@pytest.mark.parametrize("accountant", Accountant)
def test_shuffled_epsilon_is_that_of_a_sum_moved_by_one_or_two_clip_norms(
    relation, grouping, moved, accountant
):
    """Nine epochs at σ = 9 against the exact formula: PLD meets it, RDP is a little above."""
    sampler = Shuffled(examples=100, expected_size=10, relation=relation)
    event = sampler.run_event(9.0, 90, accountant, grouping)
    epsilon = epsilon_of(event, delta=1e-5, accountant=accountant, relation=relation)
    exact = gaussian_delta(epsilon, moved * math.sqrt(9) / 9.0)
    if accountant is PLD:
        assert exact == pytest.approx(1e-5, rel=0.01)
    else:
        assert 1e-7 < exact < 1e-5


def test_poisson_at_rate_one_replaced_costs_twice_the_shift():
    sampler = Poisson(examples=10, expected_size=10, relation=REPLACE)
    event = sampler.run_event(9.0, 9, PLD, ALONE)
    epsilon = epsilon_of(event, delta=1e-5, accountant=PLD, relation=REPLACE)
    assert gaussian_delta(epsilon, 2 * math.sqrt(9) / 9.0) == pytest.approx(1e-5, rel=0.02)


# --- groups ---


def test_hazard_03_groups_by_position_are_refused_with_the_cure():
    with pytest.raises(ContractError, match=r"found groups of 4 by position .* Use `by_label` or"):
        by_position(4)


def test_hazard_03_groups_by_label_cost_more_than_single_examples():
    common = {"examples": EXAMPLES, "batch_size": BATCH, "steps": 100, "noise_multiplier": 2.0}
    alone = make_plan(**common, accountant=RDP)
    grouped = make_plan(**common, accountant=RDP, groups=by_label(GROUP))
    halved = make_plan(**{**common, "noise_multiplier": 1.0}, accountant=RDP)
    assert grouped.epsilon == halved.epsilon > 2 * alone.epsilon


def test_hazard_03_groups_in_advance_are_drawn_whole_at_the_same_rate():
    drawn = units(Sampling.POISSON, REPLACE, IN_ADVANCE)
    assert (drawn.examples, drawn.expected_size) == (EXAMPLES // GROUP, BATCH / GROUP)
    assert drawn.rate == 0.05


def test_hazard_03_groups_in_advance_need_a_number_that_divides():
    sampler = Poisson(examples=1001, expected_size=60, relation=REPLACE)
    with pytest.raises(ContractError, match=r"multiple of the group size 4, found 1001\. Drop"):
        in_advance(4).units_of(sampler)


# --- steps and runs ---

COUNTS = [1, 2, 19, 20, 21, 39, 40, 41, 100]  # an epoch of `shuffled` has 20 steps


@pytest.mark.parametrize("row", EXPECTED, ids=name)
@pytest.mark.parametrize("steps", COUNTS)
def test_the_steps_add_up_to_the_run(row, steps):
    sampler = units(*row[:3])
    charges = Counter(
        sampler.step_event(SIGMA, index, row[3], row[2]) for index in range(1, steps + 1)
    )
    free = charges.pop(NoOpDpEvent(), 0)
    run = sampler.run_event(SIGMA, steps, row[3], row[2])
    assert charges == {run.event: run.count}
    assert run.count == sampler.charged_steps(steps) == steps - free


@pytest.mark.parametrize("sampling", [Sampling.POISSON, Sampling.FIXED])
def test_every_step_with_fresh_draws_is_charged(sampling):
    assert units(sampling, REPLACE, ALONE).charged_steps(37) == 37


@pytest.mark.parametrize(
    ("examples", "batch", "steps", "charged"),
    [(1200, 60, 1, 1), (1200, 60, 20, 1), (1200, 60, 21, 2), (103, 20, 6, 1), (103, 20, 7, 2)],
)
def test_hazard_09_a_started_epoch_is_charged_whole(examples, batch, steps, charged):
    sampler = Shuffled(examples=examples, expected_size=batch, relation=ZERO)
    assert sampler.charged_steps(steps) == charged


def test_the_first_step_of_an_epoch_carries_its_charge():
    """A step is paid for before anything is drawn."""
    sampler = units(Sampling.SHUFFLED, ZERO, ALONE)
    charged = [
        index
        for index in range(1, 61)
        if sampler.step_event(SIGMA, index, PLD, ALONE) != NoOpDpEvent()
    ]
    assert charged == [1, 21, 41]


@pytest.mark.parametrize("row", EXPECTED, ids=name)
def test_no_step_costs_nothing(row):
    assert units(*row[:3]).run_event(SIGMA, 0, row[3], row[2]) == NoOpDpEvent()


@pytest.mark.parametrize(
    ("examples", "batch", "epochs", "steps"),
    [(25_000, 64, 32, 12_500), (25_000, 64, 100, 39_062), (1000, 8, 18, 2250), (10, 10, 0.1, 1)],
)
def test_epochs_become_whole_steps_of_the_declared_numbers(examples, batch, epochs, steps):
    sampler = Poisson(examples=examples, expected_size=batch, relation=ADD)
    assert sampler.steps(epochs) == steps
