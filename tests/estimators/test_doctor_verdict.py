"""What the doctor advises where the answer is known, and how it refuses what it cannot judge.

All draws are seeded: the same code gives the same verdicts.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from adadps import side
from adadps.errors import DataError, SettingError, SideInformationError
from adadps.estimators import doctor
from adadps.estimators.doctor import Shown
from adadps.estimators.doctor.verdict import decide, gain_needed, standard_error
from adadps.types import Method

COMMON, RARE = 40, 160


def rare_words_matter(count=400):
    """Each row has many common features that tell nothing, and three rare ones of its class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=count)
    rows = np.zeros((count, COMMON + RARE), dtype=np.float32)
    rows[:, :COMMON] = rng.random((count, COMMON)) < 0.8
    for row, label in zip(rows, labels, strict=True):
        row[COMMON + label * RARE // 2 + rng.choice(RARE // 2, 3, replace=False)] = 1
    rates = np.r_[np.full(COMMON, 0.8), np.full(RARE, 3 / RARE)]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels, rates


def by_two_doors(rates):
    known = side.given_frequencies(rates, source="a list", public_because="published")
    shaped = side.frequency(known, floor=0.01, power=0.5)
    return [
        doctor.before_the_clip("rates, before the clip", shaped),
        doctor.into_the_features("rates, weighted features", shaped),
    ]


def examine(rows, labels, candidates, **given):
    usual = {"examples": 3_000, "epsilon": 1.0, "folds": 5, "steps": 40}
    return doctor.examine(rows, labels, candidates=candidates, **{**usual, **given})


def test_side_information_is_advised_where_rare_features_carry_the_signal():
    rows, labels, rates = rare_words_matter()
    found = examine(rows, labels, by_two_doors(rates))
    assert found.verdict.name.startswith("rates")
    assert found.verdict.advised.gain > 0.1
    assert found.verdict.advised.score == max(one.score for one in found.findings)
    assert found.plan.candidate.name == found.verdict.name
    assert found.verdict.shown is found.verdict.advised.shown is Shown.GAIN
    assert f"a gain of {found.verdict.advised.points} points" in found.verdict.reasons[0]
    assert "in 5 simulated runs on 400 public rows" in found.verdict.reasons[0].lower()


def test_inverted_frequencies_are_not_advised():
    rows, labels, rates = rare_words_matter()
    found = examine(rows, labels, by_two_doors(rates.min() / rates))
    assert found.verdict.name == found.plan.candidate.name == "DP-SGD"
    assert found.verdict.shown is Shown.LOSS
    assert all(one.gain < -0.1 and one.shown is Shown.LOSS for one in found.findings[1:])
    assert "did worse than DP-SGD" in found.verdict.reasons[0]


def test_a_loss_that_was_shown_is_never_advised():
    rows, labels, rates = rare_words_matter()
    worse, other = by_two_doors(rates.min() / rates)
    found = examine(rows, labels, [worse, other], otherwise=other.name)
    assert found.verdict.name == "DP-SGD"


def test_nothing_is_advised_where_all_features_matter_alike():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(400, 20))
    labels = (rows.sum(1) + rng.normal(size=400) > 0).astype(int)
    candidates = [*by_two_doors(np.exp(rng.normal(size=20))), doctor.public_gradients()]
    found = examine(rows, labels, candidates)
    assert found.verdict.name == "DP-SGD"
    assert found.verdict.shown is Shown.NEITHER
    assert "does not mean that nothing helps" in found.verdict.reasons[0]
    assert not any("helps here" in reason for reason in found.verdict.reasons)


def finding(name, gains, *, method=Method.ADADPS, needed=0.02, sharper=1.0):
    plan = SimpleNamespace(candidate=doctor.Candidate(name, method))
    scores = tuple(0.5 + gain for gain in gains)
    return doctor.Finding(plan, scores, gains, None, dict.fromkeys(TERMS, sharper), needed)


TERMS = ("diameter", "ratio", "total", "noise", "bound", "sharper")
PLAIN = finding("DP-SGD", (0.0, 0.0), method=Method.DP_SGD, needed=0.0)
GAINED, LOST = finding("up", (0.03, 0.05)), finding("down", (-0.03, -0.05))
UNCLEAR = finding("unclear", (0.0, 0.02))


@pytest.mark.parametrize(
    ("others", "otherwise", "advised", "shown"),
    [
        ([GAINED, LOST, UNCLEAR], "DP-SGD", GAINED, Shown.GAIN),
        ([UNCLEAR, LOST], "DP-SGD", PLAIN, Shown.NEITHER),
        ([UNCLEAR, LOST], "unclear", UNCLEAR, Shown.NEITHER),
        ([UNCLEAR, LOST], "down", PLAIN, Shown.NEITHER),
        ([LOST], "down", PLAIN, Shown.LOSS),
        ([], "DP-SGD", PLAIN, Shown.NEITHER),
    ],
)
def test_what_is_shown_decides(others, otherwise, advised, shown):
    verdict = decide([PLAIN, *others], rows=1000, otherwise=otherwise)
    assert verdict.advised is advised
    assert verdict.shown is shown
    losses = [reason for reason in verdict.reasons if reason.startswith("A loss was shown for")]
    assert len(losses) == (LOST in others and shown is not Shown.LOSS)


