"""Sums that are multiplied out late, and changes that wait as factors, against plain arithmetic."""

import numpy as np
import pytest
import torch

from adadps import reproducible_not_private
from adadps.data.sparse_rows import SparseRows
from adadps.engine.noise.late import LateRows
from adadps.engine.noise.randomness import secure
from adadps.engine.rules.sparse import FactoredRows
from adadps.errors import ContractError
from adadps.tensors.loops import in_main_memory
from adadps.tensors.sums import OuterSum

WORDS, WIDTH, SIZE = 9, 4, 5


def spread(*shape, dtype=torch.float32):
    return torch.rand(shape, dtype=dtype) * 3 + 0.1


# --- dense layers ---

DIAGONALS = {
    "none": [],
    "full": [(7, 6)],
    "by output": [(7, 1)],
    "by input": [(1, 6)],
    "one number": [(1, 1)],
    "all": [(7, 6), (7, 1), (1, 6), (1, 1)],
    "two full ones": [(7, 6), (7, 6)],
}


@pytest.mark.parametrize("shapes", DIAGONALS.values(), ids=DIAGONALS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_outer_sum_is_the_sum_of_outer_products(shapes, dtype):
    left, right = torch.randn(SIZE, 7), torch.randn(SIZE, 6)
    total, expected = (
        OuterSum(left, right),
        torch.einsum("io,ik->ok", left.double(), right.double()),
    )
    for shape in shapes:
        diagonal = spread(*shape, dtype=dtype)
        total = total.times_(diagonal)
        expected = expected * diagonal
    found = total if isinstance(total, torch.Tensor) else total.to_dense()
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("shapes", DIAGONALS.values(), ids=DIAGONALS)
@pytest.mark.parametrize("turned", [False, True])
def test_noise_joins_an_outer_sum_as_it_joins_its_matrix(shapes, turned):
    """The same draws: a sum that is multiplied out first, or piece by piece."""
    left, right = torch.randn(SIZE, 7), torch.randn(SIZE, 6)
    total, twin = OuterSum(left, right), OuterSum(left, right)
    for shape in shapes:
        diagonal = spread(*shape)
        total, twin = total.times_(diagonal), twin.times_(diagonal)
    matrix = twin if isinstance(twin, torch.Tensor) else twin.to_dense()
    weights = torch.randn(6, 7).T if turned else torch.randn(7, 6)
    other = torch.randn(11)
    found, expected = [], []
    for kept, summed in ((found, total), (expected, matrix)):
        kept += [weights.clone(), other.clone()]
        changes = [(kept[0], summed), (kept[1], torch.ones(11))]
        noise = reproducible_not_private(3)
        noise.release_into(changes, standard_deviation=0.7, factor=-0.3)
    if not turned:  # what lies in another way is noised in another order
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    moved = [(a != b).double().mean() for a, b in zip(found, (weights, other), strict=True)]
    assert min(moved) > 0.5  # on its grid one number of some thousand stays


@pytest.mark.parametrize("shape", [(300, 401), (3, 70_000), (70_000, 3)])
@pytest.mark.parametrize("full", [False, True])
def test_noise_of_an_outer_sum_has_its_deviation_everywhere(shape, full):
    """Pieces begin anywhere in a row. Mean and variance within 6 standard errors: below 1e-8."""
    total = OuterSum(torch.randn(2, shape[0]), torch.randn(2, shape[1]))
    if full:
        total = total.times_(spread(*shape))
    weights = torch.zeros(shape, dtype=torch.float64)
    secure().release_into([(weights, total)], standard_deviation=2.0, factor=1.0)
    z = (weights - total.to_dense()) / 2
    count = z.numel()
    assert abs(z.mean()) * count**0.5 < 6
    assert abs(z.square().mean() - 1) * (count / 2) ** 0.5 < 6
    assert abs((z[:, 1:] * z[:, :-1]).mean()) * count**0.5 < 6


# --- tables ---


def batch(seed):
    """Sparse rows, output gradients and weights of a batch."""
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.integers(WORDS, size=(SIZE, 3)))
    dense = torch.zeros(SIZE, WORDS).scatter_add_(1, tokens, torch.ones(SIZE, 3))
    rows = SparseRows.from_torch(dense.to_sparse())
    return rows, torch.from_numpy(rng.normal(size=(SIZE, WIDTH))).float(), torch.rand(SIZE)


