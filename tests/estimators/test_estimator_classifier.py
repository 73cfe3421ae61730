"""The classifier: what it accepts, what it says, and how well it learns."""

import numpy as np
import pandas
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification, make_multilabel_classification
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import make_pipeline

import adadps
from adadps import AdaDPSClassifier, PrivacyWarning, PublicVectorizer, make_text_pipeline
from adadps.data.debian import SECTIONS, debian_packages
from adadps.data.examples import private_rows
from adadps.estimators.privacy_statement import FITTED_BEFORE
from adadps.training.stepper import Batches

pytestmark = [
    pytest.mark.filterwarnings("ignore:Dense rows are normalised"),
    pytest.mark.filterwarnings("ignore::adadps.errors.AssumedPublicWarning"),
]
QUICK = {"epsilon": 50.0, "accountant": "rdp", "epochs": 20}


@pytest.fixture(scope="module")
def two_classes():
    return make_classification(400, 6, n_informative=4, class_sep=2, random_state=0)


def test_binary_scores_probabilities_and_coefficients_agree(two_classes):
    X, y = two_classes
    model = AdaDPSClassifier(**QUICK).fit(X, np.where(y, "yes", "no"))
    scores = model.decision_function(X)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.coef_.shape == (1, 6)
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    np.testing.assert_allclose(rows @ model.coef_[0] + model.intercept_, scores, atol=1e-9)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-scores)))
    np.testing.assert_array_equal(model.predict(X) == "yes", scores > 0)


def test_the_linear_model_predicts_what_the_trained_layer_does(two_classes):
    X, y = two_classes
    frequencies = adadps.side.given_frequencies(
        [0.1, 0.01, 0.02, 0.001, 0.2, 0.05], source="a table", public_because="published"
    )
    for options in ({}, {"side": frequencies}):
        model = AdaDPSClassifier(**QUICK, **options).fit(X, y)
        layer = torch.nn.Linear(6 + (not options), 2, bias=False)
        outputs = model.result_.outputs(layer, model._scaling(X)).numpy()
        np.testing.assert_allclose(
            outputs[:, 1] - outputs[:, 0], model.decision_function(X), atol=1e-4
        )
        norms = np.ones(len(X))
        rows = X / np.linalg.norm(X, axis=1, keepdims=True)
        if options:
            norms = np.linalg.norm(rows * model.result_.feature_weights.numpy(), axis=1)
        scores = rows @ model.coef_[0] / norms + model.intercept_
        np.testing.assert_allclose(scores, model.decision_function(X), atol=1e-5)


@pytest.mark.parametrize(
    "kind", [np.asarray, sparse.csr_matrix, sparse.coo_array, pandas.DataFrame]
)
def test_dense_sparse_and_data_frames(kind, two_classes):
    X, y = two_classes
    held = kind(X)
    if isinstance(held, pandas.DataFrame):
        held.columns = [f"column {place}" for place in range(6)]
    model = AdaDPSClassifier(**QUICK).fit(held, y)
    assert model.score(held, y) > 0.75
    assert model.n_features_in_ == 6
    assert hasattr(model, "feature_names_in_") == isinstance(held, pandas.DataFrame)


def test_several_labels():
    X, y = make_multilabel_classification(
        600, 10, n_classes=3, n_labels=1, allow_unlabeled=True, random_state=0
    )
    model = AdaDPSClassifier(**QUICK, feature_bounds=(0, 15)).fit(X, sparse.csr_matrix(y))
    shares = [np.mean(model.predict(X)[:, k] == y[:, k]) for k in range(3)]
    assert model.predict(X).shape == model.predict_proba(X).shape == y.shape
    assert np.mean(shares) > np.mean(np.maximum(y.mean(0), 1 - y.mean(0)))
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X) > 0.5)
    assert "the columns of labels, read off the data: 0, 1, 2" in model.privacy_.assumed_public


