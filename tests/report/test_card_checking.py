"""What `adadps card --check` finds: changed numbers, missing prices, other cards."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadps import Accountant, adadps
from adadps.report.card import card_of
from adadps.report.card.checking import check, differences_of_cards
from support.small_runs import before_the_clip, noisy_words, privacy, trained

RDP = Accountant.RDP


@pytest.mark.parametrize("spoiled", ["epsilon", "noise_multiplier", "steps_paid", "steps", "count"])
def test_the_check_finds_a_number_that_was_changed(spoiled):
    described = trained(before_the_clip()).describe()
    held = described["privacy"]
    if spoiled == "count":
        held["charges"] = [{**one, "count": one["count"] - 1} for one in held["charges"]]
    else:
        held[spoiled] = held[spoiled] * 0.5 if spoiled == "epsilon" else held[spoiled] + 1
    found = check(described)
    assert found.agrees is False
    assert "DIFFERS" in found.says


def test_the_check_finds_a_price_that_was_left_out():
    described = trained(adadps(noisy_words(), privacy(), lr=0.5)).describe()
    assert check(described).agrees is True
    del described["side_information"][0]["price"]
    assert "side_information: expected a price" in check(described).says
    assert check(described).agrees is False


def test_results_of_earlier_versions_are_checked_by_their_mechanism():
    described = trained().describe()
    del described["privacy"]["charges"]
    assert check(described).agrees is True
    described["privacy"]["noise_multiplier"] *= 2
    assert check(described).agrees is False
    priced = trained(adadps(noisy_words(), privacy(), lr=0.5)).describe()
    del priced["privacy"]["charges"]
    assert check(priced).agrees is None
    assert "does not record" in check(priced).says


def test_a_sampler_that_cannot_be_read_is_said_not_to_be_checkable():
    described = trained().describe()
    described["privacy"]["sampler"]["sampling"] = "by whim"
    assert check(described).agrees is None


TREES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(TREES)
def test_no_tree_of_json_breaks_the_comparison_of_cards(tree):
    made = card_of(dataclasses.replace(RESULT).describe())
    assert not differences_of_cards(json.loads(json.dumps(made)), made)
    assert differences_of_cards(tree, made)
    assert differences_of_cards({**made, "guarantee": tree}, made)


torch.manual_seed(0)
RESULT = trained(accountant=RDP)


def test_differences_of_cards_are_named_by_field():
    made = card_of(RESULT.describe())
    held = json.loads(json.dumps(made))
    held["mechanism"]["steps"] += 1
    held["assumed_public"][0] = "nothing"
    del held["guarantee"]["unit"]
    found = {one.field: (one.expected, one.found) for one in differences_of_cards(held, made)}
    assert found["mechanism.steps"] == ("8", "9")
    assert found["guarantee.unit"] == ('"example"', "nothing")
    assert found["assumed_public[1]"][1] == '"nothing"'
    assert len(found) == 3


def test_numbers_may_differ_in_their_last_digits_and_nothing_else_may():
    made = card_of(RESULT.describe())
    held = json.loads(json.dumps(made))
    held["guarantee"]["epsilon"] *= 1 + 1e-9
    assert not differences_of_cards(held, made)
    (found,) = differences_of_cards({**made, "made_with": "x"}, made)
    assert found.field == "made_with"