def change_of(seed, axis, diagonals=()):
    rows, b, weights = batch(seed)
    shape = (WORDS, WIDTH) if axis == 0 else (WIDTH, WORDS)
    change = FactoredRows(rows.by_column, weights, b, shape, axis)
    expected = (rows.to_dense().double() * weights.unsqueeze(1)).T @ b.double()
    for diagonal in diagonals:
        change.times_(diagonal)
        expected = expected * diagonal.movedim(axis, 0)
    return change, expected


def diagonals(kind, axis, dtype=torch.float32):
    full, by_word, by_output = (WORDS, WIDTH), (WORDS, 1), (1, WIDTH)
    shapes = {"none": [], "full": [full], "by word": [by_word], "by output": [by_output],
              "one number": [(1, 1)], "all": [full, by_word, by_output, (1, 1)]}  # fmt: skip
    return [spread(*shape, dtype=dtype).movedim(0, axis) for shape in shapes[kind]]


KINDS = ["none", "full", "by word", "by output", "one number", "all"]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_factored_rows_are_the_sum(kind, axis):
    change, expected = change_of(0, axis, diagonals(kind, axis))
    torch.testing.assert_close(change.to_dense().movedim(axis, 0), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_waits_with_its_d(kind, axis, dtype):
    """Without noise: several steps under one D, with decay, are what plain arithmetic gives."""
    held = diagonals(kind, axis, dtype)
    table = torch.randn(WORDS, WIDTH, dtype=torch.float64)
    expected = table.clone()
    late = LateRows(table.movedim(0, axis), axis, secure())
    for seed in range(4):
        change, dense = change_of(seed, axis, held)
        late.add(change, deviation=0.0, keep=0.9, factor=-0.5)
        expected = 0.9 * expected - 0.5 * dense
    late.settle()
    torch.testing.assert_close(table, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1])
def test_what_waits_keeps_the_d_of_its_step(axis):
    """A new D every step, new shapes of D, and changes that were multiplied out already."""
    table = torch.randn(WORDS, WIDTH, dtype=torch.float64)
    expected = table.clone()
    late = LateRows(table.movedim(0, axis), axis, secure())
    for seed, kind in enumerate(["full", "full", "by word", "all", "none", "full"]):
        change, dense = change_of(seed, axis, diagonals(kind, axis))
        if seed == 3:
            _ = change.values
        late.add(change, deviation=0.0, keep=1.0)
        expected += dense
    late.settle()
    torch.testing.assert_close(table, expected, rtol=1e-12, atol=1e-12)


def test_side_information_that_is_written_to_while_a_change_waits_is_refused():
    held = diagonals("full", 0)
    late = LateRows(torch.zeros(WORDS, WIDTH), 0, secure())
    late.add(change_of(0, 0, held)[0], deviation=1.0, keep=1.0)
    held[0].mul_(1000)
    with pytest.raises(ContractError, match="does not change while"):
        late.settle()


def test_a_table_that_compiled_loops_cannot_reach_is_noised_all_the_same():
    """Rows are brought to main memory, and back."""
    table = torch.randn(WORDS, 2 * WIDTH, dtype=torch.float64)[:, ::2]
    assert not in_main_memory(table)
    begin, late = table.clone(), LateRows(table, 0, secure())
    change, expected = change_of(0, 0, diagonals("full", 0))
    late.add(change, deviation=0.0, keep=1.0)
    late.settle()
    torch.testing.assert_close(table, begin + expected, rtol=1e-12, atol=1e-12)
    late.add(change_of(1, 0)[0], deviation=1.0, keep=1.0)
    before = table.clone()
    late.settle()
    assert (table != before).any(1).all()  # on its grid one number of some thousand stays


@pytest.mark.parametrize("shape", [(3, 1000), (1000, 3), (1, 50)])
def test_any_entries_of_an_outer_sum_can_be_had(shape):
    total = OuterSum(torch.randn(2, shape[0]), torch.randn(2, shape[1]))
    whole = total.to_dense().view(-1)
    for start, stop in [(0, 1), (0, 50), (7, 8), (13, 31), (len(whole) - 5, len(whole))]:
        torch.testing.assert_close(total.entries(start, stop), whole[start:stop])