def test_declared_facts_are_the_statement(two_classes):
    X, y = two_classes
    model = AdaDPSClassifier(
        **QUICK, strict=True, classes=[0, 1, 2], examples=500, feature_bounds=(-5, 5)
    ).fit(X, y)
    assert model.privacy_.assumed_public == (
        "the number of examples, declared as 500",
        "the classes, declared: 0, 1, 2",
        "bounds, declared: features from -5 to 5",
        FITTED_BEFORE,
    )
    assert model.delta_ == 1 / 5000
    assert model.predict_proba(X).shape == (400, 3)
    assert model.epsilon_ == model.result_.privacy.epsilon <= 50


@pytest.mark.parametrize("kind", ["str", "category", "object"])
def test_labels_in_a_column_of_a_data_frame(kind, two_classes):
    X, y = two_classes
    column = pandas.Series(np.where(y, "yes", "no")).astype(kind)
    model = AdaDPSClassifier(**QUICK, classes=["yes", "no"]).fit(X, column)
    assert set(model.predict(X)) == {"yes", "no"}
    assert model.score(X, column) > 0.75
    with pytest.raises(adadps.errors.DataError, match="in row 0"):
        AdaDPSClassifier(**QUICK, classes=["a", "b"]).fit(X, column)


def test_classes_of_few_people_are_declared_or_refused(two_classes):
    X, y = two_classes
    y = y.copy()
    y[:2] = 7
    with pytest.raises(adadps.errors.DataError, match="at least 3 times"):
        AdaDPSClassifier(**QUICK).fit(X, y)
    assert AdaDPSClassifier(**QUICK, classes=[0, 1, 7]).fit(X, y).classes_.tolist() == [0, 1, 7]
    y[2] = 7
    assert AdaDPSClassifier(**QUICK).fit(X, y).classes_.tolist() == [0, 1, 7]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "said",
    [
        {"feature_bounds": (-5, 5)},
        {"normalise_rows": True},
        {"normalise_rows": False},
        {"module": torch.nn.Linear},
    ],
)
def test_whoever_says_what_becomes_of_dense_rows_is_not_warned(said, two_classes):
    X, y = two_classes
    options = {"epsilon": 3.0, "accountant": "rdp", "epochs": 2, "classes": [0, 1]}
    AdaDPSClassifier(**options, **said).fit(X, y)


@pytest.mark.filterwarnings("error")
def test_sparse_rows_and_numbers_to_predict_need_no_bounds(two_classes):
    X, y = two_classes
    options = {"epsilon": 3.0, "accountant": "rdp", "epochs": 2}
    AdaDPSClassifier(**options, classes=[0, 1]).fit(sparse.csr_matrix(X), y).predict(X)
    bounds = {"bounds": (0, 1), "feature_bounds": (-8, 8)}
    adadps.AdaDPSRegressor(**options, **bounds).fit(X, y)


@pytest.mark.parametrize("kind", [np.asarray, pandas.DataFrame])
def test_dense_rows_as_they_are_are_warned_of_once_a_fit(kind, two_classes):
    X, y = two_classes
    model = AdaDPSClassifier(epsilon=3.0, epsilon_per_run=1.0, epochs=2, classes=[0, 1])
    with pytest.warns(PrivacyWarning, match=r"feature_bounds=\(low, high\)") as caught:
        model.partial_fit(kind(X), y).partial_fit(kind(X), y)
    assert [one.filename for one in caught] == [__file__]
    with pytest.warns(PrivacyWarning, match="normalise_rows=True"):
        model.fit(kind(X * 1e-9), y)  # nothing is decided by looking at the rows


def test_the_number_of_examples_is_told_of_in_one_sentence(two_classes):
    X, y = two_classes
    options = {"epsilon": 3.0, "accountant": "rdp", "epochs": 2}
    read_off = AdaDPSClassifier(**options).fit(X, y)._facts
    assert read_off == (
        "the number of examples, read off the data: 400",
        "the classes, read off the data: 0, 1",
        FITTED_BEFORE,
    )
    declared = AdaDPSClassifier(**options, examples=500, classes=[0, 1]).fit(X, y)
    assert declared._facts == ("the classes, declared: 0, 1", FITTED_BEFORE)
    told = [fact for fact in declared.privacy_.assumed_public if "number of examples" in fact]
    assert told == ["the number of examples, declared as 500"]


