"""Epsilon behaves like a price at any setting: hazards 24 and 25."""

import math

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    rdp,
)
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from adadps.accounting.contract import Grouping
from adadps.accounting.epsilon import (
    Budget,
    calibrate_noise,
    calibrate_steps,
    epsilon_of,
    epsilon_of_run,
)
from adadps.accounting.events import exposes
from adadps.accounting.renyi import SMALLEST_EPSILON, renyi_curve
from adadps.accounting.samplers import fixed_size, poisson, shuffled
from adadps.data.examples import examples
from adadps.errors import AdadpsError, SettingError
from adadps.methods.paper import adadps, adas, dp_sgd, ideal, plain_adam, plain_rmsprop, plain_sgd
from adadps.methods.side import RMSPropStatistics, fixed, uniform
from adadps.methods.stages import privatize
from adadps.types import Accountant, Relation

PLD, RDP = Accountant.PLD, Accountant.RDP
ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
EXAMPLES = 10**9  # declared; only the rate matters
FEW = 10**4  # where delta matters as well


def powers(low, high):
    """10^x for x between ``low`` and ``high``, rounded to three digits."""
    return st.floats(low, high).map(lambda x: float(f"{10**x:.3g}"))


def epsilon(rate, sigma, steps, delta, accountant=RDP, relation=ADD):
    sampler = poisson(examples=EXAMPLES, expected_size=rate * EXAMPLES, relation=relation)
    event = sampler.run_event(sigma, steps, accountant, Grouping.NONE)
    return epsilon_of(event, delta=delta, accountant=accountant, relation=relation)


# --- hazard 25: RDP at every setting ---

SAMPLERS = {
    "poisson": poisson(examples=EXAMPLES, expected_size=64),
    "poisson, half": poisson(examples=10, expected_size=5),
    "poisson, all": poisson(examples=10, expected_size=10),
    "shuffled": shuffled(examples=1000, expected_size=64),
}


def require_number_or_error(sampler, sigma, steps, delta):
    try:
        event = sampler.run_event(sigma, steps, RDP, Grouping.NONE)
        spent = epsilon_of(event, delta=delta, accountant=RDP, relation=sampler.relation)
    except AdadpsError:
        return
    assert 0 <= spent < math.inf


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@given(
    sigma=powers(-307, 307),
    steps=st.integers(1, 10**12),
    delta=st.one_of(powers(-300, -1), st.floats(0.1, 1, exclude_max=True)),
)
@example(sigma=1e-300, steps=1, delta=1e-5)
@example(sigma=1e300, steps=1, delta=1e-5)
@example(sigma=1e-3, steps=10**12, delta=1e-300)
@settings(max_examples=15)
def test_hazard_25_epsilon_is_a_number_or_a_clear_error(sampler, sigma, steps, delta):
    require_number_or_error(sampler, sigma, steps, delta)


@pytest.mark.parametrize("sigma", [1e-300, 1e-8, 1e-3, 1e9, 1e300])
@pytest.mark.parametrize("steps", [1, 10**12])
def test_hazard_25_epsilon_of_fixed_batches_is_a_number_or_a_clear_error(sigma, steps):
    require_number_or_error(fixed_size(examples=1000, expected_size=64), sigma, steps, 1e-5)


WIDE = {
    "rate": powers(-9, 0),
    "sigma": powers(math.log10(0.05), 4),
    "steps": st.integers(1, 10**6),
    "delta": powers(-15, math.log10(0.5)),
}


@given(**WIDE)
@settings(max_examples=40)
def test_hazard_25_more_steps_or_a_smaller_delta_never_cost_less(rate, sigma, steps, delta):
    spent = epsilon(rate, sigma, steps, delta)
    assert SMALLEST_EPSILON <= spent < math.inf
    assert epsilon(rate, sigma, 2 * steps, delta) >= spent
    assert epsilon(rate, sigma, steps, delta / 2) >= spent


@given(**WIDE, factor=st.floats(1.01, 2))
@example(rate=1e-8, sigma=422.0, steps=1000, delta=1e-5, factor=1.5)
@example(rate=1.5e-8, sigma=1000.0, steps=1000, delta=1e-15, factor=4 / 3)  # was 0.026, then 0
@settings(max_examples=60)
def test_hazard_25_larger_batches_or_less_noise_never_cost_less(rate, sigma, steps, delta, factor):
    """At every setting, up to budgets at which Rényi orders below 3 decide.

    There dp-accounting leaves out orders whose series does not converge, and is only an upper bound
    that jumps.
    """
    spent = epsilon(rate, sigma, steps, delta)
    larger_batches = epsilon(min(1.0, rate * factor), sigma, steps, delta)
    less_noise = epsilon(rate, sigma / factor, steps, delta)
    useful = -math.log(delta) / 2
    assume(spent < useful)
    assert larger_batches >= spent * (1 - 1e-6) or larger_batches > useful
    assert less_noise >= spent * (1 - 1e-6) or less_noise > useful


