"""The figure of noisy moments: what it shows, and that it says it is not private."""

import struct

import numpy as np
import pytest

from adadps_experiments.reproduce.text import moments
from adadps_experiments.reproduce.text.recipes import PAPER
from support.small_corpora import forget, put_in_place, small_corpus

CORPUS = small_corpus()
FEATURES = PAPER(CORPUS.train.counts, CORPUS.idf)
SIGNS = np.where(CORPUS.train.targets == 1, 1.0, -1.0)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(moments, "STEPS", 60)


def followed(sigma):
    return moments.track_moments(FEATURES, SIGNS, 64, sigma)


def test_without_noise_both_moments_are_the_same():
    found = followed(0.0)
    np.testing.assert_array_equal(found.noisy, found.clean)
    assert found.rank_correlation == pytest.approx(1.0)
    assert np.all(found.clean > 0)


def test_much_noise_says_nothing_about_the_words():
    assert followed(0.001).rank_correlation > 0.98
    found = followed(1000.0)
    assert abs(found.rank_correlation) < 0.4  # 0.16 is one standard deviation for forty words
    assert found.noisy.min() > 100 * found.clean.max()


def test_noise_has_the_deviation_of_the_mechanism():
    """E[noisy] = clean + (σC/b)², up to the weights that the noise has moved."""
    found = followed(1000.0)
    assert found.noisy.mean() == pytest.approx((1000 * moments.CLIP / 64) ** 2, rel=0.1)


def test_more_noise_is_less_correlation():
    correlations = [followed(sigma).rank_correlation for sigma in (0.01, 1.0, 100.0)]
    assert correlations == sorted(correlations, reverse=True)


def test_gradients_are_clipped(monkeypatch):
    """The norm of a mean of clipped gradients is at most C times the drawn batch size over b."""
    found = followed(0.0)
    assert np.sqrt(found.clean.sum()) <= moments.CLIP * 2
    monkeypatch.setattr(moments, "CLIP", 1e-6)
    assert np.sqrt(followed(0.0).clean.sum()) <= 2e-6


@pytest.fixture
def found(monkeypatch):
    put_in_place(monkeypatch, imdb=CORPUS)
    yield moments.estimates()
    forget()


def test_rows_say_that_they_are_not_private(found):
    rows = moments.rows_of(found)
    assert [row["settings"]["noise_multiplier"] for row in rows] == list(moments.NOISE)
    for row, one in zip(rows, found, strict=True):
        assert (row["epsilon_pld"], row["epsilon_rdp"], row["delta"]) == (None, None, None)
        assert row["mean"] == one.rank_correlation
        assert "private" in row["settings"]["not_private"]
        assert "training texts" in row["metric"]
    assert "not private" in moments.TITLE


def test_rows_have_exactly_the_agreed_names(found):
    agreed = {"experiment", "dataset", "method", "side", "metric", "mean", "std", "seeds"}
    agreed |= {"epsilon_pld", "epsilon_rdp", "delta", "paper", "settings"}
    for row in moments.rows_of(found):
        assert set(row) == agreed


def test_the_picture_has_a_panel_for_each_noise(found):
    picture = moments.figure_of(found)
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width == pytest.approx(3 * 4.4 * 120, abs=3)
    assert height == pytest.approx(3.6 * 120, abs=3)
    [alone] = struct.unpack(">I", moments.figure_of(found[:1])[16:20])
    assert alone == pytest.approx(width / 3, abs=3)
