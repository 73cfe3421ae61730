"""The text problems: private counts and targets, and everything about them that is public.

Each keeps the words of a public vocabulary. Texts are split into training and test as published, or
by a hash of what belongs together; for tuning, a fifth of the *training* texts takes the place of
the test texts, and those are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from adadps import losses
from adadps.data.amazon import amazon_reviews
from adadps.data.debian import TAGS as DEBTAGS
from adadps.data.debian import debian_packages
from adadps.data.imdb import imdb, imdb_unlabelled
from adadps.data.same_text import normalised
from adadps.data.text import TOKEN
from adadps.data.tff_counts import stackoverflow_vocabulary
from adadps.data.tff_stackoverflow import (
    StackOverflowUsers,
    stackoverflow_test,
    stackoverflow_train,
)
from adadps.data.titles import TAGS, stackoverflow_titles
from adadps.evaluation import Metric, accuracy, recall_at, top_label_accuracy
from adadps.reproduce.labelled import Corpus, Labelled
from adadps.reproduce.word_statistics import (
    TAGGED_TOKEN,
    VOCABULARY,
    document_shares,
    idf_of_corpus,
    uniform_over,
    vocabulary_with,
)
from adadps.side import (
    corpus_frequencies,
    frequencies_of_private_data,
    given_frequencies,
    word_frequencies,
)

STACK_OVERFLOW_POSTS = 246_092
DEBIAN_WORDS = 5_000
"""Half of the others' vocabulary: 598 tags make three million weights of it already."""
SINGLE: dict[str, Metric] = {"accuracy": accuracy}
SEVERAL: dict[str, Metric] = {"accuracy": top_label_accuracy, "recall@5": recall_at(5)}


@cache
def corpus(name: str) -> Corpus:
    """Load one of `CORPORA` once a process."""
    return CORPORA[name]()


def _imdb() -> Corpus:
    """Reviews whose text is among the public ones are not private, for whichever method."""
    reviews, unlabelled, shop = imdb(), imdb_unlabelled(), amazon_reviews()
    published = {normalised(text) for text in unlabelled}
    private = np.array([normalised(text) not in published for text in reviews.train.texts])
    counter = CountVectorizer(token_pattern=TOKEN, max_features=VOCABULARY).fit(unlabelled)
    words = [str(word) for word in counter.get_feature_names_out()]
    public_counts = _counts(counter, unlabelled)
    return Corpus(
        name="imdb",
        train=Labelled(
            _counts(counter, reviews.train.texts),
            np.array(reviews.train.labels),
            reviews.train.texts,
            reviews.train.movies,
        ).take(private),
        test=Labelled(
            _counts(counter, reviews.test.texts),
            np.array(reviews.test.labels),
            reviews.test.texts,
            reviews.test.movies,
        ),
        classes=2,
        length=230,
        frequencies=corpus_frequencies(
            public_counts,
            texts=unlabelled,
            source="share of the 50,000 unlabelled IMDB reviews that have the word",
            public_because="published text, none of it among the labelled reviews that are trained",
        ),
        idf=idf_of_corpus(public_counts),
        tfidf=np.asarray(TfidfTransformer().fit_transform(public_counts).mean(axis=0)).ravel(),
        loss=losses.cross_entropy,
        metrics=SINGLE,
        other_frequencies=word_frequencies(words),
        proxy=Labelled(
            _counts(counter, shop.texts), np.array(shop.labels), shop.texts, shop.domains
        ),
    )


def _imdb_private_words() -> Corpus:
    """As the published code has it: words and their frequencies from the private texts."""
    reviews = imdb()
    counter = CountVectorizer(token_pattern=TOKEN, max_features=VOCABULARY).fit(reviews.train.texts)
    train, test = (
        Labelled(_counts(counter, part.texts), np.array(part.labels), part.texts, part.movies)
        for part in (reviews.train, reviews.test)
    )
    return Corpus(
        name="imdb-private-words",
        train=train,
        test=test,
        classes=2,
        length=230,
        frequencies=frequencies_of_private_data(train.counts, source="the private reviews"),
        idf=idf_of_corpus(train.counts),
        tfidf=np.asarray(TfidfTransformer().fit_transform(train.counts).mean(axis=0)).ravel(),
        loss=losses.cross_entropy,
        metrics=SINGLE,
        private_words=True,
    )


