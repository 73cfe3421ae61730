"""Hazard 34: a delta of more than one over the number of people promises nothing to one of them."""

import json
import warnings

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import adadps
from adadps import (
    Accountant,
    AdaDPSClassifier,
    Budget,
    PrivacyWarning,
    by_user,
    calibrate_noise,
    calibrate_steps,
    dp_sgd,
    epsilon_of_run,
    examples,
    fit,
    on_public,
    poisson,
    privatize,
    tune,
)
from adadps.accounting.events import require_small_delta
from adadps.accounting.ledger import MemoryLedger
from adadps.accounting.ledger.summary import summarise
from adadps.accounting.plan import make_plan
from adadps.cli.main import app
from adadps.errors import SettingError
from adadps.estimators.doctor import examine
from adadps.methods.stages import chain, sgd, train_locally
from adadps.training.federated import FederatedRun
from adadps.training.tuning import calibrate_tuning, fixed_grid, highest
from adadps.types import Unit
from adadps_experiments.reproduce import published
from adadps_experiments.reproduce.results import recorded_settings
from adadps_experiments.reproduce.toy import problem as toy_problem
from support.commands import rows, write

N, USERS = 300, 40
RNG = np.random.default_rng(0)
ROWS = torch.from_numpy(RNG.normal(size=(N, 3)).astype(np.float32))
LABELS = (ROWS[:, 0] > 0).long()
SAMPLER = poisson(examples=N, expected_size=30)
METHOD = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=2.0), lr=0.1)
BY_USER = privatize(clip_norm=1.0, noise_multiplier=2.0, groups=by_user(most=9))
SHORT = {"accountant": Accountant.RDP}


def trained(delta, **options):
    given = {} if delta is None else {"delta": delta}
    model, data = torch.nn.Linear(3, 2), examples(ROWS, LABELS)
    return fit(model, adadps.losses.cross_entropy, data, method=METHOD, sampler=SAMPLER, steps=2,
               progress=False, **SHORT, **given, **options)  # fmt: skip


def by_users(delta):
    data = examples(ROWS, LABELS, users=np.arange(N) % USERS)
    return fit(torch.nn.Linear(3, 2), adadps.losses.cross_entropy, data, delta=delta, steps=2,
               method=dp_sgd(BY_USER, lr=0.1), sampler=poisson(users=USERS, expected_size=9),
               progress=False, **SHORT)  # fmt: skip


def federated(delta):
    local = train_locally(lr=0.1, batch_size=4, epochs=1)
    return FederatedRun(
        torch.nn.Linear(3, 2), method=chain(local, BY_USER, sgd(1.0)), rounds=2, delta=delta,
        sampler=poisson(users=USERS, expected_size=9), **SHORT,
    )  # fmt: skip


def tuned(delta):
    return tune(
        lambda _: (torch.nn.Linear(3, 2), METHOD), adadps.losses.cross_entropy,
        examples(ROWS, LABELS), grid=[{"a": 1.0}], sampler=SAMPLER, steps=2, delta=delta,
        score=highest(on_public("few", ROWS, LABELS, accuracy=adadps.accuracy), "accuracy"),
        selection=fixed_grid(), **SHORT,
    )  # fmt: skip


def classified(delta):
    return AdaDPSClassifier(
        epsilon=3.0, delta=delta, classes=[0, 1], examples=N, normalise_rows=True
    ).fit(ROWS.numpy(), LABELS.numpy())


STATED = {
    "fit": (N, trained),
    "a budget": (N, lambda delta: trained(None, budget=Budget(9.0, delta))),
    "a ledger": (N, lambda delta: trained(None, ledger=MemoryLedger(Budget(9.0, delta)))),
    "users": (USERS, by_users),
    "a federation": (USERS, federated),
    "a plan": (
        N,
        lambda delta: make_plan(
            examples=N, batch_size=30, steps=2, noise_multiplier=2.0, delta=delta, **SHORT
        ),
    ),
    "a plan by user": (
        USERS,
        lambda delta: make_plan(
            users=USERS, batch_size=9, steps=2, noise_multiplier=2.0, delta=delta, **SHORT
        ),
    ),
    "a classifier": (N, classified),
    "the doctor": (
        N,
        lambda delta: examine(
            ROWS[:60].numpy(), LABELS[:60].numpy(), candidates=[], examples=N, epsilon=3.0,
            delta=delta, folds=3, steps=5,
        ),
    ),
}  # fmt: skip
COMPUTED = {
    "epsilon_of_run": lambda delta: epsilon_of_run(METHOD, SAMPLER, 2, delta=delta, **SHORT),
    "calibrate_noise": lambda delta: calibrate_noise(SAMPLER, 2, budget=Budget(3, delta), **SHORT),
    "calibrate_steps": lambda delta: calibrate_steps(
        SAMPLER, 2.0, budget=Budget(3, delta), **SHORT
    ),
    "calibrate_tuning": lambda delta: calibrate_tuning(
        SAMPLER, 2, selection=fixed_grid(), settings=2, budget=Budget(3, delta), **SHORT
    ),
}


