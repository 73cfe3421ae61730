"""Hazard 36: one person under several spellings is one user."""

import json
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import adadps
from adadps import examples
from adadps.data.users import TOLD_APART_BY, user_key
from adadps.errors import DataError
from adadps.estimators.tables.request import TrainingRequest
from adadps.estimators.tables.training import train_from_table
from adadps.training.federated import simulated_users
from support.commands import write

SAME = {
    "numbers": [
        7,
        7.0,
        np.int64(7),
        np.float32(7),
        Decimal("7.00"),
        "7",
        "7.0",
        " 007 ",
        "+7",
        "7.",
    ],
    "long numbers": [10**16, 1e16, "10000000000000000", "1e+16", "1E+16", "10000000000000000.0"],
    "zero": [0, -0.0, "0", "-0", "00", "0.0"],
    "case": ["Ann", "ann", "ANN"],
    "blanks": ["ann lee", "  ann   lee\t", "ann\u00a0lee", "ann\u2003lee", "Ann\r\nLee"],
    "forms of Unicode": ["caf\u00e9", "cafe\u0301", "CAF\u00c9", "CAFE\u0301"],
    "wide letters and digits": ["user7", "\uff55\uff53\uff45\uff527", "user\uff17"],
    "digits of other scripts": ["12", "\u0661\u0662", "\u0967\u0968", "\uff11\uff12"],
    "invisible marks": ["ann", "\ufeffann", "an\u200bn", "a\u00adnn", "ann\u200d", "a\x00nn"],
    "sharp s": ["Stra\u00dfe", "STRASSE", "stra\u1e9ee"],
}
DIFFERENT = [
    1, -1, 10, 11, "1.1", "1.10", "ann", "anne", "ann lee", "annlee", "a-b", "ab", "12e5", "120e4",
    "1,000", 1000, "x7", "7x", "e", "\u00e9",
]  # fmt: skip
NOBODY = [None, "", "  ", "\u200b", float("nan"), float("inf"), "nan", "NaN", "NULL", "None", "N/A",
          "<NA>", np.datetime64("NaT"), True, 7.5, b"ann", ("ann",)]  # fmt: skip


@pytest.mark.parametrize("users", SAME.values(), ids=SAME)
def test_hazard_36_spellings_of_one_user_are_one_user(users):
    held = examples(np.eye(len(users)), np.zeros(len(users)), users=users)
    assert held.users.unique().tolist() == [0]


def test_other_keys_stay_apart():
    held = examples(np.eye(len(DIFFERENT)), np.zeros(len(DIFFERENT)), users=DIFFERENT)
    assert held.users.tolist() == list(range(len(DIFFERENT)))


@pytest.mark.parametrize("nobody", NOBODY, ids=repr)
def test_nobody_is_refused(nobody):
    with pytest.raises(DataError, match="Leave out rows without a user"):
        examples([[1.0], [2.0]], [0, 1], users=["ann", nobody])


@given(st.one_of(st.text(max_size=8), st.integers(), st.floats()))
def test_a_key_is_its_own_key(user):
    key = user_key(user)
    assert key is None or user_key(key) == key


@given(st.text(max_size=8))
def test_hazard_36_case_and_blanks_never_split_a_user(name):
    key = user_key(name)
    assert key == user_key(f" {name}\n") == user_key(name.casefold())
    if name.isascii():
        assert key == user_key(name.upper()) == user_key(name.lower())


def table(tmp_path, suffix):
    rows = []
    for row in range(120):
        number = row % 30
        spelled = (str(number), f"{number}.0", f" {number:03d}", f"{number} ")[row // 30]
        rows.append(["good words" if row % 2 else "bad words", "ab"[row % 2], spelled])
    path = tmp_path / f"data.{suffix}"
    if suffix == "csv":
        write(path, rows, ("text", "label", "who"))
    else:
        lines = [
            {"text": text, "label": label, "who": float(who) if "." in who else who}
            for text, label, who in rows
        ]
        path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_hazard_36_a_table_with_four_spellings_has_as_many_users_as_people(tmp_path, suffix):
    request = TrainingRequest(
        data=table(tmp_path, suffix), texts=("text",), label="label", classes="a,b",
        epsilon=8.0, out=tmp_path / "model", words=50, epochs=2, user="who", rows_per_user=4,
    )  # fmt: skip
    result = train_from_table(request, lambda _: None)
    assert result.privacy.sampler["users"] == 30
    card = (tmp_path / "model" / "card.md").read_text(encoding="utf-8")
    assert "users are identified by" in card
    assert TOLD_APART_BY in card
    assert "People with several keys" in card


def test_hazard_36_two_spellings_move_a_step_no_more_than_one():
    """A person under many spellings: the sum moves by C, not by C for each of them."""
    spellings = ["Ann", "ann", "ANN", " ann ", "a\u00adnn"]
    others = [f"user {number}" for number in range(20)]
    clip = 0.5

    def summed(users):
        rows = len(users)
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        privacy = adadps.privatize(
            clip_norm=clip, noise_multiplier=0.0, groups=adadps.by_user(most=5)
        )
        features = torch.ones(rows, 2)
        adadps.fit(
            model,
            lambda outputs, targets: (outputs - targets).flatten(1).sum(1) * 9,
            examples(features, torch.zeros(rows, 1), users=users),
            method=adadps.dp_sgd(privacy, lr=1.0),
            sampler=adadps.poisson(users=20, expected_size=20),
            steps=1,
            randomness=adadps.reproducible_not_private(0),
            progress=False,
        )
        return model.weight.detach() * 20  # the normaliser is the expected number

    moved = (summed(others + spellings) - summed(others)).norm()
    assert moved == pytest.approx(clip, rel=1e-4)


def test_users_that_are_yielded_one_by_one_are_one_each():
    """There are no keys in a simulation by iterator: whoever yields them says who they are."""
    pair = np.eye(2), [0, 1]
    with simulated_users([pair, pair], width=2) as data:
        assert data.users.tolist() == [0, 0, 1, 1]
