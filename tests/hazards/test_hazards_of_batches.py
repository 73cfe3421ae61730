"""Hazards 30 and 31: empty batches, kept norms; and synthetic rows of the user's own."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from adadps import PrivateRun, dp_sgd, examples, losses, poisson
from adadps.data.sparse_rows import SparseRows
from adadps.engine.choice import ROWS
from adadps.engine.passes.validation import objective
from adadps.errors import DataError
from adadps.tensors.sums import dense
from support.habits import MODELS, NOISY, SILENT, WIDTH, N, Wrapped, private_rows, run_on
from support.late_tables import bag, embedding, linear, nothing
from support.problems import cross_entropy

# --- 30: an empty batch ---


@pytest.mark.parametrize("make", [linear, bag, embedding])
def test_hazard_30_an_empty_batch_leaves_late_rows_as_late_as_any_other(make):
    """Eager noise for empty batches showed on the grid, at an expected batch of one."""
    table = make(8)
    data = examples(table.features, torch.zeros(12, dtype=torch.int64))
    run = PrivateRun(
        table.model, nothing, data, method=dp_sgd(NOISY, lr=0.5), steps=400,
        sampler=poisson(examples=12, expected_size=0.05),
    )  # fmt: skip
    memory = torch.from_numpy(run._stepper.own_params[table.name].numpy())  # no hook sees this
    moved = []
    for batch in run.batches():
        if batch.index == 300:
            break
        before, rows = memory.clone(), len(run._drawn.rows)
        run.step(batch)
        moved.append((rows, int((before != memory).sum())))
    assert any(rows == 0 for rows, _ in moved)
    most = memory.numel() // 2  # rows that have waited long are drawn whatever the batch
    assert all(drawn <= most for rows, drawn in moved if rows == 0), "no batch draws for all rows"
    assert table.name in run._stepper.weights._late


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
def test_hazard_30_an_empty_batch_is_a_noised_step_like_any_other(build):
    """It runs the model on synthetic rows, and its sum is exactly zero."""
    model, data = build(), private_rows()
    held = objective(model, cross_entropy, data)
    nobody = data.take(torch.arange(0))
    found = held.per_unit(held.params(), nobody, None)
    assert len(found.norms()) == 0
    total = found.weighted_sum(torch.zeros(0))
    assert all(not dense(value).any() for value in total.values())
    assert {n: dense(v).shape for n, v in total.items()} == {
        n: p.shape for n, p in held.params().items()
    }


def test_hazard_30_synthetic_rows_touch_no_table():
    tokens = torch.randint(1, 9, (5, 3))  # nobody has word 0 or 9
    data = examples(tokens, torch.arange(5) % 2)
    for first in (nn.EmbeddingBag(10, 2), nn.Sequential(nn.Embedding(10, 2), nn.Flatten())):
        model = nn.Sequential(first, nn.Linear(2 if isinstance(first, nn.EmbeddingBag) else 6, 2))
        held = objective(model, cross_entropy, data)
        batch = held.encoded(data)
        total = held.per_unit(held.params(), batch, None).weighted_sum(torch.ones(5))
        table = next(iter(total.values()))
        assert sorted(table.rows.tolist()) == sorted(set(tokens.flatten().tolist()))


# --- 31: what is computed from data that has changed since ---


def test_hazard_31_values_changed_in_place_are_clipped_as_they_are_now():
    matrix = sparse.random(N, 9, density=0.5, format="csr", random_state=0, dtype=np.float32)
    held = SparseRows.from_scipy(matrix)
    data = examples(held, torch.arange(N) % 2)
    model = nn.Linear(9, 2)
    run = run_on(model, data, method=dp_sgd(SILENT, lr=1.0), steps=4, size=N)
    batches = run.batches()
    for _ in range(3):
        run.step(next(batches))
    before = [p.detach().clone() for p in model.parameters()]
    data.features.values.numpy()[:] *= 50  # no version counter sees this
    run.step(next(batches))
    moved = torch.cat([(p.detach() - b).flatten() for p, b in zip(model.parameters(), before,
                                                                  strict=True)])  # fmt: skip
    assert float(moved.norm()) <= 1 + 1e-5, "each of N rows brings at most C / N"


# --- synthetic rows of the user's own ---


def test_rows_of_the_users_own_are_taken_where_made_up_ones_do_not_fit():
    def picky(outputs, targets):
        if not bool((targets >= 5).all()):
            raise ValueError("targets of 5 and more")
        return (outputs[:, 0] - targets).square()

    rows, targets = torch.randn(N, WIDTH), torch.rand(N) + 5
    with pytest.raises(DataError, match="synthetic="):
        run_on(nn.Linear(WIDTH, 2), examples(rows, targets), loss=picky)
    made_up = (torch.zeros(2, WIDTH), torch.full((2,), 6.0))
    data = examples(rows, targets, synthetic=made_up)
    assert len(objective(nn.Linear(WIDTH, 2), losses.squared_error,
                         examples(rows, torch.rand(N, 2))).synthetic) == ROWS  # fmt: skip
    held = objective(Wrapped(nn.Linear(WIDTH, 2)), lambda o, t: (o[:, 0] - t) ** 2, data)
    assert torch.equal(held.synthetic.targets, torch.full((ROWS,), 6.0))
    with pytest.raises(DataError, match="of the form of the data"):
        examples(rows, targets, synthetic=(torch.zeros(2, WIDTH + 1), made_up[1]))
