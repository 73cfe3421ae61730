"""Typical norms and chains by name: estimators, tables and the experiment have the same ones."""

import numpy as np
import pytest
from scipy import sparse

from adadps import side
from adadps.accounting.epsilon import Budget
from adadps.data.debian import SECTIONS
from adadps.errors import SideInformationError
from adadps.estimators.planner.methods import (
    FLOOR,
    POWER_BEFORE,
    POWER_ON_BOTH_SIDES,
    Norms,
    PreparedMethod,
    median_norm,
    norms_for,
    prepare_method,
    shaped,
    takes_side_information,
    typical_norm,
    typical_texts,
)
from adadps.estimators.planner.plan import plan_training
from adadps.estimators.tables.features import RowFeatures, Targets, prepare_for_rows
from adadps.estimators.tables.schema import Label, Schema
from adadps.methods.stages import privatize
from adadps.types import Accountant, Method
from adadps_experiments.reproduce.defaults import (
    jobs as defaults_jobs,
)
from adadps_experiments.reproduce.defaults import (
    problems as defaults_problems,
)

TOLD = {"source": "a list", "public_because": "published"}
RATES = 0.05 / np.arange(1, 301)
KNOWN = side.given_frequencies(RATES, **TOLD)
WORDS = tuple(f"word{number}" for number in range(300))
PRIVACY = privatize(clip_norm=1.0, noise_multiplier=2.0)
INFORMED = [Method.ADADPS, Method.ADADPS_TWO_SIDED, Method.DP_SGD_WEIGHTED]


def planned(method):
    label = Label("y", ("a", "b"))
    return plan_training(
        prepare_for_rows(method, RowFeatures(Schema(("text",), (), (), label), WORDS), KNOWN),
        examples=10_000,
        budget=Budget(3.0, 1e-5),
        loss=Targets(label).loss_facts,
        accountant=Accountant.RDP,
    )


def by_name(method, known=KNOWN, width=300):
    return prepare_method(method, known, width=width)


def test_the_experiment_has_the_norm_that_its_results_were_recorded_with():
    words = defaults_problems._words(SECTIONS, defaults_problems.VOCABULARY)
    assert defaults_jobs._norm_of(words) == pytest.approx(7.102294341074807, rel=1e-12)
    assert (defaults_jobs.FLOOR, defaults_jobs.POWER) == (0.01, 0.5)


def test_the_norm_is_that_of_texts_that_are_drawn_by_frequency():
    """400 texts of 100 words, log counts, L2, and the median of ‖x / A‖."""
    drawn = np.random.default_rng(0).multinomial(100, RATES / RATES.sum(), size=400)
    rows = np.log1p(drawn)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    a = np.maximum(RATES / RATES.max(), FLOOR) ** POWER_ON_BOTH_SIDES
    expected = np.median(np.linalg.norm(rows / a, axis=1))
    source = shaped(KNOWN, Method.ADADPS_TWO_SIDED)
    assert typical_norm(source, 300, KNOWN) == pytest.approx(expected, rel=1e-3)
    np.testing.assert_allclose(typical_texts(300, KNOWN).toarray(), rows)


@pytest.mark.parametrize("method", INFORMED)
def test_tables_and_estimators_have_the_same_norms_and_chains(method):
    plan, prepared = planned(method), by_name(method)
    first = 0.25 * Targets(Label("y", ("a", "b"))).loss_facts.gradient_norm
    assert plan.settings.clip_norm / first == pytest.approx(prepared.norms.clipped, rel=1e-5)
    noise = plan.settings.noise_multiplier * plan.settings.clip_norm * plan.settings.steps**0.5
    noised = 0.6 * plan.settings.sampler.expected_size / (noise * plan.settings.lr)
    assert noised == pytest.approx(prepared.norms.noised, rel=1e-5)
    (mine, *_), (theirs, *_) = plan.chain.informed, prepared.chain(PRIVACY, 0.1).informed
    assert mine.provenance == theirs.provenance
    np.testing.assert_allclose(mine.side.named["weight"][0], theirs.side.named["weight"][0])


def test_the_experiment_and_the_product_share_the_norm_on_both_sides():
    words = defaults_problems._words(("python", "c"), 300)
    known = side.word_frequencies(words)
    norms = by_name(Method.ADADPS_TWO_SIDED, known).norms
    assert norms.noised == norms.clipped == defaults_jobs._norm_of(words)
    assert by_name(Method.ADADPS, known).norms.clipped > norms.clipped, "a steeper A"
    assert POWER_BEFORE > defaults_jobs.POWER


def test_a_source_without_frequencies_has_all_features_alike():
    values = np.linspace(0.1, 1.0, 50)
    source = side.fixed({"weight": (values, 1)}, **TOLD)
    assert typical_norm(source, 50) == pytest.approx(np.sqrt(np.mean(values**-2)), rel=0.1)
    assert by_name(Method.ADADPS, source, 50).norms.clipped == typical_norm(source, 50)


def test_a_source_for_something_else_than_the_features_leaves_the_norm_alone():
    values = np.linspace(0.1, 1.0, 50)
    assert typical_norm(side.fixed({"other": (values, 1)}, **TOLD), 50) == 1.0
    assert typical_norm(side.fixed({"weight": (values, 0)}, **TOLD), 60) == 1.0
    assert typical_norm(side.fixed({"weight": np.ones((2, 50))}, **TOLD), 50) == 1.0


def test_words_of_frequency_zero_count_as_the_rarest_that_is_known():
    known, clamped = (
        side.given_frequencies(values, **TOLD) for values in ([0.5, 0.1, 0.0], [0.5, 0.1, 0.1])
    )
    assert (typical_texts(3, known) != typical_texts(3, clamped)).nnz == 0


def test_medians_are_of_rows():
    rows = sparse.csr_matrix(np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]]))
    assert median_norm(rows) == pytest.approx(2.0)
    assert median_norm(rows, np.array([1.0, 0.5])) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("method", "stages"),
    [
        (Method.DP_SGD, ["privatize", "sgd"]),
        (Method.DP_ADAM, ["privatize", "adam"]),
        (Method.DP_SGD_WEIGHTED, ["reparametrise", "privatize", "sgd"]),
        (Method.ADADPS, ["precondition", "privatize", "sgd"]),
        (Method.ADADPS_TWO_SIDED, ["precondition", "privatize", "precondition", "sgd"]),
    ],
)
def test_every_name_has_its_chain(method, stages):
    source = shaped(KNOWN, method) if takes_side_information(method) else None
    told = str(PreparedMethod(method, source).chain(PRIVACY, 0.1))
    assert [stage.partition("(")[0] for stage in told.split(" > ")] == stages


@pytest.mark.parametrize("method", [*INFORMED, Method.AUTO])
def test_no_chain_without_its_side_information(method):
    with pytest.raises(SideInformationError, match=f"for {method.value}, found none"):
        PreparedMethod(method).chain(PRIVACY, 0.1)


def test_each_door_of_the_experiment_is_a_method_of_the_product():
    assert set(defaults_jobs.METHODS.values()) == {Method.DP_SGD, *INFORMED}
    assert norms_for(Method.DP_SGD_WEIGHTED, plain=0.5, scaled=7.0) == Norms(1.0, 1.0)
    assert norms_for(Method.DP_ADAM, plain=0.5, scaled=7.0) == Norms(0.5, 0.5)
