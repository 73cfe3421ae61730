"""Compiled loops against plain torch and numpy, and what they refuse because they do not look."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import nn
from torch.nn import functional

from adadps.data.sparse_rows import SparseRows
from adadps.engine.ghost import gradient_of_cross_entropy
from adadps.engine.losses import cross_entropy
from adadps.engine.rules.sparse import as_bags
from adadps.tensors import loops
from adadps.tensors.loops import compiled
from adadps.tensors.squares import inner_products, sums_of_squares, unit_squares

SEEDS = st.integers(0, 2**32 - 1)


def random_rows(seed, most=8):
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, most, size=2)
    dense = rng.normal(size=(height, width)) * (rng.random((height, width)) < 0.4)
    return SparseRows.from_scipy(sparse.csr_matrix(dense)), rng


@given(SEEDS)
def test_rows_can_be_taken_in_any_order_and_twice(seed):
    rows, rng = random_rows(seed)
    chosen = torch.from_numpy(rng.integers(len(rows), size=rng.integers(6)))
    taken = rows.take(chosen)
    assert torch.equal(taken.to_dense(), rows.to_dense()[chosen])
    assert len(taken) == len(chosen)


@given(SEEDS)
def test_by_column_holds_every_entry_once(seed):
    rows, _ = random_rows(seed)
    columns = rows.by_column
    found = torch.zeros(rows.width, len(rows))
    for j, column in enumerate(columns.columns.tolist()):
        entries = slice(int(columns.offsets[j]), int(columns.offsets[j + 1]))
        assert entries.stop > entries.start
        found[column, columns.rows[entries]] = columns.values[entries]
    assert torch.equal(found.T, rows.to_dense())
    assert torch.equal(columns.columns[columns.places], rows.columns)
    assert len(columns.columns.unique()) == len(columns.columns)


@given(SEEDS, st.sampled_from([torch.float32, torch.float64]))
def test_products_are_those_of_dense_rows(seed, dtype):
    rows, rng = random_rows(seed)
    table = torch.from_numpy(rng.normal(size=(rows.width, 5))).to(dtype)
    torch.testing.assert_close(rows.times(table), rows.to_dense().to(dtype) @ table)


@settings(deadline=None)
@given(SEEDS, st.sampled_from(["sum", "mean"]), st.sampled_from([None, 0, 3]))
def test_bags_are_what_torch_makes_of_the_tokens(seed, mode, padding):
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.integers(5, size=rng.integers(1, 6, size=2)))
    layer = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding)
    bags = as_bags(tokens, layer)
    torch.testing.assert_close(bags.times(layer.weight.detach()), layer(tokens).detach())
    pairs = list(zip(bags.rows.tolist(), bags.columns.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)


@given(SEEDS, st.sampled_from([None, (1,), (7, 1), (1, 7)]))
def test_squared_lengths_are_those_of_dense_rows_however_often_one_asks(seed, shape):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(9, 7)) * (rng.random((9, 7)) < 0.4)
    rows = SparseRows.from_scipy(sparse.csr_matrix(dense))
    factor = None if shape is None else torch.from_numpy(rng.random(shape))
    for _ in range(4):
        chosen = torch.from_numpy(rng.integers(9, size=5))
        taken = rows.take(chosen).take(torch.tensor([4, 0, 0, 2]))
        plain = rows.to_dense()[chosen][[4, 0, 0, 2]].double()
        if factor is not None:
            plain = plain * factor.flatten()
        torch.testing.assert_close(taken.squared_lengths(factor), plain.square().sum(1))
        if factor is not None and rng.random() < 0.3:
            factor.mul_(2)  # another version: what was known is out of date
        elif factor is not None and rng.random() < 0.3:
            factor = torch.from_numpy(rng.random(shape))


def test_threads_change_nothing():
    rng = np.random.default_rng(0)
    rows = SparseRows.from_scipy(sparse.random(300, 200, 0.2, "csr", random_state=rng))
    table = torch.from_numpy(rng.normal(size=(200, 301)))
    before = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.append(rows.times(table))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_torch_is_alone_for_a_while_and_helpers_are_not_counted():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with loops.torch_on_one_thread():
            assert (torch.get_num_threads(), loops.count()) == (1, 2)
            with loops.torch_on_one_thread():
                assert (torch.get_num_threads(), loops.count()) == (1, 2)
            assert (torch.get_num_threads(), loops.count()) == (1, 2)
        assert (torch.get_num_threads(), loops.count()) == (2, 2)
    finally:
        torch.set_num_threads(before)


# --- what lies outside ---


@pytest.mark.parametrize("token", [-1, 5, 2**40])
def test_words_outside_of_the_table_are_refused(token):
    with pytest.raises(IndexError, match="0 to 4"):
        as_bags(torch.tensor([[0, token]]), nn.EmbeddingBag(5, 2))


@pytest.mark.parametrize("row", [-1, 3])
def test_rows_outside_of_the_data_are_refused(row):
    rows = SparseRows.from_scipy(sparse.eye(3, format="csr"))
    with pytest.raises(IndexError, match="0 to 2"):
        rows.take(torch.tensor([row]))


def test_columns_outside_of_the_table_are_refused():
    rows = SparseRows.from_scipy(sparse.eye(3, format="csr"))
    with pytest.raises(IndexError, match="3 rows"):
        rows.times(torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("indices", "indptr"), [([0, 7], [0, 1, 2]), ([0, -1], [0, 1, 2]), ([0, 1], [0, 2, 1])]
)
def test_matrices_that_contradict_themselves_are_refused(indices, indptr):
    broken = sparse.csr_matrix(np.eye(2))
    broken.indices, broken.indptr = np.array(indices), np.array(indptr)
    with pytest.raises((ValueError, IndexError)):
        SparseRows.from_scipy(broken)


# --- squares ---


@given(SEEDS, st.sampled_from([torch.float32, torch.float64]), st.booleans())
def test_squares_of_rows(seed, dtype, scaled):
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=rng.integers(1, 9, size=2))).to(dtype)
    factors = torch.from_numpy(rng.random((1, rows.shape[1]))) if scaled else None
    plain = rows.double() if factors is None else rows.double() * factors
    torch.testing.assert_close(sums_of_squares(rows, factors), plain.square().sum(1))
    unit, size = unit_squares(rows, factors, dtype)
    torch.testing.assert_close(size, plain.abs().amax(1))
    torch.testing.assert_close(unit.double() * size.unsqueeze(1) ** 2, plain.square(), rtol=1e-5,
                               atol=0)  # fmt: skip
    torch.testing.assert_close(inner_products(rows, unit), (rows.double() * unit).sum(1))


def test_a_row_of_zeros_has_no_largest_entry_to_divide_by():
    unit, size = unit_squares(torch.zeros(2, 3), None, torch.float32)
    assert (unit == 0).all()
    assert (size == 0).all()


def test_factors_of_one_entry_hold_for_all_columns():
    found = sums_of_squares(torch.ones(2, 3), torch.full((1, 1), 2.0))
    assert torch.equal(found, torch.full((2,), 12.0, dtype=torch.float64))


# --- a loss of ours ---


@given(SEEDS)
def test_the_gradient_of_cross_entropy_is_that_of_autograd(seed):
    rng = np.random.default_rng(seed)
    outputs = torch.from_numpy(rng.normal(size=(6, 4)) * 10).requires_grad_()
    targets = torch.from_numpy(rng.choice([-100, 0, 1, 2, 3], size=6))
    expected = torch.autograd.grad(cross_entropy(outputs, targets).sum(), outputs)[0]
    found = gradient_of_cross_entropy(outputs.detach(), targets)
    torch.testing.assert_close(found, expected)
    assert torch.equal(outputs.detach(), outputs)
    assert functional.cross_entropy(outputs, targets, reduction="sum").isfinite()


def test_a_full_disk_does_not_stop_a_loop(tmp_path, monkeypatch):
    @compiled
    def doubled(number):
        return 2 * number

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(doubled._cache._impl, "reduce", full)
    assert doubled(21) == 42


def test_loops_that_are_not_compiled_are_refused_at_once():
    run = subprocess.run(
        [sys.executable, "-c", "from adadps import fit"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "NUMBA_DISABLE_JIT" in run.stderr.splitlines()[-1]
