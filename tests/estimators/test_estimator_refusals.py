"""Bad input: a clear error, the model as it was, nothing spent."""

import traceback

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import NotFittedError

import adadps
from adadps import AdaDPSClassifier, AdaDPSRegressor
from adadps.errors import SettingError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Dense rows are normalised"),
    pytest.mark.filterwarnings("ignore::adadps.errors.AssumedPublicWarning"),
]
X = np.random.default_rng(0).normal(size=(60, 3))
Y = np.arange(60) % 2
NAN, INF = X.copy(), X.copy()
NAN[3, 1], INF[3, 1] = np.nan, np.inf


def makes_none(*_widths):
    return None


BOTH = [AdaDPSClassifier, AdaDPSRegressor]

DATA = {
    "nan": (NAN, Y),
    "infinity": (INF, Y),
    "other length": (X, Y[:-1]),
    "no rows": (X[:0], Y[:0]),
    "one dimension": (X[:, 0], Y),
    "no target": (X, None),
    "nan in the target": (X, np.where(Y, np.nan, 0.0)),
    "texts": (np.full((60, 3), "a"), Y),
}
OPTIONS = {
    "epsilon 0": {"epsilon": 0},
    "epsilon below 0": {"epsilon": -1.0},
    "epsilon infinite": {"epsilon": np.inf},
    "epsilon nan": {"epsilon": np.nan},
    "epsilon in words": {"epsilon": "one"},
    "delta 1": {"delta": 1.0},
    "more a run than in all": {"epsilon_per_run": 2.0},
    "no examples": {"examples": 0},
    "half an example": {"examples": 60.5},
    "too large a batch": {"batch_size": 61},
    "clip norm 0": {"clip_norm": 0.0},
    "lr below 0": {"lr": -1.0},
    "epochs 0": {"epochs": 0},
    "unknown method": {"method": "magic"},
    "unknown accountant": {"accountant": "mine"},
    "side information without provenance": {"side": [0.1, 0.2, 0.3]},
    "side information without need": {"side": "given", "method": "dp-sgd"},
    "no side information": {"method": "adadps"},
    "side information for other features": {"side": "too long"},
    "a loss without a module": {"loss": adadps.losses.cross_entropy},
    "no module": {"module": 3},
    "a module that makes none": {"module": makes_none},
    "strict": {"strict": True},
    "a ledger object": {"ledger": adadps.accounting.ledger.MemoryLedger()},
    "bounds the wrong way": {"feature_bounds": (1, 0)},
    "bounds of other columns": {"feature_bounds": ([0, 0], [1, 1])},
    "no bounds": {"feature_bounds": 3},
    "two clip norms": {"clip_norm": np.array([0.1, 0.2])},
    "a clip norm in words": {"clip_norm": "small"},
    "a learning rate that is a list": {"lr": [0.1]},
    "a batch that is true": {"batch_size": True},
    "no epsilon": {"epsilon": None},
    "examples in a list": {"examples": [60]},
    "trials in words": {"tuning_trials": "many"},
}


def known(length):
    return adadps.side.given_frequencies(
        np.full(length, 0.1), source="a table", public_because="published"
    )


def spent_nothing(make, features, targets, tmp_path, options):
    path = tmp_path / "a.ledger"
    model = make(**{"epsilon": 1.0, "ledger": path, **options})
    for learn in (model.fit, model.partial_fit):
        with pytest.raises((adadps.AdadpsError, ValueError), match=r"\w+ \w+") as caught:
            learn(features, targets)
        assert not path.exists()
        assert not hasattr(model, "result_")
        assert not hasattr(model, "n_features_in_")
    return caught.value


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("which", DATA)
def test_bad_data(make, which, tmp_path):
    error = spent_nothing(make, *DATA[which], tmp_path, {})
    assert isinstance(error, adadps.AdadpsError)


MIXED = {
    "texts first": (np.array(["a", 1] * 30, dtype=object), None),
    "numbers first": (np.array([1, "a"] * 30, dtype=object), None),
    "with nothing": (np.array(["a", None] * 30, dtype=object), None),
    "with declared classes": (np.array(["a", 1] * 30, dtype=object), ["a", "b"]),
    "declared": (np.array(["a", "b"] * 30), ["a", 1]),
    "declared as objects": (np.array(["a", "b"] * 30), np.array(["a", 1], dtype=object)),
}


