"""Hazard 26: held-out rows are measured as they are given, whoever was trained on.

If a metric left out the rows that were trained on, or a run refused them, anybody could ask by a
held-out table of their own whether a row is in the training table, and get an exact answer.
"""

import json

import numpy as np
import pytest
import torch
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

import adadps
from adadps import Budget, PrivateRun, accuracy, on_held_out, on_public
from adadps.data.identity import Identities
from adadps.estimators.doctor import no_side_information
from adadps.estimators.doctor.case import case_of
from adadps.estimators.doctor.plans import plan_for
from adadps.estimators.doctor.simulation import simulated_accuracy, splits
from adadps.estimators.privacy_statement import FITTED_BEFORE
from adadps.report.card.meaning import HELD_OUT_RECORDS
from adadps.report.html import report_of_comparison, report_of_run
from adadps.training.tuning import highest
from support.commands import app, files, plain, runner, write
from support.federations import EVERYBODY, LABELS, WORDS, federated, method, play
from support.small_runs import trained
from support.tunings import DATA, FEATURES, NOISE, SAMPLER, tuned
from support.tunings import LABELS as TUNED_LABELS

HEADER = ("text", "age", "who", "kind")
BUDGET = Budget(1.0, 1e-6)
BASELINE = "accuracy of always guessing the commonest class"


def rows(count, first=0):
    """Texts of two kinds by several people."""
    for number in range(first, first + count):
        kind = "tools" if number % 2 else "fruit"
        words = "hammer saw nail" if number % 2 else "apple pear plum"
        yield [f"{words} n{number}", str(number % 90), f"p{number // 3}", kind]


TARGET = ["drill and steel", "33", "somebody", "tools"]
HELD_OUT = [
    ["sweet cherry", "20", "q1", "fruit"],
    ["ripe melon", "21", "q2", "fruit"],
    ["sour lemon", "22", "q3", "fruit"],
    ["blunt axe", "23", "q4", "tools"],
    TARGET,
]
"""Three fifths are fruit; without the target it would be three quarters."""

WAYS = {
    "texts": ("train", "--text", "text", "--examples", "300"),
    "numbers": ("train", "--numeric", "age=0,100", "--examples", "300"),
    "users": ("train", "--text", "text", "--user", "who", "--users", "100"),
    "federation": (
        *("federate", "--text", "text", "--user", "who", "--users", "100"),
        *("--rounds", "3", "--cohort", "20"),
    ),
}


def run(folder, way, content, held_out, *more):
    """The command on this training table and these held-out rows."""
    command, *given = WAYS[way]
    data, test = (
        write(folder / f"{name}.csv", part, HEADER)
        for name, part in (("data", content), ("test", held_out))
    )
    sizes = ("--epsilon", 2, "--ledger", folder / "paid", "--words", 300)
    sizes += () if command == "federate" else ("--epochs", 1)
    told = ("--label", "kind", "--classes", "fruit,tools", "--test", test, "--out", folder / "out")
    return runner.invoke(app, [str(one) for one in (command, data, *given, *told, *sizes, *more)])


@pytest.fixture
def unasked(monkeypatch):
    """Whoever looks up names of rows among others fails."""

    def refuse(*_):
        raise AssertionError("rows were compared")

    monkeypatch.setattr(Identities, "within", refuse)


def worlds(folder):
    """A training table with the target, and one without."""
    for name, more in (("with", [TARGET]), ("without", [])):
        (folder / name).mkdir()
        yield folder / name, [*rows(300), *more]


# --- nobody learns who was trained on ---


@pytest.mark.parametrize("way", WAYS)
def test_hazard_26_the_baseline_does_not_tell_who_was_trained_on(tmp_path, way):
    for folder, content in worlds(tmp_path):
        shown = run(folder, way, content, HELD_OUT, "--json")
        assert shown.exit_code == 0, shown.output
        assert shown.stderr == ""
        numbers = {m["metric"]: m["value"] for m in json.loads(shown.stdout)["history"]}
        assert numbers[BASELINE] == pytest.approx(0.6)


