"""Every broken trainer of the museum is caught by an audit, and the library passes the same ones.

Each audit has a confidence of 1 - 1e-6: that is how often it would call an intact trainer broken.
It hardly ever misses a broken one: for trainers that are wrong by a factor of two, 1,500 simulated
audits gave bounds of 1.85 ± 0.16 for a claim of 0.87, the lowest 1.37; others are seen at once.
Every audit of an intact twin could have refuted its claim: else its verdict is not "consistent".
"""

from functools import cache

import pytest
import torch

from adadps import adadps, dp_sgd, examples, poisson, privatize, side
from adadps.accounting.contract import Grouping
from adadps.audit import audit_one_run, own_feature_canaries
from adadps.audit.outcome import CONSISTENT
from adadps.audit.worst_case import zero_linear
from adadps.engine.losses import squared_error
from adadps.errors import ContractError, SettingError
from adadps.methods import ideal
from adadps.methods.stages import Groups, by_position
from adadps.training.fit import PrivateRun
from museum.broken_parts import ClipIgnored, NoNoise
from museum.exhibits import CONFIDENCE, EXHIBITS, INTACT, MANY
from museum.late_exhibits import NEVER, ONE, Past

pytestmark = pytest.mark.usefixtures("checked_once")


def caught(name):
    exhibit = EXHIBITS[name]()
    found = exhibit.audited(exhibit.broken)
    assert found.broken, (name, found.describe())


def test_the_museum_no_noise_is_caught_by_audit():
    caught("no noise")


def test_the_museum_half_the_noise_is_caught_by_audit():
    caught("half the noise")


def test_the_museum_noise_reused_is_caught_by_audit():
    caught("noise reused")


def test_the_museum_clipping_after_summing_is_caught_by_audit():
    caught("clipping after summing")


def test_the_museum_clip_ignored_is_caught_by_audit():
    caught("clip ignored")


def test_the_museum_groups_charged_as_c_are_caught_by_audit():
    caught("groups charged as C")


def test_the_museum_groups_by_position_are_caught_by_audit():
    caught("groups by position")


def test_the_museum_shuffled_but_accounted_as_poisson_is_caught_by_audit():
    caught("shuffled but accounted as Poisson")


def test_the_museum_mean_over_the_drawn_batch_is_caught_by_audit():
    caught("mean over the drawn batch")


def test_the_museum_public_statistics_from_private_data_are_caught_by_audit():
    caught("public statistics from private data")


def test_the_museum_float32_noise_without_a_grid_is_caught_by_audit():
    caught("float32 noise without a grid")


def test_the_museum_resumed_with_the_same_seed_is_caught_by_audit():
    caught("resumed with the same seed")


def test_the_museum_late_noise_never_drawn_is_caught_by_audit():
    caught(NEVER)


def test_the_museum_one_step_of_late_noise_drawn_is_caught_by_audit():
    caught(ONE)


# --- the library under the same audits ---

SHARED = {INTACT: "half the noise", Past: NEVER}
"""Several exhibits have the same intact twin, data and observers: it is audited once for all."""


@cache
def _library_as_it_is(intact):
    exhibit = EXHIBITS[SHARED[intact]]()
    assert intact is Past or exhibit.runs == MANY
    return exhibit.audited(intact)


@pytest.mark.parametrize("name", EXHIBITS)
def test_the_library_passes_the_audit_of(name):
    exhibit = EXHIBITS[name]()
    intact = exhibit.intact
    found = _library_as_it_is(intact) if intact in SHARED else exhibit.audited(intact)
    assert found.largest_bound > found.claim.epsilon, "this audit could not have failed"
    assert found.verdict == CONSISTENT, (name, found.describe())


# --- one run with canaries ---


def with_canaries(stage, count=1000):
    """One step on everything: σ = 3 claims ε = 2.3 at δ = 1e-12; all coins right give 4.0."""
    data, canaries = own_feature_canaries(
        examples(torch.rand(50, 3), torch.rand(50)), count=count, target=100.0
    )
    return audit_one_run(
        zero_linear(3 + count),
        squared_error,
        data,
        canaries=canaries,
        method=dp_sgd(stage, lr=0.1),
        sampler=poisson(examples=50 + count, expected_size=50 + count),
        steps=1,
        delta=1e-12,
        confidence=CONFIDENCE,
    )


@pytest.mark.parametrize("stage", [NoNoise, ClipIgnored])
def test_the_museum_is_caught_by_one_run_with_canaries(stage):
    found = with_canaries(stage(1.0, 3.0, None))
    assert found.broken, found.describe()


def test_the_library_passes_one_run_with_canaries():
    found = with_canaries(privatize(clip_norm=1.0, noise_multiplier=3.0))
    assert found.verdict == CONSISTENT, found.describe()


# --- what the library refuses or states itself ---


def test_the_museum_groups_are_caught_by_the_library():
    with pytest.raises(ContractError, match="by position"):
        by_position(2)
    with pytest.raises(SettingError, match="known price"):
        Groups(2, Grouping.NONE)


def test_the_museum_public_statistics_from_private_data_are_caught_by_provenance():
    """Declared as private data they make ε infinite; undeclared they have no provenance."""
    data = examples(torch.rand(20, 3), torch.rand(20))
    privacy = privatize(clip_norm=1.0, noise_multiplier=1.0)
    declared = ideal(
        data, side.RMSPropStatistics(decay=0.9, epsilon=1e-3), privacy, lr=0.1, batch_size=5
    )
    run = PrivateRun(
        zero_linear(3),
        squared_error,
        data,
        method=declared,
        sampler=poisson(examples=20, expected_size=5),
        steps=1,
    )
    assert run.epsilon(1) == float("inf")
    with pytest.raises(TypeError, match="public_because"):
        adadps(side.fixed({"weight": torch.ones(1, 3)}, source="somewhere"), privacy, lr=0.1)