@pytest.mark.parametrize(("units", "state"), STATED.values(), ids=STATED)
def test_hazard_34_a_delta_above_one_in_n_is_refused(units, state):
    for delta in (0.2, 1.01 / units):
        with pytest.raises(SettingError, match=rf"Expected delta <= 1/n .* n = {units}, found"):
            state(delta)


@pytest.mark.parametrize(("units", "state"), STATED.values(), ids=STATED)
def test_hazard_34_a_delta_near_one_in_n_is_warned_about(units, state):
    for delta in (1 / units, 0.51 / units):
        with pytest.warns(PrivacyWarning, match=rf"more than 1/\(2n\) .* n = {units}"):
            state(delta)


@pytest.mark.parametrize(("units", "state"), STATED.values(), ids=STATED)
def test_a_small_delta_is_nobodys_concern(units, state):
    state(0.5 / units)  # warnings are errors here


@pytest.mark.parametrize("compute", COMPUTED.values(), ids=COMPUTED)
def test_hazard_34_no_epsilon_is_computed_above_one_in_n(compute):
    compute(1 / N)
    with pytest.raises(SettingError, match="Expected delta <= 1/n"):
        compute(1.01 / N)


def test_hazard_34_tuning_is_refused_before_anything_is_tried():
    with pytest.raises(SettingError, match="Expected delta <= 1/n"):
        tuned(0.2)


@pytest.mark.parametrize("units", [3, 7, 49, 400, 1000, 25_000, 246_092, 10**9 + 7])
def test_the_papers_delta_is_allowed_whatever_its_rounding(units):
    for delta in (1 / units, np.nextafter(1 / units, 1), float(f"{1 / units:.12g}")):
        require_small_delta(float(delta), units, Unit.EXAMPLE)


def test_the_warning_names_the_line_that_called():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(1 / N)
    assert {warning.filename for warning in caught} == {__file__}


def test_the_papers_experiments_do_not_warn():
    """Their delta is 1/n on purpose; warnings are errors here."""
    contender = next(one for one in toy_problem.TOY_METHODS if one.private)
    assert (
        toy_problem.run(
            contender, recorded_settings("toy")[contender.name], 0, steps=2
        ).privacy.delta
        == 1e-3
    )
    published._epsilon.cache_clear()
    imdb = published.PublishedRun("IMDB", 25_000, 64, 32, 1.0, 4)
    assert imdb.epsilon(Accountant.RDP, grouped=False) == pytest.approx(1.51, abs=0.01)


def test_hazard_34_commands_refuse_and_warn(tmp_path):
    data = write(tmp_path / "data.csv", rows(100))
    train = ["train", str(data), "--text", "text", "--label", "label", "--epsilon", "8", "--words",
             "100", "--epochs", "1", "--examples", "100"]  # fmt: skip
    for number, (delta, code, said) in enumerate(
        ((0.2, 2, "SettingError: Expected delta <= 1/n"), (0.01, 0, "Warning: delta = 0.01 is"))
    ):
        out = ["--out", str(tmp_path / f"model{number}"), "--delta", str(delta)]
        shown = CliRunner().invoke(app, [*train, *out])
        assert shown.exit_code == code, shown.output
        assert said in shown.stderr
        assert shown.stderr.count("1/(2n)") <= 1
    plan = ["plan", "--examples", "1000", "--batch-size", "10", "--steps", "5", "--json"]
    shown = CliRunner().invoke(app, [*plan, "--noise-multiplier", "2", "--delta", "0.001"])
    assert "Warning: delta = 0.001" in shown.stderr
    assert json.loads(shown.stdout)["delta"] == 0.001


def test_hazard_34_a_ledger_is_not_shown_at_a_large_delta(tmp_path):
    with adadps.DiskLedger(tmp_path / "l") as ledger:
        trained(None, ledger=ledger)
    assert summarise(tmp_path / "l", delta=1e-4)["delta"] == 1e-4
    with pytest.raises(SettingError, match="n = 300"):
        summarise(tmp_path / "l", delta=0.01)
