"""Audits on a card: of the same claim, or refused."""

from __future__ import annotations

import jsonschema
import pytest

from adadps import Accountant
from adadps.errors import DataError
from adadps.methods import plain_sgd
from adadps.report.card import card_of, markdown_of, schema
from adadps.report.card.audits import fitting_audit
from support.small_runs import trained

RDP = Accountant.RDP

OUTCOME = {
    "audit": "one run",
    "claimed_epsilon": 1.0,
    "delta": 1e-6,
    "relation": "add or remove one",
    "lower_bound": 0.4,
    "largest_bound": 3.0,
    "confidence": 0.95,
    "runs": 1,
    "canaries": 100,
    "guesses": 40,
    "right_guesses": 30,
    "settings": {"method": "adadps", "path": "late"},
    "verdict": "consistent",
}


def claiming(epsilon=1.0, delta=1e-6):
    described = trained(accountant=RDP).describe()
    described["privacy"].update(epsilon=epsilon, delta=delta)
    return described


def test_an_audit_of_the_same_claim_stands_on_the_card():
    described = claiming()
    card = card_of(described, fitting_audit(OUTCOME, described))
    jsonschema.Draft202012Validator(schema()).validate(card)
    assert card["audit"]["lower_bound"] == 0.4
    text = markdown_of(card)
    assert "ε ≥ 0.400 with confidence 0.95" in text
    assert "other models, trained for the audit" in text


def test_a_bound_of_an_audit_is_rounded_down():
    described = claiming()
    audit = fitting_audit({**OUTCOME, "lower_bound": 0.3999}, described)
    assert "ε ≥ 0.399 with" in markdown_of(card_of(described, audit)).replace("\\", "")


@pytest.mark.parametrize(
    ("changed", "described"),
    [
        ({"claimed_epsilon": 1.1}, {}),
        ({"delta": 1e-5}, {}),
        ({"relation": "replace one"}, {}),
        ({}, {"epsilon": 2.0}),
    ],
)
def test_an_audit_of_another_claim_is_refused(changed, described):
    with pytest.raises(DataError, match=r"Expected an audit of ε = .*Repeat the audit"):
        fitting_audit({**OUTCOME, **changed}, claiming(**described))


def test_an_audit_of_a_run_without_privacy_is_refused():
    with pytest.raises(DataError, match="no claim"):
        fitting_audit(OUTCOME, trained(plain_sgd(0.1)).describe())


@pytest.mark.parametrize(
    "outcome",
    [None, [], {}, 7, *({**OUTCOME, name: value} for name, value in (
        ("claimed_epsilon", None), ("delta", 0), ("confidence", 1), ("runs", 1.5),
        ("guesses", True), ("verdict", 3), ("lower_bound", -1.0),
    ))],
    ids=str,
)  # fmt: skip
def test_something_else_than_an_audit_is_refused(outcome):
    with pytest.raises(DataError, match="Expected the JSON of `adadps audit"):
        fitting_audit(outcome, claiming())