@pytest.mark.parametrize(
    ("method", "chain"),
    [
        ("auto", "reparametrise"),
        ("adadps", "precondition"),
        ("adadps-two-sided", "precondition"),
        ("dp-sgd-weighted", "reparametrise"),
    ],
)
def test_side_information_enters_by_the_named_door(method, chain):
    texts = ["a free prize for you", "the meeting is on monday"] * 100
    model = make_text_pipeline(**QUICK, words=500, method=method)
    model.fit(texts, ["spam", "ham"] * 100)
    result = model["model"].result_
    assert result.method.startswith(chain)
    assert result.method.count("precondition") == {"adadps": 1, "adadps-two-sided": 2}.get(
        method, 0
    )
    assert "wordfreq" in result.side_information[0]["source"]
    assert model.score(texts, ["spam", "ham"] * 100) == 1.0


@pytest.mark.parametrize("method", ["auto", "dp-sgd", "dp-adam"])
def test_hashed_words_need_no_side_information(method):
    texts = ["a free prize for you", "the meeting is on monday"] * 100
    model = make_pipeline(
        HashingVectorizer(n_features=2**12), AdaDPSClassifier(**QUICK, method=method)
    )
    assert model.fit(texts, [1, 0] * 100).score(texts, [1, 0] * 100) == 1.0
    assert model[-1].result_.side_information == ()


def test_any_module_is_trained_on_a_copy(two_classes):
    X, y = two_classes
    given = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    before = given[0].weight.clone()
    options = {"clip_norm": 1.0, "lr": 0.5, "normalise_rows": True}
    model = AdaDPSClassifier(**QUICK, module=given, **options).fit(X, y)
    assert torch.equal(given[0].weight, before)
    assert model.score(X, y) > 0.75
    assert not hasattr(model, "coef_")
    made = AdaDPSClassifier(**QUICK, module=torch.nn.Linear, **options).fit(X, y)
    assert made.score(X, y) > 0.75
    assert type(made.module_) is torch.nn.Linear


def test_side_information_before_the_clip_of_a_module(two_classes):
    X, y = two_classes
    frequencies = adadps.side.given_frequencies(
        np.linspace(0.01, 0.2, 6), source="a table", public_because="published"
    )
    model = AdaDPSClassifier(**QUICK, module=torch.nn.Linear, side=frequencies).fit(X, y)
    assert model.result_.method.startswith("precondition")
    names = set(model.result_.params)
    assert names == {"weight", "bias"}


def test_clone_and_parameters(two_classes):
    model = make_text_pipeline(epsilon=1, words=50)
    twin = clone(model)
    assert twin["model"].get_params()["side__words"] == 50
    assert twin["model"].side is not model["model"].side
    assert twin.set_params(model__epsilon=2)["model"].epsilon == 2
    assert model["model"].epsilon == 1


def test_held_out_accuracy_on_real_texts_at_epsilon_3():
    """Sections of a quarter of Debian's packages: 0.24 are in the largest class."""
    packages = debian_packages()
    train = [one for one in packages if not one.held_out][::4]
    test = [one for one in packages if one.held_out][::6]
    model = make_text_pipeline(epsilon=3, classes=SECTIONS, examples=len(train), accountant="rdp")
    model.fit([one.text for one in train], [one.section for one in train])
    assert model["model"].epsilon_ <= 3
    assert model.score([one.text for one in test], [one.section for one in test]) > 0.5


def test_the_vectorizer_looks_at_nothing():
    texts = pandas.Series(["apple apple pear", ""])
    vectorizer = PublicVectorizer(vocabulary=["apple", "pear"])
    expected = np.log1p([2, 1]) / np.linalg.norm(np.log1p([2, 1]))
    np.testing.assert_allclose(vectorizer.transform(texts).toarray()[0], expected, rtol=1e-6)
    assert vars(vectorizer.fit(texts)) == vars(PublicVectorizer(vocabulary=["apple", "pear"]))
    assert vectorizer.get_feature_names_out().tolist() == ["apple", "pear"]
    assert len(vectorizer.frequencies().values) == 2


