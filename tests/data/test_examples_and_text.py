"""Examples in memory, sparse rows, text features, and the data that comes with the package."""

from __future__ import annotations

import math
import re
import warnings
from importlib.resources import files

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

from adadps import examples, public_examples
from adadps.data.debian import SECTIONS, debian_packages
from adadps.data.sparse_rows import SparseRows
from adadps.errors import DataError
from adadps.estimators.text import BagOfWords, public_vocabulary

MATRIX = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, -3.0, 0.5]], dtype=np.float32)
TARGETS = [0, 1, 0]


# --- examples -----------------------------------------------------------------------------------

REFUSED = {
    "NaN in features": ([[math.nan]], [0], "finite features"),
    "infinity in features": ([[math.inf]], [0], "finite features"),
    "NaN in a tensor": (torch.tensor([[math.nan]]), [0], "finite features"),
    "NaN in sparse features": (sparse.csr_matrix([[math.nan]]), [0], "finite features"),
    "NaN in targets": ([[1.0]], [math.nan], "finite targets"),
    "too many targets": ([[1.0]], [0, 1], "2 targets for 1 rows"),
    "too few targets": ([[1.0], [2.0]], [0], "1 targets for 2 rows"),
    "too few targets for sparse rows": (sparse.eye(3), [0], "1 targets for 3 rows"),
    "no examples": (np.zeros((0, 3)), [], "at least one example"),
    "no sparse examples": (sparse.csr_matrix((0, 3)), [], "at least one example"),
    "a number for features": (3.0, [0], "single number"),
    "a scalar tensor for features": (torch.tensor(3.0), [0], "single number"),
    "a number for targets": ([[1.0]], 0, "targets"),
    "a scalar tensor for targets": ([[1.0]], torch.tensor(0), "targets"),
    "texts for features": ([["red"], ["green"]], [0, 1], "features"),
    "texts for targets": ([[1.0], [2.0]], ["yes", "no"], "targets"),
    "sparse features of three dimensions": (torch.ones(2, 2, 2).to_sparse(), [0, 1], "features"),
}


