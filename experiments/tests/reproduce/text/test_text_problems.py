"""Text problems: which texts are private, public, for tuning and for the test, and what is public.

The corpora are synthetic, with the structure of the real ones.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from adadps_experiments.reproduce.text import recipes
from adadps_experiments.reproduce.text.corpus import FOLDS, fold_of
from adadps_experiments.reproduce.text.problem import PublicSource, TextProblem, _split, problem
from adadps_experiments.reproduce.text.recipes import typical_counts
from adadps_experiments.reproduce.text.words import document_shares
from support.small_corpora import WORDS, UnreadableTexts, labelled, small_corpus

CORPUS = small_corpus()
SHARES = [PublicSource(), PublicSource(share=0.05), PublicSource(users=True, share=0.1)]


def rows_of(held):
    """Return the features as a plain array."""
    sparse_rows = held.features
    found = np.zeros((len(held), sparse_rows.width), dtype=np.float32)
    offsets = sparse_rows.offsets.tolist()
    for row in range(len(held)):
        part = slice(offsets[row], offsets[row + 1])
        found[row, sparse_rows.columns[part].numpy()] = sparse_rows.values[part].numpy()
    return found


def test_tuning_never_touches_the_test_texts():
    tuned = replace(CORPUS, test=UnreadableTexts()).for_tuning()
    assert {*tuned.train.texts, *tuned.test.texts} == set(CORPUS.train.texts)
    assert not set(tuned.train.texts) & set(tuned.test.texts)


def test_tuning_keeps_together_what_belongs_together():
    tuned = CORPUS.for_tuning()
    assert not set(tuned.train.groups) & set(tuned.test.groups)
    assert len(set(CORPUS.train.groups)) < len(CORPUS.train)  # there are groups to keep together


def test_a_fifth_is_held_out_for_tuning():
    names = [f"tt{number:07}" for number in range(20_000)]
    folds = np.bincount([fold_of(name) for name in names], minlength=FOLDS)
    assert folds / len(names) == pytest.approx(np.full(FOLDS, 0.2), abs=0.015)
    assert 0.1 < len(CORPUS.for_tuning().test) / len(CORPUS.train) < 0.3


def test_rows_stay_together_when_some_are_taken():
    tuned = CORPUS.for_tuning()
    for part in (tuned.train, tuned.test):
        places = [CORPUS.train.texts.index(text) for text in part.texts]
        np.testing.assert_array_equal(part.counts.toarray(), CORPUS.train.counts.toarray()[places])
        np.testing.assert_array_equal(part.targets, CORPUS.train.targets[places])
        np.testing.assert_array_equal(part.users, CORPUS.train.users[places])
        assert part.groups == [CORPUS.train.groups[place] for place in places]


@pytest.mark.parametrize("public", SHARES, ids=str)
@pytest.mark.parametrize("seed", [0, 7])
def test_public_texts_are_taken_out_of_the_private_ones(public, seed):
    chosen, left = _split(CORPUS, public, seed)
    assert not set(chosen.texts) & set(left.texts)
    assert {*chosen.texts, *left.texts} == set(CORPUS.train.texts)
    assert len(chosen) + len(left) == len(CORPUS.train)


@pytest.mark.parametrize("public", [*SHARES, PublicSource(proxy=20)], ids=str)
def test_the_problem_has_the_split_parts(public):
    made = problem(CORPUS, recipes.PAPER, public, 3)
    chosen, left = _split(CORPUS, public, 3)
    assert (len(made.train), len(made.public.examples)) == (len(left), len(chosen))
    for held, part in (
        (made.train, left),
        (made.public.examples, chosen),
        (made.test, CORPUS.test),
    ):
        expected = recipes.PAPER(part.counts, CORPUS.idf).toarray()
        np.testing.assert_array_equal(rows_of(held), expected)
        np.testing.assert_array_equal(held.targets.numpy(), part.targets)


def test_public_users_are_whole():
    chosen, left = _split(CORPUS, PublicSource(users=True, share=0.1), 0)
    assert not set(chosen.users) & set(left.users)
    assert len(set(chosen.users)) == round(0.1 * len(set(CORPUS.train.users)))


def test_a_share_is_of_the_texts():
    assert len(_split(CORPUS, PublicSource(share=0.1), 0)[0]) == 36
    assert len(_split(CORPUS, PublicSource(share=1e-9), 0)[0]) == 2  # there is a minimum


def test_proxies_leave_all_private_texts_private():
    chosen, left = _split(CORPUS, PublicSource(proxy=20), 0)
    assert len(chosen) == 20
    assert set(chosen.texts) <= set(CORPUS.proxy().texts)
    assert list(left.texts) == list(CORPUS.train.texts)


@pytest.mark.parametrize("public", [*SHARES, PublicSource(proxy=20)], ids=str)
def test_the_seed_draws_the_public_texts(public):
    first, again, other = (_split(CORPUS, public, seed)[0].texts for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_kinds_of_public_texts_have_names_of_their_own():
    """Records of runs identify public texts by this name."""
    kinds = [
        PublicSource(),
        PublicSource(share=0.002),
        PublicSource(share=0.0004),
        PublicSource(users=True),
    ]
    kinds += [PublicSource(proxy=250), PublicSource(proxy=8000)]
    assert len({str(kind) for kind in kinds}) == len(kinds)


def test_typical_texts_come_from_public_frequencies_alone():
    others = labelled(np.random.default_rng(5), 200)
    changed = replace(CORPUS, train=others, test=others, proxy=lambda: others)
    for recipe in (recipes.PAPER, recipes.TF_IDF):
        here, there = (problem(one, recipe, PublicSource(), 0) for one in (CORPUS, changed))
        assert not np.array_equal(rows_of(here.train)[:50], rows_of(there.train)[:50])
        np.testing.assert_array_equal(here.typical.toarray(), there.typical.toarray())
        scale = np.linspace(1, 3, WORDS)
        assert (here.norm(), here.norm(scale)) == (there.norm(), there.norm(scale))
        assert here.total() == there.total()


def test_typical_texts_have_the_declared_length_and_the_public_frequencies():
    counts = typical_counts(CORPUS).toarray()
    assert set(counts.sum(1)) == {CORPUS.length}
    shares, expected = (counts > 0).mean(0), CORPUS.frequencies.values.numpy()
    assert np.abs(shares - expected).max() < 0.1
    assert np.corrcoef(shares, expected)[0, 1] > 0.98


def test_norms_are_medians_of_typical_rows():
    typical = sparse.csr_matrix(np.array([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]]))
    made = TextProblem(CORPUS, recipes.PAPER, None, None, None, typical)
    assert made.norm() == 5
    assert made.norm(np.array([0.0, 2.0])) == 8
    assert made.total() == 7


@pytest.mark.parametrize("words", [1, 10, WORDS])
def test_a_narrowed_problem_keeps_words_and_their_statistics_together(words):
    """Words are identified by their columns of counts; all statistics must belong to them."""
    narrow = CORPUS.narrowed(words)
    before, after = CORPUS.train.counts.toarray(), narrow.train.counts.toarray()
    kept = []
    for column in after.T:
        [same] = np.flatnonzero((before == column[:, None]).all(0))
        kept.append(same)
    assert kept == list(range(words))  # the first ones
    values = CORPUS.frequencies.values.numpy()
    for part, whole in (
        (narrow.test.counts.toarray(), CORPUS.test.counts.toarray()[:, kept]),
        (narrow.proxy().counts.toarray(), CORPUS.proxy().counts.toarray()[:, kept]),
        (narrow.idf, CORPUS.idf[kept]),
        (narrow.tfidf, CORPUS.tfidf[kept]),
        (narrow.frequencies.values.numpy(), values[kept]),
    ):
        np.testing.assert_array_equal(part, whole)
    assert narrow.other_frequencies is None
    assert narrow.frequencies.rows is None
    assert typical_counts(narrow).shape[1] == words
    assert (narrow.train.texts, narrow.train.groups) == (
        CORPUS.train.texts,
        CORPUS.train.groups,
    )


def test_shares_of_texts_follow_from_frequencies_of_words():
    shares = document_shares(np.array([0.05, 1e-4, 0.0]), 60)
    assert shares == pytest.approx([1 - np.exp(-3), 1 - np.exp(-0.006), 1 - np.exp(-0.006)])


def test_names_of_tags_are_public_texts_that_have_their_own_tag():
    names = labelled(np.random.default_rng(5), 12, 6, kind="name", several=True)
    given = problem(
        replace(small_corpus(several=True), names=names), recipes.PAPER, PublicSource(names=True), 0
    )
    np.testing.assert_allclose(rows_of(given.public.examples), recipe_of(names))
    np.testing.assert_allclose(given.public.examples.targets.numpy(), names.targets)
    assert given.public.provenance.source == "small: names of the tags"
    assert "list of tags" in given.public.provenance.public_because


def test_names_leave_the_same_private_texts_as_one_percent_does():
    corpus = replace(CORPUS, names=CORPUS.train.take(np.arange(2)))
    assert (
        _split(corpus, PublicSource(names=True), 3)[1].texts
        == _split(corpus, PublicSource(), 3)[1].texts
    )


def test_settings_that_start_from_names_are_tuned_with_names():
    assert PublicSource(names=True).tuned_as == PublicSource(names=True)


def test_narrowed_problems_have_narrowed_names():
    corpus = replace(CORPUS, names=CORPUS.train.take(np.arange(2)))
    assert corpus.narrowed(7).names.counts.shape == (2, 7)


def recipe_of(held):
    """The paper's features, written out."""
    counts = held.counts.toarray()
    return counts / counts.sum(1, keepdims=True)
