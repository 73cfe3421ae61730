"""Models that try to mislead the engines: hooks, hidden reads of weights, masks, options."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from adadps.data.examples import Examples
from adadps.engine.general import GeneralEngine
from adadps.engine.losses import cross_entropy
from adadps.engine.passes.validation import objective
from adadps.engine.rules.attention import run_attention
from adadps.engine.rules.recurrent import run_recurrent
from adadps.engine.rules.tape import Tape
from adadps.errors import ModelError
from support.engine_checks import assert_right, contribution, only

WORDS = 30

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")


def batch_of(features):
    return Examples(features, torch.arange(len(features)) % 2)


def numbers(scale=1.0, size=5, shape=(6,)):
    return batch_of(scale * torch.randn(size, *shape, generator=torch.Generator().manual_seed(1)))


def words(size=5, length=7):
    generator = torch.Generator().manual_seed(1)
    return batch_of(torch.randint(1, WORDS, (size, length), generator=generator))


def checked(model, batch):
    """The objective, after its gradients were compared with autograd's."""
    held = objective(model, cross_entropy, batch)
    assert_right(held.engine, model, cross_entropy, batch, tolerance=1e-3)
    return held


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.b(torch.tanh(0.01 * self.a(x)))


# --- hooks of the user ---

HOOKS = {
    "bound": lambda _m, _i, out: out.clamp(-20, 20),
    "in training alone": lambda m, _i, out: 2 * out if m.training else out,
    "weight behind a gate": lambda m, i, out: (
        out
        + (i[0].abs().amax(-1, keepdim=True) - 50).relu() * functional.linear(i[0], m.weight) / 9
    ),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS.keys())
def test_hooks_that_change_an_output(hook):
    model = Net()
    model.a.register_forward_hook(hook)
    checked(model, numbers(100))


def test_hooks_of_all_modules_that_change_an_output():
    def bound(layer, _inputs, out):
        return out.clamp(-20, 20) if getattr(layer, "out_features", 0) == 8 else None

    handle = torch_module.register_module_forward_hook(bound)
    try:
        checked(Net(), numbers(100))
    finally:
        handle.remove()


def test_hooks_that_change_an_input():
    model = Net()
    model.a.register_forward_pre_hook(lambda _m, i: (i[0].clamp(-30, 30),))
    checked(model, numbers(100))


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.out = kind(3, 5, batch_first=True, **options), nn.LazyLinear(2)
        self(torch.zeros(1, 6))

    def forward(self, x):
        return self.out(self.layer(x.view(-1, 2, 3))[0].mean(1))


def test_hooks_of_recurrent_layers():
    gated = Recurrent()
    gated.layer.register_forward_hook(
        lambda m, i, o: (o[0] + functional.relu(i[0].sum() - 100) * m.weight_ih_l0.sum(), o[1])
    )
    held = checked(gated, numbers(100))
    assert "layer.weight_ih_l0" in held.engine.by_example.stored
    bounded = Recurrent(nn.GRU)
    bounded.layer.register_forward_hook(lambda _m, _i, o: (o[0].clamp(-0.05, 0.05), o[1]))
    checked(bounded, numbers())


# --- what changes after the check ---


