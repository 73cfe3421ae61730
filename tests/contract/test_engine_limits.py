"""What a user may bring, hooks, losses, sparse rows, and what is refused with the cure."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional

from adadps import losses
from adadps.data.examples import examples
from adadps.engine.choice import engine_for
from adadps.engine.ghost import GhostEngine
from adadps.engine.passes.validation import objective
from adadps.engine.rules import outer
from adadps.engine.rules.built import BuiltGradients
from adadps.engine.rules.gradients import LeafMap
from adadps.engine.rules.outer import OverTime
from adadps.errors import AdadpsError, DataError, ModelError
from support.engine_checks import (
    assert_right,
    chosen,
    contribution,
    in_general,
    in_sequence,
    only,
    trainable,
    under_vmap,
)
from support.models import SIZE, Custom, numbers, words
from support.problems import squared

HOOKS = {
    "forward, doubles": lambda m: m.register_forward_hook(lambda *at: 2 * at[2]),
    "forward, looks on": lambda m: m.register_forward_hook(lambda *_: None),
    "before, doubles": lambda m: m.register_forward_pre_hook(lambda *at: (2 * at[1][0],)),
    "backward, before": lambda m: m.register_full_backward_pre_hook(lambda *at: (2 * at[1][0],)),
    "backward": lambda m: m.register_full_backward_hook(lambda *at: (2 * at[1][0],)),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS.keys())
@pytest.mark.parametrize("where", [0, 2, None])
def test_hooks_of_the_user_count_or_are_refused(hook, where):
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    hook(model if where is None else model[where])
    batch = numbers(4)
    try:
        engine = engine_for(model, squared, batch)
        engine.per_unit(trainable(model), batch, None)
    except ModelError:
        return
    assert not in_sequence(engine)
    assert_right(engine, model, squared, batch)


def test_a_layer_that_owns_its_parameter_may_draw_at_random():
    """Run once more for its gradient, it would draw another mask: refused, or one mask."""

    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return functional.dropout(x, 0.5, self.training) * self.scale

    def loss(outputs, targets):
        return outputs.sum(1)

    model = nn.Sequential(Dropping())
    batch = examples(torch.ones(SIZE, 4), torch.zeros(SIZE, 1))
    engine = engine_for(model, loss, batch)
    try:
        found = engine.per_unit(trainable(model), batch, None)
    except ModelError:
        return
    rows = torch.stack([contribution(found, only(row, SIZE)) for row in range(SIZE)])
    assert set(rows.flatten().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("loss", [losses.cross_entropy, losses.squared_error, squared])
def test_losses_may_be_any_callable(loss):
    class Weighted:
        """Equal to others of its kind, so that it has no hash."""

        def __eq__(self, other):
            return isinstance(other, Weighted)

        __hash__ = None

        def __call__(self, outputs, targets):
            return 3 * loss(outputs, targets)

    rng = np.random.default_rng(0)
    targets = rng.integers(2, size=SIZE) if loss is losses.cross_entropy else numbers(4).targets
    batch = examples(numbers(4).features, targets)
    for held in (loss, Weighted()):
        assert in_sequence(chosen(nn.Linear(4, 2), batch, held))


SPARSE = {
    "linear": (lambda: nn.Linear(8, 2), in_sequence),
    "layers": (lambda: nn.Sequential(nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 2)), in_sequence),
    "bag": (
        lambda: nn.Sequential(nn.EmbeddingBag(8, 3, mode="sum"), nn.Linear(3, 2)),
        in_sequence,
    ),
    "activation first": (lambda: nn.Sequential(nn.Tanh(), nn.Linear(8, 2)), in_general),
    "norm first": (lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2)), in_general),
    "custom": (
        lambda: Custom(lambda m, x: m.b(torch.tanh(m.a(x))), a=nn.Linear(8, 3), b=nn.Linear(3, 2)),
        under_vmap,
    ),
}


@pytest.mark.parametrize(("build", "expected"), SPARSE.values(), ids=SPARSE.keys())
def test_sparse_rows_stay_sparse_where_the_first_layer_can_read_them(build, expected):
    rng = np.random.default_rng(0)
    rows = sparse.random(SIZE, 8, density=0.4, format="csr", random_state=rng, dtype=np.float32)
    batch = examples(rows, rng.normal(size=(SIZE, 2)).astype(np.float32))
    assert expected(chosen(build(), batch))


def rows_of_width(width, seed=0):
    rng = np.random.default_rng(seed)
    rows = sparse.random(SIZE, width, density=0.4, format="csr", random_state=rng)
    return examples(rows, rng.normal(size=(SIZE, 2)).astype(np.float32))


def test_a_mean_of_sparse_rows_is_refused_with_the_cure():
    model = nn.Sequential(nn.EmbeddingBag(8, 3, mode="mean"), nn.Linear(3, 2))
    with pytest.raises(ModelError, match="divide the entries of each row by their sum"):
        objective(model, squared, rows_of_width(8))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Embedding(6, 3, max_norm=1.0),
        nn.Embedding(6, 3, scale_grad_by_freq=True),
        nn.EmbeddingBag(6, 3, max_norm=1.0),
        nn.EmbeddingBag(6, 3, mode="mean", scale_grad_by_freq=True),
        nn.EmbeddingBag(6, 3, mode="max"),
    ],
    ids=str,
)
@pytest.mark.parametrize("custom", [False, True])
def test_hazard_11_tables_that_depend_on_the_batch_are_refused_with_the_cure(layer, custom):
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(3, 2))
    if custom:
        model = Custom(lambda m, x: m.head(m.table(x)), table=layer, head=nn.Linear(3, 2))
    with pytest.raises(ModelError, match="Remove it"):
        engine_for(model, squared, words())
    with pytest.raises(ModelError, match="Remove it"):
        GhostEngine(model, squared)


FITTING = {
    "linear": (lambda: nn.Linear(4, 2), numbers(5)),
    "layers": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), numbers(5)),
    "linear over time": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten()), numbers(3, 5)),
    "sparse, linear": (lambda: nn.Linear(8, 2), rows_of_width(9)),
    "sparse, bag": (lambda: nn.Sequential(nn.EmbeddingBag(8, 2, mode="sum")), rows_of_width(9)),
}


@pytest.mark.parametrize(("build", "batch"), FITTING.values(), ids=FITTING.keys())
def test_rows_of_the_wrong_width_are_an_error_in_the_data(build, batch):
    with pytest.raises(DataError, match="width of the data"):
        engine_for(build(), squared, batch)
    with pytest.raises(DataError, match="width of the data"):
        objective(build(), squared, batch)


NOT_FITTING = {
    "norm first": (lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), numbers(5)),
    "activation first": (lambda: nn.Sequential(nn.Tanh(), nn.Linear(4, 2)), numbers(5)),
    "flattened": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), numbers(3, 5)),
    "custom": (lambda: Custom(lambda m, x: m.a(x), a=nn.Linear(4, 2)), numbers(5)),
    "word without a row": (
        lambda: nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(8, 2)),
        words(6),
    ),
    "word without a row, bag": (
        lambda: nn.Sequential(nn.EmbeddingBag(3, 2), nn.Linear(2, 2)),
        words(6),
    ),
    "numbers for words": (
        lambda: nn.Sequential(nn.EmbeddingBag(3, 2), nn.Linear(2, 2)),
        numbers(3),
    ),
}


@pytest.mark.parametrize(("build", "batch"), NOT_FITTING.values(), ids=NOT_FITTING.keys())
def test_data_that_does_not_fit_the_model_is_an_error_of_our_own(build, batch):
    with pytest.raises(AdadpsError):
        objective(build(), squared, batch)


def test_two_vectors_stay_two_vectors(monkeypatch):
    """Scaled by feature, then by output: D has rank one, and positions are enough."""
    rng = np.random.default_rng(0)
    by_input, by_output = (torch.from_numpy(np.exp(rng.normal(size=s))) for s in ((1, 8), (9, 1)))
    leaf_map = LeafMap().scaled(by_input).scaled(by_output)
    assert [factor.shape for factor in leaf_map.factors] == [(1, 8), (9, 1)]
    again = leaf_map.scaled(by_output).scaled(by_input)
    assert [factor.shape for factor in again.factors] == [(1, 8), (9, 1)]
    leaf = OverTime(
        torch.from_numpy(rng.normal(size=(3, 4, 8))), torch.from_numpy(rng.normal(size=(3, 4, 9)))
    )
    full = leaf.squares(LeafMap((by_output * by_input,)))
    twice = leaf.squares(LeafMap(((by_output * by_input).square(),)))
    monkeypatch.setattr(outer, "_by_gradients", None)  # not called from here on
    torch.testing.assert_close(leaf.squares(leaf_map), full, rtol=1e-6, atol=0)
    torch.testing.assert_close(leaf.squares(again), twice, rtol=1e-6, atol=0)


def test_positions_are_used_only_where_they_are_cheaper():
    """40 positions of a layer of 3 inputs and 2 outputs: its gradient is smaller."""
    rng = np.random.default_rng(0)
    leaf = OverTime(torch.randn(3, 40, 3), torch.randn(3, 40, 2))
    built = outer.in_cheapest_form(leaf)
    assert isinstance(built, BuiltGradients)
    vector = torch.from_numpy(np.exp(rng.normal(size=(1, 3))))
    by_positions = leaf.squares(LeafMap((vector,)))
    torch.testing.assert_close(built.squares(LeafMap((vector,))), by_positions, rtol=1e-5, atol=0)
    few = OverTime(torch.randn(3, 2, 300), torch.randn(3, 2, 200))
    assert outer.in_cheapest_form(few) is few