@pytest.mark.parametrize(("targets", "classes"), MIXED.values(), ids=MIXED)
def test_texts_beside_numbers_are_no_classes(targets, classes, tmp_path):
    options = {"classes": classes}
    error = spent_nothing(adadps.AdaDPSClassifier, X, targets, tmp_path, options)
    assert isinstance(error, adadps.errors.DataError)
    assert "found texts beside something else" in str(error)


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("features", [NAN, INF])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_what_is_missing_is_to_be_filled_with_what_is_public(make, features, kind):
    with pytest.raises(adadps.errors.DataError) as caught:
        make(epsilon=1.0).fit(kind(features), Y)
    said = str(caught.value)
    assert said.startswith("Expected finite numbers in X, found NaN or infinity. Fill")
    assert "strategy='constant'" in said
    assert "epsilon does not cover" in said
    model = make(epsilon=1.0, epochs=2, accountant="rdp").fit(X, Y)
    with pytest.raises(adadps.errors.DataError, match=r"finite numbers in X.*without looking"):
        model.predict(kind(features))
    with pytest.raises(
        adadps.errors.DataError, match=r"finite numbers in y.*Leave such rows out\."
    ):
        make(epsilon=1.0).fit(X, np.where(Y, np.nan, 0.0))


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("which", OPTIONS)
def test_bad_options(make, which, tmp_path):
    options = dict(OPTIONS[which])
    if options.get("side") in ("given", "too long"):
        options["side"] = known(3 if options["side"] == "given" else 4)
    error = spent_nothing(make, X, Y, tmp_path, options)
    assert isinstance(error, adadps.AdadpsError)
    assert "xpected" in str(error)


@pytest.mark.parametrize(
    ("options", "y", "match"),
    [
        ({}, np.ones(60), "one class"),
        ({}, np.where(np.arange(60) == 41, 7, Y), "found a rarer one in row 41"),
        ({}, np.where(np.arange(60) < 2, "Mrs Miller", "no"), "found a rarer one in row 0"),
        ({"classes": ["a"]}, Y, "at least two"),
        ({"classes": ["one"]}, Y[:, None], "at least two"),
        ({"classes": [0, 0, 1]}, Y, "twice"),
        ({"classes": [1, 2]}, Y, "in row 0"),
        ({"classes": ["no", "yes"]}, Y, "among the 2 classes"),
        ({"classes": ["one"]}, np.eye(60)[:, :2].astype(int), "at least two"),
        ({"classes": ["a", "b", "c"]}, np.eye(60)[:, :2].astype(int), "3 columns of labels"),
        ({}, np.random.default_rng(0).normal(size=60), "AdaDPSRegressor"),
        ({}, np.stack([Y, Y + 1, 2 * Y], 1), "indicator matrix"),
        ({"fit_intercept": True, "module": "linear"}, Y, "fit_intercept"),
        ({"fit_intercept": "yes"}, Y, "True, False or None"),
    ],
)
def test_bad_classes(options, y, match, tmp_path):
    if "module" in options:
        options = {**options, "module": torch.nn.Linear}
    error = spent_nothing(AdaDPSClassifier, X, y, tmp_path, options)
    assert match in str(error)


@pytest.mark.parametrize("make", BOTH)
def test_before_fit(make):
    model = make(epsilon=1.0)
    for name in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, name):
            with pytest.raises(NotFittedError):
                getattr(model, name)(X)
    for name in ("ledger_", "privacy_", "epsilon_", "delta_"):
        assert not hasattr(model, name)


@pytest.mark.parametrize("make", BOTH)
def test_after_fit(make):
    model = make(epsilon=1.0, epochs=2, epsilon_per_run=0.1).fit(X, Y)
    for features in (X[:, :2], NAN, X[0], X[:0]):
        with pytest.raises(adadps.errors.DataError):
            model.predict(features)
    entries = model.ledger_.entries
    with pytest.raises(adadps.errors.DataError, match="features"):
        model.partial_fit(X[:, :2], Y)
    for change in ({"method": "dp-adam"}, {"module": makes_none}):
        with pytest.raises(adadps.errors.SettingError, match="first call"):
            model.set_params(**change).partial_fit(X, Y)
        model.set_params(method="auto", module=None)
    with pytest.raises(adadps.errors.ContractError, match="the calls before"):
        model.set_params(epsilon=5.0).partial_fit(X, Y)
    assert model.ledger_.entries == entries