@pytest.mark.parametrize("way", WAYS)
def test_hazard_26_no_exit_code_tells_who_was_trained_on(tmp_path, way):
    """A held-out table of one row, of which a refusal would say that it was trained on."""
    for folder, content in worlds(tmp_path):
        shown = run(folder, way, content, [TARGET], "--json")
        assert shown.exit_code == 0, shown.output
        assert json.loads(shown.stdout)["history"][1]["value"] == 1.0


def counted(_outputs, targets):
    return float(len(targets))


def measured_by_fit():
    held = on_held_out("the same", FEATURES, TUNED_LABELS, count=counted)
    model = torch.nn.Linear(3, 2)
    chain = adadps.dp_sgd(NOISE, lr=0.1)
    found = adadps.fit(
        model,
        adadps.losses.cross_entropy,
        DATA,
        method=chain,
        sampler=SAMPLER,
        steps=2,
        evaluate=[held],
    )
    return found.last("count"), len(FEATURES)


def measured_by_a_run():
    held = on_held_out("the same", FEATURES, TUNED_LABELS, count=counted)
    chain = adadps.dp_sgd(NOISE, lr=0.1)
    run = PrivateRun(
        torch.nn.Linear(3, 2),
        adadps.losses.cross_entropy,
        DATA,
        method=chain,
        sampler=SAMPLER,
        steps=2,
    )
    return run.evaluate(held)[0].value, len(FEATURES)


def measured_by_a_federation():
    run, _ = play(federated(method(), EVERYBODY))
    held = on_held_out("the same", WORDS, LABELS, count=counted)
    return run.evaluate(held)[0].value, len(LABELS)


def measured_by_tuning():
    held = on_held_out("the same", FEATURES, TUNED_LABELS, count=counted)
    found = tuned(score=highest(held, "count"))
    return found.score, len(FEATURES)


def measured_by_an_estimator():
    """All of the rows are scored, and those of the fit count as any other."""
    X, y = FEATURES.double().numpy(), TUNED_LABELS.numpy()
    known = {"classes": np.unique(y).tolist(), "normalise_rows": True}
    model = adadps.AdaDPSClassifier(epsilon=5, accountant="rdp", **known).fit(X, y)
    return model.score(X, y), (model.predict(X) == y).mean()


def measured_by_the_doctor():
    """Every row is there many times, so that all that are held out are trained on, too."""
    case = case_of(
        np.tile(np.eye(4), (15, 1)), np.arange(60) % 2, examples=2000, budget=BUDGET, steps=3
    )
    plan = plan_for(case, no_side_information())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adadps.estimators.doctor.simulation.accuracy", counted)
        return sum(simulated_accuracy(case, plan, one) for one in splits(60, 3, seed=0)), 60


LIBRARY = {
    "fit": measured_by_fit,
    "run": measured_by_a_run,
    "federation": measured_by_a_federation,
    "tune": measured_by_tuning,
    "estimator": measured_by_an_estimator,
    "doctor": measured_by_the_doctor,
}


@pytest.mark.parametrize("way", LIBRARY)
def test_hazard_26_training_rows_that_are_given_as_held_out_are_all_measured(way, unasked):
    found, expected = LIBRARY[way]()
    assert found == expected


@pytest.mark.parametrize("way", WAYS)
def test_hazard_26_no_row_is_looked_up_among_others_unless_asked_for(tmp_path, way, unasked):
    folder, content = next(worlds(tmp_path))
    assert run(folder, way, content, HELD_OUT).exit_code == 0
    with pytest.raises(AssertionError, match="rows were compared"):
        raise run(folder, way, content, HELD_OUT, "--check-overlap").exception


# --- what is said about them ---


def test_hazard_26_card_report_and_console_say_that_held_out_records_are_outside(tmp_path):
    shown = run(tmp_path, "texts", rows(300), HELD_OUT)
    said = plain(HELD_OUT_RECORDS)
    assert "not covered" in plain(shown.stdout)
    card = json.loads((tmp_path / "out" / "card.json").read_text(encoding="utf-8"))
    assert HELD_OUT_RECORDS in card["not_covered"]
    for name in ("card.md", "report.html"):
        assert said in plain((tmp_path / "out" / name).read_text(encoding="utf-8"))


