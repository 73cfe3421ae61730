"""Layers with random settings under every form of D, in units and in both precisions.

Each is the first layer of a model with its own forward pass, compared with autograd in float64 on
one example at a time.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from support.models import Custom
from support.zoo import Entry, numbers
from support.zoo_checks import FORMS, OF_TORCH, Compared

pytestmark = [pytest.mark.filterwarnings(warning) for warning in OF_TORCH]

COMMON = {
    "form": st.sampled_from(FORMS),
    "mean": st.booleans(),
    "dtype": st.sampled_from([torch.float32, torch.float64]),
    "size": st.integers(1, 6),
    "seed": st.integers(0, 1000),
}


def assert_right(build, rows, form, *, mean, dtype, size, seed):
    """Examples in every form, and units in ``form``."""
    forms = (*(other for other in FORMS if other != form), form)
    Compared(Entry(build, rows), dtype, size=size, seed=seed).assert_right(forms, mean=mean)


@st.composite
def convolutions(draw):
    """A convolution in one to three dimensions and the shape of its rows."""
    axes = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2]))
    inputs, outputs = (groups * draw(st.integers(1, 2)) for _ in range(2))
    kernel, dilation = ([draw(st.integers(1, 2 if axes == 3 else 3)) for _ in range(axes)],
                        [draw(st.integers(1, 2)) for _ in range(axes)])  # fmt: skip
    reach = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
    extent = [most + draw(st.integers(1, 3)) for most in reach]
    mode = draw(st.sampled_from(["zeros", "zeros", "circular", "reflect", "replicate"]))
    padding = draw(st.sampled_from(["same", "valid", "numbers", "numbers"]))
    if padding == "numbers":
        most = [1 if mode == "zeros" else min(1, size - 1) for size in extent]
        padding = [draw(st.integers(0, one)) for one in most]
        stride = [draw(st.integers(1, 2)) for _ in range(axes)]
    else:
        stride = 1
    if padding == "same" and mode != "zeros":  # torch refuses to pad by the extent or more
        extent = [max(size, 2 * most + 1) for size, most in zip(extent, reach, strict=True)]
    options = {
        "kernel_size": tuple(kernel), "dilation": tuple(dilation), "groups": groups,
        "stride": stride, "padding": padding, "padding_mode": mode, "bias": draw(st.booleans()),
    }  # fmt: skip
    return (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1], (inputs, outputs), options, extent


@settings(max_examples=40)
@given(layer=convolutions(), **COMMON)
def test_convolutions(layer, form, **options):
    kind, (inputs, outputs), arguments, extent = layer

    def build():
        return Custom(
            lambda m, x: m.head(torch.tanh(m.layer(x)).flatten(2).mean(2)),
            layer=kind(inputs, outputs, **arguments),
            head=nn.Linear(outputs, 2),
        )

    assert_right(build, numbers(inputs, *extent), form, **options)


@settings(max_examples=40)
@given(
    kind=st.sampled_from([nn.LSTM, nn.LSTM, nn.GRU, nn.RNN]),
    layers=st.integers(1, 3),
    both=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    projected=st.booleans(),
    relu=st.booleans(),
    states=st.sampled_from(["none", "from the input", "parameters"]),
    read=st.sampled_from(["last", "mean", "final state"]),
    steps=st.integers(1, 6),
    hidden=st.integers(1, 4),
    **COMMON,
)
def test_recurrent_layers(
    kind, layers, both, bias, batch_first, projected, relu, states, read, steps, hidden, form,
    **options,
):  # fmt: skip
    projection = hidden - 1 if projected and kind is nn.LSTM and hidden > 1 else 0
    more = {"nonlinearity": "relu" if relu else "tanh"} if kind is nn.RNN else {}
    more |= {"proj_size": projection} if kind is nn.LSTM else {}
    directions = 2 if both else 1
    width, count = projection or hidden, layers * directions

    def build():
        cells = kind(
            3, hidden, layers, bias=bias, batch_first=batch_first, bidirectional=both, **more
        )
        parts = {"cells": cells, "head": nn.Linear(width * directions, 2)}
        if states == "from the input":
            parts["start"] = nn.Linear(3, count * width)
        elif states == "parameters":
            parts["start"] = nn.Parameter(0.3 * torch.randn(count, 1, width))
        return Custom(lambda m, x: m.head(recurrence(m, x)), **parts)

    def recurrence(m, x):
        start = initial(m, x)
        x = x if batch_first else x.transpose(0, 1)
        found, final = m.cells(x) if start is None else m.cells(x, start)
        if read == "final state":
            final = final[0] if isinstance(final, tuple) else final
            return torch.cat(list(final[-directions:]), -1)
        found = found if batch_first else found.transpose(0, 1)
        return found[:, -1] if read == "last" else found.mean(1)

    def initial(m, x):
        if states == "none":
            return None
        if states == "parameters":
            first = m.start.expand(-1, x.shape[0], -1).contiguous()
        else:
            made = torch.tanh(m.start(x[:, 0])).view(x.shape[0], count, width)
            first = made.transpose(0, 1).contiguous()
        return (first, x.new_zeros(count, x.shape[0], hidden)) if kind is nn.LSTM else first

    assert_right(build, numbers(steps, 3), form, **options)


@settings(max_examples=30)
@given(
    heads=st.integers(1, 2),
    per_head=st.integers(1, 3),
    bias=st.booleans(),
    batch_first=st.booleans(),
    separate=st.booleans(),
    bias_kv=st.booleans(),
    zero=st.booleans(),
    crossed=st.booleans(),
    mask=st.sampled_from(["none", "causal", "by head", "padding", "padding and causal"]),
    weights=st.booleans(),
    steps=st.integers(2, 5),
    **COMMON,
)
def test_attention(
    heads, per_head, bias, batch_first, separate, bias_kv, zero, crossed, mask, weights, steps,
    form, **options,
):  # fmt: skip
    width = heads * per_head
    others = {"kdim": 2, "vdim": 3} if separate else {}
    key_width, value_width = (2, 3) if separate else (width, width)

    def build():
        layer = nn.MultiheadAttention(
            width, heads, bias=bias, batch_first=batch_first, add_bias_kv=bias_kv,
            add_zero_attn=zero, **others,
        )  # fmt: skip
        return Custom(lambda m, x: m.head(attention(m, x)), layer=layer, head=nn.Linear(width, 2))

    def attention(m, x):
        parts = [x[..., :width], x[..., width:][..., :key_width], x[..., -value_width:]]
        if crossed:
            parts[0] = parts[0][:, :1]
        given_masks = masks(x, parts[0].shape[1])
        turned = parts if batch_first else [part.transpose(0, 1) for part in parts]
        found, scores = m.layer(*turned, need_weights=weights, **given_masks)
        found = found if batch_first else found.transpose(0, 1)
        return found.mean(1) + (scores.square().mean((1, 2))[:, None] if weights else 0)

    def masks(x, queries):
        found = {}
        if mask in ("causal", "padding and causal"):
            hidden = torch.ones(queries, steps, dtype=torch.bool).triu(1)
            found["attn_mask"] = hidden
        elif mask == "by head":
            near = -x[:, None, None, :, 0].square().expand(-1, heads, queries, -1)
            found["attn_mask"] = near.reshape(-1, queries, steps)
        if mask.startswith("padding"):
            hidden = x[..., 0] > 0.5
            found["key_padding_mask"] = hidden & (torch.arange(steps) > 0)
        return found

    assert_right(build, numbers(steps, width + key_width + value_width), form, **options)


@settings(max_examples=12)
@given(
    kind=st.sampled_from([nn.LSTMCell, nn.GRUCell, nn.RNNCell]),
    bias=st.booleans(),
    steps=st.integers(1, 4),
    **COMMON,
)
def test_cells(kind, bias, steps, form, **options):
    def forward(m, x):
        state = None
        for step in range(steps):
            state = m.cell(x[:, step], state)
        return m.head(state[0] if isinstance(state, tuple) else state)

    def build():
        return Custom(forward, cell=kind(3, 4, bias=bias), head=nn.Linear(4, 2))

    assert_right(build, numbers(steps, 3), form, **options)


@settings(max_examples=12)
@given(
    norm_first=st.booleans(),
    activation=st.sampled_from(["relu", "gelu"]),
    batch_first=st.booleans(),
    bias=st.booleans(),
    decoder=st.booleans(),
    **COMMON,
)
def test_transformer_layers(norm_first, activation, batch_first, bias, decoder, form, **options):
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer

    def forward(m, x):
        parts = (x[:, :2], x[:, 2:]) if decoder else (x,)
        parts = parts if batch_first else [part.transpose(0, 1) for part in parts]
        found = m.layer(*parts)
        return m.head(found.square().mean(1 if batch_first else 0))

    def build():
        layer = kind(
            4, 2, 5, dropout=0.0, activation=activation, batch_first=batch_first,
            norm_first=norm_first, bias=bias,
        )  # fmt: skip
        return Custom(forward, layer=layer, head=nn.Linear(4, 2))

    assert_right(build, numbers(4, 4), form, **options)


@settings(max_examples=12)
@given(
    widths=st.tuples(*[st.integers(1, 3)] * 3),
    bias=st.booleans(),
    per_channel=st.booleans(),
    steps=st.integers(0, 3),
    **COMMON,
)
def test_bilinear_and_prelu(widths, bias, per_channel, steps, form, **options):
    """Also along further axes."""
    one, other, out = widths

    def forward(m, x):
        found = m.pair(x[..., :one], x[..., one:])
        found = m.slope(found if steps == 0 else found.transpose(1, 2))
        return m.head(found if steps == 0 else found.mean(2))

    def build():
        return Custom(
            forward,
            pair=nn.Bilinear(one, other, out, bias=bias),
            slope=nn.PReLU(out if per_channel else 1),
            head=nn.Linear(out, 2),
        )

    rows = numbers(one + other) if steps == 0 else numbers(steps, one + other)
    assert_right(build, rows, form, **options)