def test_partial_fit_keeps_its_classes():
    model = AdaDPSClassifier(epsilon=1.0, epochs=2, epsilon_per_run=0.1).partial_fit(X, Y)
    with pytest.raises(adadps.errors.SettingError, match="first call"):
        model.partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(adadps.errors.DataError, match="in row 0"):
        model.partial_fit(X, Y + 5)
    with pytest.raises(adadps.errors.DataError, match="one label"):
        model.partial_fit(X, np.stack([Y, 1 - Y], 1))


@pytest.mark.parametrize("make", BOTH)
def test_weights_of_examples_are_refused_with_the_reason(make):
    with pytest.raises(adadps.errors.SettingError, match="how much one example can move"):
        make(epsilon=1.0).fit(X, Y, sample_weight=np.ones(60))
    with pytest.raises(TypeError, match="unexpected keyword"):
        make(epsilon=1.0).fit(X, Y, colour="blue")


def test_the_regressor_wants_sound_bounds(tmp_path):
    for bounds in ((1, 0), (0, np.inf), 3, ([0, 0], [1, 1])):
        assert "bounds" in str(spent_nothing(AdaDPSRegressor, X, Y, tmp_path, {"bounds": bounds}))


SECRET = "Mrs Miller"


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    ("features", "y"),
    [
        (X, np.array([7531, SECRET] * 30, dtype=object)),
        (X, [[7531, SECRET]] * 60),
        (np.where(Y[:, None], X.astype(object), SECRET), Y),
        (np.full(60, 7531.0), Y),
        (X, np.where(Y, np.nan, 7531.0)),
    ],
)
def test_a_refusal_shows_no_label_and_no_row(make, features, y):
    with pytest.raises(adadps.errors.DataError) as caught:
        make(epsilon=1.0).fit(features, y)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    assert "7531" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_integers_that_are_held_as_objects_are_classes():
    options = {"epsilon": 1.0, "epochs": 2, "accountant": "rdp"}
    model = AdaDPSClassifier(**options, classes=[0, 1]).fit(X, Y.astype(object))
    assert model.predict(X).dtype.kind == "i"
    texts = np.array(["no", "yes"], dtype=object)[Y]
    assert AdaDPSClassifier(**options).fit(X, texts).classes_.tolist() == ["no", "yes"]


@pytest.mark.parametrize("make", BOTH)
def test_strict_holds_in_every_call(make):
    bounds = {"bounds": (0, 1), "feature_bounds": (-3, 3)}
    declared = {"classes": [0, 1]} if make is AdaDPSClassifier else bounds
    options = {"epsilon": 1.0, "epochs": 2, "epsilon_per_run": 0.1, "examples": 60}
    model = make(**options, **declared, strict=True).partial_fit(X, Y)
    entries = model.ledger_.entries
    with pytest.raises(adadps.errors.SettingError, match="examples with strict=True"):
        model.set_params(examples=None).partial_fit(X, Y)
    assert model.ledger_.entries == entries
    assert "read off" not in " ".join(model.privacy_.assumed_public)


def test_numbers_may_be_held_in_arrays():
    options = {"epsilon": 1.0, "epochs": 2, "clip_norm": 0.1, "lr": 0.5, "batch_size": 20}
    held = {name: np.array(value) for name, value in options.items()}
    model = AdaDPSClassifier(**held, examples=np.array(60), accountant="rdp").fit(X, Y)
    assert model.privacy_.clip_norm == 0.1
    assert model.result_.settings["lr"] == 0.5
    assert type(model.epsilon_) is float


def test_a_text_is_no_list_of_classes():
    with pytest.raises(SettingError, match="the text 'pay'"):
        AdaDPSClassifier(epsilon=1, classes="pay", feature_bounds=(0, 1)).fit(
            np.random.default_rng(0).random((50, 2)), np.arange(50) % 2
        )