def test_the_reports_say_it_above_the_numbers_and_only_if_it_is_so(tmp_path):
    held = trained()
    public = [on_public("pilot", FEATURES.repeat(1, 2)[:, :5], TUNED_LABELS, accuracy=accuracy)]
    other = trained(evaluate=public)
    path = tmp_path / "report.html"
    for results, times in ((held, 2), (other, 0), ({"a": held, "b": other}, 2)):
        report = report_of_comparison if isinstance(results, dict) else report_of_run
        text = plain(report(results, path).read_text(encoding="utf-8"))
        assert text.count(HELD_OUT_RECORDS) == times


# --- the check for the operator ---


@pytest.mark.parametrize("way", WAYS)
def test_the_check_is_for_the_operator_alone(tmp_path, way):
    """On standard error, marked, with exit code 0 whatever it finds; nothing is left on disk."""
    for (folder, content), found in zip(worlds(tmp_path), (1, 0), strict=True):
        shown = run(folder, way, content, HELD_OUT, "--check-overlap", "--json")
        assert (shown.exit_code, shown.stdout) == (0, "")
        assert f"{found} of 5 held-out rows" in plain(shown.stderr)
        assert "not to be published" in plain(shown.stderr)
        assert files(folder) == ["data.csv", "test.csv"]


def test_the_check_needs_held_out_rows(tmp_path):
    data = write(tmp_path / "data.csv", rows(300), HEADER)
    given = ("--text", "text", "--label", "kind", "--epsilon", "1", "--out", tmp_path / "out")
    shown = runner.invoke(app, [str(one) for one in ("train", data, *given, "--check-overlap")])
    assert shown.exit_code == 2
    assert "Add --test FILE" in plain(shown.stderr)


# --- what was fitted before an estimator ---

TEXTS, KINDS = ["a free prize for you", "the meeting is on monday"] * 50, ["spam", "ham"] * 50
NUMBERS, CLASSES = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 2
DECLARED = {"epsilon": 5.0, "accountant": "rdp", "epochs": 2, "examples": 100, "strict": True}


@pytest.mark.parametrize("scaler", [StandardScaler(), MaxAbsScaler()])
def test_hazard_20_what_was_fitted_before_is_told_under_strict_too(scaler, tmp_path):
    bounds = {"feature_bounds": (-4, 4)}
    for model in (
        adadps.AdaDPSClassifier(**DECLARED, **bounds, classes=[0, 1]),
        adadps.AdaDPSRegressor(**DECLARED, **bounds, bounds=(0, 1)),
    ):
        fitted = Pipeline([("scaler", scaler), ("model", model)]).fit(NUMBERS, CLASSES)["model"]
        assert FITTED_BEFORE in fitted.privacy_.assumed_public
        card = json.loads(
            (fitted.result_.save(tmp_path / type(model).__name__) / "card.json").read_text()
        )
        assert FITTED_BEFORE in card["assumed_public"]


def test_hazard_20_the_public_vectorizer_is_named_as_what_it_is():
    """`make_text_pipeline` fits nothing, and says no more than that."""
    model = adadps.make_text_pipeline(**DECLARED, words=300, classes=["ham", "spam"])
    facts = model.fit(TEXTS, KINDS)["model"].privacy_.assumed_public
    assert FITTED_BEFORE not in facts
    said = "that the features are those of PublicVectorizer, which is fitted to nothing"
    made = f"{said} (600 public words, 300 of them negated and wordllama embeddings)"
    assert [fact for fact in facts if "features" in fact] == [made]


def test_hazard_20_side_information_of_another_kind_says_nothing_about_the_features():
    words = adadps.PublicVectorizer(words=300)
    for side in (None, words.frequencies()):
        model = adadps.AdaDPSClassifier(**DECLARED, classes=["ham", "spam"], side=side)
        model.fit(words.transform(TEXTS), KINDS)
        assert FITTED_BEFORE in model.privacy_.assumed_public


def test_what_was_fitted_before_is_told_once_by_several_calls():
    model = adadps.AdaDPSClassifier(**DECLARED, feature_bounds=(-4, 4), epsilon_per_run=1.0)
    for _ in range(2):
        model.partial_fit(NUMBERS, CLASSES, classes=[0, 1])
    assert model.privacy_.assumed_public.count(FITTED_BEFORE) == 1
