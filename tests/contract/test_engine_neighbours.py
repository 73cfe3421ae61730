"""Examples do not see each other: a gradient depends on its own example and on nothing else.

Otherwise one example more or less would move the others too, and the sum by more than C.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from adadps.data.examples import Examples, examples
from adadps.data.sparse_rows import SparseRows
from adadps.engine.choice import engine_for
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine
from adadps.engine.passes.validation import objective
from adadps.engine.rules.gradients import LeafMap
from adadps.engine.rules.sparse import SparseOuter
from adadps.errors import ModelError
from support.engine_checks import as_dense, assert_right, contribution, only, trainable, with_rows
from support.problems import PROBLEMS, squared

SIZE = 6
CASES = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())


def transform_of(params, dtype=torch.float64):
    """A full D and a shift."""
    rng = np.random.default_rng(0)

    def draw():
        return {n: torch.from_numpy(rng.normal(size=tuple(p.shape))) for n, p in params.items()}

    mean = draw()
    diagonal = {name: value.abs().to(dtype) for name, value in draw().items()}
    return lambda batch: (batch.scale(diagonal), batch.shift(0.9, mean).scale(diagonal))


@CASES
def test_hazard_10_all_neighbours_replaced(problem):
    """Norms, under D and a shift, and contributions of the two that stay are bit-equal."""
    one, other = problem(21, SIZE), problem(22, SIZE)
    params, stay = trainable(one.model), (1, 4)
    mixed = with_rows(one.batch, other.batch, [row for row in range(SIZE) if row not in stay])
    first = with_rows(one.batch, other.batch, [])
    transform = transform_of(params)
    before = one.engine.per_unit(params, first, None)
    after = one.engine.per_unit(params, mixed, None)
    for row in stay:
        for was, now in zip(transform(before), transform(after), strict=True):
            assert torch.equal(now.norms()[row], was.norms()[row])
            weights = only(row, SIZE)
            assert torch.equal(contribution(now, weights), contribution(was, weights))


@CASES
def test_hazard_10_alone_and_in_company(problem):
    """A batch of one gives what a batch of many gives, up to the rounding of float32."""
    case = problem(23, SIZE)
    params = trainable(case.model)
    transform = transform_of(params)
    many = transform(case.engine.per_unit(params, case.batch, None))
    single = case.batch.take(torch.tensor([3]))
    one = transform(case.engine.per_unit(params, single, None))
    for alone, company in zip(one, many, strict=True):
        torch.testing.assert_close(alone.norms()[0], company.norms()[3], rtol=1e-5, atol=0)
        found, expected = contribution(alone, only(0, 1)), contribution(company, only(3, SIZE))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@CASES
def test_hazard_10_a_permuted_batch_has_permuted_norms(problem):
    case = problem(24, SIZE)
    params = trainable(case.model)
    order = torch.from_numpy(np.random.default_rng(0).permutation(SIZE))
    transform = transform_of(params)
    straight = transform(case.engine.per_unit(params, case.batch, None))
    permuted = transform(case.engine.per_unit(params, case.batch.take(order), None))
    for was, now in zip(straight, permuted, strict=True):
        torch.testing.assert_close(now.norms(), was.norms()[order], rtol=1e-5, atol=0)


@CASES
def test_hazard_10_equal_examples_have_equal_gradients(problem):
    case = problem(25, 3)
    params = trainable(case.model)
    batch = case.batch.take(torch.tensor([0, 1, 0, 2, 0]))
    for held in transform_of(params)(case.engine.per_unit(params, batch, None)):
        norms = held.norms()
        torch.testing.assert_close(norms[[2, 4]], norms[[0, 0]], rtol=1e-6, atol=0)


@pytest.mark.parametrize("words", [9, 40_000])
@pytest.mark.parametrize("change", ["longer", "another word"])
def test_hazard_10_neighbours_of_sparse_rows(words, change):
    """Neither the length of a neighbour nor the D of its words enters an example's norm.

    The norms of all others would move with it, so that the sum of 3,000 moved by far more than C.
    """
    rng = np.random.default_rng(0)
    size = 3000 if words == 40_000 else 5
    rows = torch.zeros(size, words)
    rows[torch.arange(size), torch.from_numpy(rng.integers(words - 2, size=size))] = 2.0
    changed = rows.clone()
    if change == "longer":
        changed[0, : words // 8] = 1.0
    else:
        changed[0] = 0.0
        changed[0, words - 1] = 1.0
    b = torch.from_numpy(rng.normal(size=(size, 2)) + 1.0).float()
    diagonal = torch.from_numpy(np.exp(rng.normal(size=(2, words))))
    diagonal[:, -1] = 1e5

    def squares(held):
        leaf = SparseOuter(SparseRows.from_torch(held.to_sparse()), b, 1)
        return leaf.squares(LeafMap((diagonal,)))

    before, after = squares(rows), squares(changed)
    assert after[0] != before[0]
    assert torch.equal(after[1:], before[1:])


class Mixing(nn.Module):
    """A forward pass that looks at the whole batch."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 2), kind

    def forward(self, x):
        if self.kind == "centred":
            return self.layer(x - 0.5 * x.mean(0))
        if self.kind == "sorted":
            return self.layer(x.sort(0).values)
        if self.kind == "summed":
            return self.layer(x) + x.sum()
        return torch.softmax(self.layer(x), 0)


