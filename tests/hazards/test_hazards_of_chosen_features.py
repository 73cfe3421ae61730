"""`--features choose`: private rows decide about the features, and that is paid for, once."""

import csv
import json
import math

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, pld
from scipy import sparse, stats

from adadps import AdaDPSRegressor, PublicVectorizer, examples, make_text_pipeline
from adadps.accounting.epsilon import Budget
from adadps.accounting.events import event_of
from adadps.accounting.ledger.summary import summarise
from adadps.accounting.noisy_counts import choice
from adadps.accounting.noisy_counts.choice import SHARE, price_of_choice
from adadps.accounting.samplers import poisson
from adadps.engine.noise.randomness import secure
from adadps.errors import SettingError
from adadps.estimators.paid_mix import (
    CandidateMix,
    MixTrials,
    candidates,
    noisy_right,
    price_of_mix,
    winner,
)
from adadps.estimators.planner.methods import embedding_share
from adadps.estimators.tables import paid_once, training
from adadps.types import Accountant
from support.commands import app, plain, runner
from support.small_choices import small_choices

KINDS = {"animals": "the cat and the dog sleep", "finance": "stock markets fell again"}
ROWS, CHOOSE = 400, ("--features", "choose")


def written(path, count=ROWS, separator=""):
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [
            (f"{text} {n}", f"{kind}{separator}{kind if separator else ''}", f"u{n % 90}", n % 7)
            for n in range(count // 2)
            for kind, text in KINDS.items()
        ]
        csv.writer(file).writerows([("text", "kind", "who", "size"), *rows])
    return path


STEPS = 5


@pytest.fixture(autouse=True)
def short_trials(monkeypatch):
    """The price is that of short trials, too."""
    monkeypatch.setattr(choice, "STEPS", STEPS)


@pytest.fixture
def table(tmp_path):
    return written(tmp_path / "data.csv")


def call(command, table, *more, epsilon=20):
    given = ("--text", "text", "--epsilon", epsilon, "--words", 300, "--epochs", 1)
    out = ("--out", table.parent / "model", "--json", "--batch-size", 50)
    return runner.invoke(app, [str(word) for word in (command, table, *given, *out, *more)])


KNOWN = ("--label", "kind", "--classes", "animals,finance")


def told(shown):
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def price(candidates=3, units=10_000, epsilon=2.0):
    sampler = poisson(examples=units, expected_size=units / 16)
    return price_of_choice(
        candidates, sampler, budget=Budget(epsilon, 1e-6), accountant=Accountant.RDP
    )


@pytest.mark.usefixtures("real_accounting")
def test_the_choice_is_within_what_was_given(tmp_path, monkeypatch):
    """Composed anew with dp-accounting alone: all steps of all trials, the counts, the run."""
    monkeypatch.setattr(choice, "STEPS", 30)
    table = written(tmp_path / "data.csv", 1200)
    more = ("--epochs", 10, "--batch-size", 75)  # a larger σ is accounted for sooner
    privacy = told(call("train", table, *KNOWN, *CHOOSE, *more, epsilon=4))["privacy"]
    charges = [(event_of(charge["event"]), charge["count"]) for charge in privacy["charges"]]
    (trials, once), (counts, again), (step, steps) = charges
    assert (once, again, steps) == (1, 1, privacy["steps"])
    assert isinstance(trials, SelfComposedDpEvent)
    assert trials.count == 3 * 30
    assert isinstance(trials.event, PoissonSampledDpEvent)
    assert isinstance(counts, GaussianDpEvent)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(trials).compose(counts)
    alone = accountant.get_epsilon(privacy["delta"])
    assert 0.95 * SHARE * 4 < alone <= SHARE * 4
    whole = accountant.compose(SelfComposedDpEvent(step, steps)).get_epsilon(privacy["delta"])
    assert privacy["epsilon"] == pytest.approx(whole, rel=1e-6)
    assert 3.9 < whole <= 4


def test_the_choice_is_told_on_card_report_and_ledger(table):
    privacy = told(call("train", table, *KNOWN, *CHOOSE))["privacy"]
    cost, chosen = privacy["measured"]
    assert f"3 trials of {STEPS} private steps" in cost
    assert chosen.startswith("the mix of words and embeddings, chosen with noise: embeddings have")
    model = table.parent / "model"
    for name in ("card.md", "report.html"):
        page = (model / name).read_text(encoding="utf-8")
        assert "Measured on private data, and paid for" in page
        assert "chosen with noise" in page
    assert runner.invoke(app, ["card", str(model), "--check"]).exit_code == 0
    shown = plain(runner.invoke(app, ["ledger", "show", str(model / "ledger")]).stdout)
    assert "2 charged for the choice of" in shown


def test_a_run_that_goes_on_does_not_choose_again(table, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", interrupted)
        shown = call("train", table, *KNOWN, *CHOOSE)
        assert shown.exit_code == 130
        assert "what was measured first is paid for and kept" in plain(shown.stderr)
    folder = table.parent / "model.checkpoint"
    assert json.loads((folder / "measured.json").read_text(encoding="utf-8"))["mix"] in (0, 1, 2)
    assert summarise(folder)["entries"] == 2

    def tried(*_arguments, **_options):
        raise AssertionError("what is known was chosen a second time")

    with monkeypatch.context() as patch:
        patch.setattr(MixTrials, "choose", tried)
        privacy = told(call("train", table, *KNOWN, *CHOOSE))["privacy"]
    assert [charge["count"] for charge in privacy["charges"]][:2] == [1, 1], "nor paid twice"
    assert not folder.exists()


def test_a_choice_that_was_paid_for_and_lost_is_paid_again(table, monkeypatch):
    """A crash during the trials: both payments count, within the same epsilon."""

    def crashed(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MixTrials, "_tried", crashed)
        assert call("train", table, *KNOWN, *CHOOSE).exit_code == 130
    assert not (table.parent / "model.checkpoint" / "measured.json").exists()
    privacy = told(call("train", table, *KNOWN, *CHOOSE))["privacy"]
    assert [charge["count"] for charge in privacy["charges"]][:2] == [2, 2]
    assert privacy["epsilon"] <= 20
    assert privacy["steps"] < ROWS / 50, "fewer steps, because the choice was paid for twice"


@pytest.mark.parametrize("shared", [False, True])
def test_a_choice_that_is_interrupted_is_not_called_unspent(shared, table, monkeypatch):
    """On a ledger of many runs, too, its charges are found; earlier ones are of other runs."""
    ledger = table.parent / "many.ledger"
    more = ("--ledger", ledger, "--ledger-budget", 60) if shared else ()
    if shared:
        other = ("--features", "words", "--out", table.parent / "other")
        assert call("train", table, *KNOWN, *more, *other).exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(MixTrials, "_tried", interrupted)
        shown = plain(call("train", table, *KNOWN, *CHOOSE, *more).stderr)
    assert "nothing was spent" not in shown
    assert "lost, and stays paid for in" in shown
    folder = table.parent / "model.checkpoint"
    name = (folder / "begun.txt").read_text(encoding="utf-8").strip()
    paid = {run["run"]: run for run in summarise(ledger if shared else folder)["runs"]}
    assert name in paid
    assert told(call("train", table, *KNOWN, *CHOOSE, *more))["privacy"]["epsilon"] <= 60
    assert not folder.exists()


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_interrupted_before_it_is_paid_is_unspent(shared, table, monkeypatch):
    more = ("--ledger", table.parent / "many.ledger") if shared else ()
    with monkeypatch.context() as patch:
        patch.setattr(paid_once, "pay", interrupted)
        shown = plain(call("train", table, *KNOWN, *CHOOSE, *more).stderr)
    assert "nothing was spent" in shown
    assert not (table.parent / "model.checkpoint").exists()


def interrupted(*_arguments, **_options):
    raise KeyboardInterrupt


def test_too_few_rows_are_refused_before_anything_is_paid(tmp_path):
    table = written(tmp_path / "small.csv", 60)
    shown = call("train", table, *KNOWN, *CHOOSE)
    assert shown.exit_code == 2
    assert "Nothing was trained or spent" in plain(shown.stderr)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["small.csv"]


REFUSED = {
    "a method without weights": (("--method", "dp-sgd"), KNOWN, "weighted features"),
    "a number to predict": (
        ("--regression", "--label-bounds", "0,7"), ("--label", "size"), "number to predict",
    ),
    "two measurements": (("--rare", "other"), ("--label", "kind"), "pays for one of them"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_chosen_is_refused_unpaid(name, table):
    more, label, why = REFUSED[name]
    shown = call("train", table, *label, *more, *CHOOSE)
    assert shown.exit_code == 2, shown.output
    assert why in plain(shown.stderr)
    assert sorted(file.name for file in table.parent.iterdir()) == ["data.csv"]


def test_a_federation_does_not_choose(table):
    line = ("federate", table, "--text", "text", *KNOWN, "--user", "who", "--epsilon", 20)
    out = ("--out", table.parent / "model")
    shown = runner.invoke(app, [str(word) for word in (*line, *CHOOSE, *out)])
    assert shown.exit_code == 2
    assert "do not leave their devices" in plain(shown.stderr)


def test_tags_and_users_are_chosen_for(tmp_path):
    table = written(tmp_path / "tags.csv", separator=";")
    with small_choices():
        privacy = told(call("train", table, *KNOWN, "--label-separator", ";", "--user", "who",
                            "--batch-size", 20, *CHOOSE))["privacy"]  # fmt: skip
    assert privacy["unit"] == "user (who)"
    assert "how many users each gets right" in privacy["measured"][0]


# --- the price ---


def test_the_noise_is_for_the_counts_of_all_candidates():
    held = price()
    assert held.deviation == pytest.approx(held.noise_multiplier * math.sqrt(3))
    trials, counts = held.events
    assert counts.noise_multiplier == held.noise_multiplier
    assert trials.count == 3 * held.steps
    assert trials.event.event.noise_multiplier == held.trial_noise


@pytest.mark.parametrize("count", [1, 4])
def test_there_are_two_or_three_candidates(count):
    with pytest.raises(SettingError, match="two or 3 candidates"):
        price(count)


def test_one_unit_moves_each_count_by_one_at_most():
    """Also a user with many rows, whichever of them is drawn."""
    rng = np.random.default_rng(0)
    X, y, owners = rng.normal(size=(60, 5)), rng.integers(3, size=60), np.arange(60) // 6
    tried = [torch.from_numpy(rng.normal(size=(3, 5))) for _ in range(3)]
    silent = price()

    class Silent:
        generator = np.random.default_rng(1)

        @staticmethod
        def release(counts, *, standard_deviation):
            assert standard_deviation == silent.deviation
            return counts

    def counted(rows, users=None):
        held = examples(sparse.csr_matrix(X[rows]), y[rows], users=users)
        return noisy_right(tried, held, silent, Silent())

    everything = np.arange(60)
    whole = counted(everything)
    assert whole.max() <= 60
    for row in range(60):
        moved = whole - counted(np.delete(everything, row))
        assert set(moved.tolist()) <= {0.0, 1.0}
    assert counted(everything, owners).max() <= 10, "one row of each of ten users"


def test_counts_have_the_stated_noise():
    """A variance that is off by a tenth is found with near certainty; false alarms: 1e-6."""
    held, rows = price(), examples(sparse.csr_matrix(np.ones((4, 2))), [0, 1, 0, 1])
    weights = [torch.tensor([[1.0, 0.0], [0.0, 0.5]], dtype=torch.float64)] * 3
    randomness, draws = secure(), 4000
    noise = torch.stack([noisy_right(weights, rows, held, randomness) for _ in range(draws)]) - 2
    found = float((noise / held.deviation).square().sum())
    law = stats.chi2(3 * draws)
    assert law.ppf(5e-7) < found < law.ppf(1 - 5e-7)


# --- the candidates ---


def test_the_rule_is_one_of_three_mixes_in_rising_order():
    for units, outputs, epsilon in ((25_000, 2, 1.0), (30_000, 100, 3.0), (9_000, 20, 1.0)):
        held = price_of_mix(units, Budget(epsilon, 1e-6), Accountant.RDP)
        low, rule, high = candidates(held, outputs, epsilon)
        assert rule.by_rule
        assert rule.share == embedding_share(units, outputs, epsilon)
        assert low.share < rule.share < high.share <= 0.95
        assert low.on_trial <= rule.on_trial <= high.on_trial <= 0.95
        assert rule.on_trial >= rule.share, "a trial has less epsilon, so words know less"


def test_the_largest_noisy_count_wins():
    mixes = (CandidateMix(0.1, 0.1), CandidateMix(0.3, 0.3, by_rule=True), CandidateMix(0.6, 0.6))
    assert winner(mixes, [10.0, 0.0, 9.0]) is mixes[0]
    assert winner(mixes, [0.0, 10.0, 10.5]) is mixes[2]


# --- pipelines ---

TEXTS = [f"{text} {n}" for n in range(200) for text in KINDS.values()]
LABELS = list(KINDS) * 200
DECLARED = {"classes": list(KINDS), "examples": 400, "strict": True, "accountant": "rdp"}


def chosen(**more):
    given = {"epsilon": 20, "words": 300, "epochs": 1, "batch_size": 50, **DECLARED, **more}
    return make_text_pipeline(features="choose", **given)


def test_a_pipeline_chooses_and_pays():
    model = chosen().fit(TEXTS, LABELS)
    privacy = model["model"].privacy_
    assert privacy.epsilon <= 20
    assert len(privacy.measured) == 2
    assert privacy.tuning_trials is None, "trials of a choice are a part of epsilon, not extra"
    assert [charge["count"] for charge in privacy.charges] == [1, 1, 8]
    assert (model.predict(TEXTS) == np.array(LABELS)).mean() > 0.9


def test_the_run_is_the_same_whichever_mix_wins(monkeypatch):
    privacy = {}
    for place in (0, 2):
        monkeypatch.setattr(MixTrials, "choose", lambda self, _, place=place: self.mixes[place])
        model = chosen().fit(TEXTS, LABELS)["model"]
        privacy[place] = model.privacy_.charges, str(model.result_.method)
    assert privacy[0] == privacy[2]


def test_estimators_refuse_what_they_cannot_choose():
    model = chosen()
    rows = model["words"].transform(TEXTS)
    with pytest.raises(SettingError, match="partial_fit"):
        model["model"].partial_fit(rows, LABELS)
    with pytest.raises(SettingError, match="'paid' for"):
        chosen(classes="paid").fit(TEXTS, LABELS)
    with pytest.raises(SettingError, match="weighted features"):
        chosen(method="dp-sgd").fit(TEXTS, LABELS)
    vectorizer = PublicVectorizer(words=300, features="choose")
    with pytest.raises(SettingError, match="number to predict"):
        AdaDPSRegressor(epsilon=20, side=vectorizer, bounds=(0, 1), examples=400).fit(
            vectorizer.transform(TEXTS), np.arange(400) / 400
        )
    with pytest.raises(SettingError, match="Nothing was trained or spent"):
        chosen(examples=30, batch_size=10).fit(TEXTS[:30], LABELS[:30])