def true_delta(rate, sigma, spent):
    """The smallest delta of one step at an epsilon, by its closed form (removing one example)."""
    places = sigma**2 * math.log1p(math.expm1(spent) / rate) + 0.5
    with_it, without = norm.sf((places - 1) / sigma), norm.sf(places / sigma)
    return rate * (with_it - without) - math.expm1(spent) * without


@given(rate=WIDE["rate"], sigma=WIDE["sigma"], delta=WIDE["delta"])
@example(rate=1e-9, sigma=422.0, delta=1e-15)  # was 0.0, where delta is truly 9e-13
@example(rate=1e-8, sigma=1e4, delta=1e-15)
@settings(max_examples=100)
def test_hazard_25_epsilon_of_one_step_is_enough_however_small(rate, sigma, delta):
    """Return epsilon before it is raised to the smallest reported one."""
    assume(rate < 1)
    curve = renyi_curve(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), ADD)
    spent, _ = rdp.compute_epsilon(curve.orders, curve.values, delta)
    assert true_delta(rate, sigma, spent) <= delta


@pytest.mark.parametrize("accountant", Accountant)
@pytest.mark.parametrize(("rate", "sigma"), [(1e-9, 422.0), (1e-6, 1.0), (0.01, 10.0)])
@pytest.mark.parametrize("delta", [1e-10, 0.5])
def test_hazard_25_what_reveals_anything_has_a_price(accountant, rate, sigma, delta):
    """A large delta covers everything, so that 0.0 would be true but misleading."""
    assert epsilon(rate, sigma, 1, delta, accountant) >= SMALLEST_EPSILON


# --- PLD: few examples, each takes a good part of a second ---

MODERATE = {
    "rate": powers(-3, -0.5),
    "sigma": powers(0, 0.6),
    "steps": st.integers(1, 1000),
    "delta": powers(-8, -2),
}


@given(**MODERATE)
@settings(max_examples=3)
def test_hazard_25_pld_is_monotone_in_every_argument(rate, sigma, steps, delta):
    spent = epsilon(rate, sigma, steps, delta, PLD)
    assert 0 <= spent < math.inf
    assert epsilon(min(1, 1.5 * rate), sigma, steps, delta, PLD) >= spent
    assert epsilon(rate, sigma / 1.5, steps, delta, PLD) >= spent
    assert epsilon(rate, sigma, 2 * steps, delta, PLD) >= spent
    assert epsilon(rate, sigma, steps, delta / 10, PLD) >= spent


@given(**MODERATE)
@settings(max_examples=4)
def test_pld_is_tighter_than_rdp(rate, sigma, steps, delta):
    tight = epsilon(rate, sigma, steps, delta, PLD)
    assert tight <= epsilon(rate, sigma, steps, delta, RDP) + 0.01


@given(**MODERATE)
@settings(max_examples=3)
def test_replacing_one_costs_at_least_as_much_as_adding_one(rate, sigma, steps, delta):
    added = epsilon(rate, sigma, steps, delta, PLD, ADD)
    assert epsilon(rate, sigma, steps, delta, PLD, REPLACE) >= added - 1e-6


@pytest.mark.parametrize("sigma", [1e-300, 1e-8, 1e-3])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_hazard_25_pld_refuses_what_it_cannot_compute(sigma, relation):
    with pytest.raises(SettingError, match=r"Expected .*, found .*\. .+"):
        epsilon(0.1, sigma, 100, 1e-5, PLD, relation)


@pytest.mark.parametrize("delta", [1e-30, 1e-100])
def test_hazard_25_pld_gives_a_number_or_a_clear_error_at_a_tiny_delta(delta):
    """An infinite epsilon would state that the mechanism is not private, which is wrong."""
    try:
        spent = epsilon(0.01, 1.0, 10, delta, PLD)
    except AdadpsError:
        return
    assert 0 <= spent < math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.5, math.nan, math.inf])
@pytest.mark.parametrize("accountant", Accountant)
def test_hazard_25_delta_outside_its_range_is_refused(delta, accountant):
    with pytest.raises(SettingError, match="0 < delta < 1"):
        epsilon(0.1, 1.0, 1, delta, accountant)


@pytest.mark.parametrize("accountant", Accountant)
def test_nothing_costs_nothing(accountant):
    assert epsilon(0.1, 1.0, 0, 1e-5, accountant) == 0


# --- calibration ---


@given(
    rate=powers(-3, -1),
    steps=st.integers(1, 10**4),
    target=st.floats(0.1, 4),
    delta=powers(-8, -4),
)
@settings(max_examples=5)
def test_calibrated_noise_is_sufficient_and_hardly_more(rate, steps, target, delta):
    sampler = poisson(examples=FEW, expected_size=rate * FEW)
    sigma = calibrate_noise(sampler, steps, budget=Budget(target, delta), accountant=RDP)
    assert epsilon(rate, sigma, steps, delta) <= target
    assert epsilon(rate, sigma - 3e-4, steps, delta) > target