def _debian_tags() -> Corpus:
    packages, words = debian_packages(), vocabulary_with(DEBTAGS, DEBIAN_WORDS)
    parts = {
        held_out: [package for package in packages if package.held_out is held_out]
        for held_out in (True, False)
    }
    counter = CountVectorizer(token_pattern=TAGGED_TOKEN, vocabulary=words)

    def held(held_out: bool) -> Labelled:
        chosen = parts[held_out]
        texts = [package.text for package in chosen]
        return Labelled(
            _counts(counter, texts),
            uniform_over([package.tags for package in chosen], DEBTAGS),
            texts,
            [package.source for package in chosen],
            np.array([package.maintainer for package in chosen]),
        )

    return _with_word_list("debian-tags", words, held(False), held(True), len(DEBTAGS), length=60)


def _titles() -> Corpus:
    split, words = stackoverflow_titles(), vocabulary_with(TAGS)
    counter = CountVectorizer(token_pattern=TAGGED_TOKEN, vocabulary=words)
    parts = [
        Labelled(
            _counts(counter, part.titles),
            uniform_over(part.tags, TAGS),
            part.titles,
            [re.sub(r"\W+", "", title.lower()) for title in part.titles],
        )
        for part in (split.train, split.test)
    ]
    return _with_word_list("so-titles", words, parts[0], parts[1], len(TAGS), length=9)


def _stackoverflow() -> Corpus:
    """The published problem from the h5 files: 500 tags, 246,092 posts of users drawn at random.

    The words are public ones: the counts that come with the files are of the private posts.
    """
    tags = stackoverflow_vocabulary().tags
    words = vocabulary_with(tags)
    train = _posts(stackoverflow_train(), STACK_OVERFLOW_POSTS, words, tags)
    test = _posts(stackoverflow_test(), STACK_OVERFLOW_POSTS // 10, words, tags)
    return _with_word_list("stackoverflow", words, train, test, len(tags), length=40)


def _posts(
    opened: StackOverflowUsers, most: int, words: list[str], tags: Sequence[str]
) -> Labelled:
    """At most so many posts that have a known tag, user by user in a random order."""
    texts: list[str] = []
    labels: list[list[str]] = []
    users: list[int] = []
    known = set(tags)
    with opened:
        for user in np.random.default_rng(0).permutation(len(opened)).tolist():
            for sentence in opened.sentences(opened.users[user]):
                mine = [tag for tag in sentence.tags if tag in known]
                if mine:
                    texts.append(sentence.text)
                    labels.append(mine)
                    users.append(user)
            if len(texts) >= most:
                break
    counter = CountVectorizer(token_pattern=TAGGED_TOKEN, vocabulary=words)
    return Labelled(
        _counts(counter, texts[:most]),
        uniform_over(labels[:most], tags),
        texts[:most],
        [str(user) for user in users[:most]],
        np.array(users[:most]),
    )


CORPORA: dict[str, Callable[[], Corpus]] = {
    "imdb": _imdb,
    "imdb-private-words": _imdb_private_words,
    "debian-tags": _debian_tags,
    "so-titles": _titles,
    "stackoverflow": _stackoverflow,
}


def _with_word_list(
    name: str, words: list[str], train: Labelled, test: Labelled, classes: int, *, length: int
) -> Corpus:
    """A problem with tags whose only public knowledge of words is a word list."""
    found = word_frequencies(words)
    shares = document_shares(found.values.numpy(), length)
    origin = found.provenance
    return Corpus(
        name=name,
        train=train,
        test=test,
        classes=classes,
        length=length,
        frequencies=given_frequencies(
            shares,
            source=f"{origin.source}, share of texts of {length} words that have the word",
            public_because=origin.public_because,
        ),
        idf=-np.log(shares),
        tfidf=-shares * np.log(shares),
        loss=losses.label_cross_entropy,
        metrics=SEVERAL,
    )


def _counts(counter: CountVectorizer, texts: Sequence[str]) -> sparse.csr_matrix:
    return sparse.csr_matrix(counter.transform(texts), dtype=np.float32)