@pytest.mark.parametrize(("features", "targets", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_examples_that_cannot_be_used_are_refused(features, targets, words):
    with pytest.raises(DataError, match=words):
        examples(features, targets)


def torch_csr(matrix: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its CSR tensors are in beta
        return torch.tensor(matrix).to_sparse_csr()


SPARSE = {
    "scipy csr": sparse.csr_matrix(MATRIX),
    "scipy csc": sparse.csc_matrix(MATRIX),
    "scipy coo": sparse.coo_matrix(MATRIX),
    "scipy csr array": sparse.csr_array(MATRIX),
    "torch coo": torch.tensor(MATRIX).to_sparse(),
    "torch csr": torch_csr(MATRIX),
}
DENSE = {
    "list": MATRIX.tolist(),
    "numpy": MATRIX,
    "numpy float64": MATRIX.astype(np.float64),
    "torch": torch.tensor(MATRIX),
}


@pytest.mark.parametrize("features", SPARSE.values(), ids=SPARSE.keys())
def test_sparse_features_are_held_as_the_same_rows(features):
    held = examples(features, TARGETS).features
    assert isinstance(held, SparseRows)
    assert held.values.dtype == torch.float32
    np.testing.assert_array_equal(held.to_dense().numpy(), MATRIX)


@pytest.mark.parametrize("features", DENSE.values(), ids=DENSE.keys())
def test_dense_features_are_held_as_a_tensor(features):
    held = examples(features, TARGETS).features
    assert held.dtype == torch.float32
    np.testing.assert_array_equal(held.numpy(), MATRIX)


def test_hazard_11_repeated_entries_of_a_row_are_added_up():
    repeated = sparse.csr_matrix(([1.0, 2.0, 4.0], [1, 1, 0], [0, 3]), shape=(1, 2))
    held = examples(repeated, [0]).features
    assert held.to_dense().tolist() == [[4.0, 3.0]]
    assert len(held.values) == 2


def test_repeated_entries_of_a_torch_matrix_are_added_up():
    entries = torch.tensor([[0, 0, 0], [1, 1, 0]])
    repeated = torch.sparse_coo_tensor(entries, [1.0, 2.0, 4.0], (1, 2), check_invariants=True)
    assert examples(repeated, [0]).features.to_dense().tolist() == [[4.0, 3.0]]


def test_holding_examples_does_not_change_the_callers_matrix():
    repeated = sparse.csr_matrix(([1.0, 2.0], [0, 0], [0, 2]), shape=(1, 1))
    examples(repeated, [0])
    assert repeated.nnz == 2


def test_taken_examples_keep_features_and_targets_together():
    held = examples(MATRIX, [10, 11, 12]).take(torch.tensor([2, 0]))
    assert held.targets.tolist() == [12, 10]
    np.testing.assert_array_equal(held.features.numpy(), MATRIX[[2, 0]])


def test_features_that_require_grad_are_detached():
    assert not examples(torch.ones(1, 1, requires_grad=True), [0]).features.requires_grad


def test_public_examples_carry_the_hash_of_their_content():
    def digest(features: object) -> str:
        held = public_examples(features, TARGETS, source="a", public_because="b", batch_size=1)
        return held.provenance.digest

    changed = MATRIX.copy()
    changed[2, 1] += 1
    assert digest(MATRIX) == digest(MATRIX.copy()) != digest(changed)
    assert digest(sparse.csr_matrix(MATRIX)) != digest(sparse.csr_matrix(changed))


# --- sparse rows against scipy ------------------------------------------------------------------

matrices = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    elements=st.sampled_from([0.0, 0.0, 1.0, -2.0, 0.25]),
)


@given(matrices, st.data())
@settings(max_examples=60)
def test_take_agrees_with_scipy(matrix, data):
    rows = data.draw(st.lists(st.integers(0, len(matrix) - 1), max_size=8))
    taken = SparseRows.from_scipy(matrix).take(torch.tensor(rows, dtype=torch.int64))
    assert len(taken) == len(rows)
    expected = sparse.csr_matrix(matrix)[rows].toarray()
    np.testing.assert_array_equal(taken.to_dense().numpy(), expected)


@given(matrices)
@settings(max_examples=60)
def test_row_sums_agree_with_scipy(matrix):
    held = SparseRows.from_scipy(matrix)
    squares = sparse.csr_matrix(matrix).power(2)
    found = held.row_sums(held.values.square())
    np.testing.assert_array_equal(found.numpy(), np.asarray(squares.sum(1)).ravel())


@given(matrices)
@settings(max_examples=60)
def test_rows_and_columns_agree_with_scipy(matrix):
    held, coo = SparseRows.from_scipy(matrix), sparse.csr_matrix(matrix).tocoo()
    np.testing.assert_array_equal(held.rows.numpy(), coo.row)
    np.testing.assert_array_equal(held.columns.numpy(), coo.col)


@given(matrices)
@settings(max_examples=60)
def test_with_values_keeps_the_pattern(matrix):
    held = SparseRows.from_scipy(matrix)
    np.testing.assert_array_equal(held.with_values(3 * held.values).to_dense().numpy(), 3 * matrix)


# --- text ---------------------------------------------------------------------------------------

BAG = BagOfWords(("apple", "pear", "plum"))
TEXTS = ["Apple pear, apple!", "plum", "nothing known", "pear pear plum apple"]


@pytest.mark.parametrize("dampened", [False, True])
def test_words_are_counted_dampened_if_asked_and_normalised(dampened):
    row = BagOfWords(BAG.vocabulary, dampened)(["Apple pear, apple!"]).toarray()[0]
    counts = np.array([2.0, 1.0, 0.0])
    raw = np.log1p(counts) if dampened else counts
    np.testing.assert_allclose(row, raw / np.linalg.norm(raw), rtol=1e-6)


def test_every_text_has_norm_one_or_no_known_word():
    norms = np.linalg.norm(BAG(TEXTS).toarray(), axis=1)
    np.testing.assert_allclose(norms, [1.0, 1.0, 0.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize("changed", range(len(TEXTS)))
def test_hazard_20_a_row_depends_on_its_own_text_alone(changed):
    others = [i for i in range(len(TEXTS)) if i != changed]
    before = BAG(TEXTS).toarray()
    after = BAG([*TEXTS[:changed], "plum pear new words", *TEXTS[changed + 1 :]]).toarray()
    np.testing.assert_array_equal(after[others], before[others])
    assert not np.array_equal(after[changed], before[changed])


def test_a_text_alone_gets_the_row_it_has_in_company():
    together = BAG(TEXTS).toarray()
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_array_equal(BAG([text]).toarray()[0], row)


def test_the_width_is_that_of_the_vocabulary_whatever_the_texts_say():
    assert BAG(["cherry cherry cherry"]).shape == (1, 3)


def test_no_texts_are_refused():
    with pytest.raises(DataError, match="at least one text"):
        BAG([])


def test_public_vocabulary_is_made_of_distinct_words_that_can_be_found():
    words = public_vocabulary(500)
    assert len(set(words)) == len(words) == 500
    assert (BagOfWords(words)(list(words)).toarray() == np.eye(500)).all()


def test_a_longer_public_vocabulary_begins_with_the_shorter_one():
    assert public_vocabulary(200)[:50] == public_vocabulary(50)


def test_more_words_than_there_are_is_refused():
    with pytest.raises(DataError, match="Ask for fewer"):
        public_vocabulary(10**7)


# --- the data that comes with the package -------------------------------------------------------


@pytest.fixture(scope="module")
def packages():
    return debian_packages()


def test_all_packages_are_there(packages):
    assert len(packages) == 30_300
    assert len({package.name for package in packages}) == 30_300


def test_every_section_is_a_declared_one(packages):
    assert {package.section for package in packages} <= set(SECTIONS)
    assert len(set(SECTIONS)) == len(SECTIONS)


def test_every_package_has_a_text_with_title_and_body(packages):
    assert all(package.title.strip() and package.source.strip() for package in packages)
    assert packages[0].text == f"{packages[0].title}\n{packages[0].body}"


def test_no_address_of_a_person_is_left(packages):
    address = re.compile(r"[\w.+-]+@[\w-]+\.\w")
    parts = ((p.name, p.source, *p.tags, p.text) for p in packages)
    found = [names[0] for names in parts if any(map(address.search, names))]
    assert found == []


def test_the_split_is_by_source(packages):
    held_out = {package.source for package in packages if package.held_out}
    trained_on = {package.source for package in packages if not package.held_out}
    assert held_out.isdisjoint(trained_on)


def test_about_a_fifth_is_held_out(packages):
    share = sum(package.held_out for package in packages) / len(packages)
    assert 0.15 < share < 0.25


def test_the_packed_file_is_at_most_four_megabytes():
    packed = files("adadps.data").joinpath("embedded/debian_packages.csv.xz").read_bytes()
    assert len(packed) <= 4_000_000