@given(rate=powers(-3, -1), sigma=powers(-0.2, 1), target=st.floats(0.5, 4), delta=powers(-8, -4))
@settings(max_examples=5)
def test_calibrated_steps_are_the_most_that_fit(rate, sigma, target, delta):
    sampler = poisson(examples=FEW, expected_size=rate * FEW)
    steps = calibrate_steps(sampler, sigma, budget=Budget(target, delta), accountant=RDP)
    assert steps == 0 or epsilon(rate, sigma, steps, delta) <= target
    assert epsilon(rate, sigma, steps + 1, delta) > target


def test_noise_for_an_unreachable_epsilon_is_refused():
    sampler = poisson(examples=10, expected_size=10)
    with pytest.raises(SettingError, match="reachable epsilon"):
        calibrate_noise(sampler, 10**9, budget=Budget(1e-6, 1e-12), accountant=RDP)


# --- hazard 24: no epsilon for what is not private ---

PRIVACY = privatize(clip_norm=1.0, noise_multiplier=2.0)
STATISTICS = RMSPropStatistics(decay=0.9, epsilon=1e-6)
LEAK = fixed(
    {"weight": np.ones((1, 2))},
    source="token counts of the training set",
    public_because="it is not",
    event=SelfComposedDpEvent(ComposedDpEvent([NonPrivateDpEvent()]), 2),
)


def private_data():
    rng = np.random.default_rng(0)
    return examples(rng.normal(size=(8, 2)), rng.normal(size=(8, 1)))


NOT_PRIVATE = {
    "sgd": lambda: plain_sgd(0.1),
    "adam": lambda: plain_adam(0.1),
    "rmsprop": lambda: plain_rmsprop(0.1),
    "adas": lambda: adas(uniform(), 0.1),
    "no noise": lambda: dp_sgd(privatize(clip_norm=1.0, noise_multiplier=0.0), lr=0.1),
    "no clip": lambda: dp_sgd(privatize(clip_norm=math.inf, noise_multiplier=0.0), lr=0.1),
    "oracle": lambda: ideal(private_data(), STATISTICS, PRIVACY, lr=0.1, batch_size=4),
    "leaking side information": lambda: adadps(LEAK, PRIVACY, lr=0.1),
}


@pytest.mark.parametrize("make", NOT_PRIVATE.values(), ids=NOT_PRIVATE)
@pytest.mark.parametrize("accountant", Accountant)
def test_hazard_24_epsilon_of_a_chain_that_is_not_private_is_infinite(make, accountant):
    sampler = poisson(examples=1000, expected_size=10)
    spent = epsilon_of_run(make(), sampler, 5, delta=1e-5, accountant=accountant)
    assert spent == math.inf


@pytest.mark.parametrize("make", NOT_PRIVATE.values(), ids=NOT_PRIVATE)
def test_hazard_24_a_chain_that_is_not_private_says_why(make):
    assert make().exposures


def test_a_private_chain_has_an_epsilon_and_no_exposures():
    method = adadps(uniform(), PRIVACY, lr=0.1)
    sampler = poisson(examples=1000, expected_size=10)
    assert method.exposures == ()
    assert 0 < epsilon_of_run(method, sampler, 5, delta=1e-5, accountant=RDP) < math.inf


PRIVATE_EVENTS = st.sampled_from(
    [GaussianDpEvent(5.0), PoissonSampledDpEvent(0.1, GaussianDpEvent(5.0)), NoOpDpEvent()]
)


def nested(parts):
    return st.one_of(
        st.lists(parts, max_size=3).map(ComposedDpEvent),
        st.builds(SelfComposedDpEvent, parts, st.integers(1, 5)),
    )


@given(
    private=st.recursive(PRIVATE_EVENTS, nested, max_leaves=4),
    around=st.lists(st.sampled_from(["compose", "repeat", "sample"]), max_size=3),
)
@settings(max_examples=40)
def test_hazard_24_one_exposure_anywhere_makes_epsilon_infinite(private, around):
    leaking = NonPrivateDpEvent()
    for wrap in around:
        leaking = {
            "compose": lambda event: ComposedDpEvent([private, event]),
            "repeat": lambda event: SelfComposedDpEvent(event, 2),
            "sample": lambda event: PoissonSampledDpEvent(0.5, event),
        }[wrap](leaking)
    assert exposes(leaking)
    assert not exposes(private)
    assert epsilon_of(leaking, delta=1e-5, accountant=RDP, relation=ADD) == math.inf
    assert epsilon_of(private, delta=1e-5, accountant=RDP, relation=ADD) < math.inf
