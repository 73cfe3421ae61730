"""Public knowledge of words, from technical texts and from general English."""

import numpy as np
import pytest

from adadps.errors import DataError
from adadps_experiments.data.technical_words import technical_shares, technical_vocabulary
from adadps_experiments.reproduce.text.words import general_words, technical_words

TAGS = ("python", "c#", "vb.net", "role::zzyzx")
NAMED = ["c#", "net", "python", "role", "vb", "zzyzx"]


def test_technical_words_come_with_the_share_of_descriptions_that_have_them():
    shares = technical_shares()
    assert len(shares) == 20_000
    values = np.array(list(shares.values()))
    assert np.all(np.diff(values) <= 0)
    assert 0 < values.min() < values.max() < 1
    assert shares["the"] > shares["library"] > shares["python"] > shares["haskell"] > 1e-3
    assert "c++" in shares
    assert all(word == word.lower() for word in shares)


def test_vocabularies_are_the_commonest_words():
    assert technical_vocabulary(50) == tuple(technical_shares())[:50]
    assert len(technical_vocabulary(20_000)) == 20_000


@pytest.mark.parametrize("size", [0, -1, 20_001])
def test_no_vocabulary_of_a_size_that_there_is_not(size):
    with pytest.raises(DataError, match=f"1 to 20,000 technical words, found {size}"):
        technical_vocabulary(size)


@pytest.mark.parametrize("known", [technical_words(TAGS, 300), general_words(TAGS, 300, 10)])
def test_the_words_of_the_tags_come_first_and_none_comes_twice(known):
    assert known.words[: len(NAMED)] == NAMED
    assert len(known.words) == len(set(known.words)) == 300
    values = known.frequencies.values.numpy()
    assert values.shape == (300,)
    assert np.all((values > 0) & (values < 1))
    assert known.frequencies.provenance.public_because


def test_technical_words_have_their_shares_and_unknown_names_the_least():
    known = technical_words(TAGS, 300)
    values = dict(zip(known.words, known.frequencies.values.tolist(), strict=True))
    shares = technical_shares()
    assert "zzyzx" not in shares
    assert values["zzyzx"] == min(shares.values())
    for word in ("python", "library", "the"):
        assert values[word] == shares[word]


def test_longer_texts_have_more_of_the_general_words():
    short, long = (general_words(TAGS, 300, length).frequencies for length in (10, 100))
    assert np.all(long.values.numpy() > short.values.numpy())


@pytest.mark.parametrize(
    "known", [technical_words, lambda tags, size: general_words(tags, size, 10)]
)
def test_a_vocabulary_has_room_for_the_words_of_the_tags(known):
    assert known(TAGS, len(NAMED)).words == NAMED
    with pytest.raises(DataError, match=r"the 6 words of the tags, found a vocabulary of 5 words"):
        known(TAGS, len(NAMED) - 1)
