"""The privacy card: what it says, its schema, and that nothing private is on it."""

from __future__ import annotations

import json
import math
import re

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from torch import nn

from adadps import (
    Accountant,
    AdaDPSClassifier,
    Checkpoints,
    Relation,
    accuracy,
    adadps,
    dp_sgd,
    epsilon_of_run,
    examples,
    fixed_size,
    load_result,
    on_public,
    poisson,
    reproducible_not_private,
    shuffled,
    side,
    tune,
)
from adadps.engine.losses import cross_entropy
from adadps.methods import plain_sgd
from adadps.methods.stages import by_label, privatize
from adadps.report.card import card_of, markdown_of, schema
from adadps.report.card.checking import check
from adadps.report.card.meaning import (
    MOST_BY_PLD,
    WHOLE_BUDGET,
    epsilon_after,
    factor_of,
    meaning_of,
)
from adadps.report.card.rendering import as_text, digits, measured_on
from adadps.report.html.reports import spending
from adadps.report.result import WHOLE_BUDGET_CLAIM
from adadps.training.tuning import fixed_grid, highest
from support.small_runs import (
    FEATURES,
    LABELS,
    before_the_clip,
    noisy_words,
    privacy,
    trained,
    two_sided,
)

PLD, RDP = Accountant.PLD, Accountant.RDP
KINDS = {
    "dp-sgd": trained,
    "adadps": lambda: trained(before_the_clip()),
    "two-sided": lambda: trained(two_sided()),
    "by rdp": lambda: trained(accountant=RDP),
    "measured side information": lambda: trained(adadps(noisy_words(), privacy(), lr=0.5)),
    "fixed size": lambda: trained(sampler=fixed_size(examples=60, expected_size=6)),
    "shuffled": lambda: trained(sampler=shuffled(examples=60, expected_size=25)),
    "zero out": lambda: trained(
        sampler=poisson(examples=60, expected_size=6, relation=Relation.ZERO_OUT)
    ),
    "replace one": lambda: trained(
        sampler=poisson(examples=60, expected_size=6, relation=Relation.REPLACE_ONE)
    ),
    "groups": lambda: trained(
        dp_sgd(privatize(clip_norm=1.0, noise_multiplier=9.0, groups=by_label(2)), lr=0.1)
    ),
    "no noise": lambda: trained(plain_sgd(0.1)),
    "seeded": lambda: trained(randomness=reproducible_not_private(1)),
    "debugged": lambda: trained(debug=True),
    "trials": lambda: trained(tuning_trials=12),
}
NOT_PRIVATE = {"no noise", "seeded", "debugged"}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param, KINDS[request.param]()


def test_every_card_keeps_to_the_schema(kind):
    jsonschema.Draft202012Validator.check_schema(schema())
    card = json.loads(json.dumps(card_of(kind[1].describe()), allow_nan=False))
    jsonschema.Draft202012Validator(schema()).validate(card)


def test_hazard_24_a_card_without_privacy_shouts_it_and_has_no_epsilon(kind):
    name, result = kind
    card = card_of(result.describe())
    text = markdown_of(card)
    assert card["private"] is (name not in NOT_PRIVATE)
    assert ("\n# NOT PRIVATE: ε = ∞\n" in text) is (name in NOT_PRIVATE)
    if name in NOT_PRIVATE:
        assert {one["epsilon"] for one in card["guarantee"]["by_accountant"].values()} == {None}
        assert not re.search(r"ε = \d", text)
        for reason in result.privacy.not_private_because:
            assert as_text(reason) in text


def test_the_check_agrees_with_what_was_trained(kind):
    name, result = kind
    found = check(result.describe())
    if name in NOT_PRIVATE:
        assert (found.agrees, found.recomputed_epsilon) == (None, None)
    else:
        assert found.agrees is True, found.says
        assert found.recomputed_epsilon == pytest.approx(result.privacy.epsilon, rel=1e-9)