def test_a_gain_is_told_with_its_size_and_spread():
    reason = decide([PLAIN, GAINED], rows=1000).reasons[0]
    assert "up reached 0.540 and DP-SGD 0.500: a gain of +4.0 ± 1.0 points" in reason
    assert "Noise alone would give up to 2.0." in reason
    assert "2 simulated runs on 1,000 public rows" in reason


def test_the_gain_that_is_needed_by_hand():
    gains = (0.01, 0.03, 0.02, 0.04)
    error = np.std(gains, ddof=1) / 2
    assert standard_error(gains) == pytest.approx(error)
    quantile = stats.t.ppf(1 - 0.05 / 5, 3)
    needed = gain_needed(gains, rows=10_000, others=5, confidence=0.95)
    assert needed == pytest.approx(quantile * error)
    assert needed > gain_needed(gains, rows=10_000, others=1, confidence=0.95)


def test_folds_that_agree_by_chance_are_not_believed():
    """One row of twenty more in each of three folds: 5 % of 60 rows."""
    needed = gain_needed((0.05, 0.05, 0.05), rows=60, others=1, confidence=0.95)
    assert needed == pytest.approx(stats.t.ppf(0.95, 2) * np.sqrt(0.05 * 0.95 / 60))
    assert needed > 0.05


def test_findings_are_plain_json_and_say_that_nothing_was_spent():
    rng = np.random.default_rng(2)
    rows, labels = rng.normal(size=(60, 3)), np.arange(60) % 2
    told = examine(rows, labels, [doctor.public_gradients()], folds=3, steps=5).describe()
    assert told["spent"].startswith("nothing")
    assert told["planned"] == {"examples": 3000, "epsilon": 1.0, "delta": 1 / 30_000}
    assert [one["candidate"] for one in told["findings"]] == [
        "DP-SGD",
        "public gradients, before the clip",
    ]
    first = told["findings"][0]
    assert first["gain"] == first["gain_needed"] == 0
    assert set(first["terms_relative_to_dp_sgd"].values()) == {1.0}
    assert first["shown"] is None
    assert told["findings"][1]["shown"] in ("gain", "neither", "loss")
    assert told["verdict"] in ("a gain was shown", "no gain could be shown", "a loss was shown")


ROWS = np.random.default_rng(3).normal(size=(60, 3))
LABELS = np.arange(60) % 2


@pytest.mark.parametrize(
    ("rows", "labels", "given", "error", "said"),
    [
        (ROWS[:39], LABELS[:39], {}, DataError, "at least 40 public examples, found 39"),
        (ROWS, LABELS * 0, {}, DataError, "at least two classes, found 1"),
        (ROWS, LABELS - 1, {}, DataError, "labels from 0"),
        (ROWS, LABELS + 5, {"classes": 3}, DataError, "found 5 to 6"),
        (ROWS, LABELS / 2, {}, DataError, "one whole number as a label"),
        (ROWS, LABELS[:50], {}, DataError, "one whole number as a label"),
        (ROWS.reshape(60, 3, 1), LABELS, {}, DataError, "Flatten"),
        (ROWS * np.nan, LABELS, {}, DataError, "finite features"),
        (ROWS, LABELS, {"folds": 2}, DataError, "between 3 and 12 folds"),
        (ROWS, LABELS, {"folds": 13}, DataError, "between 3 and 12 folds"),
        (ROWS, LABELS, {"epsilon": 0.0}, SettingError, "epsilon"),
        (ROWS, LABELS, {"delta": 1.5}, SettingError, "delta"),
        (ROWS, LABELS, {"examples": 0}, SettingError, "examples"),
        (ROWS, LABELS, {"examples": 100, "batch_size": 200}, SettingError, "the 100 examples"),
        (ROWS, LABELS, {"confidence": 1.0}, SettingError, "confidence"),
        (ROWS, LABELS, {"seed": -1}, SettingError, "seed"),
    ],
)
def test_what_cannot_be_judged_is_refused(rows, labels, given, error, said):
    with pytest.raises(error, match=said):
        examine(rows, labels, [], **given)


def test_side_information_that_does_not_fit_is_refused():
    known = side.given_frequencies([1.0, 0.5, 0.2, 0.1], source="s", public_because="p")
    short = doctor.before_the_clip("short", side.frequency(known, floor=0.1))
    with pytest.raises(SideInformationError, match="fits axis"):
        examine(ROWS, LABELS, [short])
    with pytest.raises(SideInformationError, match="one name twice"):
        examine(ROWS, LABELS, [doctor.public_gradients("a"), doctor.public_gradients("a")])
    with pytest.raises(SideInformationError, match="for `otherwise`, found 'b'"):
        examine(ROWS, LABELS, [doctor.public_gradients("a")], otherwise="b")
    with pytest.raises(SideInformationError, match="found none"):
        examine(ROWS, LABELS, [doctor.Candidate("empty", Method.ADADPS)])


def test_side_information_that_costs_privacy_is_refused():
    leaked = side.frequencies_of_private_data(np.ones((4, 3)), source="the private texts")
    with pytest.raises(SideInformationError, match="side information that costs privacy"):
        doctor.before_the_clip("leaked", side.frequency(leaked, floor=0.1))
