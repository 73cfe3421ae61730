"""The text problems: private word counts and targets, and everything public about them.

Each counts the words of a public vocabulary. Texts are split into training and test as published,
or by a hash of their group. For tuning, a fifth of the *training* texts replaces the test texts,
which are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from adadps.data.debian import TAGS as DEBTAGS
from adadps.data.debian import debian_packages
from adadps.data.identity import normalised
from adadps.engine import losses
from adadps.estimators.text import TOKEN
from adadps.methods.side import corpus_frequencies, frequencies_of_private_data, word_frequencies
from adadps.training.evaluation import Metric, accuracy, recall_at, top_label_accuracy
from adadps_experiments.data.amazon import amazon_reviews
from adadps_experiments.data.imdb import imdb, imdb_unlabelled
from adadps_experiments.data.technical_words import TECHNICAL_TOKEN
from adadps_experiments.data.tff_counts import stackoverflow_vocabulary
from adadps_experiments.data.tff_stackoverflow import (
    StackOverflowUsers,
    stackoverflow_test,
    stackoverflow_train,
)
from adadps_experiments.data.titles import TAGS, stackoverflow_titles
from adadps_experiments.reproduce.text.corpus import Corpus, LabelledTexts, uniform_over
from adadps_experiments.reproduce.text.words import (
    GENERAL,
    TECHNICAL,
    PublicVocabulary,
    general_words,
    idf_of_corpus,
    technical_words,
)

VOCABULARY = 10_000
STACK_OVERFLOW_POSTS = 246_092
DEBIAN_WORDS = 2_000
"""Fewer than in other problems: with 598 tags they already make a million weights."""
WORDS_OF_A_PACKAGE, WORDS_OF_A_TITLE, WORDS_OF_A_POST = 60, 9, 40
"""Typical numbers of words per text, declared."""
SINGLE: dict[str, Metric] = {"accuracy": accuracy}
SEVERAL: dict[str, Metric] = {"accuracy": top_label_accuracy, "recall@5": recall_at(5)}


@cache
def corpus(name: str) -> Corpus:
    """Load one of `CORPORA`, once per process."""
    return CORPORA[name]()


def _imdb() -> Corpus:
    """Load IMDB without the training reviews whose text is among the public ones."""
    reviews, unlabelled = imdb(), imdb_unlabelled()
    published = {normalised(text) for text in unlabelled}
    private = np.array([normalised(text) not in published for text in reviews.train.texts])
    counter = CountVectorizer(token_pattern=TOKEN, max_features=VOCABULARY).fit(unlabelled)
    words = [str(word) for word in counter.get_feature_names_out()]
    public_counts = _counts(counter, unlabelled)

    @cache
    def proxy() -> LabelledTexts:
        shop = amazon_reviews()
        counts = _counts(counter, shop.texts)
        return LabelledTexts(counts, np.array(shop.labels), shop.texts, shop.domains)

    return Corpus(
        name="imdb",
        train=LabelledTexts(
            _counts(counter, reviews.train.texts),
            np.array(reviews.train.labels),
            reviews.train.texts,
            reviews.train.movies,
        ).take(private),
        test=LabelledTexts(
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
        proxy=proxy,
    )


def _imdb_private_words() -> Corpus:
    """Load IMDB as the published code does: words and frequencies from the private texts."""
    reviews = imdb()
    counter = CountVectorizer(token_pattern=TOKEN, max_features=VOCABULARY).fit(reviews.train.texts)
    train, test = (
        LabelledTexts(_counts(counter, part.texts), np.array(part.labels), part.texts, part.movies)
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
    """Load Debian with words of general English: technical ones come from the same sources."""
    known = general_words(DEBTAGS, DEBIAN_WORDS, length=WORDS_OF_A_PACKAGE)
    counter = CountVectorizer(token_pattern=TECHNICAL_TOKEN, vocabulary=known.words)

    def labelled(held_out: bool) -> LabelledTexts:
        packages = [package for package in debian_packages() if package.held_out is held_out]
        texts = [package.text for package in packages]
        return LabelledTexts(
            _counts(counter, texts),
            uniform_over([package.tags for package in packages], DEBTAGS),
            texts,
            [package.source for package in packages],
            np.array([package.user for package in packages]),
        )

    train, test = labelled(held_out=False), labelled(held_out=True)
    return _with_tags("debian-tags", known, train, test, DEBTAGS, WORDS_OF_A_PACKAGE)


def _titles() -> Corpus:
    return _questions("so-titles", technical_words(TAGS, VOCABULARY))


def _titles_general_words() -> Corpus:
    words = general_words(TAGS, VOCABULARY, length=WORDS_OF_A_TITLE)
    return _questions("so-titles-general-words", words)


def _questions(name: str, known: PublicVocabulary) -> Corpus:
    split = stackoverflow_titles()
    counter = CountVectorizer(token_pattern=TECHNICAL_TOKEN, vocabulary=known.words)
    train, test = (
        LabelledTexts(
            _counts(counter, part.titles),
            uniform_over(part.tags, TAGS),
            part.titles,
            [re.sub(r"\W+", "", title.lower()) for title in part.titles],
        )
        for part in (split.train, split.test)
    )
    return _with_tags(name, known, train, test, TAGS, WORDS_OF_A_TITLE)


def _stackoverflow() -> Corpus:
    """Load the published problem from its h5 files: 500 tags, 246,092 posts of random users.

    The vocabulary is a public one, because the counts beside the files are of the private posts.
    """
    tags = stackoverflow_vocabulary().tags
    known = technical_words(tags, VOCABULARY)
    train = _posts(stackoverflow_train(), STACK_OVERFLOW_POSTS, known.words, tags)
    test = _posts(stackoverflow_test(), STACK_OVERFLOW_POSTS // 10, known.words, tags)
    return _with_tags("stackoverflow", known, train, test, tags, WORDS_OF_A_POST)


def _posts(
    opened: StackOverflowUsers, most: int, words: list[str], tags: Sequence[str]
) -> LabelledTexts:
    """Return up to ``most`` posts with a known tag, of users in random order."""
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
    counter = CountVectorizer(token_pattern=TECHNICAL_TOKEN, vocabulary=words)
    return LabelledTexts(
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
    "so-titles-general-words": _titles_general_words,
    "stackoverflow": _stackoverflow,
}
WORD_STATISTICS = {
    "imdb": "public word frequencies",
    "imdb-private-words": "PRIVATE word frequencies",
    "debian-tags": GENERAL,
    "so-titles": TECHNICAL,
    "so-titles-general-words": GENERAL,
    "stackoverflow": TECHNICAL,
}
"""What tables call the ``frequencies`` of each problem, without loading it."""


def _with_tags(
    name: str,
    known: PublicVocabulary,
    train: LabelledTexts,
    test: LabelledTexts,
    tags: Sequence[str],
    length: int,
) -> Corpus:
    """Return a problem in which a text can have several tags."""
    counter = CountVectorizer(token_pattern=TECHNICAL_TOKEN, vocabulary=known.words)
    shares = known.frequencies.values.numpy()
    return Corpus(
        name=name,
        train=train,
        test=test,
        classes=len(tags),
        length=length,
        frequencies=known.frequencies,
        idf=-np.log(shares),
        tfidf=-shares * np.log(shares),
        loss=losses.label_cross_entropy,
        metrics=SEVERAL,
        names=LabelledTexts(
            _counts(counter, tags), uniform_over([[tag] for tag in tags], tags), tags, tags
        ),
    )


def _counts(counter: CountVectorizer, texts: Sequence[str]) -> sparse.csr_matrix:
    return sparse.csr_matrix(counter.transform(texts), dtype=np.float32)
