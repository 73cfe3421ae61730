"""Models that cannot be trained privately are refused before anything is paid, with the cure."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from adadps import PrivateRun, dp_sgd, poisson, privatize
from adadps.accounting.ledger import MemoryLedger
from adadps.engine.passes.validation import objective
from adadps.errors import AdadpsError
from support.models import Custom
from support.zoo import STEPS, Entry, numbers, split_lengths, with_lengths

WIDTH = 4


def normalised():
    return nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    )


def read_in_python():
    return Custom(lambda m, x: m.layer(x) * x.abs().max().item(), layer=nn.Linear(WIDTH, 2))


def branching():
    def forward(m, x):
        return m.one(x) if x.sum() > 0 else m.other(x)

    return Custom(forward, one=nn.Linear(WIDTH, 2), other=nn.Linear(WIDTH, 2))


def softmax_over_examples():
    return nn.Sequential(nn.Linear(WIDTH, 2), nn.Softmax(dim=0))


def centred_by_batch():
    return Custom(lambda m, x: m.layer(x - x.mean(0)), layer=nn.Linear(WIDTH, 2))


def attention_over_examples():
    """Batches along the second axis, given batches along the first one."""
    return Custom(
        lambda m, x: m.head(m.layer(x, x, x)[0].mean(1)),
        layer=nn.MultiheadAttention(WIDTH, 2),
        head=nn.Linear(WIDTH, 2),
    )


def recurrence_over_examples():
    return Custom(
        lambda m, x: m.head(m.cells(x)[0].mean(1)),
        cells=nn.LSTM(WIDTH, 3),
        head=nn.Linear(3, 2),
    )


def writing():
    def forward(m, x):
        m.seen = x.detach().mean(0)
        return m.layer(x)

    return Custom(forward, layer=nn.Linear(WIDTH, 2), seen=torch.zeros(WIDTH))


def hidden_state_kept():
    def forward(m, x):
        out, state = m.cells(x)
        m.state = state.detach()
        return m.head(out[:, -1])

    return Custom(
        forward, cells=nn.GRU(WIDTH, 3, batch_first=True), head=nn.Linear(3, 2), state=None
    )


def packed():
    def forward(m, x):
        x, lengths = split_lengths(x)
        held = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return m.head(m.cells(held)[1][0][-1])

    return Custom(forward, cells=nn.LSTM(WIDTH, 3, batch_first=True), head=nn.Linear(3, 2))


ROWS, SEQUENCES = numbers(WIDTH), numbers(STEPS, WIDTH)
REFUSED = {
    "BatchNorm": (Entry(normalised, numbers(1, 3, 3)), "GroupNorm"),
    "item": (Entry(read_in_python, ROWS), r"`\.item\(\)`"),
    "branch": (Entry(branching, ROWS), "branch"),
    "softmax over examples": (Entry(softmax_over_examples, ROWS), "dim=1"),
    "mean over examples": (Entry(centred_by_batch, ROWS), "within each row|LayerNorm"),
    "attention over examples": (Entry(attention_over_examples, SEQUENCES), "row|batch_first"),
    "recurrence over examples": (Entry(recurrence_over_examples, SEQUENCES), "row|batch_first"),
    "writes into itself": (Entry(writing, ROWS), "Remove that assignment"),
    "state kept for the next batch": (Entry(hidden_state_kept, SEQUENCES), "Remove that"),
    "packed sequences": (Entry(packed, with_lengths(WIDTH)), "packed sequences"),
}
EVERY = pytest.mark.parametrize("name", REFUSED)


@EVERY
def test_refused_with_the_cure(name):
    entry, cure = REFUSED[name]
    with pytest.raises(AdadpsError, match=cure) as caught:
        objective(entry.model(), entry.loss, entry.batch())
    assert str(caught.value).startswith("Expected"), f"{name}: {caught.value}"
    assert "found" in str(caught.value) or "stopped with" in str(caught.value)


@EVERY
def test_refused_before_anything_is_paid(name):
    """A run is refused when it is built: the ledger has no entry."""
    entry, cure = REFUSED[name]
    ledger = MemoryLedger()
    with pytest.raises(AdadpsError, match=cure):
        PrivateRun(
            entry.model(),
            entry.loss,
            entry.batch(size=16),
            method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=1.0), lr=0.1),
            sampler=poisson(examples=16, expected_size=4),
            steps=2,
            ledger=ledger,
        )
    assert ledger.entries == 0