def numbers(size=SIZE, width=4, outputs=2):
    rng = np.random.default_rng(0)
    return examples(
        rng.normal(size=(size, width)).astype(np.float32),
        rng.normal(size=(size, outputs)).astype(np.float32),
    )


@pytest.mark.parametrize("kind", ["centred", "sorted", "summed", "softmax over examples"])
@pytest.mark.parametrize("engine_of", [engine_for, GhostEngine, GeneralEngine])
def test_hazard_10_a_forward_pass_across_examples_sees_one(kind, engine_of):
    """Each example's gradient is the one that it has alone."""
    model, batch = Mixing(kind), numbers()
    arguments = (batch,) if engine_of is engine_for else ()
    assert_right(engine_of(model, squared, *arguments), model, squared, batch)


@pytest.mark.parametrize("engine_of", [GhostEngine, GeneralEngine])
@pytest.mark.parametrize("custom", [False, True])
def test_hazard_10_a_loss_across_examples_sees_one(engine_of, custom):
    def ranked(outputs, targets):
        return ((outputs - 0.5 * outputs.mean(0)) - targets).square().sum(1) / len(outputs)

    model = Mixing("centred") if custom else nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    assert_right(engine_of(model, ranked), model, ranked, numbers())


def test_hazard_10_a_loss_across_examples_is_refused_before_training():
    with pytest.raises(ModelError, match="neighbours"):
        objective(nn.Linear(4, 2), lambda o, t: (o - o.mean(0) - t).square().sum(1), numbers())


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.InstanceNorm1d(4, track_running_stats=True),
        nn.SyncBatchNorm(4),
    ],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True])
def test_hazard_10_layers_that_mix_are_refused(layer, nested):
    inner = nn.Sequential(nn.Identity(), layer) if nested else layer
    with pytest.raises(ModelError, match="GroupNorm"):
        objective(nn.Sequential(nn.Linear(4, 4), inner, nn.Linear(4, 2)), squared, numbers())


class Dropping(nn.Module):
    """A custom model with dropout: runs under vmap."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 16), nn.Dropout(), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.drop(self.first(x)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: GhostEngine(
            nn.Sequential(nn.Linear(4, 16), nn.Dropout(), nn.Linear(16, 2)), squared
        ),
        lambda: GhostEngine(
            nn.Sequential(nn.Linear(4, 16), nn.AlphaDropout(), nn.Linear(16, 2)), squared
        ),
        lambda: GhostEngine(Dropping(), squared),
        lambda: GeneralEngine(Dropping(), squared),
    ],
    ids=["sequence", "sequence, alpha", "custom", "general"],
)
def test_dropout_is_drawn_for_each_example(build):
    """64 copies of one example: 16 hidden units have 2^16 masks, about all differ."""
    engine = build()
    batch = numbers().take(torch.zeros(64, dtype=torch.int64))
    params = trainable(engine.model)
    norms = engine.per_unit(params, batch, None).norms()
    assert len(torch.unique(norms)) > 50
    assert not torch.equal(norms, engine.per_unit(params, batch, None).norms())
    engine.model.eval()
    norms = engine.per_unit(params, batch, None).norms()
    torch.testing.assert_close(norms, norms[:1].expand(64), rtol=1e-5, atol=0)


@CASES
def test_models_in_double_precision(problem):
    """Float64 through and through: only float64 rounding separates it from autograd."""
    case = problem(26, SIZE)
    model = copy.deepcopy(case.model).double()
    engine = type(case.engine)(model, case.loss)
    assert_right(engine, model, case.loss, doubled(case.batch), tolerance=1e-12)


def doubled(batch):
    features, targets = batch.features, batch.targets
    if isinstance(features, SparseRows):
        features = features.map_values(torch.Tensor.double)
    elif features.is_floating_point():
        features = features.double()
    return Examples(features, targets.double() if targets.is_floating_point() else targets)


@CASES
@pytest.mark.parametrize("of_model", [torch.float32, torch.float64])
def test_features_take_the_precision_of_the_model(problem, of_model):
    """`examples` holds numbers in float32 unless they come as tensors; models are what they are."""
    case = problem(27, SIZE)
    model = copy.deepcopy(case.model).to(of_model)
    engine = type(case.engine)(model, case.loss)
    batch = case.batch if of_model == torch.float64 else doubled(case.batch)
    targets = batch.targets
    targets = targets.to(of_model) if targets.is_floating_point() else targets
    found = engine.per_unit(trainable(model), Examples(batch.features, targets), None).norms()
    expected = case.engine.per_unit(trainable(case.model), case.batch, None).norms()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@CASES
def test_features_are_read_only(problem):
    """Also where the first activation works in place."""
    case = problem(28, SIZE)
    before = as_dense(case.batch.features).clone()
    case.engine.per_unit(trainable(case.model), case.batch, None).norms()
    assert torch.equal(as_dense(case.batch.features), before)


def test_features_are_read_only_before_an_activation_in_place():
    model, batch = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), numbers()
    before = batch.features.clone()
    GhostEngine(model, squared).per_unit(trainable(model), batch, None).norms()
    assert torch.equal(batch.features, before)
