"""Private rows that are public as well are left out, however they are written: hazard 20."""

import copy
import pickle
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import nn

from adadps import (
    Relation,
    adadps,
    examples,
    fit,
    fixed_size,
    poisson,
    privatize,
    public_examples,
    reproducible_not_private,
    shuffled,
    side,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.data.examples import private_rows
from adadps.data.identity import (
    identities_of_rows,
    identities_of_texts,
    normalised,
    public_rows,
)
from adadps.data.sparse_rows import SparseRows
from adadps.errors import DataError
from adadps.methods import dp_sgd_weighted, pda_dpmd, warm_start
from adadps.methods.stages import by_label, in_advance
from support.problems import squared

TOLD = {"source": "a corpus", "public_because": "published"}
REVIEW = "It's GREAT!<br /><br />I loved it \u2014 really."
COPIES = {
    "line breaks": "It's GREAT!\n\nI loved it \u2014 really.",
    "no breaks at all": "It's GREAT!I loved it \u2014 really.",
    "another tag": "<p>It's GREAT!</p><P CLASS='x'>I loved it \u2014 really.</p>",
    "entities": "It&#39;s GREAT!&nbsp;I loved it &mdash; really.",
    "case": "it's great! i loved it \u2014 REALLY.",
    "quotes and dashes": "It\u2019s GREAT! I loved it - really",
    "white space": "  It's\tGREAT!   I\u00a0loved it \u2014 really. ",
    "full width": "\uff29\uff54's GREAT! I loved it \u2014 really.",
    "invisible": "It's GR\u00adEAT! I lo\u200bved it \u2014 really.\ufeff",
}
OTHERS = ["It's GREAT! I loved it, surely.", "It's GREAT!", "", "I loved it really it's great"]


# --- the same text ---


@pytest.mark.parametrize("text", COPIES.values(), ids=COPIES)
def test_hazard_20_a_copied_text_is_the_same_text(text):
    assert normalised(text) == normalised(REVIEW)


@pytest.mark.parametrize("text", OTHERS)
def test_another_text_is_another_text(text):
    assert normalised(text) != normalised(REVIEW)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("Stra\u00dfe", "STRASSE"),
        ("\ufb01n", "fin"),
        ("\u2460", "1"),
        ("don\u00b4t", "don't"),
    ],
)
def test_unicode_forms_of_a_text_are_the_same(one, other):
    assert normalised(one) == normalised(other)


def test_texts_without_letters_are_told_apart():
    assert len({normalised(text) for text in (":-)", "!!!", "\U0001f600", "")}) == 4


@given(st.text())
@settings(max_examples=300)
def test_normalising_twice_changes_nothing(text):
    once = normalised(text)
    assert not any(character.isspace() for character in once)
    if any(unicodedata.category(character)[0] in "LN" for character in once):
        assert normalised(once) == once


@pytest.mark.parametrize("texts", ["one text", ["a", None], [b"a"], [1.0]])
def test_what_is_not_a_list_of_texts_is_refused(texts):
    with pytest.raises(DataError, match=r"Expected a list of texts"):
        examples(torch.ones(2, 1), [0, 1], texts=texts)


def test_there_is_one_text_for_each_row():
    with pytest.raises(DataError, match="found 1 texts for 2 rows"):
        examples(torch.ones(2, 1), [0, 1], texts=["a"])
    with pytest.raises(DataError, match="found 3 texts for 1 rows"):
        side.corpus_frequencies([[1.0]], texts=["a", "b", "c"], **TOLD)


# --- the same row ---

