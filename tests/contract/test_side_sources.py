"""One contract for every source of side information, then the formula of each source."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from dp_accounting import ComposedDpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from adadps import examples
from adadps.accounting.events import exposes, is_free
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import SettingError, SideInformationError
from adadps.methods.side import (
    AdaGradStatistics,
    SideSource,
    corpus_frequencies,
    delayed_releases,
    fixed,
    frequencies_of_private_data,
    frequency,
    from_private_data,
    given_frequencies,
    noisy_frequencies,
    oracle,
    public,
    release_moments,
    tfidf,
    uniform,
    whiten,
    word_frequencies,
)
from adadps.types import Accountant, Relation
from support.surveys import (
    ADAGRAD,
    ADAM,
    COUNTS,
    FULL,
    RMSPROP,
    TOLD,
    VECTOR,
    assert_same,
    parameters,
    step,
    survey,
)

NAMED: dict[str, Callable[[], SideSource]] = {
    "fixed vector": lambda: fixed({"head.weight": (VECTOR, 1)}, **TOLD),
    "fixed tensor": lambda: fixed({"head.weight": FULL}, **TOLD),
    "fixed module": lambda: fixed({"head": (VECTOR, -1)}, **TOLD),
    "word frequency": lambda: frequency(
        word_frequencies(["the", "zebra", "qzxqzx"]), floor=1e-3, at="head"
    ),
    "corpus frequency": lambda: frequency(
        corpus_frequencies(COUNTS, **TOLD), floor=0.1, at="head.weight"
    ),
    "given frequency": lambda: frequency(
        given_frequencies([5.0, 1.0, 0.0], **TOLD), floor=0.1, power=0.5, at="head"
    ),
    "tfidf": lambda: tfidf(COUNTS, inverse=False, floor=0.1, at="head", **TOLD),
    "inverse tfidf": lambda: tfidf(COUNTS, inverse=True, floor=0.1, at="head", **TOLD),
}
PUBLIC: dict[str, Callable[[], SideSource]] = {
    **NAMED,
    "uniform": uniform,
    "public rmsprop": lambda: public(survey(), RMSPROP),
    "public adam": lambda: public(survey(), ADAM),
    "public adagrad": lambda: public(survey(), ADAGRAD),
    "whitening": lambda: whiten(survey(), outputs=True, median_norm=2.0),
    "delayed releases": lambda: delayed_releases(delay=2),
    "moments of releases": release_moments,
}
MEASURED: dict[str, Callable[[], SideSource]] = {
    "noisy frequency": lambda: noisy_frequencies(
        COUNTS, clip_norm=1.0, noise_multiplier=2.0, floor=0.1, at="head", source="word counts"
    ),
}
UNPAID: dict[str, Callable[[], SideSource]] = {
    "private frequency": lambda: frequency(
        frequencies_of_private_data(COUNTS, source="word counts"), floor=0.1, at="head"
    ),
    "from private data": lambda: from_private_data(
        {"head.weight": (VECTOR, 1)}, source="word counts"
    ),
}
EVERY: dict[str, Callable[[], SideSource]] = {
    **PUBLIC,
    **MEASURED,
    **UNPAID,
    "oracle": lambda: oracle(survey().examples, RMSPROP, batch_size=2),
}

every_source = pytest.mark.parametrize("build", EVERY.values(), ids=EVERY.keys())
every_public_source = pytest.mark.parametrize("build", PUBLIC.values(), ids=PUBLIC.keys())
FITTED = {**NAMED, **UNPAID}
CHECKED = {**FITTED, **MEASURED}
every_named_source = pytest.mark.parametrize("build", FITTED.values(), ids=FITTED.keys())
every_checked_source = pytest.mark.parametrize("build", CHECKED.values(), ids=CHECKED.keys())


# --- the contract -------------------------------------------------------------------------------


@every_source
def test_provenance_has_a_source_and_a_reason(build):
    provenance = build().provenance
    assert provenance.source.strip()
    assert provenance.public_because.strip()


@every_public_source
def test_public_side_information_costs_nothing(build):
    assert isinstance(build().event, NoOpDpEvent)


@pytest.mark.parametrize("build", MEASURED.values(), ids=MEASURED.keys())
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("accountant", Accountant)
def test_hazard_20_measured_side_information_has_a_finite_price(build, relation, accountant):
    source = build()
    assert not exposes(source.event)
    assert not is_free(source.event)
    ledger = MemoryLedger()
    ledger.open("run", relation, accountant)
    ledger.authorise(source.event_under(relation, accountant))
    assert 0 < ledger.epsilon(1e-5) < math.inf
    assert source.provenance.digest is None


@pytest.mark.parametrize("build", UNPAID.values(), ids=UNPAID.keys())
def test_hazard_20_unpaid_side_information_says_that_it_is_not_public(build):
    source = build()
    assert exposes(source.event)
    assert "NOT public" in source.provenance.public_because
    assert source.provenance.digest is None


@every_source
def test_scale_is_positive_finite_and_fits_every_parameter(build):
    source, params = build(), parameters()
    transform, _ = source.observe(source.init(params), step())
    assert set(transform.scale) == set(params)
    for name, scale in transform.scale.items():
        assert torch.broadcast_shapes(scale.shape, params[name].shape) == params[name].shape
        assert torch.isfinite(scale).all()
        assert (scale > 0).all()


@every_source
def test_mean_has_the_shape_of_the_parameters(build):
    source, params = build(), parameters()
    transform, _ = source.observe(source.init(params), step())
    if transform.mean is None:
        assert transform.beta == 1
    else:
        assert {n: m.shape for n, m in transform.mean.items()} == {
            n: p.shape for n, p in params.items()
        }


@every_source
def test_observing_leaves_the_state_alone(build):
    source = build()
    state = source.init(parameters())
    found, following = source.observe(state, step(1))
    first = copy.deepcopy(found)
    for index in (2, 3):
        _, following = source.observe(following, step(index))
    again, _ = source.observe(state, step(1))
    assert_same(again, first)


@every_source
def test_observing_leaves_the_parameters_alone(build):
    source, params = build(), parameters()
    source.observe(source.init(params), step())
    assert all((value == 0).all() for value in params.values())


@every_checked_source
def test_a_model_that_does_not_fit_is_refused_with_its_parameters(build):
    with pytest.raises(SideInformationError, match=r"found 'head.*body\.weight, body\.bias"):
        build().init({"body.weight": torch.zeros(2, 3), "body.bias": torch.zeros(2)})


@every_checked_source
def test_a_parameter_of_another_shape_is_refused(build):
    with pytest.raises(SideInformationError, match=r"\(2, 7\)"):
        build().init({"head.weight": torch.zeros(2, 7), "head.bias": torch.zeros(2)})


@every_named_source
def test_a_parameter_without_side_information_gets_the_median(build):
    scale = build().init(parameters()).scale
    assert float(scale["head.bias"]) == pytest.approx(np.median(scale["head.weight"].numpy()))


# --- fixed --------------------------------------------------------------------------------------


def test_fixed_gives_one_over_a():
    scale = fixed({"head.weight": FULL}, **TOLD).init(parameters()).scale
    torch.testing.assert_close(scale["head.weight"], 1 / FULL.float())


@pytest.mark.parametrize("name", ["head.weight", "head"])
def test_a_vector_runs_along_its_axis(name):
    side = fixed({name: (torch.tensor([2.0, 4.0]), 0)}, **TOLD)
    scale = side.init(parameters())
    assert scale.scale["head.weight"].tolist() == [[0.5], [0.25]]


def test_fixed_keeps_the_event_it_was_given():
    event = GaussianDpEvent(3.0)
    assert fixed({"head": (VECTOR, 1)}, event=event, **TOLD).event is event


def test_side_information_from_several_mechanisms_can_be_paid_for():
    event = ComposedDpEvent([GaussianDpEvent(8.0), GaussianDpEvent(8.0)])
    ledger = MemoryLedger()
    ledger.open("run", Relation.ADD_OR_REMOVE_ONE, Accountant.RDP)
    ledger.authorise(fixed({"head": (VECTOR, 1)}, event=event, **TOLD).event)
    assert 0 < ledger.epsilon(1e-5) < 2


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_hazard_19_a_statistic_that_would_overflow_is_refused(bad):
    side = fixed({"head": (torch.tensor([1.0, bad, 1.0], dtype=torch.float64), 1)}, **TOLD)
    with pytest.raises(SideInformationError, match="floor above zero"):
        side.init(parameters())


def test_fixed_without_any_entry_is_refused():
    with pytest.raises(SideInformationError, match=r"head\.weight, head\.bias"):
        fixed({}, **TOLD).init(parameters())


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_the_parameter_does_not_have_is_refused(axis):
    with pytest.raises(SideInformationError, match=f"axis {axis}"):
        fixed({"head": (VECTOR, axis)}, **TOLD).init(parameters())


@pytest.mark.parametrize("blank", ["source", "public_because"])
def test_hazard_20_side_information_without_provenance_is_refused(blank):
    with pytest.raises(SideInformationError, match=blank):
        fixed({"head": (VECTOR, 1)}, **{**TOLD, blank: " "})


def test_uniform_is_one_everywhere():
    scale = uniform().init(parameters()).scale
    assert all((value == 1).all() for value in scale.values())


# --- frequency and TF-IDF -----------------------------------------------------------------------


def a_of(source: SideSource) -> list[float]:
    """A along the features of ``weight``."""
    width = source.named["weight"][0].numel()
    scale = source.init({"weight": torch.zeros(1, width)}).scale["weight"]
    return (1 / scale).flatten().tolist()


def test_frequency_is_divided_by_the_largest_floored_and_raised():
    given = given_frequencies([8.0, 4.0, 0.0, 1.0], **TOLD)
    expected = [1.0, 0.5**0.7, 0.25**0.7, 0.25**0.7]
    assert a_of(frequency(given, floor=0.25, power=0.7)) == pytest.approx(expected)


def test_corpus_frequency_is_the_share_of_rows():
    assert corpus_frequencies(COUNTS, **TOLD).values.tolist() == [0.75, 0.5, 0.25]


def test_corpus_frequency_does_not_count_stored_zeros():
    stored = sparse.csr_matrix(([1.0, 0.0, 2.0], ([0, 0, 1], [0, 1, 0])), shape=(2, 2))
    assert stored.nnz == 3
    assert corpus_frequencies(stored, **TOLD).values.tolist() == [1.0, 0.0]


def test_word_frequencies_are_those_of_wordfreq():
    from wordfreq import word_frequency

    found = word_frequencies(["the", "zebra"]).values.tolist()
    assert found == pytest.approx([word_frequency("the", "en"), word_frequency("zebra", "en")])


@pytest.mark.parametrize(
    "values", [[], 1.0, [[1.0]], [-1.0, 1.0], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]]
)
def test_frequencies_that_make_no_sense_are_refused(values):
    with pytest.raises(SideInformationError, match="non-negative frequencies"):
        given_frequencies(values, **TOLD)


@pytest.mark.parametrize("setting", [{"floor": 0.0}, {"floor": 1.5}, {"floor": 0.1, "power": 0.0}])
def test_frequency_refuses_a_floor_or_power_out_of_range(setting):
    with pytest.raises(SettingError):
        frequency(given_frequencies([1.0, 2.0], **TOLD), **setting)


def mean_tfidf_by_hand(counts: np.ndarray) -> np.ndarray:
    """tf · (ln((1 + n) / (1 + df)) + 1), rows of norm 1, averaged over the documents."""
    documents_with = (counts > 0).sum(0)
    inverse_frequency = np.log((1 + len(counts)) / (1 + documents_with)) + 1
    weighted = counts * inverse_frequency
    return (weighted / np.linalg.norm(weighted, axis=1, keepdims=True)).mean(0)


def test_tfidf_by_hand():
    scores = mean_tfidf_by_hand(np.asarray(COUNTS))
    expected = np.maximum(scores / scores.max(), 0.3)
    assert a_of(tfidf(COUNTS, inverse=False, floor=0.3, **TOLD)) == pytest.approx(expected.tolist())


def test_inverse_tfidf_by_hand():
    scores = mean_tfidf_by_hand(np.asarray(COUNTS))
    expected = 0.3 / np.maximum(scores / scores.max(), 0.3)
    assert a_of(tfidf(COUNTS, inverse=True, floor=0.3, **TOLD)) == pytest.approx(expected.tolist())


def test_tfidf_agrees_with_sklearn_on_texts():
    texts = ["red green red", "green blue", "blue blue blue red"]
    scores = np.asarray(TfidfVectorizer().fit_transform(texts).mean(0)).ravel()
    counts = CountVectorizer().fit_transform(texts)
    found = a_of(tfidf(counts, inverse=False, floor=1e-6, **TOLD))
    assert found == pytest.approx((scores / scores.max()).tolist())


@pytest.mark.parametrize(
    "counts", [[[0.0, 0.0]], np.zeros((0, 2)), [[math.nan, 1.0]], [[-1.0, 2.0]]]
)
def test_tfidf_refuses_what_cannot_be_counts(counts):
    with pytest.raises(SideInformationError, match="public corpus"):
        tfidf(counts, inverse=False, floor=0.1, **TOLD)


@pytest.mark.parametrize("floor", [0.0, 1.5])
def test_tfidf_refuses_a_floor_out_of_range(floor):
    with pytest.raises(SettingError, match="floor"):
        tfidf(COUNTS, inverse=False, floor=floor, **TOLD)


# --- the oracle ---------------------------------------------------------------------------------


def test_hazard_24_the_oracle_is_not_private_and_says_so():
    source = oracle(survey().examples, RMSPROP, batch_size=2)
    assert isinstance(source.event, NonPrivateDpEvent)
    assert "NOT public" in source.provenance.public_because


def test_the_oracle_leaves_no_hash_of_private_data():
    assert oracle(survey().examples, RMSPROP, batch_size=2).provenance.digest is None


def test_the_oracle_reads_the_private_examples():
    private = examples([[1.0, 2.0, 3.0]], [0])
    source = oracle(private, AdaGradStatistics(epsilon=1e-9), batch_size=1)
    transform, _ = source.observe(source.init(parameters()), step())
    assert (1 / transform.scale["head.bias"]).tolist() == pytest.approx([1.0, 2.0])
