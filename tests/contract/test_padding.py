"""What is computed for a row does not depend on how many others were drawn: bit for bit."""

import pytest
import torch

from adadps.data.sparse_rows import SparseRows
from support.engine_checks import objective_of
from support.problems import PROBLEMS

SIZES = (1, 2, 3, 5, 15, 16, 17, 40)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_bit_equal_in_batches_of_any_size(problem, threads):
    case = problem(0, max(SIZES))
    held = objective_of(case)
    params = held.params()
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        norms = [
            held.per_unit(params, case.batch.take(torch.arange(size)), None).norms()
            for size in SIZES
        ]
    finally:
        torch.set_num_threads(usual)
    for found in norms:
        assert torch.equal(found, norms[-1][: len(found)])


WIDE = [(50, 1), (64, 64), (300, 3), (784, 1000), (1000, 1)]


@pytest.mark.parametrize(("inputs", "outputs"), WIDE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_padded_batches_are_bit_equal(inputs, outputs, dtype):
    """The measurement behind the multiple of 16: without padding, small batches differ."""
    from adadps.engine.objective import padding_for

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(512, inputs, dtype=dtype, generator=generator)
    weights = torch.randn(outputs, inputs, dtype=dtype, generator=generator)
    whole = rows @ weights.T
    for size in (1, 2, 3, 6, 11, 30, 47, 64, 129, 333):
        padded = rows[: size + padding_for(size)]
        assert torch.equal((padded @ weights.T)[:size], whole[:size]), size


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_a_physical_batch_of_a_few_rows_is_padded_to_itself(problem):
    """Where memory allows three rows, no piece has more, and all have the same."""
    case = problem(0, 8)
    held = objective_of(case)
    sizes = []
    inner = held.engine.per_unit

    def counting(params, batch, units, synthetic=0):
        sizes.append(len(batch))
        return inner(params, batch, units, synthetic)

    held.engine.per_unit = counting
    assert len(held.per_unit(held.params(), case.batch, None, 3).norms()) == 8
    assert sizes == [3, 3, 3]


@pytest.mark.parametrize("sorted_before", [False, True])
def test_sparse_rows_followed_by_empty_ones_have_the_same_columns(sorted_before):
    """Also where the columns of the rows were sorted already, and are not sorted once more."""
    rows = SparseRows(torch.tensor([0, 2, 3]), torch.tensor([4, 1, 4]), torch.rand(3), 6)
    if sorted_before:
        _ = rows.by_column
    longer = rows.followed_by_empty(3)
    fresh = SparseRows(longer.offsets, longer.columns, longer.values, 6).by_column
    assert len(longer) == longer.by_column.height == fresh.height == 5
    for name in ("columns", "offsets", "rows", "values", "places"):
        assert torch.equal(getattr(longer.by_column, name), getattr(fresh, name))
    matrix = torch.randn(5, 2)
    assert torch.equal(longer.by_column.times(matrix), fresh.times(matrix))
