"""Derivatives of a whole batch that vmap has computed, and where vmap keeps examples apart."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from adadps import losses
from adadps.engine.by_example import PassByExample

ROWS, LENGTH, WIDTH = 16, 6, 8
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, LENGTH, WIDTH, generator=GENERATOR)
Y = torch.arange(ROWS) % 3


class Model(nn.Module):
    """Layers around something in the middle, which is given at least two axes."""

    def __init__(self, middle):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.middle = middle

    def forward(self, x):
        return self.last(self.middle(torch.tanh(self.first(x))).mean(1))


def gradients(model, rows, together=True):
    """The output gradients of all layers, and whether one backward pass has given them."""
    passes = PassByExample(model, ())
    passes._goes_back_together = together
    params = {name: value.detach() for name, value in model.named_parameters()}
    calls, _ = passes.gradients(losses.cross_entropy, params, ((X[rows],), {}), Y[rows])
    return [call.output_gradients for call in calls], passes._goes_back_together


ATTENTION = functional.scaled_dot_product_attention
MASK = torch.rand(LENGTH, LENGTH, generator=GENERATOR) > 0.3
MASK[:, 0] = True


def heads(x):
    return x.unflatten(-1, (2, -1)).transpose(-2, -3)


def joined(x):
    return x.transpose(-2, -3).flatten(-2)


def attending(**options):
    return lambda x: joined(ATTENTION(heads(x), heads(x), heads(x.flip(1)), **options))


def across(x):
    """Heads whose entries do not lie side by side, as those of images with channels first."""
    return heads(x).mT.contiguous().mT


def attending_across(x):
    return joined(ATTENTION(across(x), across(x), across(x.flip(1))))


def of_each_row(x):
    """A mask that depends on the example."""
    seen = (x[:, None, None, :, 0] > 0).expand(-1, 1, LENGTH, -1) | torch.eye(LENGTH).bool()
    return joined(ATTENTION(heads(x), heads(x), heads(x), attn_mask=seen))


def convolved(x):
    return functional.conv1d(x, torch.ones(WIDTH, WIDTH, 3), padding=1)


TOGETHER = {
    "elementwise": lambda x: functional.gelu(x) * x.exp() / (x.square() + 1).sqrt(),
    "softmax": lambda x: torch.softmax(x, 1),
    "a norm": lambda x: functional.layer_norm(x, (WIDTH,)),
    "a product": lambda x: x @ x.mT @ x,
    "other axes": lambda x: torch.cat([x.flip(1), x[:, 1:]], 1).transpose(1, 2).mT,
    "attention": attending(),
    "causal attention": attending(is_causal=True),
    "attention with another scale": attending(scale=0.3),
    "attention with a mask": attending(attn_mask=MASK),
    "attention with a mask of four axes": attending(attn_mask=MASK.expand(1, 2, -1, -1)),
    "attention with a mask of numbers": attending(attn_mask=torch.where(MASK, 0.5, -torch.inf)),
    "attention with a mask for each row": of_each_row,
    "attention with channels first": attending_across,
    "a recurrent layer": nn.GRU(WIDTH, WIDTH, batch_first=True),
}  # fmt: skip


@pytest.mark.parametrize("middle", TOGETHER.values(), ids=TOGETHER.keys())
def test_one_backward_pass_gives_the_gradients_that_vmap_gives(middle):
    def first(x):
        found = middle(x)
        return found[0] if isinstance(found, tuple) else found

    model = Model(first)
    if isinstance(middle, nn.Module):
        model.layer = middle.requires_grad_(False)
    found, together = gradients(model, range(ROWS))
    assert together
    expected, _ = gradients(model, range(ROWS), together=False)
    pairs = zip(found, expected, strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_attention_runs_once_for_all_examples(monkeypatch):
    sizes = []

    def counted(query, *given, **named):
        sizes.append(len(query))
        return real(query, *given, **named)

    name = "_scaled_dot_product_flash_attention_for_cpu"
    real = getattr(torch.ops.aten, name)
    monkeypatch.setattr(torch.ops.aten, name, counted)
    assert gradients(Model(attending()), range(ROWS))[1]
    assert sizes == [ROWS]


LEFT_TO_TORCH = {
    "grouped heads": lambda x: joined(
        ATTENTION(heads(x), heads(x)[:, :1], heads(x)[:, :1], enable_gqa=True)
    ),
    "three axes": lambda x: ATTENTION(x, x, x),
    "float64": lambda x: attending()(x.double()).float(),
    "a mask that is learned": lambda x: joined(
        ATTENTION(heads(x), heads(x), heads(x), attn_mask=x @ x.mT[:, None])
    ),
    "no keys": lambda x: x + ATTENTION(heads(x), heads(x)[:, :, :0], heads(x)[:, :, :0]).sum(),
}


@pytest.mark.parametrize("middle", LEFT_TO_TORCH.values(), ids=LEFT_TO_TORCH.keys())
def test_other_attention_is_that_of_torch(middle):
    model = Model(middle)
    found, _ = gradients(model, range(ROWS))
    expected, _ = gradients(model, range(ROWS), together=False)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


class Centred(torch.autograd.Function):
    """The identity, with a backward pass that reads the first axis, and a rule for vmap."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(_, above):
        return above + above.mean(0)

    @staticmethod
    def vmap(_, in_dims, x):
        flat = x.movedim(in_dims[0], 0)
        return Centred.apply(flat.flatten(0, 1)).view_as(flat), 0


