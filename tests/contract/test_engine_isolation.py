"""An example that is not finite counts as absent, and leaves all others as they were, bit by bit.

Poison can come with features, with targets, out of the loss, or as a gradient that overflows.
That examples do not see each other at all: `test_engine_neighbours.py`.
"""

import numpy as np
import pytest
import torch
from torch import nn

from adadps import losses
from adadps.data.examples import Examples
from adadps.data.sparse_rows import SparseRows
from adadps.engine.choice import engine_for
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine
from adadps.engine.waist import Units, clip_weights
from support.engine_checks import contribution, only, trainable
from support.problems import PROBLEMS, squared

SIZE, ROW = 6, 2
CASES = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
POISON = pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])


def transformed(engine, model, batch, units=None):
    """Gradients under a full D and a shift, so that a leak through either would show."""
    params, rng = trainable(model), np.random.default_rng(0)

    def draw():
        return {n: torch.from_numpy(rng.normal(size=tuple(p.shape))) for n, p in params.items()}

    mean, diagonal = draw(), {name: value.abs() for name, value in draw().items()}
    return engine.per_unit(params, batch, units).shift(0.9, mean).scale(diagonal)


def assert_others_untouched(clean, poisoned, *, absent=True, row=ROW, size=SIZE):
    """Norms and contributions of the other examples are what they were; ``row`` adds nothing."""
    before, after = clean.norms(), poisoned.norms()
    others = torch.arange(size) != row
    assert torch.equal(after[others], before[others])
    assert (before[others] > 0).all()
    for other in torch.nonzero(others).flatten().tolist():
        weights = only(other, size)
        assert torch.equal(contribution(poisoned, weights), contribution(clean, weights))
    weights = clip_weights(after, 1.0)
    alone = contribution(poisoned, weights * only(row, size))
    if absent:
        assert after[row] == 0
        assert (alone == 0).all()
    assert float(torch.linalg.vector_norm(alone)) <= 1 + 1e-12  # false if it is not finite
    assert torch.isfinite(contribution(poisoned, weights)).all()


def marked(batch):
    """The batch with a target that no other example has."""
    targets = batch.targets.clone()
    if targets.is_floating_point():
        targets[ROW] = 7.5
    else:
        targets = torch.where(targets == 0, 1, targets)
        targets[ROW] = 0
    return Examples(batch.features, targets)


def at_mark(loss, factor):
    """The loss, multiplied by ``factor`` for the marked example."""

    def changed(outputs, targets):
        mark = 7.5 if targets.is_floating_point() else 0
        hit = (targets == mark).reshape(len(targets), -1).all(1)
        return loss(outputs, targets) * torch.where(hit, factor, 1.0)

    return changed


def with_features(batch, value):
    """One entry of one example replaced."""
    features = batch.features
    if isinstance(features, SparseRows):
        entry = int(features.offsets[ROW])
        assert features.offsets[ROW + 1] > entry
        values = features.values.clone()
        values[entry] = value
        return Examples(features.with_values(values), batch.targets)
    features = features.clone()
    features[ROW].flatten()[:1] = value
    return Examples(features, batch.targets)


def has_numbers(problem):
    """Are the features numbers, not words?"""
    features = problem(0, 1).batch.features
    return isinstance(features, SparseRows) or features.is_floating_point()


NUMBERS = {name: problem for name, problem in PROBLEMS.items() if has_numbers(problem)}
ON_NUMBERS = pytest.mark.parametrize("problem", NUMBERS.values(), ids=NUMBERS.keys())


@CASES
@POISON
def test_hazard_06_poison_through_the_loss(problem, poison):
    case = problem(11, SIZE)
    batch = marked(case.batch)
    clean = transformed(case.engine, case.model, batch)
    case.engine.loss = at_mark(case.loss, poison)
    assert_others_untouched(clean, transformed(case.engine, case.model, batch))


@CASES
def test_hazard_06_overflow_through_the_loss(problem):
    """What is too large for float32 is absent, what is just not is clipped."""
    case = problem(11, SIZE)
    batch = marked(case.batch)
    clean = transformed(case.engine, case.model, batch)
    for factor in (1e36, 3e38):
        case.engine.loss = at_mark(case.loss, factor)
        found = transformed(case.engine, case.model, batch)
        assert_others_untouched(clean, found, absent=False)


@ON_NUMBERS
@POISON
def test_hazard_06_poison_in_the_features(problem, poison):
    case = problem(11, SIZE)
    clean = transformed(case.engine, case.model, case.batch)
    found = transformed(case.engine, case.model, with_features(case.batch, poison))
    assert_others_untouched(clean, found)


@ON_NUMBERS
@pytest.mark.parametrize("value", [1e20, 1e30, 3e38])
def test_hazard_06_overflow_in_the_features(problem, value):
    case = problem(11, SIZE)
    clean = transformed(case.engine, case.model, case.batch)
    found = transformed(case.engine, case.model, with_features(case.batch, value))
    assert_others_untouched(clean, found, absent=False)


