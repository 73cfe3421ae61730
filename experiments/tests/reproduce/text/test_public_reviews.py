"""The problem of film reviews, on a few texts: public texts are private for no method."""

import numpy as np
import pytest

from adadps.data.identity import identities_of_texts, normalised
from adadps_experiments.data.amazon import Amazon
from adadps_experiments.data.imdb import Imdb, Reviews
from adadps_experiments.reproduce.text import corpora
from adadps_experiments.reproduce.text.problem import PublicSource, _split

PUBLIC = (
    "A film about a train and a dog.",
    "It's great, really!",
    "A dog, a cat and a film.",
    "The end is bad, the dog is good.",
)
TRAIN = (
    "A private film about a cat.",
    "IT’S GREAT,<br />really",  # is among the public ones, in another form
    "Bad dog.",
    "the END is bad — the dog is good",
    "Good cat, great film.",
)
TEST = ("A dog, a cat and a film.", "A good end.")


@pytest.fixture
def held(monkeypatch):
    reviews = Imdb(
        Reviews(TRAIN, (1, 1, 0, 0, 1), ("tt1", "tt2", "tt3", "tt4", "tt5")),
        Reviews(TEST, (0, 1), ("tt6", "tt7")),
    )
    shop = Amazon(("A good dog collar.", "A bad train set."), (1, 0), ("kitchen", "dvd"))
    monkeypatch.setattr(corpora, "imdb", lambda: reviews)
    monkeypatch.setattr(corpora, "imdb_unlabelled", lambda: PUBLIC)
    monkeypatch.setattr(corpora, "amazon_reviews", lambda: shop)
    return corpora._imdb()


def test_no_training_text_is_among_the_public_ones(held):
    public = {normalised(text) for text in PUBLIC}
    assert not public & {normalised(text) for text in held.train.texts}
    assert held.train.texts == [TRAIN[0], TRAIN[2], TRAIN[4]]  # nothing else is removed
    mine = identities_of_texts(held.train.texts)
    assert not mine.within([held.frequencies.rows.texts]).any()  # whose statistics are used


def test_labels_films_and_counts_are_left_out_with_their_texts(held):
    assert held.train.targets.tolist() == [1, 0, 1]
    assert held.train.groups == ["tt1", "tt3", "tt5"]
    words = sorted({word for text in PUBLIC for word in _words(text)})
    for text, row in zip(held.train.texts, held.train.counts.toarray(), strict=True):
        assert row.tolist() == [_words(text).count(word) for word in words]


def _words(text):
    return corpora.CountVectorizer(token_pattern=corpora.TOKEN).build_analyzer()(text)


def test_test_texts_stay_as_they_are_published(held):
    assert tuple(held.test.texts) == TEST
    assert held.test.targets.tolist() == [0, 1]
    assert len(held.proxy()) == 2
    assert np.asarray(held.proxy().targets).tolist() == [1, 0]


def test_reviews_of_a_shop_are_loaded_once_and_by_those_alone_who_train_on_them(held, monkeypatch):
    """Only methods that train on them need them."""
    loaded = []

    def shop():
        loaded.append(1)
        return Amazon(("A good dog collar.", "A bad train set."), (1, 0), ("kitchen", "dvd"))

    monkeypatch.setattr(corpora, "amazon_reviews", shop)
    made = corpora._imdb()
    narrow = made.narrowed(3)
    for one in (made, made.for_tuning(), narrow):
        _split(one, PublicSource(share=0.5), 0)
    assert loaded == []
    for one in (made, made.for_tuning(), narrow):
        for seed in (0, 1):
            assert len(_split(one, PublicSource(proxy=1), seed)[0]) == 1
    assert loaded == [1]
    counts = narrow.proxy().counts
    np.testing.assert_array_equal(counts.toarray(), made.proxy().counts.toarray()[:, :3])


def test_with_private_words_no_text_is_left_out_and_nothing_is_private(held):
    private = corpora._imdb_private_words()
    assert tuple(private.train.texts) == TRAIN
    assert private.private_words is True
    assert held.private_words is False