def test_a_card_is_a_function_of_what_is_stored(kind, tmp_path):
    folder = kind[1].save(tmp_path / "run")
    stored = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    described = load_result(folder).describe()
    assert stored == json.loads(json.dumps(card_of(described)))
    text = (folder / "card.md").read_text(encoding="utf-8")
    assert text == markdown_of(card_of(described), "run")
    assert text.startswith("# Privacy card of run\n")


# --- its content ---


@pytest.mark.parametrize(
    ("relation", "unit", "said"),
    [
        ("add or remove one", "example", "had this example not been in the data"),
        ("zero out one", "example", "had this example been blanked out"),
        ("replace one", "user", "had all data of this user been replaced"),
        ("add or remove one", "user (who)", "had all data of this user not been in the data"),
    ],
)
def test_epsilon_is_told_in_plain_words_for_the_unit_that_it_protects(relation, unit, said):
    told = meaning_of({"epsilon": 1.0, "delta": 1e-5, "unit": unit, "relation": relation})
    assert told.startswith(f"For any {unit.split(' ')[0]}: ")
    assert said in told
    assert "at most 2.72 times" in told
    assert "plus δ = 1e-05" in told
    assert "guarantees little" not in told


def test_a_factor_is_never_understated_and_a_large_one_is_called_so():
    for epsilon in (0.01, 0.5, 1.0, 3.7, 12.0, 500.0):
        assert float(factor_of(epsilon)) >= math.exp(epsilon)
    weak = {"epsilon": 9.0, "delta": 1e-5, "unit": "example", "relation": "add or remove one"}
    assert "guarantees little" in meaning_of(weak)


@given(st.floats(1e-9, 1e9))
def test_a_shown_epsilon_is_never_below_the_true_one_and_not_far_above(epsilon):
    shown = float(digits(epsilon))
    assert shown >= epsilon
    assert shown <= (epsilon + 0.0011 if epsilon >= 0.01 else 1.11 * epsilon)


def test_shown_bounds_are_rounded_to_the_safe_side():
    assert (digits(2.0004), digits(1.1), digits(3.0)) == ("2.001", "1.100", "3.000")
    described = trained().describe()
    described["privacy"]["epsilon"] = 2.0004
    assert "ε = 2.001 at" in markdown_of(card_of(described))


@pytest.mark.parametrize(
    ("data", "declared", "shown"),
    [
        ("republican voters", "public", "republican voters (public)"),
        ("not public texts", "public", "not public texts (public)"),
        ("public-domain books", "public", "public-domain books"),
        ("withheld outcomes", "held out", "withheld outcomes (held out)"),
        ("held-out packages", "held out", "held-out packages"),
    ],
)
def test_how_data_are_declared_is_left_out_only_if_their_name_says_it(data, declared, shown):
    assert measured_on(data, declared) == shown


def test_the_meaning_stands_on_every_card(kind):
    name, result = kind
    text = markdown_of(card_of(result.describe()))
    assert ("Nothing is guaranteed" in text) is (name in NOT_PRIVATE)
    assert ("For any example: " in text) is (name not in NOT_PRIVATE)
    assert "expected_size" not in text


def test_the_model_is_on_the_card_if_the_result_tells_it():
    described = trained().describe()
    assert card_of(described)["model"] is None
    described["settings"]["model"] = "linear; reads 'note'"
    assert "reads 'note'" in markdown_of(card_of(described))


def test_epsilon_by_both_accountants_is_that_of_the_run():
    method, sampler = before_the_clip(), poisson(examples=60, expected_size=6)
    card = card_of(trained(method).describe())
    for accountant in (PLD, RDP):
        expected = epsilon_of_run(method, sampler, 8, delta=1 / 600, accountant=accountant)
        found = card["guarantee"]["by_accountant"][accountant.value]["epsilon"]
        assert found == pytest.approx(expected, rel=1e-9)
    by_rdp = card_of(trained(method, accountant=RDP).describe())["guarantee"]
    assert by_rdp["epsilon"] == by_rdp["by_accountant"]["rdp"]["epsilon"]
    assert by_rdp["by_accountant"]["pld"]["epsilon"] == pytest.approx(
        card["guarantee"]["epsilon"], rel=1e-9
    )