class Ordered(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.turned = False

    def forward(self, x):
        first, second = (self.b, self.a) if self.turned else (self.a, self.b)
        return self.c(torch.tanh(second(torch.tanh(first(x)))))


def test_an_attribute_that_is_changed_between_steps():
    model, batch = Ordered(), numbers()
    held = objective(model, cross_entropy, batch)
    model.turned = True
    with pytest.raises(ModelError, match="Do not change attributes"):
        held.engine.per_unit(held.params(), batch, None)


class Hidden(Net):
    """Uses a parameter through a list, which torch.func does not see."""

    def __init__(self):
        super().__init__()
        self.held = [self.a.weight]

    def forward(self, x):
        return self.b(torch.tanh(self.a(x) + functional.linear(x, self.held[0])))


def test_a_parameter_in_a_list():
    with pytest.raises(ModelError, match=r"nn\.ParameterList"):
        objective(Hidden(), cross_entropy, numbers())


# --- late noise: every row of a table that a pass reads must be settled before it ---


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(WORDS, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.table(x).mean(1))


class ReadWhole(Words):
    def forward(self, x):
        return self.out(self.table(x).mean(1) * self.table.weight.detach().sum())


class ReadWithoutGradient(Words):
    def forward(self, x):
        with torch.no_grad():
            size = self.table.weight.norm()
        return self.out(self.table(x).mean(1) / size)


class ReadOtherRows(Words):
    def forward(self, x):
        others = functional.embedding((x + 1) % WORDS, self.table.weight.detach())
        return self.out((self.table(x) + others).mean(1))


class WrittenWords(Words):
    def forward(self, x):
        return super().forward(x.clamp_(min=7))


@pytest.mark.parametrize("model", [ReadWhole, ReadWithoutGradient, ReadOtherRows])
def test_hazard_35_tables_that_are_also_read_without_a_gradient(model):
    """Rows without their noise would enter the gradients of all examples."""
    assert objective(model(), cross_entropy, words()).tables() == []


def test_hazard_35_words_that_are_written_to_before_they_are_read():
    assert objective(WrittenWords(), cross_entropy, words()).tables() == []


def test_a_pass_leaves_the_rows_as_they_are():
    batch = words(16)
    held, before = objective(WrittenWords(), cross_entropy, batch), batch.features.clone()
    held.per_unit(held.params(), batch, None)
    assert torch.equal(batch.features, before)


# --- attention without a key ---


class Reader(nn.Module):
    """A transformer on texts that are padded with the word 0 on the left."""

    def __init__(self, causal):
        super().__init__()
        torch.manual_seed(0)
        self.causal, self.table = causal, nn.Embedding(WORDS, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        padding = torch.where(x == 0, -torch.inf, 0.0)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        return self.out(self.layer(self.table(x), mask, padding)[:, -1])


@pytest.mark.parametrize("causal", [False, True])
def test_positions_that_see_no_key(causal):
    """With a causal mask this is every padded text, else an empty one: none may be dropped."""
    batch = words()
    batch.features[:2, : 2 if causal else None] = 0
    checked(Reader(causal), batch)


def test_attention_equals_that_of_torch():
    """With options and masks at random, of which none hides all keys."""
    torch.manual_seed(0)
    draw = random.Random(0)
    for _ in range(80):
        heads, size, length = draw.choice([1, 2]), draw.choice([1, 3]), draw.choice([1, 4])
        flags = {n: draw.random() < 0.5 for n in ("bias", "add_bias_kv", "add_zero_attn")}
        layer = nn.MultiheadAttention(
            6, heads, batch_first=draw.random() < 0.5, kdim=draw.choice([None, 5]), **flags
        ).eval()
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.3)
        first = (size, length) if layer.batch_first else (length, size)
        q, k, v = (torch.randn(*first, width) for width in (6, layer.kdim, 6))
        given = {n: draw.random() < 0.5 for n in ("need_weights", "average_attn_weights")}
        shape = draw.choice([(length, length), (size * heads, length, length)])
        hides = torch.rand(shape) < 0.4
        hides[..., 0] = False
        given["attn_mask"] = draw.choice([None, hides, torch.randn(shape)])
        with torch.no_grad():
            expected, found = (
                layer(q, k, v, **given),
                run_attention(layer, Tape(), q, k, v, **given),
            )
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


def test_recurrent_layers_equal_those_of_torch():
    """With options, states and shapes at random."""
    torch.manual_seed(0)
    draw = random.Random(0)
    for _ in range(80):
        kind, layers, width = draw.choice([nn.LSTM, nn.GRU, nn.RNN]), draw.choice([1, 2]), 5
        flags = {n: draw.random() < 0.5 for n in ("bias", "batch_first", "bidirectional")}
        more = {"proj_size": 2} if kind is nn.LSTM and draw.random() < 0.4 else {}
        layer = kind(3, width, layers, **flags, **more).double()
        size, length, alone = draw.choice([1, 17]), draw.choice([1, 6]), draw.random() < 0.3
        many = (size, length) if layer.batch_first else (length, size)
        x = torch.randn(*((length,) if alone else many), 3).double()
        count, state = layers * (2 if layer.bidirectional else 1), None
        if draw.random() < 0.5:
            first = (count,) if alone else (count, size)
            h, c = (torch.randn(*first, w).double() for w in (layer.proj_size or width, width))
            state = (h, c) if kind is nn.LSTM else h
        for dtype in (torch.float64, torch.float32):
            layer, x = layer.to(dtype), x.to(dtype)
            if state is not None:
                state = tuple(s.to(dtype) for s in state) if kind is nn.LSTM else state.to(dtype)
            with torch.no_grad():
                expected, found = layer(x, state), run_recurrent(layer, Tape(), x, state)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# --- models that ran before, or that need not be refused or slow ---


class Bags(nn.Module):
    def __init__(self, call):
        super().__init__()
        torch.manual_seed(0)
        self.call, self.bag = call, nn.EmbeddingBag(WORDS, 8, mode="sum")
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.call(self.bag, x))


CALLS = {
    "by name": lambda bag, x: bag(input=x),
    "weighted": lambda bag, x: bag(x, per_sample_weights=torch.full(x.shape, 0.5)),
    "offsets": lambda bag, x: bag(x.flatten(), torch.arange(0, x.numel(), x.shape[1])),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_calls_of_bags(call):
    checked(Bags(call), words())


class Inverse(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(torch.linalg.inv(x[:, :4].reshape(-1, 2, 2)).flatten(1))


def test_a_model_that_refuses_zeros():
    checked(Inverse(), numbers())


def test_projections_do_not_slow_down_the_other_layers():
    held = objective(Recurrent(proj_size=2), cross_entropy, numbers())
    assert not isinstance(held.engine, GeneralEngine)


# --- values that are not finite stay within their own example ---


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.filters, self.norm = nn.Conv1d(6, 8, 3, padding="same"), nn.GroupNorm(2, 8)
        self.recurrent = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.scale, self.out = nn.Parameter(torch.ones(16)), nn.Linear(16, 2)

    def forward(self, x):
        h = self.recurrent(self.norm(self.filters(x.mT)).mT)[0]
        return self.out((self.attention(h, h, h)[0] * self.scale).mean(1))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38, 1e30, 1e19, 1e-42])
def test_hazard_6_an_extreme_example_changes_no_other(value):
    batch = numbers(size=20, shape=(9, 6))
    held = objective(Everything(), cross_entropy, batch)
    weights = torch.linspace(0.1, 1, 20).double()
    weights[3] = 0
    changed = Examples(batch.features.clone(), batch.targets)
    changed.features[3, 4:] = value
    others = torch.arange(20) != 3
    was, now = (held.per_unit(held.params(), b, None) for b in (batch, changed))
    assert torch.equal(was.norms()[others], now.norms()[others])
    assert torch.equal(contribution(was, weights), contribution(now, weights))
    own = contribution(now, only(3, 20))
    assert own.isfinite().all()
    assert now.norms()[3] >= own.norm() * (1 - 1e-14)
