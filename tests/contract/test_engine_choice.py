"""The engine that a model gets, and that it gives the gradients of that model.

Hooks, losses, sparse rows, and what is refused: `test_engine_limits.py`.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from adadps.data.examples import examples
from adadps.engine.choice import engine_for, reads_in_sequence
from adadps.engine.ghost import GhostEngine
from adadps.engine.passes.validation import objective
from adadps.errors import ModelError, SpeedWarning
from support.engine_checks import (
    assert_right,
    chosen,
    in_general,
    in_sequence,
    trainable,
    under_vmap,
)
from support.models import (
    SIZE,
    Bilingual,
    Custom,
    Owner,
    Raw,
    Recurrent,
    attention,
    bypass,
    convolved,
    frozen,
    numbers,
    residual,
    twice,
    with_positions,
    words,
)
from support.problems import BagClassifier, TiedTagger, cross_entropy, squared

SEQUENCES = {
    "one layer": (lambda: nn.Linear(4, 2), numbers(4)),
    "layers": (lambda: nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2)), numbers(4)),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(4, 3))), nn.Linear(3, 2)),
        numbers(4),
    ),
    "same layer twice": (lambda: twice(nn.Linear(4, 4)), numbers(4)),
    "same layer twice in a row": (
        lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2, nn.Linear(4, 2)),
        numbers(4),
    ),
    "same block twice": (
        lambda: twice(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))),
        numbers(4),
    ),
    "frozen bias": (lambda: nn.Sequential(frozen(nn.Linear(4, 2), "bias")), numbers(4)),
    "frozen last": (lambda: nn.Sequential(nn.Linear(4, 3), frozen(nn.Linear(3, 2))), numbers(4)),
    "frozen layer twice": (lambda: twice(frozen(nn.Linear(4, 4))), numbers(4)),
    "half-frozen layer twice": (lambda: twice(frozen(nn.Linear(4, 4), "weight")), numbers(4)),
    "activation last": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()), numbers(4)),
    "activation first": (lambda: nn.Sequential(nn.Tanh(), nn.Linear(4, 2)), numbers(4)),
    "flattened": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), numbers(3, 4)),
    "over two axes": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(18, 2)),
        numbers(2, 3, 4),
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(12, 2)),
        words(),
    ),
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(6, 3), nn.Linear(3, 2)), words()),
    "bag with padding": (
        lambda: nn.Sequential(nn.EmbeddingBag(6, 3, padding_idx=2), nn.Linear(3, 2)),
        words(),
    ),
    "norm without weights": (
        lambda: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 2)),
        numbers(4),
    ),
    "norm without bias": (
        lambda: nn.Sequential(nn.LayerNorm(4, bias=False), nn.Linear(4, 2)),
        numbers(4),
    ),
}


@pytest.mark.parametrize(("build", "batch"), SEQUENCES.values(), ids=SEQUENCES.keys())
def test_sequences_of_known_layers_run_on_the_whole_batch(build, batch):
    model = build()
    assert reads_in_sequence(model, batch.features)
    assert in_sequence(chosen(model, batch))


def test_bags_of_padding_alone_have_no_gradient_of_words():
    model = nn.Sequential(nn.EmbeddingBag(6, 3, padding_idx=2), nn.Linear(3, 2))
    tokens = torch.tensor([[2, 2, 2], [0, 2, 0], [1, 2, 3], [2, 5, 5], [2, 2, 2]])
    batch = examples(tokens, words().targets)
    for mode in ("mean", "sum"):
        model[0].mode = mode
        assert in_sequence(chosen(model, batch))


MIXING = {
    "softmax over examples": nn.Softmax(0),
    "softmax": nn.Softmax(1),
    "flatten from the first axis": nn.Flatten(0),
    "a subclass": type("Mine", (nn.ReLU,), {"forward": lambda self, x: x - x.mean(0)})(),  # noqa: ARG005
    "a transpose": nn.Unflatten(0, (-1, 1)),
}


@pytest.mark.parametrize("layer", MIXING.values(), ids=MIXING.keys())
def test_layers_that_may_mix_examples_never_see_a_batch(layer):
    def loss(outputs, targets):
        return (outputs.reshape(targets.shape) - targets).square().sum(1)

    engine = chosen(nn.Sequential(nn.Linear(4, 2), layer), numbers(4), loss)
    assert not in_sequence(engine)


def test_a_norm_over_the_axis_of_examples_never_sees_a_batch():
    """Rows of 4 with a norm over (5, 4), which fits a batch of exactly five: refused, or alone."""
    model = nn.Sequential(nn.LayerNorm((SIZE, 4), elementwise_affine=False), nn.Linear(4, 2))
    batch = numbers(4)
    changed = examples(torch.cat([batch.features[:4], 9 * batch.features[4:]]), batch.targets)
    try:
        engine = engine_for(model, squared, batch)
        before, after = (
            engine.per_unit(trainable(model), held, None).norms() for held in (batch, changed)
        )
    except (ValueError, RuntimeError):
        return
    assert torch.equal(after[:4], before[:4])


LAYERED = {
    "residual, layer used twice": (residual, numbers(4)),
    "inside another module": (lambda: nn.Sequential(residual(), nn.Tanh()), numbers(4)),
    "Conv1d": (lambda: convolved(nn.Conv1d(3, 2, 2), 6), numbers(3, 4)),
    "Conv2d": (lambda: convolved(nn.Conv2d(1, 2, 3, padding=1, stride=2), 8), numbers(1, 4, 4)),
    "Conv2d, groups and dilation": (
        lambda: convolved(nn.Conv2d(2, 4, 2, groups=2, dilation=2, bias=False), 16),
        numbers(2, 4, 4),
    ),
    "ConvTranspose1d": (lambda: convolved(nn.ConvTranspose1d(3, 2, 2), 10), numbers(3, 4)),
    "PReLU": (lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3), nn.Linear(3, 2)), numbers(4)),
    "group norm": (
        lambda: Custom(
            lambda m, x: m.h(m.n(x).flatten(1)), n=nn.GroupNorm(2, 4), h=nn.Linear(12, 2)
        ),
        numbers(4, 3),
    ),
    "a layer that owns its parameter": (
        lambda: nn.Sequential(nn.Linear(4, 3), Owner(3), nn.Linear(3, 2)),
        numbers(4),
    ),
    "a layer that owns a single number": (
        lambda: nn.Sequential(nn.Linear(4, 2), Owner()),
        numbers(4),
    ),
    "words and positions": (with_positions, words()),
    "frozen layer": (
        lambda: Custom(
            lambda m, x: m.b(torch.tanh(m.a(x))), a=frozen(nn.Linear(4, 3)), b=nn.Linear(3, 2)
        ),
        numbers(4),
    ),
    "frozen convolution weight": (
        lambda: convolved(frozen(nn.Conv1d(3, 2, 2), "weight"), 6),
        numbers(3, 4),
    ),
    "linear on three axes": (
        lambda: Custom(lambda m, x: m.a(x).mean((1, 2)), a=nn.Linear(4, 2)),
        numbers(2, 3, 4),
    ),
}


@pytest.mark.parametrize(("build", "batch"), LAYERED.values(), ids=LAYERED.keys())
def test_models_of_separate_layers_run_under_vmap(build, batch):
    assert under_vmap(chosen(build(), batch))


def test_bags_and_tied_weights_in_custom_models_run_under_vmap():
    rng = np.random.default_rng(0)
    batch = examples(rng.integers(5, size=(SIZE, 4)), rng.integers(3, size=SIZE))
    for model in (BagClassifier("mean", None), BagClassifier("sum", 2), TiedTagger()):
        assert under_vmap(chosen(model, batch, cross_entropy))


MIXED = {
    "LSTM": (lambda: Recurrent(nn.LSTM), numbers(3, 4), set()),
    "GRU": (lambda: Recurrent(nn.GRU), numbers(3, 4), set()),
    "RNN": (lambda: Recurrent(nn.RNN), numbers(3, 4), set()),
    "attention": (attention, numbers(3, 4), set()),
    "transformer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
            nn.Flatten(),
            nn.Linear(12, 2),
        ),
        numbers(3, 4),
        set(),
    ),
    "functional use beside its layer": (
        lambda: bypass("functional, beside"),
        numbers(4),
        {"layer.weight"},
    ),
    "a penalty on weights in the model": (lambda: bypass("penalty"), numbers(4), {"layer.weight"}),
    "a parameter beside layers": (lambda: Raw(2), numbers(4), {"scale"}),
    "a single number beside layers": (Raw, numbers(4), {"scale"}),
    "a layer called by keyword": (
        lambda: Custom(lambda m, x: m.layer(input=x), layer=nn.Linear(4, 2)),
        numbers(4),
        set(),
    ),
    "a layer without a rule": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(), nn.Linear(3, 2)),
        numbers(4),
        {"1.weight"},
    ),
}


@pytest.mark.parametrize(("build", "batch", "stored"), MIXED.values(), ids=MIXED.keys())
def test_only_parameters_that_no_rule_covers_have_stored_gradients(build, batch, stored):
    engine = chosen(build(), batch)
    assert under_vmap(engine)
    assert engine.by_example.stored == stored


GENERAL = {
    "functional use instead of its layer": (lambda: bypass("functional, instead"), numbers(4)),
    "Bilinear": (
        lambda: Custom(lambda m, x: m.layer(x, x.square()), layer=nn.Bilinear(4, 4, 2)),
        numbers(4),
    ),
    "a layer on a vector": (
        lambda: Custom(lambda m, x: m.layer(x.flatten()[:1]).unsqueeze(0), layer=nn.Linear(1, 2)),
        numbers(4),
    ),
}


@pytest.mark.parametrize(("build", "batch"), GENERAL.values(), ids=GENERAL.keys())
def test_all_other_models_run_on_the_general_engine(build, batch):
    assert in_general(chosen(build(), batch))


def test_an_embedding_that_is_read_behind_its_back():
    rng = np.random.default_rng(0)
    batch = examples(rng.integers(6, size=(SIZE, 4)), rng.integers(6, size=SIZE))
    engine = chosen(Bilingual(), batch, cross_entropy)
    assert engine.by_example.stored == {"embedding.weight"}


@pytest.mark.parametrize("kind", ["zero rows", "small loss"])
def test_a_probe_that_shows_nothing_does_not_hide_a_bypass(kind):
    """The first two examples may have no gradient, or one that is small by any measure."""
    batch, model = numbers(4), bypass("functional, beside")
    features = batch.features.clone()
    if kind == "zero rows":
        features[:2] = 0
    batch = examples(features, batch.targets)
    factor = 1e-7 if kind == "small loss" else 1.0

    def loss(outputs, targets):
        return factor * squared(outputs, targets)

    engine = engine_for(model, loss, batch)

    def measurable(outputs, targets):
        return squared(outputs, targets)

    engine.loss = measurable
    assert_right(engine, model, measurable, batch)


def test_unused_parameters():
    """Their gradient is zero, or the model is refused with the cure."""
    model = Custom(lambda m, x: m.layer(x), layer=nn.Linear(4, 2), spare=nn.Linear(3, 3))
    batch = numbers(4)
    engine = engine_for(model, squared, batch)
    found = engine.per_unit(trainable(model), batch, None)
    assert torch.isfinite(found.norms()).all()
    assert (found.weighted_sum(torch.ones(SIZE))["spare.weight"] == 0).all()
    with pytest.raises(ModelError, match="Freeze it"):
        GhostEngine(model, squared).per_unit(trainable(model), batch, None)


class ScaledWithChance(nn.Module):
    """A layer with a parameter and chance of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, rows):
        return functional.dropout(rows * self.scale, 0.5, self.training)


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_with_chance_inside_runs_once(training):
    """Run a second time, it would drop others than in the forward pass."""
    model = nn.Sequential(ScaledWithChance(), nn.Linear(3, 2)).train(training)
    probe = examples(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64))
    engine = engine_for(model, cross_entropy, probe)
    assert engine.by_example.stored == {"0.scale"}


def test_what_cannot_be_differentiated_is_refused_before_the_first_step():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.top = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, rows):
            lengths = torch.full((len(rows),), 5)
            packed = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True)
            return self.top(self.layer(packed)[1][-1])

    probe = examples(torch.randn(4, 5, 3), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ModelError, match="Pad to a fixed length"):
        objective(Packed(), cross_entropy, probe)


class WithTable(nn.Module):
    """A large table that is read by hand, beside a layer."""

    def __init__(self):
        super().__init__()
        self.table, self.top = nn.Parameter(torch.zeros(2**17, 8)), nn.Linear(8, 2)

    def forward(self, tokens):
        return self.top(functional.embedding(tokens, self.table).mean(1))


def test_large_stored_gradients_are_announced():
    probe = examples(torch.randint(2**17, (4, 3)), torch.zeros(4, dtype=torch.int64))
    with pytest.warns(SpeedWarning, match=r"1 of 3 parameters \('table'\).* 4 MB each"):
        objective(WithTable(), cross_entropy, probe)