ROW = np.array([0.0, 0.1, 0.0, 2.0])
FORMS = {
    "float32": torch.from_numpy(ROW).float()[None],
    "float64": torch.from_numpy(ROW)[None],
    "negative zero": torch.from_numpy(np.where(ROW == 0, -0.0, ROW))[None],
    "scipy": SparseRows.from_scipy(sparse.csr_matrix(ROW[None])),
    "stored zeros": SparseRows(
        torch.tensor([0, 3]), torch.tensor([0, 1, 3]), torch.tensor([0.0, 0.1, 2.0]), 4
    ),
    "unsorted columns": SparseRows(
        torch.tensor([0, 2]), torch.tensor([3, 1]), torch.tensor([2.0, 0.1]), 4
    ),
    "torch sparse": SparseRows.from_torch(torch.from_numpy(ROW)[None].to_sparse()),
    "an image": torch.from_numpy(ROW).float().reshape(1, 2, 2),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("other", FORMS.values(), ids=FORMS)
def test_hazard_20_a_row_is_recognised_in_every_form(form, other):
    assert identities_of_rows(form).within([identities_of_rows(other)]).all()


def test_counts_are_recognised_as_integers_and_as_numbers():
    whole = identities_of_rows(torch.tensor([[0, 3], [1, 0]]))
    assert whole.within([identities_of_rows(torch.tensor([[0.0, 3.0], [1.0, 0.0]]))]).all()


@given(
    st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=3, max_size=3), min_size=1),
    st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=3, max_size=3), min_size=1),
)
@settings(max_examples=100)
def test_rows_are_found_exactly_where_they_are_equal(ours, theirs):
    expected = [row in theirs for row in ours]
    dense, other = torch.tensor(ours), torch.tensor(theirs)
    lean = SparseRows.from_scipy(sparse.csr_matrix(np.array(theirs)))
    for known in (other, lean):
        found = identities_of_rows(dense).within([identities_of_rows(known)])
        assert found.tolist() == expected


# --- a filter for each record ---

WORDS = st.lists(st.sampled_from(["a", "A.", "b", "c d", "<br>e", ""]), min_size=1, max_size=6)


@given(texts=WORDS, corpus=WORDS, place=st.integers(0, 5), other=st.sampled_from(["a", "x", "e!"]))
@settings(max_examples=100)
def test_hazard_20_the_filter_looks_at_one_record_and_public_data_alone(
    texts, corpus, place, other
):
    """Replacing one record leaves the decision about every other one as it was."""
    place %= len(texts)
    neighbour = [*texts[:place], other, *texts[place + 1 :]]
    features = torch.arange(1.0, len(texts) + 1)[:, None]
    known = [public_rows(torch.full((len(corpus), 1), 99.0), corpus)]
    masks = [
        private_rows(examples(features, [0] * len(texts), texts=held), known).tolist()
        for held in (texts, neighbour)
    ]
    public = {normalised(text) for text in corpus}
    assert masks[0] == [normalised(text) not in public for text in texts]
    assert masks[0][:place] + masks[0][place + 1 :] == masks[1][:place] + masks[1][place + 1 :]


# --- in a run ---

TEXTS = [f"Review number {index}: it was fine." for index in range(40)]
EXPOSED = {"clip_norm": 1e6, "noise_multiplier": 0.0}
RULE = side.RMSPropStatistics(decay=0.9, epsilon=1e-3)


def private(texts=TEXTS):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 4)).astype(np.float32)
    return examples(features, np.ones((40, 1), np.float32), texts=texts)


def shouted():
    """The same texts in another dress, with features that have nothing in common."""
    return [text.upper().replace(": ", "!<br /><br />") for text in TEXTS]


def public_set(texts=None):
    return public_examples(
        torch.full((40, 4), 7.0), torch.zeros(40, 1), batch_size=5, texts=texts, **TOLD
    )


def informed(name, privacy, texts=None):
    counts = np.full((40, 4), 7.0)
    chains = {
        "public": lambda: adadps(side.public(public_set(texts), RULE), privacy, lr=0.1),
        "mixed": lambda: pda_dpmd(public_set(texts), privacy, lr=0.1, steps=5),
        "corpus": lambda: adadps(
            side.frequency(side.corpus_frequencies(counts, texts=texts, **TOLD), floor=0.1),
            privacy,
            lr=0.1,
        ),
        "corpus, in the features": lambda: dp_sgd_weighted(
            side.frequency(side.corpus_frequencies(counts, texts=texts, **TOLD), floor=0.1),
            privacy,
            lr=0.1,
        ),
        "tfidf": lambda: adadps(
            side.tfidf(counts, inverse=False, floor=0.1, texts=texts, **TOLD), privacy, lr=0.1
        ),
    }
    return chains[name]()


def moved(method, sampler=None, data=None):
    """Has training changed the weights?"""
    layer = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(layer.weight)
    fit(
        layer,
        squared,
        data or private(),
        method=method,
        sampler=sampler or poisson(examples=40, expected_size=20),
        steps=4,
    )
    return bool((layer.weight != 0).any())