def test_epsilon_by_the_other_accountant_counts_side_information():
    method = adadps(noisy_words(), privacy(), lr=0.5)
    card = card_of(trained(method).describe())
    sampler = poisson(examples=60, expected_size=6)
    expected = epsilon_of_run(method, sampler, 8, delta=1 / 600, accountant=RDP)
    assert card["guarantee"]["by_accountant"]["rdp"]["epsilon"] == pytest.approx(expected)
    assert card["side_information"][0]["cost"] == "one Gaussian release with noise multiplier 9"


def test_where_there_is_no_second_epsilon_a_note_says_why():
    fixed = trained(sampler=fixed_size(examples=60, expected_size=6))
    found = card_of(fixed.describe())["guarantee"]["by_accountant"]["pld"]
    assert found["epsilon"] is None
    assert "relation" in found["note"]
    described = trained(accountant=RDP).describe()
    described["privacy"]["epsilon"] = MOST_BY_PLD * 2
    assert "above" in card_of(described)["guarantee"]["by_accountant"]["pld"]["note"]
    described["privacy"]["charges"] = None
    assert "record" in card_of(described)["guarantee"]["by_accountant"]["pld"]["note"]
    described["privacy"]["charges"] = [{"event": "{}", "count": 1}]
    described["privacy"]["epsilon"] = 1.0
    assert "cannot" in card_of(described)["guarantee"]["by_accountant"]["pld"]["note"]


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        (12, "12 declared, NOT included in epsilon"),
        (0, "none on private data"),
        (None, "not declared"),
    ],
)
def test_hazard_21_trials_and_whether_they_are_paid(trials, said):
    card = card_of(trained(tuning_trials=trials).describe())
    assert card["tuning"]["trials"] == trials
    assert card["tuning"]["in_epsilon"] is False
    assert said in card["tuning"]["in_words"]
    assert any("Uncounted" in gap for gap in card["not_covered"]) is (trials != 0)


def test_hazard_21_a_tuning_has_its_trials_in_epsilon():
    def make(setting):
        return nn.Linear(5, 3), dp_sgd(privacy(), lr=setting["lr"])

    score = highest(on_public("pilot", FEATURES, LABELS, accuracy=accuracy), "accuracy")
    found = tune(
        make,
        cross_entropy,
        examples(FEATURES, LABELS),
        grid={"lr": [0.1, 1.0]},
        score=score,
        selection=fixed_grid(),
        steps=4,
        sampler=poisson(examples=60, expected_size=6),
    )
    card = card_of(found.result.describe())
    jsonschema.Draft202012Validator(schema()).validate(card)
    assert (card["tuning"]["trials"], card["tuning"]["in_epsilon"]) == (2, True)
    assert not any("Uncounted" in gap for gap in card["not_covered"])
    assert card["guarantee"]["by_accountant"]["rdp"]["epsilon"] is None
    assert check(found.result.describe()).agrees is None
    assert epsilon_after(found.result.describe()["privacy"], 2) is None


def test_hazard_22_every_number_says_which_data_it_came_from():
    card = card_of(trained().describe())
    (number,) = card["numbers"]
    assert (number["data"], number["declared"], number["step"]) == ("the test", "held out", 8)
    assert "the test (held out)" in markdown_of(card)
    assert any("Held-out" in gap for gap in card["not_covered"])


def test_a_resumed_run_tells_steps_and_steps_paid(tmp_path):
    checkpoints = Checkpoints(tmp_path / "kept", every=4)
    first = trained(checkpoints=checkpoints)
    card = card_of(first.describe())
    assert (card["mechanism"]["steps"], card["mechanism"]["steps_paid"]) == (8, 8)
    described = first.describe()
    described["privacy"]["steps_paid"] = 11
    described["privacy"]["charges"][0]["count"] = 11
    assert card_of(described)["mechanism"]["steps_paid"] == 11


