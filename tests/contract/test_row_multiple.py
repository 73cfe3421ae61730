"""Batches in multiples of 8 rows, where that leaves rows bit-equal, and of 16 elsewhere."""

import pytest
import torch
from torch import nn

from adadps import examples, losses
from adadps.engine.passes.validation import objective
from support.engine_checks import contribution, only

SIZES = (1, 17, 25, 33, 41)
WIDTH, WORDS, STEPS = 16, 30, 9


class Encoder(nn.Module):
    """Attention, GELU and LayerNorm; the last layer is odd."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 40, dropout=0.0, batch_first=True, activation="gelu"
        )
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, tokens):
        return self.out(torch.tanh(self.layer(self.table(tokens)).mean(1)))


class Gated(nn.Module):
    """Layers of one vector per row, with a function of single numbers between them."""

    def __init__(self, width=24, gate=torch.sigmoid):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, width), nn.Linear(width, width)
        self.out, self.gate = nn.Linear(width, 3), gate

    def forward(self, x):
        h = self.first(x)
        return self.out(h * self.gate(self.second(h)))


class Adapted(nn.Module):
    """A frozen layer and a small one beside it, as in LoRA; nothing else is trained but the end."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(WIDTH, 64).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, 64, bias=False)
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        return self.out(nn.functional.gelu(self.frozen(x) + 2 * self.up(self.down(x))))


class Filtered(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters, self.norm = nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        images = x.view(-1, 1, 4, 4)
        return self.out(nn.functional.silu(self.norm(self.filters(images))).mean((2, 3)))


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(WIDTH, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.cell(x, torch.tanh(x[:, :8])))


def numbers(size):
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(1))


def tokens(size):
    return torch.randint(WORDS, (size, STEPS), generator=torch.Generator().manual_seed(1))


FINE = {
    "attention": (Encoder, tokens), "a gate": (Gated, numbers), "adapters": (Adapted, numbers),
    "filters": (Filtered, numbers),
}  # fmt: skip


def checked(build, rows):
    torch.manual_seed(0)
    data = examples(rows(max(SIZES)), torch.arange(max(SIZES)) % 3)
    return objective(build(), loss, data), data


def loss(outputs, targets):
    return losses.cross_entropy(outputs, targets)


@pytest.mark.parametrize(("name", "threads"), [*((name, 1) for name in FINE), ("attention", 2)])
def test_rows_are_bit_equal_in_multiples_of_eight(name, threads):
    held, data = checked(*FINE[name])
    assert held.multiple == 8
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = [held.per_unit(held.params(), data.take(torch.arange(n)), None) for n in SIZES]
        first = contribution(found[-1], only(0, len(found[-1].norms())))
        for one in found:
            norms = one.norms()
            assert torch.equal(norms, found[-1].norms()[: len(norms)])
            assert torch.equal(contribution(one, only(0, len(norms))), first)
        last = held.per_unit(held.params(), data.take(torch.arange(max(SIZES)).flip(0)), None)
        assert torch.equal(last.norms().flip(0), found[-1].norms())
    finally:
        torch.set_num_threads(usual)


def test_attention_of_odd_lengths_does_not_depend_on_the_place_of_a_row():
    torch.manual_seed(0)
    data = examples(tokens(56), torch.arange(56) % 3)
    held = objective(Encoder(), loss, data)
    norms = held.per_unit(held.params(), data, None).norms()
    for places in (torch.arange(56).flip(0), torch.arange(56).roll(1), torch.arange(56).roll(7)):
        found = held.per_unit(held.params(), data.take(places), None).norms()
        assert torch.equal(found, norms[places])


COARSE = {
    "a sequence of layers": (lambda: nn.Sequential(nn.Linear(WIDTH, 3)), numbers),
    "a gate of an odd width": (lambda: Gated(7), numbers),
    "powers of an odd width": (lambda: Gated(7, lambda h: h.abs() ** 1.5), numbers),
    "a recurrent cell": (Steps, numbers),
}


@pytest.mark.parametrize("name", COARSE)
def test_other_models_keep_multiples_of_sixteen(name):
    assert checked(*COARSE[name])[0].multiple == 16


def test_arithmetic_of_an_odd_width_rounds_alike_everywhere():
    assert checked(lambda: Gated(7, torch.relu), numbers)[0].multiple == 8


@pytest.mark.parametrize(
    ("rows", "chunk", "padded"),
    [(0, None, [16]), (3, None, [16]), (16, None, [16]), (17, None, [24]), (30, None, [32]),
     (40, None, [40]), (30, 20, [16, 16]), (30, 12, [12, 12, 12]), (30, 24, [24, 16])],
)  # fmt: skip
def test_batches_have_sixteen_rows_at_least_and_no_more_than_the_physical_size(rows, chunk, padded):
    held, data = checked(Gated, numbers)
    sizes, inner = [], held.engine.per_unit

    def counting(params, batch, units, synthetic=0):
        sizes.append(len(batch))
        return inner(params, batch, units, synthetic)

    held.engine.per_unit = counting
    found = held.per_unit(held.params(), data.take(torch.arange(rows)), None, chunk)
    assert len(found.norms()) == rows
    assert sizes == padded
