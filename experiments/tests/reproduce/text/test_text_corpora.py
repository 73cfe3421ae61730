"""The real text problems; those whose files are not found in ADADPS_DATA are skipped."""

import numpy as np
import pytest

from adadps_experiments.data.finding import DATA, find
from adadps_experiments.data.named_sets import TITLES
from adadps_experiments.reproduce.text.corpora import CORPORA
from adadps_experiments.reproduce.text.recipes import typical_counts

MISSING = [file.name for file in TITLES.files if find(file) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} not found; set {DATA} to their folder")
@pytest.mark.parametrize("name", ["so-titles", "so-titles-general-words"])
def test_titles_as_a_problem(name):
    held = CORPORA[name]()
    assert held.name == name
    words = held.train.counts.shape[1]
    assert len(held.train) + len(held.test) == 30_000
    assert held.test.counts.shape[1] == len(held.idf) == len(held.tfidf) == words
    assert len(held.frequencies.values) == words
    assert np.all(held.idf > 0)
    assert not set(held.train.groups) & set(held.test.groups)
    assert held.train.targets.shape[1] == held.classes == 100
    np.testing.assert_allclose(held.train.targets.sum(1), 1, atol=1e-6)
    shares = np.asarray((held.train.counts > 0).mean(axis=0)).ravel()
    typical = np.asarray((typical_counts(held) > 0).mean(axis=0)).ravel()
    assert np.corrcoef(shares, typical)[0, 1] > 0.2  # public text is informative about titles
    lengths = np.asarray(held.train.counts.sum(axis=1)).ravel()
    assert 0.5 < np.mean(lengths) / held.length < 1.5  # declared, not measured, but close


def test_packages_as_a_problem():
    held = CORPORA["debian-tags"]()
    assert (held.name, held.classes, held.train.counts.shape[1]) == ("debian-tags", 598, 2_000)
    assert len(held.train) + len(held.test) == 30_300
    assert not set(held.train.groups) & set(held.test.groups)
    assert len(held.train.users) == len(held.train)
    np.testing.assert_allclose(held.train.targets.sum(1), 1, atol=1e-6)
    lengths = np.asarray(held.train.counts.sum(axis=1)).ravel()
    assert 0.5 < np.mean(lengths) / held.length < 1.5


@pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} not found; set {DATA} to their folder")
def test_technical_words_know_more_of_titles_than_general_ones():
    """This holds for the vocabulary and for its frequencies."""
    fits, found = {}, {}
    for name in ("so-titles", "so-titles-general-words"):
        held = CORPORA[name]()
        shares = np.asarray((held.train.counts > 0).mean(axis=0)).ravel()
        known = held.frequencies.values.numpy()
        fits[name] = np.corrcoef(np.log(shares + 1e-5), np.log(known))[0, 1]
        found[name] = held.train.counts.sum()
    assert fits["so-titles"] > fits["so-titles-general-words"] > 0
    assert found["so-titles"] > 1.1 * found["so-titles-general-words"]