def hooked(x):
    x.register_hook(lambda above: above + above.mean(0))
    return x * 1


def hooked_at_its_node(x):
    x.grad_fn.register_prehook(lambda above: (above[0] + above[0].mean(0),))
    return x * 1


def compressed(x):
    def packed(saved):
        return saved.mean(0, keepdim=True).expand_as(saved)

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda saved: saved):
        return x.square()


def recomputed(x):
    return torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=False)


APART = {
    "a function with its own backward pass": Centred.apply,
    "a product, whose derivative looks for zeros": lambda x: torch.relu(x).prod(1, keepdim=True),
    "a cumulative product": lambda x: x.cumprod(1),
    "entries by their places": lambda x: x[:, torch.tensor([1, 1, 0])],
    "a norm of a matrix": lambda x: x / torch.linalg.matrix_norm(x)[:, None, None],
    "sorted entries": lambda x: x.sort(1).values,
}


@pytest.mark.parametrize("middle", APART.values(), ids=APART.keys())
def test_hazard_10_what_else_may_act_on_the_way_back_sees_one_example(middle):
    model = Model(middle)
    found, together = gradients(model, range(ROWS))
    assert not together
    _assert_alone(model, found)


def hooked_module():
    module = nn.Tanh()
    module.register_full_backward_hook(lambda _, given, __: (given[0] + given[0].mean(0),))
    return module


HOOKS = {
    "a hook of a module": hooked_module(),
    "a hook on a tensor": hooked,
    "a hook on a node": hooked_at_its_node,
    "hooks on saved tensors": compressed,
    "a part that is computed again": recomputed,
}


@pytest.mark.parametrize("middle", HOOKS.values(), ids=HOOKS.keys())
def test_hazard_10_hooks_on_gradients_see_one_example_or_are_refused(middle):
    model = Model(middle)
    try:
        found, together = gradients(model, range(ROWS))
    except Exception:
        return  # refused on synthetic rows, as without the backward pass of a batch
    assert not together
    _assert_alone(model, found)


MIXING = {
    "a mean": lambda x: x - x.mean(0),
    "a softmax": lambda x: torch.softmax(x, 0),
    "a cumulative sum": lambda x: x.cumsum(0),
    "turned rows": lambda x: x + x.flip(0),
    "rolled rows": lambda x: x + x.roll(1, 0),
    "the first row for all": lambda x: x + x[:1].expand_as(x),
    "the last row": lambda x: x + x[-1],
    "another row where it is larger": lambda x: torch.where(x > x.roll(1, 0), x, x.roll(1, 0)),
    "products of rows": lambda x: (x.flatten(1) @ x.flatten(1).T @ x.flatten(1)).view_as(x),
    "a sum in einsum": lambda x: torch.einsum("ntd,mtd->ntd", x, x),
    "merged axes": lambda x: x - x.reshape(-1, WIDTH).mean(0),
    "a sort": lambda x: x.sort(0).values,
    "a stride over rows": lambda x: x + x.as_strided(x.shape, x.stride(), 0).mean(0),
    "the number of rows": lambda x: x * len(x),
    "a write into the first row": lambda x: x.index_add(0, torch.tensor([0]), x.sum(0, True)),
    "attention over rows": lambda x: ATTENTION(*[x.movedim(1, 0)[None]] * 3)[0].movedim(1, 0),
    "a norm by batch": lambda x: functional.batch_norm(x.mT, None, None, training=True).mT,
}  # fmt: skip


@pytest.mark.parametrize("middle", MIXING.values(), ids=MIXING.keys())
def test_hazard_10_no_operation_of_a_model_reaches_another_row(middle):
    model = Model(middle)
    found, _ = gradients(model, range(ROWS))
    _assert_alone(model, found)


def _assert_alone(model, found):
    """Are gradients the same, bit by bit, whatever the other rows are? And those of a row alone?"""
    others = [*range(4), *[4] * (ROWS - 4)]
    with_others, _ = gradients(model, others)
    for one, other in zip(found, with_others, strict=True):
        assert torch.equal(one[:4], other[:4])
    alone, _ = gradients(model, [1] * ROWS, together=False)
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one[1], other[1])