def test_nothing_on_a_card_depends_on_the_private_data(monkeypatch):
    """Two data sets have the same statement: apart from weights, nothing stored differs."""
    told = []
    for scale in (1.0, -3.0):
        monkeypatch.setattr("support.small_runs.FEATURES", FEATURES * scale)
        told.append(trained(before_the_clip(), evaluate=[]).describe())
    assert told[0] == told[1]
    assert card_of(told[0]) == card_of(told[1])


def test_the_oracle_shows_no_spread_of_what_it_has_read():
    stolen = side.from_private_data({"weight": (FEATURES.mean(0) + 0.1, 1)}, source="the mails")
    result = trained(adadps(stolen, privacy(), lr=0.5))
    assert result.public_facts["preconditioners"] == []
    assert result.privacy.epsilon == math.inf
    assert "infinite" in card_of(result.describe())["side_information"][0]["cost"]


MARKUP = "<b>*x*</b> [a](http://b) | `c` # d_e\n\n# NOT A HEADING"


def test_texts_of_others_are_no_markup():
    result = trained(assumed_public=[MARKUP])
    text = markdown_of(card_of(result.describe()))
    assert "\n# NOT A HEADING" not in text
    assert "<b>" not in text
    assert r"\<b\>\*x\*\</b\>" in text


# --- epsilon after some steps ---


@pytest.mark.parametrize("name", ["adadps", "measured side information", "shuffled", "by rdp"])
def test_epsilon_on_the_way_is_that_of_a_shorter_run(name):
    held = KINDS[name]().describe()["privacy"]
    way = [epsilon_after(held, step) for step in range(1, 9)]
    assert way == sorted(way)
    assert way[-1] == held["epsilon"]


def test_epsilon_after_some_steps_by_the_accountant():
    held = trained().describe()["privacy"]
    expected = epsilon_of_run(
        dp_sgd(privacy(), lr=0.5),
        poisson(examples=60, expected_size=6),
        3,
        delta=1 / 600,
        accountant=PLD,
    )
    assert epsilon_after(held, 3) == pytest.approx(expected, rel=1e-9)


def test_epsilon_on_the_way_counts_lost_steps_from_the_start():
    held = trained().describe()["privacy"]
    lost = {**held, "charges": [{**held["charges"][0], "count": 11}]}
    assert epsilon_after(lost, 3) == pytest.approx(
        epsilon_after(trained(steps=6).describe()["privacy"], 6)
    )


def test_without_a_record_there_is_no_epsilon_on_the_way():
    held = trained().describe()["privacy"]
    for changed in ({"charges": None}, {"epsilon": None}, {"tuning": {}}, {"sampler": {}}):
        assert epsilon_after({**held, **changed}, 3) is None


def test_several_runs_on_one_ledger_are_claimed_as_the_whole_budget():
    model = AdaDPSClassifier(
        epsilon=3.0,
        epsilon_per_run=1.0,
        classes=[0, 1, 2],
        examples=60,
        feature_bounds=(-4, 4),
        epochs=2.0,
        delta=1e-3,
    )
    model.partial_fit(FEATURES, LABELS).partial_fit(FEATURES, LABELS)
    described = model.result_.describe()
    card = card_of(described)
    by = card["guarantee"]["by_accountant"]
    assert by["rdp"] == {"epsilon": 3.0, "note": WHOLE_BUDGET}
    assert by["pld"]["epsilon"] is None
    assert "the accountant of this run" not in markdown_of(card)
    assert "with 2δ if one run was begun after looking at another" in markdown_of(card)
    assert any("holds with 2 delta" in gap for gap in card["not_covered"])
    jsonschema.Draft202012Validator(schema()).validate(json.loads(json.dumps(card)))
    found = check(described)
    assert (found.agrees, found.recomputed_epsilon) == (None, None)
    assert WHOLE_BUDGET_CLAIM in found.says
    assert spending({"run": model.result_}) is None
    first = clone(model).partial_fit(FEATURES, LABELS).result_
    assert check(first.describe()).agrees is True
    assert not any("2 delta" in gap for gap in card_of(first.describe())["not_covered"])
    assert spending({"run": first}) is not None
