"""Models of layers that are called in unusual ways, shared, or given parameters of their own."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from support.models import Custom, frozen
from support.zoo import WORDS, Entry, numbers, words


def parameter(*shape):
    return nn.Parameter(0.3 * torch.randn(shape))


def residual():
    return Custom(
        lambda m, x: m.last(x + m.inner(torch.relu(m.first(x)))),
        first=nn.Linear(4, 5),
        inner=nn.Linear(5, 4),
        last=nn.Linear(4, 2),
    )


def siamese():
    def forward(m, x):
        one, other = (m.encoder(half) for half in x.chunk(2, 1))
        return m.head(torch.cat([(one - other).abs(), one * other], 1))

    encoder = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return Custom(forward, encoder=encoder, head=nn.Linear(6, 2))


def gated():
    return Custom(
        lambda m, x: m.head(torch.sigmoid(m.gate(x)) * m.value(x)),
        gate=nn.Linear(4, 5),
        value=nn.Linear(4, 5),
        head=nn.Linear(5, 2),
    )


def highway():
    def forward(m, x):
        share = torch.sigmoid(m.carry(x))
        return m.head(share * torch.relu(m.change(x)) + (1 - share) * x)

    return Custom(forward, carry=nn.Linear(4, 4), change=nn.Linear(4, 4), head=nn.Linear(4, 2))


def same_layer_twice():
    return Custom(
        lambda m, x: m.head(torch.tanh(m.layer(torch.tanh(m.layer(x))))),
        layer=nn.Linear(4, 4),
        head=nn.Linear(4, 2),
    )


class TiedOutput(nn.Module):
    """The output layer has the table of words as its weight."""

    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(WORDS, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, WORDS)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.words(tokens).mean(1))))


def tied_by_hand():
    return Custom(
        lambda m, x: m.mix(m.words(x).mean(1)) @ m.words.weight.T,
        words=nn.Embedding(WORDS, 4),
        mix=nn.Linear(4, 4),
    )


def positions():
    return Custom(
        lambda m, x: m.head(torch.tanh(m.words(x) + m.places[: x.shape[1]]).mean(1)),
        words=nn.Embedding(WORDS, 4),
        places=parameter(6, 4),
        head=nn.Linear(4, 2),
    )


def functional_weight():
    return Custom(
        lambda m, x: m.head(torch.tanh(functional.linear(x, m.layer.weight)) + m.layer(x)),
        layer=nn.Linear(4, 5),
        head=nn.Linear(5, 2),
    )


def low_rank_adapters():
    def forward(m, x):
        return m.head(torch.tanh(m.base(x) + 2.0 * m.up(m.down(x))))

    return Custom(
        forward,
        base=frozen(nn.Linear(4, 5)),
        down=nn.Linear(4, 2, bias=False),
        up=nn.Linear(2, 5, bias=False),
        head=frozen(nn.Linear(5, 2)),
    )


def low_rank_parameters():
    def forward(m, x):
        return functional.linear(x, m.base.weight + m.up @ m.down, m.base.bias)

    return Custom(forward, base=frozen(nn.Linear(4, 2)), up=parameter(2, 2), down=parameter(2, 4))


def experts():
    def forward(m, x):
        gates = torch.softmax(m.gate(x), -1)
        answers = torch.stack([torch.tanh(expert(x)) for expert in m.experts], 1)
        return m.head((gates.unsqueeze(-1) * answers).sum(1))

    return Custom(
        forward,
        gate=nn.Linear(4, 3),
        experts=nn.ModuleList(nn.Linear(4, 5) for _ in range(3)),
        head=nn.Linear(5, 2),
    )


def attention_pooling():
    def forward(m, x):
        keys = torch.tanh(m.layer(x))
        scores = torch.softmax(keys @ m.query, 1)
        return m.head((scores.unsqueeze(-1) * keys).sum(1))

    return Custom(forward, layer=nn.Linear(4, 5), query=parameter(5), head=nn.Linear(5, 2))


def temperature():
    return Custom(
        lambda m, x: m.layer(x) * m.log_scale.exp(), layer=nn.Linear(4, 2), log_scale=parameter()
    )


def padded_words():
    return Custom(
        lambda m, x: m.head(torch.tanh(m.words(x)).sum(1)),
        words=nn.Embedding(WORDS, 4, padding_idx=0),
        head=nn.Linear(4, 2),
    )


def bag():
    return Custom(
        lambda m, x: m.head(torch.tanh(m.words(x))),
        words=nn.EmbeddingBag(WORDS, 4, mode="mean", padding_idx=0),
        head=nn.Linear(4, 2),
    )


def parameter_list():
    def forward(m, x):
        for weight, bias in zip(m.weights, m.biases, strict=True):
            x = torch.tanh(x @ weight + bias)
        return m.head(x)

    return Custom(
        forward,
        weights=nn.ParameterList([parameter(4, 5), parameter(5, 4)]),
        biases=nn.ParameterList([parameter(5), parameter(4)]),
        head=nn.Linear(4, 2),
    )


def parameter_dict():
    return Custom(
        lambda m, x: torch.tanh(x * m.held["scale"] + m.held["offset"]) @ m.held["weight"],
        held=nn.ParameterDict(
            {"scale": parameter(4), "offset": parameter(4), "weight": parameter(4, 2)}
        ),
    )


def weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2))


def orthogonal():
    layer = parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley")
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 2))


def bilinear():
    return Custom(
        lambda m, x: m.head(torch.tanh(m.pair(x[:, :3], x[:, 3:]))),
        pair=nn.Bilinear(3, 4, 5),
        head=nn.Linear(5, 2),
    )


def frozen_part():
    encoder = frozen(nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh()))
    return Custom(
        lambda m, x: m.head(torch.tanh(m.top(m.encoder(x)))),
        encoder=encoder,
        top=nn.Linear(5, 4),
        head=nn.Linear(4, 2),
    )


def dropout():
    return Custom(
        lambda m, x: m.head(functional.dropout(m.drop(torch.tanh(m.first(x))), 0.3, m.training)),
        first=nn.Linear(4, 12),
        drop=nn.Dropout(0.5),
        head=nn.Linear(12, 2),
    )


def prelu(count):
    return nn.Sequential(nn.Linear(4, 5), nn.PReLU(count), nn.Linear(5, 2))


PLAIN = {
    "residual": Entry(residual, numbers(4)),
    "siamese": Entry(siamese, numbers(8)),
    "gated": Entry(gated, numbers(4)),
    "highway": Entry(highway, numbers(4)),
    "same layer twice": Entry(same_layer_twice, numbers(4)),
    "tied embedding and output": Entry(TiedOutput, words(), classes=WORDS),
    "tied by hand": Entry(tied_by_hand, words(), classes=WORDS),
    "positional parameters": Entry(positions, words()),
    "functional use of a weight": Entry(functional_weight, numbers(4)),
    "low-rank adapters, layers": Entry(low_rank_adapters, numbers(4)),
    "low-rank adapters, parameters": Entry(low_rank_parameters, numbers(4)),
    "mixture of experts": Entry(experts, numbers(4)),
    "attention pooling": Entry(attention_pooling, numbers(5, 4)),
    "learned temperature": Entry(temperature, numbers(4)),
    "embedding with padding": Entry(padded_words, words()),
    "bag of words": Entry(bag, words()),
    "ParameterList": Entry(parameter_list, numbers(4)),
    "ParameterDict": Entry(parameter_dict, numbers(4)),
    "weight_norm": Entry(weight_norm, numbers(4)),
    "orthogonal": Entry(orthogonal, numbers(4)),
    "Bilinear": Entry(bilinear, numbers(7)),
    "PReLU, one": Entry(lambda: prelu(1), numbers(4)),
    "PReLU, per channel": Entry(lambda: prelu(5), numbers(4)),
    "frozen part": Entry(frozen_part, numbers(4)),
    "dropout": Entry(dropout, numbers(4), evaluating=True),
}
