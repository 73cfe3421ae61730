"""The real text problems; those whose files must lie under ADADPS_DATA are skipped elsewhere."""

import numpy as np
import pytest

from adadps.data.debian import debian_packages
from adadps.data.finding import DATA, find
from adadps.data.named_sets import TITLES
from adadps.data.same_text import normalised
from adadps.data.technical_words import PUBLIC_PACKAGES
from adadps.reproduce.corpora import CORPORA
from adadps.reproduce.problem import typical_counts

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
    assert not set(held.train.together) & set(held.test.together)
    assert held.train.targets.shape[1] == held.classes == 100
    np.testing.assert_allclose(held.train.targets.sum(1), 1, atol=1e-6)
    shares = np.asarray((held.train.counts > 0).mean(axis=0)).ravel()
    typical = np.asarray((typical_counts(held) > 0).mean(axis=0)).ravel()
    assert np.corrcoef(shares, typical)[0, 1] > 0.2  # public text knows something of titles
    lengths = np.asarray(held.train.counts.sum(axis=1)).ravel()
    assert 0.5 < np.mean(lengths) / held.length < 1.5  # declared, not measured, but not far off


@pytest.mark.parametrize("words", ["", "-general-words"])
def test_packages_as_a_problem(words):
    name = f"debian-tags{words}"
    held = CORPORA[name]()
    assert (held.name, held.classes, held.train.counts.shape[1]) == (name, 598, 5_000)
    assert not set(held.train.together) & set(held.test.together)
    np.testing.assert_allclose(held.train.targets.sum(1), 1, atol=1e-6)
    lengths = np.asarray(held.train.counts.sum(axis=1)).ravel()
    assert 0.5 < np.mean(lengths) / held.length < 1.5
    shares = np.asarray((held.train.counts > 0).mean(axis=0)).ravel()
    known = held.frequencies.values.numpy()
    assert np.corrcoef(np.log(shares + 1e-5), np.log(known))[0, 1] > (0.1 if words else 0.7)


def test_packages_whose_text_is_public_are_not_trained_on():
    """And are tested on as ever; the examples are the same with whichever words."""
    packages = {package.name: package for package in debian_packages()}
    assert set(packages) >= PUBLIC_PACKAGES
    private = [one for one in packages.values() if not one.held_out]
    dropped = [one for one in private if one.name in PUBLIC_PACKAGES]
    assert dropped
    for name in ("debian-tags", "debian-tags-general-words"):
        held = CORPORA[name]()
        texts = {normalised(text) for text in held.train.texts}
        assert not texts & {normalised(packages[one].text) for one in PUBLIC_PACKAGES}
        assert len(held.train) == len(private) - len(dropped)
        assert len(held.train) + len(held.test) + len(dropped) == len(packages)
