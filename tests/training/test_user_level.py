"""Runs, ledgers, checkpoints, tunings and plans whose unit is the user."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from adadps import (
    Accountant,
    Budget,
    BudgetError,
    Checkpoints,
    DiskLedger,
    PrivateRun,
    by_user,
    calibrate_noise,
    calibrate_steps,
    dp_sgd,
    epsilon_of_run,
    examples,
    fit,
    fixed_size,
    load_result,
    on_public,
    poisson,
    privatize,
    shuffled,
    tune,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.accounting.ledger.summary import summarise
from adadps.accounting.plan import make_plan
from adadps.cli.main import app
from adadps.errors import ContractError, DataError, SettingError
from adadps.training.tuning import fixed_grid, highest, private_accuracy
from support.problems import squared
from support.user_tables import EVERYBODY, SOME, method, model, privacy, table

RDP = Accountant.RDP


def trained(chosen=None, data=None, sampler=SOME, steps=2, **options):
    return fit(
        model(),
        squared,
        data or table(),
        method=chosen or method(),
        sampler=sampler,
        steps=steps,
        **options,
    )


# --- whose each row is ---


@pytest.mark.parametrize(
    "users",
    [
        ["ann", "bob", "ann", "eve"],
        [7, -3, 7, 10**17],
        np.array([7, 5, 7, 6], dtype=np.uint8),
        torch.tensor([7, 5, 7, 6]),
        np.array(["ann", "bob", "ann", "eve"]),
        np.array(["ann", "bob", "ann", "eve"], dtype=object),
        ("ann", "anne", "ann", "an n"),
        [1.0, "2", 1, "3.0"],
        [np.int64(1), 2, np.int64(1), 3],
    ],
)
def test_users_are_integers_or_texts_that_are_told_apart_by_their_keys(users):
    data = examples(torch.zeros(4, 2), torch.zeros(4), users=users)
    assert data.users.tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("users", "reason"),
    [
        (["ann", "", "bob"], "missing"),
        (["ann", "  ", "bob"], "missing"),
        (["ann", None, "bob"], "missing"),
        ([1, None, 2], "missing"),
        ([1.0, float("nan"), 2.0], "missing"),
        ([1.5, 2.0, 3.0], "another type"),
        ([True, False, True], "another type"),
        ([1, b"1", 2], "another type"),
        ([[1], [2], [3]], "another type"),
        (["ann", "bob"], "found 2 for 3 rows"),
        ("ann", "something else"),
        (5, "something else"),
    ],
)
def test_users_that_cannot_be_told_apart_are_refused(users, reason):
    with pytest.raises(DataError, match=reason) as refusal:
        examples(torch.zeros(3, 2), torch.zeros(3), users=users)
    assert "ann" not in str(refusal.value), "no private value is shown"


def test_users_go_with_their_rows_and_are_not_shown():
    data = examples(torch.zeros(4, 2), torch.zeros(4), users=["ann", "bob", "ann", "eve"])
    assert data.take(torch.tensor([3, 0])).users.tolist() == [2, 0]
    assert "ann" not in repr(data)
    assert "users" not in repr(data)


@pytest.mark.parametrize("most", [0, -1, 2.5, True, None, "3"])
def test_a_bound_that_is_no_number_of_rows_is_refused(most):
    with pytest.raises(SettingError, match="rows per user"):
        by_user(most=most)


def test_a_column_needs_a_name():
    with pytest.raises(SettingError, match="column"):
        by_user(most=2, column=" ")


@pytest.mark.parametrize("make", [poisson, fixed_size, shuffled])
def test_a_sampler_counts_examples_or_users(make):
    for wrong in ({}, {"examples": 5, "users": 5}):
        with pytest.raises(SettingError, match="either examples or users, found both or none"):
            make(expected_size=2, **wrong)
    with pytest.raises(SettingError, match="between 0 and the 5 users"):
        make(users=5, expected_size=6)
    with pytest.raises(SettingError, match="users >= 1"):
        make(users=0, expected_size=1)


@pytest.mark.parametrize("make", [fixed_size, shuffled])
def test_a_number_of_users_that_is_part_of_the_guarantee_must_be_true(make):
    trained(sampler=make(users=5, expected_size=2), steps=1)
    with pytest.raises(DataError, match="the 12 declared users, found 5"):
        trained(sampler=make(users=12, expected_size=2), steps=1)


@pytest.mark.parametrize("declared", [3, 5, 100])
def test_under_poisson_sampling_the_declared_number_rules(declared):
    result = trained(sampler=poisson(users=declared, expected_size=2))
    assert result.privacy.delta == 1 / (10 * declared)


# --- the price ---


@pytest.mark.parametrize("most", [1, 3, 1000])
@pytest.mark.parametrize("accountant", Accountant)
@pytest.mark.usefixtures("real_accounting")
def test_golden_epsilon_is_that_of_as_many_examples(most, accountant):
    """The paper's IMDB run with users in the place of reviews: 1.51 by RDP, 1.36 by PLD."""
    terms = {"delta": 1 / 25_000, "accountant": accountant}
    users = epsilon_of_run(method(most), poisson(users=25_000, expected_size=64), 12_500, **terms)
    single = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=1.0), lr=0.1)
    alone = epsilon_of_run(single, poisson(examples=25_000, expected_size=64), 12_500, **terms)
    assert users == alone
    assert round(users, 2) == {Accountant.RDP: 1.51, Accountant.PLD: 1.36}[accountant]


