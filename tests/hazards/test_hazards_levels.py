"""Hazard 33: nothing about single people stands in a model as a level, a class or a bound.

What is not declared is paid for (`--rare other`, "paid"), or read off the data with a warning.
"""

import json
import math
import random
import sys
import warnings

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, pld
from scipy import sparse
from torch import nn

from adadps import AdaDPSClassifier, AdaDPSRegressor, load_result
from adadps.accounting.events import DeltaDpEvent, event_of
from adadps.accounting.ledger import DiskLedger
from adadps.accounting.ledger.summary import summarise
from adadps.data.tables import read_table, write_table
from adadps.errors import AssumedPublicWarning, ModelError, SettingError
from adadps.estimators.tables import paid_levels, training
from support.commands import app, plain, runner

HEADER = ["age", "country", "outcome", "clinic"]
RARE, EXTREME = "Atlantis", 123456789.0
ROWS = 2000
COLUMNS = ("--numeric", "age", "--categorical", "country", "--label", "outcome")
FEW = ("--epochs", "1", "--batch-size", "200")


def rows(count=ROWS, *, rare=True):
    rng = random.Random(1)
    for number in range(count):
        age = rng.randint(17, 90)
        country = RARE if rare and number == 5 else rng.choice(["de", "fr", "nl"])
        is_extreme = rare and number == 5
        yield [
            str(EXTREME if is_extreme else age),
            country,
            "old" if age > 50 else "young",
            f"c{number % 500}",
        ]


def make(path, content):
    with path.open("wb") as stream:
        write_table(stream, path, [HEADER, *content])
    return path


