"""Autocast inside of a model, and compiled models."""

import pytest
import torch
from torch import nn

import adadps
from adadps import Budget, dp_sgd, examples, losses
from adadps.engine.passes.validation import objective
from adadps.errors import ModelError
from adadps.tensors.sums import dense

ROWS, WORDS = 24, 30


KINDS = ["attention", "convolution", "linear", "norm", "LSTM", "GRU", "RNN"]


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells = getattr(nn, kind)(16, 16, batch_first=True)

    def forward(self, rows):
        return self.cells(rows)[0]


class InHalf(nn.Module):
    """Computes in bfloat16, with weights in float32, as autocast does."""

    def __init__(self, kind):
        super().__init__()
        self.table, self.last = nn.Embedding(WORDS, 16), nn.Linear(16, 3)
        if kind == "attention":
            self.inner = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        elif kind in ("LSTM", "GRU", "RNN"):
            self.inner = Recurrent(kind)
        elif kind == "norm":
            self.inner = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())
        elif kind == "convolution":
            self.inner = nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.GELU())
        else:
            self.inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh())

    def forward(self, tokens):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.last(self.inner(self.table(tokens)).mean(1)).float()


GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(WORDS, (ROWS, 8), generator=GENERATOR)
LABELS = torch.randint(3, (ROWS,), generator=GENERATOR)
DATA = examples(TOKENS, LABELS)


@pytest.mark.parametrize("kind", KINDS)
def test_norms_are_those_of_what_is_added_up(kind):
    torch.manual_seed(0)
    model = InHalf(kind)
    held = objective(model, losses.cross_entropy, DATA)
    assert type(held.engine).__name__ == "GhostEngine"
    assert not held.engine.stored
    batch = held.per_unit(held.params(), DATA, None)
    norms = batch.norms()
    for row in range(ROWS):
        weights = torch.zeros(len(norms), dtype=torch.float64)
        weights[row] = 1
        added = torch.cat([dense(v).flatten() for v in batch.weighted_sum(weights).values()])
        assert added.norm() <= norms[row] <= added.norm() * (1 + 1e-6)
        value = losses.cross_entropy(model(TOKENS[row : row + 1]), LABELS[row : row + 1]).sum()
        by_torch = torch.cat(
            [g.double().flatten() for g in torch.autograd.grad(value, list(model.parameters()))]
        )
        assert (added - by_torch).norm() <= 0.03 * by_torch.norm()  # rounded to 8 bits there


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_change_no_bit(kind):
    held = objective(InHalf(kind), losses.cross_entropy, DATA)
    whole = held.per_unit(held.params(), DATA, None).norms()
    for count in (1, 5, 17):
        some = held.per_unit(held.params(), DATA.take(torch.arange(count)), None).norms()
        assert torch.equal(some[:count], whole[:count])


def test_a_run_trains():
    result = adadps.fit(
        InHalf("linear"), losses.cross_entropy, DATA, method=dp_sgd(lr=0.5), clip_norm=1.0,
        batch_size=8, steps=3, budget=Budget(epsilon=8, delta=1e-3),
    )  # fmt: skip
    assert all(value.dtype == torch.float32 for value in result.params.values())


def compiled_in_place():
    model = nn.Linear(4, 3)
    model.compile()
    return nn.Sequential(model)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.compile(nn.Linear(4, 3), backend="eager"),
        compiled_in_place,
        lambda: torch.jit.trace(nn.Linear(4, 3), torch.zeros(1, 4)),
    ],
    ids=["compiled", "in place", "traced"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models_are_refused_with_the_cure(make):
    with pytest.raises(ModelError, match="Give the model that"):
        objective(make(), losses.cross_entropy, examples(torch.randn(8, 4), LABELS[:8]))
