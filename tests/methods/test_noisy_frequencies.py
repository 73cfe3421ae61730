"""Frequencies measured on private data: clipped, noised once, paid before they are drawn."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from dp_accounting import (
    NonPrivateDpEvent,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from adadps import (
    Budget,
    BudgetError,
    adadps,
    load_result,
    reproducible_not_private,
    side,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.data.sparse_rows import SparseRows
from adadps.engine.noise.randomness import grid
from adadps.errors import SettingError, SideInformationError
from adadps.methods import adadps_two_sided
from adadps.methods.side.noisy import clipped_sum
from support.noisy_counts import (
    COUNTS,
    DELTA,
    DOORS,
    PRIVACY,
    RDP,
    SIGMA,
    STEPS,
    is_drawn,
    measured,
    trained,
)

# --- the mechanism ---

ROWS = st.lists(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=6
)


@given(rows=ROWS, clip_norm=st.sampled_from([1e-3, 0.5, 1.0, 7.3, 1e3]), place=st.integers(0, 5))
@settings(max_examples=200)
def test_hazard_20_one_document_moves_the_sum_by_at_most_c(rows, clip_norm, place):
    place %= len(rows)
    whole = np.array(rows, dtype=np.float32)
    without = np.delete(whole, place, axis=0)
    for held in (torch.from_numpy, lambda rows: SparseRows.from_scipy(sparse.csr_matrix(rows))):
        alone = clipped_sum(held(whole[[place]]), clip_norm)
        assert float(alone.norm()) <= clip_norm
        moved = clipped_sum(held(whole), clip_norm) - clipped_sum(held(without), clip_norm)
        assert float(moved.norm()) <= clip_norm * (1 + 1e-9)


def test_the_clipped_sum_by_hand():
    norms = np.linalg.norm(COUNTS, axis=1, keepdims=True)
    expected = (COUNTS * np.minimum(1, 1.5 / norms)).sum(0)
    dense = clipped_sum(torch.from_numpy(COUNTS), 1.5)
    lean = clipped_sum(SparseRows.from_scipy(sparse.csr_matrix(COUNTS)), 1.5)
    np.testing.assert_allclose(dense.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(lean.numpy(), expected, rtol=1e-6)


def test_a_document_too_large_for_its_norm_adds_nothing():
    huge = torch.tensor([[1e200, 1e200], [0.5, 0.0]], dtype=torch.float64)
    assert torch.isfinite(clipped_sum(huge, 1.0)).all()


def test_hazard_13_the_noise_drawn_is_the_noise_charged():
    """20,000 coordinates: a false alarm is a deviation of more than 6 standard errors."""
    width, clip_norm = 20_000, 2.5
    source = measured(np.zeros((1, width), np.float32), clip_norm=clip_norm, at="wide")
    source.observe(source.init({"wide": torch.zeros(1, width)}), None)
    drawn = source._released / (source.event.noise_multiplier * clip_norm)
    assert abs(float(drawn.std()) - 1) < 6 / math.sqrt(2 * width)
    assert abs(float(drawn.mean())) < 6 / math.sqrt(width)
    assert float(drawn.abs().max()) > 3


def test_hazard_18_noisy_counts_lie_on_the_public_grid():
    source = measured(COUNTS / 3)
    source.observe(source.init({"weight": torch.zeros(1, 4)}), None)
    assert source._released.dtype is torch.float64
    steps = source._released / grid(SIGMA)
    assert (steps == steps.round()).all()


def test_frequencies_follow_the_noisy_counts():
    """With hardly any noise, A is that of the clipped counts."""
    source = measured(noise_multiplier=1e-6, power=0.5, clip_norm=100.0)
    transform, _ = source.observe(source.init({"weight": torch.zeros(1, 4)}), None)
    totals = COUNTS.sum(0)
    expected = np.maximum(totals / totals.max(), 0.1) ** 0.5
    np.testing.assert_allclose(1 / transform.scale["weight"][0].numpy(), expected, atol=1e-4)


def test_hazard_19_noise_that_drowns_all_counts_leaves_a_usable_scale():
    for _ in range(20):
        source = measured(np.zeros((2, 2), np.float32), noise_multiplier=1e6)
        transform, _ = source.observe(source.init({"weight": torch.zeros(1, 2)}), None)
        scale = transform.scale["weight"]
        assert torch.isfinite(scale).all()
        assert (scale >= 1).all()
        assert (scale <= 10).all()


# --- one object, one release ---


def test_hazard_20_noise_is_drawn_once_whoever_asks():
    source = measured()
    states = [source.init({"weight": torch.zeros(rows, 4)}) for rows in (1, 1, 2)]
    assert not is_drawn(source), "a model can be checked without a draw"
    first, after = source.observe(states[0], None)
    for state in (states[0], states[1], after):
        again, _ = source.observe(state, None)
        assert torch.equal(again.scale["weight"], first.scale["weight"])
    other, _ = source.observe(states[2], None)
    assert torch.equal(other.scale["weight"], first.scale["weight"])
    assert source._counts is None, "the counts are not needed any more"


def test_two_objects_have_noise_of_their_own():
    params = {"weight": torch.zeros(1, 4)}
    one, other = measured(), measured()
    one.observe(one.init(params), None)
    other.observe(other.init(params), None)
    assert not torch.equal(one._released, other._released)


def test_hazard_16_a_known_seed_of_the_run_is_not_the_seed_of_these_frequencies():
    released = []
    for _ in range(2):
        source = measured()
        trained(adadps(source, PRIVACY, lr=0.1), randomness=reproducible_not_private(1))
        released.append(source._released)
    assert not torch.equal(*released)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_hazard_16_a_copy_would_be_noised_again_and_is_refused(copied):
    with pytest.raises(TypeError, match="second noise"):
        copied(measured())


def test_every_run_with_the_same_object_pays():
    source, ledger = measured(), MemoryLedger()
    for _ in range(2):
        trained(adadps(source, PRIVACY, lr=0.1), ledger=ledger, accountant=RDP)
    assert ledger.entries == 2 * (1 + STEPS)


def test_a_source_on_both_sides_is_measured_once_and_paid_once():
    source, ledger = measured(), MemoryLedger()
    result = trained(adadps_two_sided(source, source, PRIVACY, lr=0.1), ledger=ledger)
    assert ledger.entries == 1 + STEPS
    alone = trained(adadps(measured(), PRIVACY, lr=0.1), delta=result.privacy.delta)
    assert result.privacy.epsilon == pytest.approx(alone.privacy.epsilon, abs=1e-9)
    apart, ledger = adadps_two_sided(measured(), measured(), PRIVACY, lr=0.1), MemoryLedger()
    dearer = trained(apart, ledger=ledger)
    assert ledger.entries == 2 + STEPS
    assert dearer.privacy.epsilon > result.privacy.epsilon


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_norm": 0.0},
        {"clip_norm": math.inf},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"noise_multiplier": math.nan},
        {"floor": 0.0},
        {"power": -1.0},
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError):
        measured(**wrong)


def test_counts_that_are_no_matrix_are_refused():
    with pytest.raises(SideInformationError, match="3 axes"):
        measured(np.ones((2, 2, 2)))


# --- without a price ---

UNPAID = {
    "any A": lambda: side.from_private_data(
        {"weight": (torch.ones(4), 1)}, source="token counts of the training set"
    ),
    "frequencies": lambda: side.frequency(
        side.frequencies_of_private_data(COUNTS, source="token counts of the training set"),
        floor=0.1,
    ),
}


@pytest.mark.parametrize("build", UNPAID.values(), ids=UNPAID)
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_hazard_20_statistics_of_private_data_without_a_price_are_visibly_not_private(
    build, door, tmp_path
):
    source, ledger = build(), MemoryLedger()
    assert isinstance(source.event, NonPrivateDpEvent)
    assert source.provenance.digest is None
    result = trained(door(source, PRIVACY, lr=0.1), ledger=ledger)
    assert result.privacy.epsilon == ledger.epsilon(DELTA) == math.inf
    assert "token counts of the training set" in result.privacy.not_private_because[0]
    assert "NOT PRIVATE" in str(result.privacy)
    assert "NOT public" in result.side_information[0]["public_because"]
    assert result.side_information[0]["price"].startswith("infinite")
    assert not load_result(result.save(tmp_path / "run")).privacy.private
    with pytest.raises(BudgetError):
        trained(door(build(), PRIVACY, lr=0.1), budget=Budget(100.0, DELTA))


def test_frequencies_of_private_data_are_those_of_a_corpus():
    unpaid = side.frequencies_of_private_data(COUNTS, source="the training set")
    corpus = side.corpus_frequencies(COUNTS, source="a corpus", public_because="published")
    assert torch.equal(unpaid.values, corpus.values)
    assert unpaid.rows is None, "private rows are not public rows"