def call(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


def trained(table, *more, epsilon=1):
    model = table.parent / "model"
    command = ("train", table, *COLUMNS, *FEW, "--epsilon", epsilon, "--out", model, "--json")
    return call(*command, *more)


@pytest.fixture
def table(tmp_path):
    return make(tmp_path / "visits.csv", rows())


def told_by(shown):
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def test_hazard_33_a_rare_level_does_not_stop_a_user_cold(table, monkeypatch):
    """The error offers a command, which works, says what it cost, and keeps the level to itself."""
    command = ["train", str(table), *COLUMNS, *FEW, "--epsilon", "1", "--json"]
    command += ["--out", str(table.parent / "model")]
    monkeypatch.setattr(sys, "argv", ["adadps", *command])
    refused = call(*command)
    assert refused.exit_code == 1
    assert RARE not in refused.output
    offered = refused.stderr.strip().splitlines()[-1]
    assert offered == f"adadps {' '.join(command)} --rare other"

    told = told_by(call(*offered.split()[1:]))
    measured = told["privacy"]["measured"]
    assert "deviation" in measured[0]
    assert "is subtracted from δ" in measured[0]
    assert "the levels of 'country', measured with noise: de, fr, nl, other" in measured
    assert "the classes, measured with noise: old, young, other" in measured
    assert told["privacy"]["epsilon"] <= 1
    for file in (table.parent / "model").iterdir():
        assert RARE.encode() not in file.read_bytes(), file.name
        assert b"123456789" not in file.read_bytes(), file.name
    card = (table.parent / "model" / "card.md").read_text(encoding="utf-8")
    report = (table.parent / "model" / "report.html").read_text(encoding="utf-8")
    for page in (card, report):
        assert "Measured on private data, and paid for" in page
    assert call("card", table.parent / "model", "--check").exit_code == 0


def test_hazard_33_what_was_paid_for_is_shown_to_people(table):
    command = ("train", table, *COLUMNS, *FEW, "--epsilon", "1", "--out", table.parent / "model")
    shown = call(*command, "--rare", "other")
    assert shown.exit_code == 0, shown.output
    assert "measured and paid for (1)" in plain(shown.stdout)


def test_hazard_33_levels_that_nobody_knows_are_other(table):
    told_by(trained(table, "--rare", "other"))
    new = make(
        table.parent / "new.csv", [["40", "Mars", "old", "c1"], ["40", "other", "old", "c1"]]
    )
    out = table.parent / "out.csv"
    shown = call("predict", table.parent / "model", new, "--out", out, "--probabilities")
    assert shown.exit_code == 0, shown.output
    shares = read_table(out).texts("probability old")
    assert shares[0] == shares[1], "a level that is not known is treated as other"


@pytest.mark.usefixtures("real_accounting")
def test_hazard_33_the_price_is_within_what_was_given(table):
    """Composed anew with dp-accounting alone, at delta less what the threshold takes."""
    told = told_by(trained(table, "--rare", "other", epsilon=0.8))
    privacy = told["privacy"]
    charges = [(event_of(charge["event"]), charge["count"]) for charge in privacy["charges"]]
    (gauss, once), (delta, twice), (step, steps) = charges
    assert (once, twice, steps) == (1, 1, privacy["steps"])
    assert isinstance(gauss, GaussianDpEvent)
    assert isinstance(delta, DeltaDpEvent)
    assert isinstance(step, PoissonSampledDpEvent)
    assert delta.delta == pytest.approx(privacy["delta"] / 10)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(gauss).compose(SelfComposedDpEvent(step, steps))
    honest = accountant.get_epsilon(privacy["delta"] - delta.delta)
    assert privacy["epsilon"] == pytest.approx(honest, rel=1e-6)
    assert 0.79 < honest <= 0.8
    assert honest > accountant.get_epsilon(privacy["delta"]), "the threshold is not free"


def test_hazard_33_a_run_that_goes_on_does_not_count_again(table, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", interrupted)
        shown = trained(table, "--rare", "other")
        assert shown.exit_code == 130
        assert "what was measured first is paid for and kept" in plain(shown.stderr)
    folder = table.parent / "model.checkpoint"
    kept = (folder / "measured.json").read_bytes()
    before = summarise(folder)
    assert before["entries"] == 2
    assert before["delta_spent"] == pytest.approx(before["budget"]["delta"] / 10)

    def counted(*_arguments, **_options):
        raise AssertionError("what is known was counted a second time")

    with monkeypatch.context() as patch:
        patch.setattr(paid_levels, "measure", counted)
        told = told_by(trained(table, "--rare", "other"))
    counts = [charge["count"] for charge in told["privacy"]["charges"]]
    assert counts[:2] == [1, 1], "nor is it paid for twice"
    held = json.loads((table.parent / "model" / "model.json").read_text(encoding="utf-8"))
    assert held["schema"] == json.loads(kept)["schema"]
    assert not folder.exists()


def test_hazard_33_what_was_paid_for_and_lost_is_paid_again(table, monkeypatch):
    """A crash between the payment and the file: counted twice, within the same epsilon."""

    def crashed(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(paid_levels, "measure", crashed)
        assert trained(table, "--rare", "other").exit_code == 130
    assert not (table.parent / "model.checkpoint" / "measured.json").exists()
    told = told_by(trained(table, "--rare", "other"))
    privacy = told["privacy"]
    assert [charge["count"] for charge in privacy["charges"]][:2] == [2, 2]
    assert privacy["epsilon"] <= 1
    assert privacy["steps"] < 10, "fewer steps, because the count was paid for twice"


def test_hazard_33_another_command_does_not_take_levels_that_were_paid_for_this_one(
    table, monkeypatch
):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", interrupted)
        trained(table, "--rare", "other")
    shown = trained(table, "--rare", "other", "--lr", "0.5")
    assert shown.exit_code == 2, shown.output
    assert "the plan and the ledger for which" in plain(shown.stderr)


def test_hazard_33_on_a_shared_ledger(table):
    """Both runs pay, and delta is spent by both."""
    ledger = ("--ledger", table.parent / "visits.ledger", "--ledger-budget", "3")
    first = told_by(trained(table, "--rare", "other", *ledger))
    (table.parent / "model").rename(table.parent / "first")
    told_by(trained(table, "--rare", "other", *ledger))
    summary = summarise(table.parent / "visits.ledger")
    assert summary["delta_spent"] == pytest.approx(2 * first["privacy"]["delta"] / 10)
    assert [run["entries"] - run["steps_reserved"] for run in summary["runs"]] == [2, 2]
    assert "charged for levels, classes and bounds" in plain(
        call("ledger", "show", table.parent / "visits.ledger").stdout
    )


def test_hazard_33_users_are_counted_once_each(table):
    """500 clinics of four rows each: counts are of clinics, and epsilon is for them."""
    told = told_by(trained(table, "--rare", "other", "--user", "clinic", epsilon=6))
    assert told["privacy"]["unit"] == "user (clinic)"
    assert (
        "the levels of 'country', measured with noise: de, fr, nl, other"
        in (told["privacy"]["measured"])
    )
    refused = trained(table, "--user", "clinic")
    assert refused.exit_code == 2
    assert "--rare other" in plain(refused.stderr)


def test_hazard_33_strict_takes_what_is_paid_for(table):
    refused = trained(table, "--strict", "--examples", ROWS)
    assert refused.exit_code == 2
    assert "--rare other" in plain(refused.stderr)
    told = told_by(trained(table, "--strict", "--examples", ROWS, "--rare", "other"))
    assert told["privacy"]["assumed_public"] == [f"the number of examples, declared as {ROWS}"]


def test_hazard_33_too_few_rows_are_refused_before_anything_is_paid(tmp_path):
    table = make(tmp_path / "small.csv", rows(100))
    shown = trained(table, "--rare", "other")
    assert shown.exit_code == 2
    assert "Nothing was counted or spent" in plain(shown.stderr)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["small.csv"]


def test_hazard_33_a_table_that_cannot_be_read_is_refused_before_anything_is_paid(tmp_path):
    content = list(rows())
    content[700][0] = "many"
    table = make(tmp_path / "spoiled.csv", content)
    shown = trained(table, "--rare", "other")
    assert shown.exit_code == 1
    assert "something else on line 702" in plain(shown.stderr)
    assert "many" not in shown.output
    assert sorted(file.name for file in tmp_path.iterdir()) == ["spoiled.csv"]


def test_hazard_33_devices_with_noise_of_their_own_are_not_counted_by_a_server(table):
    command = ("federate", table, *COLUMNS, "--user", "clinic", "--epsilon", "8", "--rare", "other")
    out = ("--out", table.parent / "model")
    shown = call(*command, "--noise", "device", *out)
    assert shown.exit_code == 2
    assert "trust nobody with them" in plain(shown.stderr)


def test_hazard_33_a_server_counts_users_of_fixed_cohorts(table):
    """Under replace-one, where a user moves two counts of each column."""
    command = ("federate", table, *COLUMNS, "--user", "clinic", "--epsilon", "12", "--rounds", "3")
    out = ("--sampling", "fixed", "--cohort", "50", "--out", table.parent / "model", "--json")
    told = told_by(call(*command, "--rare", "other", *out))
    assert told["privacy"]["relation"] == "replace one"
    gauss, delta = (event_of(charge["event"]) for charge in told["privacy"]["charges"][:2])
    deviation = float(told["privacy"]["measured"][0].split("deviation ")[1].split()[0])
    assert deviation == pytest.approx(gauss.noise_multiplier * math.sqrt(2) * 2, rel=1e-3)
    assert delta.delta > 0


def test_hazard_33_reading_off_a_table_warns_where_nobody_looks_too(tmp_path, monkeypatch):
    """One line on standard error, and before anything is paid."""
    table = make(tmp_path / "visits.csv", rows(rare=False))

    def stop(*_args):
        raise SettingError("stopped before training")

    monkeypatch.setattr(training, "_train", stop)
    shown = trained(table)
    assert shown.exit_code == 2
    said = plain(shown.stderr)
    warning, stopped = said.split("SettingError: ")
    assert stopped.strip() == "stopped before training"
    assert warning.startswith("Warning: Read off the private data, and assumed public: ")
    assert warning.count("Warning: ") == 1
    for told in ("bounds of 'age'", "levels of 'country'", "--rare other"):
        assert told in warning


def numbers(count=1500):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (count, 2))
    y = 3 * X[:, 0] - X[:, 1]
    X[3, 1], y[3] = EXTREME, -EXTREME
    return X, y


def test_hazard_33_regressors_warn_of_bounds_that_are_single_people():
    X, y = numbers()
    model = AdaDPSRegressor(epsilon=1, accountant="rdp", epochs=1)
    with pytest.warns(AssumedPublicWarning) as caught:
        model.fit(X, y)
    said = [str(one.message) for one in caught]
    assert any("Bounds of the targets are read off" in one for one in said)
    assert any("Bounds of the features are read off" in one for one in said)
    assert all(one.filename == __file__ for one in caught), "it names the caller's line"
    with pytest.raises(SettingError, match="bounds, feature_bounds"):
        AdaDPSRegressor(epsilon=1, strict=True, examples=1500).fit(X, y)


def test_hazard_33_regressors_pay_for_bounds():
    X, y = numbers()
    options = {"bounds": "paid", "feature_bounds": "paid", "examples": 1500, "strict": True}
    model = AdaDPSRegressor(epsilon=1, accountant="rdp", epochs=1, **options)
    with warnings.catch_warnings(action="error"):
        model.fit(X, y)
    assert model.epsilon_ <= 1
    assert len(model.privacy_.measured) == 3
    largest = max(np.abs(model._target_bounds.high).max(), np.abs(model._scaling.bounds.high).max())
    assert largest <= 64, "the one extreme value is not in the model"
    assert np.abs(model.predict(X)).max() <= 64


class Counts(nn.Module):
    """It writes into itself, which is refused."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, rows):
        self.seen = self.seen + len(rows)
        return self.layer(rows)


def one_for_all(outputs, targets):
    return outputs.square().mean()


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("loss", [None, one_for_all], ids=["module", "loss"])
def test_hazard_33_a_module_is_tried_before_anything_is_paid(tmp_path, form, loss):
    X, y = numbers()
    options = {"epsilon": 1, "epochs": 1, "examples": 1500, "ledger": tmp_path / "fits.ledger"}
    module = Counts if loss is None else nn.Linear
    options |= {"feature_bounds": "paid", "module": module, "loss": loss, "accountant": "rdp"}
    regressor = AdaDPSRegressor(bounds="paid", **options)
    with pytest.raises(ModelError):
        regressor.fit(form(X), y)
    classifier = AdaDPSClassifier(classes=[False, True], **options)
    with pytest.raises(ModelError):
        classifier.fit(form(X), y > 0)
    with DiskLedger(tmp_path / "fits.ledger") as ledger:
        assert ledger.entries == 0


def test_hazard_33_a_good_module_is_trained_with_paid_bounds():
    X, y = numbers()
    model = AdaDPSRegressor(
        epsilon=1, accountant="rdp", epochs=1, examples=1500, bounds="paid",
        feature_bounds="paid", module=nn.Linear,
    )  # fmt: skip
    assert len(model.fit(X, y).privacy_.measured) == 3


def classes(count=1500):
    X, _ = numbers(count)
    y = np.where(X[:, 0] > 5, "old", "young").astype(object)
    y[7] = "Mrs Miller"
    return X, y


def test_hazard_33_classifiers_warn_of_classes_that_are_read_off(tmp_path):
    X, y = classes()
    model = AdaDPSClassifier(epsilon=1, accountant="rdp", epochs=1, normalise_rows=True)
    with pytest.warns(AssumedPublicWarning, match="classes='paid'"):
        model.fit(X[10:], y[10:])
    with (
        pytest.warns(AssumedPublicWarning),
        pytest.raises(ValueError, match="classes='paid'") as refused,
    ):
        model.fit(X, y)
    assert "Miller" not in str(refused.value)


def test_hazard_33_classifiers_pay_for_classes(tmp_path):
    X, y = classes()
    options = {"classes": "paid", "feature_bounds": "paid", "examples": 1500, "strict": True}
    model = AdaDPSClassifier(
        epsilon=3, epsilon_per_run=1, epochs=1, ledger=tmp_path / "fits.ledger", **options
    )
    with warnings.catch_warnings(action="error"):
        model.fit(X, y)
    assert model.classes_.tolist() == ["old", "young"]
    assert set(model.predict(X)) <= {"old", "young"}
    assert model.epsilon_ <= 1
    paid = model.privacy_.measured
    assert "the classes, measured with noise: old, young" in paid
    model.partial_fit(X, y)
    assert model.privacy_.measured == paid, "what the model is made of is still said"
    summary = summarise(tmp_path / "fits.ledger")
    assert [run["entries"] - run["steps_reserved"] for run in summary["runs"]] == [2, 0]
    model.result_.save(tmp_path / "saved")
    assert load_result(tmp_path / "saved").privacy.measured == paid


def test_hazard_33_what_cannot_be_paid_for_is_refused():
    X, y = classes()
    several = np.stack([y == "old", y == "young"], 1).astype(int)
    with pytest.raises(SettingError, match="indicator matrix"):
        AdaDPSClassifier(epsilon=1, classes="paid", normalise_rows=True).fit(X, several)
    wide = np.zeros((50, 400))
    with pytest.raises(SettingError, match="Nothing was counted or spent"):
        AdaDPSRegressor(epsilon=1, bounds="paid", feature_bounds="paid").fit(wide, wide[:, 0])