def test_noise_and_steps_are_found_for_users_as_for_examples():
    budget = Budget(2.0, 1e-4)
    of_users, of_examples = (
        poisson(expected_size=20, **{unit: 1000}) for unit in ("users", "examples")
    )
    for find, second in ((calibrate_noise, 200), (calibrate_steps, 1.5)):
        found = find(of_users, second, budget=budget, accountant=RDP)
        assert found == find(of_examples, second, budget=budget, accountant=RDP)


def test_a_plan_counts_users():
    common = {"batch_size": 50, "steps": 100, "noise_multiplier": 1.2, "accountant": RDP}
    users, alone = make_plan(users=1000, **common), make_plan(examples=1000, **common)
    assert users.epsilon == alone.epsilon
    assert users.describe()["users"] == alone.describe()["examples"] == 1000
    assert "examples" not in users.describe()
    assert (users.unit, users.grouping) == ("user", "each user as one")
    with pytest.raises(SettingError, match="both or none"):
        make_plan(users=10, examples=10, **common)


def test_the_plan_command_counts_users(capsys):
    given = ["--batch-size", "50", "--steps", "100", "--noise-multiplier", "1.2", "--json"]
    assert not app(["plan", "--users", "1000", *given], standalone_mode=False)
    shown = capsys.readouterr().out
    assert '"users": 1000' in shown
    assert '"unit": "user"' in shown
    assert app(["plan", *given], standalone_mode=False) == 2
    grouped = ["plan", "--users", "1000", "--group-size", "4", *given]
    assert app(grouped, standalone_mode=False) == 2
    assert "users" in capsys.readouterr().err


@pytest.mark.usefixtures("real_accounting")
def test_the_costs_in_the_documentation_are_computed():
    """Every noise multiplier of the table keeps to its epsilon, and nearly uses it up."""
    page = (Path(__file__).parents[2] / "docs/user-level.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+) \| ([\d,]+) \| (.+) \| ([\d.]+) C \|$", page, re.MULTILINE)
    assert len(rows) == 3
    for users, batch, sigmas, noise in rows:
        count, size = int(users.replace(",", "")), int(batch.replace(",", ""))
        found = [float(sigma) for sigma in sigmas.split(" | ")]
        assert float(noise) == round(found[1] / size, 4)
        for epsilon, sigma in zip((1, 2, 8), found, strict=True):
            cost = make_plan(users=count, batch_size=size, epochs=20, noise_multiplier=sigma)
            assert 0.995 * epsilon < cost.epsilon <= epsilon


# --- ledgers ---


@pytest.mark.parametrize("make", ["memory", "disk"])
def test_a_ledger_serves_one_unit(make, tmp_path):
    budget = Budget(100.0, 1e-3)
    data = table()
    alone = examples(data.features, data.targets)
    single = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=1.0), lr=0.1)
    runs = {
        "per user": (method(), data, SOME),
        "per user (author)": (method(column="author"), data, SOME),
        "per example": (single, alone, poisson(examples=12, expected_size=3)),
    }
    for first, given in runs.items():
        path = tmp_path / first.replace(" ", "-")
        ledger = MemoryLedger(budget) if make == "memory" else DiskLedger(path, budget=budget)
        trained(*given, ledger=ledger, accountant=RDP)
        for other, refused in runs.items():
            if other == first:
                continue
            with pytest.raises(ContractError, match="the terms of this ledger") as refusal:
                trained(*refused, ledger=ledger, accountant=RDP)
            assert f"{first}, the terms" in str(refusal.value)
            assert f"{other}. " in str(refusal.value)
        assert ledger.entries == 2, "nothing was charged for what was refused"


def test_a_ledger_on_disk_says_whom_it_protects(tmp_path):
    trained(ledger=DiskLedger(tmp_path / "ledger"), accountant=RDP)
    shown = summarise(tmp_path / "ledger")
    assert shown["unit"] == "user"
    assert shown["delta"] == 1 / 50
    assert shown["runs"][0]["sampler"]["users"] == 5
    assert "at most 3 rows each" in shown["runs"][0]["chain"]


def test_a_budget_is_kept_per_user():
    with pytest.raises(BudgetError):
        trained(budget=Budget(0.5, 1e-3), steps=1000)


