"""Models with attention: masks, separate projections, encoders and decoders."""

import torch
from torch import nn

from support.models import Custom
from support.zoo import STEPS, WORDS, Entry, numbers, split_lengths, with_lengths, words

WIDTH = 4


def causal(steps):
    """True where a position must not look."""
    return torch.triu(torch.ones(steps, steps, dtype=torch.bool), 1)


def attending(forward, **options):
    options.setdefault("batch_first", True)
    layer = nn.MultiheadAttention(WIDTH, 2, **options)
    return Custom(forward, layer=layer, head=nn.Linear(WIDTH, 2))


def itself(m, x, **options):
    return m.head(m.layer(x, x, x, **options)[0].square().mean(1))


def cross(m, x):
    """The first two steps look at the others."""
    return m.head(m.layer(x[:, :2], x[:, 2:], x[:, 2:], need_weights=False)[0].mean(1))


def time_first(m, x):
    x = x.transpose(0, 1)
    return m.head(m.layer(x, x, x)[0].mean(0))


def with_weights(m, x):
    found, weights = m.layer(x, x, x, need_weights=True, average_attn_weights=False)
    return m.head(found.mean(1) + weights.square().mean((1, 2))[:, :WIDTH])


def other_widths():
    """Queries, keys and values of different widths."""
    return attending(
        lambda m, x: m.head(m.layer(x[..., :4], x[..., 4:7], x[..., 7:])[0].mean(1)),
        kdim=3,
        vdim=2,
    )


def padded_words():
    def forward(m, x):
        vectors = m.words(x)
        found = m.layer(vectors, vectors, vectors, key_padding_mask=x == 0)[0]
        return m.head(torch.tanh(found).mean(1))

    return Custom(
        forward,
        words=nn.Embedding(WORDS, WIDTH),
        layer=nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        head=nn.Linear(WIDTH, 2),
    )


def masked_by_lengths():
    def forward(m, x):
        x, lengths = split_lengths(x)
        hidden = torch.arange(x.shape[1]) >= lengths[:, None]
        return m.head(m.layer(x, x, x, key_padding_mask=hidden)[0].mean(1))

    return attending(forward)


def class_token():
    def forward(m, x):
        first = m.token.expand(x.shape[0], -1, -1)
        x = torch.cat([first, m.patches(x)], 1) + m.places
        return m.head(m.layer(x, x, x, need_weights=False)[0][:, 0])

    return Custom(
        forward,
        patches=nn.Linear(3, WIDTH),
        token=nn.Parameter(torch.randn(1, 1, WIDTH)),
        places=nn.Parameter(0.3 * torch.randn(1, STEPS + 1, WIDTH)),
        layer=nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        head=nn.Linear(WIDTH, 2),
    )


def written_by_hand():
    """Attention without a layer for it."""

    def forward(m, x):
        query, key, value = m.project(x).chunk(3, -1)
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return m.head(found.mean(1))

    return Custom(forward, project=nn.Linear(WIDTH, 3 * WIDTH), head=nn.Linear(WIDTH, 2))


def block(**options):
    options = {"dropout": 0.0, "batch_first": True} | options
    return nn.TransformerEncoderLayer(WIDTH, 2, 6, **options)


def encoded(**options):
    return nn.Sequential(block(**options), nn.Flatten(), nn.Linear(STEPS * WIDTH, 2))


def two_layers():
    def forward(m, x):
        vectors = m.words(x) + m.places
        found = m.layers(vectors, mask=causal(x.shape[1]).to(vectors.device), is_causal=True)
        return m.head(found[:, -1])

    return Custom(
        forward,
        words=nn.Embedding(WORDS, WIDTH),
        places=nn.Parameter(0.3 * torch.randn(STEPS, WIDTH)),
        layers=nn.TransformerEncoder(block(), 2, enable_nested_tensor=False),
        head=nn.Linear(WIDTH, 2),
    )


def padded_encoder():
    def forward(m, x):
        found = m.layers(m.words(x), src_key_padding_mask=x == 0)
        return m.head(found[:, 0])

    return Custom(
        forward,
        words=nn.Embedding(WORDS, WIDTH),
        layers=nn.TransformerEncoder(block(norm_first=True), 2, enable_nested_tensor=False),
        head=nn.Linear(WIDTH, 2),
    )


def decoder():
    def forward(m, x):
        found = m.layer(x[:, :2], x[:, 2:], tgt_mask=causal(2))
        return m.head(found.flatten(1))

    layer = nn.TransformerDecoderLayer(WIDTH, 2, 6, dropout=0.0, batch_first=True)
    return Custom(forward, layer=layer, head=nn.Linear(2 * WIDTH, 2))


def masked(m, x):
    return itself(m, x, attn_mask=causal(x.shape[1]))


def added_mask(m, x):
    """A mask of numbers, made from the input, that is added to the scores."""
    scores = -(x[:, :, None, 0] - x[:, None, :, 0]).square()
    return itself(m, x, attn_mask=scores.repeat_interleave(2, 0))


SEQUENCES = numbers(STEPS, WIDTH)


def entry(forward=itself, **options):
    return Entry(lambda: attending(forward, **options), SEQUENCES)


ATTENTION = {
    "attention": entry(),
    "attention, cross": entry(cross),
    "attention, time first": entry(time_first, batch_first=False),
    "attention, weights read": entry(with_weights),
    "attention, causal": entry(masked),
    "attention, mask made from the input": entry(added_mask),
    "attention, padding from the words": Entry(padded_words, words()),
    "attention, padding from lengths": Entry(masked_by_lengths, with_lengths(WIDTH)),
    "attention, kdim and vdim": Entry(other_widths, numbers(STEPS, 9)),
    "attention, no bias": entry(bias=False),
    "attention, add_bias_kv": entry(add_bias_kv=True),
    "attention, add_zero_attn": entry(add_zero_attn=True),
    "attention, dropout": Entry(lambda: attending(itself, dropout=0.5), SEQUENCES, evaluating=True),
    "class token": Entry(class_token, numbers(STEPS, 3)),
    "attention by hand": Entry(written_by_hand, SEQUENCES),
    "encoder layer": Entry(encoded, SEQUENCES),
    "encoder layer, norm first, gelu": Entry(
        lambda: encoded(norm_first=True, activation="gelu"), SEQUENCES
    ),
    "encoder layer, dropout": Entry(lambda: encoded(dropout=0.1), SEQUENCES, evaluating=True),
    "encoder, two layers, causal": Entry(two_layers, words()),
    "encoder, padding from the words": Entry(padded_encoder, words()),
    "decoder layer": Entry(decoder, SEQUENCES),
}