@pytest.mark.parametrize("name", ["public", "corpus", "corpus, in the features", "tfidf"])
def test_hazard_20_texts_that_are_public_are_left_out_though_features_differ(name):
    privacy = privatize(**EXPOSED)
    assert moved(informed(name, privacy)), "without texts nothing is recognised"
    assert not moved(informed(name, privacy, shouted()))
    with pytest.raises(DataError, match="texts of the private examples too"):
        moved(informed(name, privacy, shouted()), data=private(texts=None))


def test_hazard_20_texts_mixed_in_or_trained_on_before_are_left_out_too():
    for build in (
        lambda public: pda_dpmd(public, privatize(**EXPOSED), lr=0.1, steps=5),
        lambda public: warm_start(public, privatize(**EXPOSED), lr=0.1, public_lr=0.1),
    ):
        assert private_rows(private(), build(public_set()).public_rows).all()
        assert not private_rows(private(), build(public_set(shouted())).public_rows).any()


REPLACING = poisson(examples=40, expected_size=20, relation=Relation.REPLACE_ONE)
DRAWN = {
    "poisson": (poisson(examples=40, expected_size=20), None),
    "poisson, by label": (poisson(examples=40, expected_size=20), by_label(4)),
    "poisson, in advance": (REPLACING, in_advance(4)),
    "fixed": (fixed_size(examples=40, expected_size=20), None),
    "fixed, by label": (fixed_size(examples=40, expected_size=20), by_label(4)),
    "shuffled": (shuffled(examples=40, expected_size=20), None),
    "shuffled, by label": (shuffled(examples=40, expected_size=20), by_label(4)),
}


@pytest.mark.parametrize(("sampler", "groups"), DRAWN.values(), ids=DRAWN)
def test_hazard_20_the_filter_works_under_every_sampler_and_grouping(sampler, groups):
    privacy = privatize(**EXPOSED, groups=groups)
    assert moved(informed("public", privacy), sampler)
    assert not moved(informed("public", privacy, shouted()), sampler)


@pytest.mark.parametrize(("sampler", "groups"), DRAWN.values(), ids=DRAWN)
def test_hazard_20_what_is_left_is_trained_on(sampler, groups):
    known = [text if index % 2 else "something else" for index, text in enumerate(shouted())]
    assert moved(informed("public", privatize(**EXPOSED, groups=groups), known), sampler)


def test_hazard_20_a_corpus_of_the_very_rows_is_recognised_without_texts():
    data = private(texts=None)
    side_of = side.frequency(side.corpus_frequencies(data.features, **TOLD), floor=0.1)
    assert not moved(adadps(side_of, privatize(**EXPOSED), lr=0.1), data=data)


def test_hazard_20_how_many_were_left_out_is_not_told(capsys):
    """Two data sets, one of them half public: the results differ in their weights alone."""
    told = []
    for known in (["something else"] * 40, [*shouted()[:20], *["something else"] * 20]):
        ledger = MemoryLedger()
        method = informed("public", privatize(clip_norm=1.0, noise_multiplier=1.0), known)
        result = fit(
            nn.Linear(4, 1),
            squared,
            private(),
            method=method,
            sampler=poisson(examples=40, expected_size=20),
            steps=3,
            ledger=ledger,
            randomness=reproducible_not_private(1),
        )
        told.append((result.describe(), ledger.entries, capsys.readouterr()))
    assert told[0] == told[1]


# --- names stay here ---


def test_hazard_20_names_of_texts_are_not_shown_and_do_not_leave():
    data = private()
    assert "texts" not in repr(data)
    assert repr(data.texts) == "Identities(...)"
    for held in (data, data.texts, public_set(shouted()).rows, public_set(shouted())):
        with pytest.raises(TypeError, match="stay in the process"):
            pickle.dumps(held)
    assert copy.deepcopy(data.texts) is copy.copy(data.texts) is data.texts


def test_names_follow_their_rows():
    data = private()
    part = data.take(torch.tensor([3, 1]))
    assert part.texts.within([identities_of_texts([TEXTS[3]])]).tolist() == [True, False]
    assert data.to(torch.device("meta")).texts is data.texts