@pytest.mark.parametrize("texts", ["one text", [["a table"]], [None], [], 3, np.array([["a"]])])
def test_the_vectorizer_refuses_what_is_not_a_list_of_texts(texts):
    with pytest.raises(adadps.errors.DataError, match="Expected"):
        PublicVectorizer(words=10).transform(texts)


def test_the_vectorizer_refuses_words_that_never_match():
    with pytest.raises(adadps.errors.DataError, match="lower-case"):
        PublicVectorizer(vocabulary=["Apple"]).fit()
    with pytest.raises(adadps.errors.DataError, match="different words"):
        PublicVectorizer(vocabulary="apple").fit()


WORDS = [f"w{number}" for number in range(40)]
DRAWN = np.random.default_rng(0).choice(WORDS, (80, 8))
TEXTS = [" ".join(row) for row in DRAWN]
COUNTS = sparse.csr_matrix([[text.split().count(word) for word in WORDS] for text in TEXTS])
TABLES = {
    "raw counts": COUNTS,
    "dense": COUNTS.toarray(),
    "scaled rows": COUNTS * 7.3,
    "public vectorizer": PublicVectorizer(vocabulary=WORDS).transform(TEXTS),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("make", [AdaDPSClassifier, adadps.AdaDPSRegressor])
def test_hazard_20_rows_of_the_corpus_behind_side_are_left_out(make, name, monkeypatch):
    table, labels, seen = TABLES[name], np.arange(80) % 2, []

    def spied(model, loss, data, *, method, sampler, **options):
        seen.append((private_rows(data, method.public_rows), len(data), sampler.examples))
        return adadps.fit(model, loss, data, method=method, sampler=sampler, **options)

    monkeypatch.setattr("adadps.estimators.base.train", spied)
    corpus = adadps.side.corpus_frequencies(table[:30], source="news", public_because="published")
    model = make(epsilon=3.0, accountant="rdp", epochs=2, side=corpus).fit(table, labels)
    ((private, given, declared),) = seen
    assert private.tolist() == [False] * 30 + [True] * 50
    assert given == declared == 80, "how many were left out is not told"
    assert any("examples" in fact and "80" in fact for fact in model.privacy_.assumed_public)


def test_hazard_20_a_corpus_with_texts_is_refused(tmp_path):
    corpus = adadps.side.corpus_frequencies(
        COUNTS[:30], texts=TEXTS[:30], source="news", public_because="published"
    )
    path = tmp_path / "a.ledger"
    model = AdaDPSClassifier(epsilon=3.0, epochs=2, side=corpus, ledger=path)
    with pytest.raises(adadps.errors.SideInformationError, match="sees no texts"):
        model.fit(COUNTS, np.arange(80) % 2)
    assert not path.exists()


def test_hazard_26_a_table_that_is_its_own_corpus_is_not_refused(monkeypatch):
    """A refusal would tell that nobody else is in the table: one private row more, and it is gone.

    Nothing is trained on, and noise alone moves the weights.
    """
    drawn = []

    def spied(self, batch):
        drawn.append(unspied(self, batch))
        return drawn[-1]

    unspied = Batches.next
    monkeypatch.setattr(Batches, "next", spied)
    corpus = adadps.side.corpus_frequencies(COUNTS, source="news", public_because="published")
    model = AdaDPSClassifier(epsilon=3.0, epochs=2, accountant="rdp", side=corpus)
    model.fit(COUNTS, np.arange(80) % 2)
    assert len(drawn) == model.privacy_.steps
    assert sum(len(batch.rows) for batch in drawn) == 0
    assert np.count_nonzero(model.coef_) > 20  # of 40; on its grid one of some thousand is zero