def test_a_saved_result_says_whom_it_protects(tmp_path):
    result = trained(method(column="author"))
    again = load_result(result.save(tmp_path / "run")).privacy
    assert again == result.privacy
    assert again.unit == "user (author)"


# --- checkpoints ---


def begin(folder, chosen=None, data=None, sampler=SOME):
    return PrivateRun(
        model(),
        squared,
        data or table(),
        method=chosen or method(column="author"),
        sampler=sampler,
        steps=6,
        checkpoints=Checkpoints(folder, every=2),
    )


def stopped(folder):
    run = begin(folder)
    for batch in run.batches():
        run.step(batch)
        if batch.index == 3:
            break
    return run


def test_a_run_by_user_is_resumed_and_pays_again(tmp_path):
    name = stopped(tmp_path / "run").name
    run = begin(tmp_path / "run")
    assert (run.name, run.taken) == (name, 2)
    for batch in run.batches():
        run.step(batch)
    statement = run.result().privacy
    assert (statement.steps, statement.steps_paid, statement.unit) == (6, 7, "user (author)")


@pytest.mark.parametrize(
    "other",
    [
        {"chosen": method(4, column="author")},
        {"chosen": method(column="reader")},
        {"chosen": method()},
        {"sampler": poisson(users=6, expected_size=2)},
    ],
    ids=["another bound", "another column", "no column", "another number"],
)
def test_hazard_16_a_run_does_not_go_on_for_other_users(other, tmp_path):
    stopped(tmp_path / "run")
    with pytest.raises(ContractError, match="plan"):
        begin(tmp_path / "run", **other)


def test_hazard_16_a_run_by_user_does_not_go_on_by_example(tmp_path):
    stopped(tmp_path / "run")
    data = table()
    with pytest.raises(ContractError, match="plan"):
        begin(
            tmp_path / "run",
            chosen=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=1.0), lr=0.1),
            data=examples(data.features, data.targets),
            sampler=poisson(examples=5, expected_size=2),
        )


def test_nothing_of_the_users_is_stored(tmp_path):
    data = table()
    named = examples(
        data.features, data.targets, users=[f"person-{u}" for u in data.users.tolist()]
    )
    run = begin(tmp_path / "run", data=named)
    for batch in run.batches():
        run.step(batch)
    run.result().save(tmp_path / "result")
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"person" not in file.read_bytes()


def test_debugging_counts_rows_and_users():
    result = trained(method(2), sampler=EVERYBODY, debug=True)
    assert not result.privacy.private
    assert [entry["batch_size"] for entry in result.debug] == [8, 8]  # 2 + 1 + 2 + 1 + 2 rows
    assert [entry["units"] for entry in result.debug] == [5, 5]


# --- tuning ---


def tuned(score, make=None, ledger=None):
    make = make or (lambda setting: (model(), method(lr=setting["lr"])))
    return tune(
        make,
        squared,
        table(),
        grid={"lr": [0.1, 0.2]},
        score=score,
        selection=fixed_grid(),
        sampler=SOME,
        steps=2,
        accountant=RDP,
        ledger=ledger,
        progress=False,
    )


def public_score():
    data = table(seed=3)

    def error(outputs, targets):
        return float((outputs - targets).square().mean())

    return highest(on_public("survey", data.features, data.targets, error=error), "error")


def test_a_tuning_by_user_says_so():
    ledger = MemoryLedger()
    found = tuned(public_score(), ledger=ledger)
    assert found.privacy.unit == "user"
    with pytest.raises(ContractError, match="per user"):
        ledger.open("other", SOME.relation, RDP)


def test_a_tuning_over_two_units_is_refused_before_it_is_paid():
    ledger = MemoryLedger()

    def make(setting):
        return model(), method(column=None if setting["lr"] == 0.1 else "author")

    with pytest.raises(ContractError, match="same unit, found user, user"):
        tuned(public_score(), make, ledger)
    assert ledger.entries == 0


def test_user_hazard_a_private_score_per_example_is_none_per_user():
    ledger = MemoryLedger()
    held = table(seed=4)
    labels = torch.zeros(12, dtype=torch.int64)
    score = private_accuracy("validation", held.features, labels, examples=12, noise_multiplier=9.0)
    with pytest.raises(ContractError, match="price is for a single example"):
        tuned(score, ledger=ledger)
    assert ledger.entries == 0


def test_a_tuning_by_user_needs_users_before_it_is_paid():
    ledger, data = MemoryLedger(), table()
    with pytest.raises(DataError, match="user of each example"):
        tune(
            lambda setting: (model(), method(lr=setting["lr"])),
            squared,
            examples(data.features, data.targets),
            grid={"lr": [0.1]},
            score=public_score(),
            selection=fixed_grid(),
            sampler=SOME,
            steps=2,
            ledger=ledger,
        )
    assert ledger.entries == 0


def test_the_bound_stands_in_the_chain():
    assert str(privacy(7, column="author")).endswith("users (author), at most 7 rows each)")
