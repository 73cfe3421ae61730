"""Text problems that are made up in a moment, and put in the place of the real ones."""

import numpy as np
from scipy import sparse

from adadps import losses
from adadps.methods.side import corpus_frequencies, given_frequencies
from adadps_experiments.reproduce import workers
from adadps_experiments.reproduce.text import corpora, jobs
from adadps_experiments.reproduce.text.corpora import SEVERAL, SINGLE
from adadps_experiments.reproduce.text.corpus import Corpus, LabelledTexts, uniform_over
from adadps_experiments.reproduce.text.jobs import TrainingSize
from adadps_experiments.reproduce.text.words import idf_of_corpus

WORDS, LENGTH = 40, 12
TINY = TrainingSize(
    words=WORDS,
    batch=64,
    steps=20,
    tuning_steps=10,
    delta=1e-3,
    lengths=(1.0, 3.0, 8.0, 20.0),
    tuned_at=2.0,
)


def text_of(row):
    """A text with these counts."""
    return " ".join(f"w{word}" for word, count in enumerate(row) for _ in range(int(count)))


def _drawn(rng, count, classes):
    """Counts with a falling frequency; each class has rare words of its own."""
    labels = rng.integers(0, classes, count)
    weights = np.tile(1 / np.arange(1, WORDS + 1), (count, 1))
    for word in range(10, WORDS):
        weights[labels == word % classes, word] *= 8
    chances = weights / weights.sum(1, keepdims=True)
    rows = np.stack([rng.multinomial(LENGTH, chance) for chance in chances])
    return rows.astype(np.float32), labels


def labelled(rng, count, classes=2, *, kind="film", several=False):
    """``count`` labelled texts; eight have the same group, twelve the same user."""
    rows, labels = _drawn(rng, count, classes)
    names = [str(label) for label in range(classes)]
    tags = [[str(label), str((label + 1) % classes)][: 1 + n % 2] for n, label in enumerate(labels)]
    return LabelledTexts(
        sparse.csr_matrix(rows),
        uniform_over(tags, names) if several else labels,
        [f"{kind} {number}: {text_of(row)}" for number, row in enumerate(rows)],
        [f"{kind} {number // 8}" for number in range(count)],
        np.array([f"user {number % (count // 12)}" for number in range(count)]),
    )


def small_corpus(seed=0, *, several=False, train=360, test=160):
    """Two classes of film reviews, or texts with one or two of six tags."""
    rng, classes = np.random.default_rng(seed), 6 if several else 2
    public, _ = _drawn(np.random.default_rng(99), 400, classes)
    counts = sparse.csr_matrix(public)
    because = {"source": "made-up texts", "public_because": "made up"}
    films = labelled(rng, train, classes, several=several)
    test_films = labelled(rng, test, classes, kind="test film", several=several)
    shop = labelled(rng, 80, classes, kind="shop", several=several)
    return Corpus(
        name="small",
        train=films,
        test=test_films,
        classes=classes,
        length=LENGTH,
        frequencies=corpus_frequencies(counts, texts=[text_of(row) for row in public], **because),
        idf=idf_of_corpus(counts),
        tfidf=np.asarray(public.mean(0)) * idf_of_corpus(counts) + 1e-3,
        loss=losses.label_cross_entropy if several else losses.cross_entropy,
        metrics=SEVERAL if several else SINGLE,
        other_frequencies=given_frequencies(1 / np.arange(1.0, WORDS + 1), **because),
        proxy=lambda: shop,
    )


class UnreadableTexts:
    """Stands in for test texts that must not be read."""

    def __getattribute__(self, name):
        raise AssertionError(f"the test texts were read: {name}")

    def __len__(self):
        raise AssertionError("the test texts were counted")


def forget():
    """Drop what was loaded or made before in this process."""
    for kept in (corpora.corpus, jobs._problem_of, jobs._for_tuning):
        kept.cache_clear()


def put_in_place(monkeypatch, **made):
    """Let names of data sets mean made-up problems of tiny size; run all jobs in this process.

    Returns the list of the jobs that were run, which grows.
    """
    forget()
    ran = []

    def run_here(work, given, label, done=None, most=None):
        answers = []
        for job in given:
            answers.append(work(*job))
            ran.append(job[0])
            if done is not None:
                done(answers[-1])
        return answers

    for name, one in made.items():
        monkeypatch.setitem(corpora.CORPORA, name.replace("_", "-"), lambda one=one: one)
        monkeypatch.setitem(jobs.SIZES, name.replace("_", "-"), TINY)
    monkeypatch.setattr(workers, "run_all", run_here)
    return ran