WITH_NUMBERS_AS_TARGETS = {
    name: problem
    for name, problem in PROBLEMS.items()
    if problem(0, 1).batch.targets.is_floating_point()
}


@pytest.mark.parametrize(
    "problem", WITH_NUMBERS_AS_TARGETS.values(), ids=WITH_NUMBERS_AS_TARGETS.keys()
)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 3e38])
def test_hazard_06_poison_in_the_targets(problem, poison):
    case = problem(11, SIZE)
    clean = transformed(case.engine, case.model, case.batch)
    targets = case.batch.targets.clone()
    targets[ROW] = poison
    found = transformed(case.engine, case.model, Examples(case.batch.features, targets))
    assert_others_untouched(clean, found, absent=poison != 3e38)


@CASES
def test_hazard_06_a_poisoned_member_takes_its_group_with_it(problem):
    """And no other group."""
    case = problem(11, SIZE)
    batch, units = marked(case.batch), Units(torch.tensor([0, 1, 2, 2, 1, 0]), 3, 0.5)
    clean = transformed(case.engine, case.model, batch, units)
    case.engine.loss = at_mark(case.loss, float("nan"))
    found = transformed(case.engine, case.model, batch, units)
    assert_others_untouched(clean, found, row=2, size=3)


@pytest.mark.parametrize(
    "loss", [losses.cross_entropy, losses.squared_error], ids=lambda loss: loss.__name__
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 3e38])
def test_hazard_06_losses_that_run_on_the_whole_batch(loss, value):
    """Losses that are known to look at one example at a time do not run under vmap."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.LayerNorm(3), nn.Linear(3, 3))
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(SIZE, 4))).float()
    words = torch.from_numpy(rng.integers(3, size=SIZE))
    targets = words if loss is losses.cross_entropy else torch.eye(3)[words]
    engine, batch = GhostEngine(model, loss), Examples(features, targets)
    assert engine.sequence is not None
    clean = transformed(engine, model, batch)
    found = transformed(engine, model, with_features(batch, value))
    assert_others_untouched(clean, found, absent=not np.isfinite(value))


def hinge(outputs, targets):
    """Its gradient is finite at outputs that are not."""
    return torch.relu(1 - outputs * targets).flatten(1).sum(1)


class Around(nn.Module):
    """A custom module around a layer, so that it runs under vmap."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("custom", [False, True])
@pytest.mark.parametrize("layer", [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4)], ids=str)
def test_hazard_06_a_norm_layer_that_overflows(layer, custom):
    """Inputs and output gradients are finite, the normalised input is not."""
    model = Around(layer) if custom else nn.Sequential(layer)
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(SIZE, 4))).float()
    targets = torch.from_numpy(np.sign(rng.normal(size=(SIZE, 4)))).float()
    engine = GhostEngine(model, hinge)
    clean = transformed(engine, model, Examples(features, targets))
    features[ROW] = torch.tensor([3e38, -3e38, 3e38, 3e38])
    found = transformed(engine, model, Examples(features, targets))
    assert_others_untouched(clean, found, absent=False)


class Squared(nn.Module):
    """A layer that owns its parameter, and squares it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.scale.square()


@pytest.mark.parametrize("engine_of", [engine_for, lambda m, loss, _: GeneralEngine(m, loss)])
@pytest.mark.parametrize(
    "layer",
    [lambda: nn.Conv1d(2, 2, 2), nn.PReLU, lambda: nn.Linear(3, 2), Squared],
    ids=["convolution", "PReLU", "linear over time", "a parameter of its own"],
)
def test_hazard_06_a_gradient_that_overflows(layer, engine_of):
    """Inputs and output gradients are finite, their product is not in float32."""
    model = Around(layer())
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(SIZE, 2, 3))).float()

    def loss(outputs, targets):
        return (outputs.flatten(1).mean(1) - targets).square()

    targets = torch.from_numpy(rng.normal(size=SIZE)).float()
    engine = engine_of(model, loss, Examples(features.clone(), targets))
    clean = transformed(engine, model, Examples(features, targets))
    features[ROW] *= 1e25
    found = transformed(engine, model, Examples(features, targets))
    assert_others_untouched(clean, found, absent=False)


class Logarithm(nn.Module):
    """A layer with no finite gradient where its input is 0."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.log(x.abs() * self.scale)


def test_hazard_06_a_layer_that_cannot_bear_zeros():
    """To zero the inputs of a poisoned example is not enough to make its gradient finite."""
    model = nn.Sequential(Logarithm(), nn.Linear(4, 2))
    rng = np.random.default_rng(0)
    batch = Examples(
        torch.from_numpy(rng.normal(size=(SIZE, 4))).float(),
        torch.from_numpy(rng.normal(size=(SIZE, 2))).float(),
    )
    engine = engine_for(model, squared, batch)
    clean = transformed(engine, model, batch)
    for value in (0.0, float("nan")):
        found = transformed(engine, model, with_features(batch, value))
        assert_others_untouched(clean, found)
