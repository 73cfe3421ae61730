"""Models of all kinds, to see which engine takes them."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from adadps.data.examples import examples

SIZE = 5


def numbers(*shape, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(SIZE, *shape)).astype(np.float32)
    return examples(features, rng.normal(size=(SIZE, outputs)).astype(np.float32))


def words(count=6, length=4, seed=0):
    rng = np.random.default_rng(seed)
    targets = rng.normal(size=(SIZE, 2)).astype(np.float32)
    return examples(rng.integers(count, size=(SIZE, length)), targets)


class Custom(nn.Module):
    """Any model, from its layers and what it does with them."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.run = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.run(self, x)


class Owner(nn.Module):
    """A layer with a parameter of its own, of any shape."""

    def __init__(self, *shape):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(shape) + 0.5)

    def forward(self, x):
        return x * self.scale


def frozen(layer, *names):
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name not in names and bool(names))
    return layer


def twice(layer):
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 2))


def convolved(layer, width):
    return Custom(
        lambda m, x: m.head(torch.relu(m.layer(x)).flatten(1)),
        layer=layer,
        head=nn.Linear(width, 2),
    )


def residual():
    return Custom(
        lambda m, x: m.last(x + m.first(torch.tanh(m.first(x)))),
        first=nn.Linear(4, 4),
        last=nn.Linear(4, 2),
    )


def with_positions():
    def forward(model, tokens):
        places = model.places(torch.arange(tokens.shape[1]))
        return model.head(torch.tanh(model.words(tokens) + places).mean(1))

    return Custom(
        forward, words=nn.Embedding(6, 3), places=nn.Embedding(4, 3), head=nn.Linear(3, 2)
    )


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells, self.head = kind(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


def attention():
    return Custom(
        lambda m, x: m.head(m.layer(x, x, x)[0].mean(1)),
        layer=nn.MultiheadAttention(4, 2, batch_first=True),
        head=nn.Linear(4, 2),
    )


def bypass(kind):
    """A parameter that is used behind its layer's back, besides or instead of its layer."""
    if kind == "functional, beside":

        def forward(model, x):
            return model.layer(x) + functional.linear(torch.tanh(x), model.layer.weight)

    elif kind == "functional, instead":

        def forward(model, x):
            return functional.linear(torch.tanh(x), model.layer.weight, model.layer.bias)

    else:

        def forward(model, x):
            return torch.tanh(model.layer(x)) + 0.1 * model.layer.weight.square().sum()

    return Custom(forward, layer=nn.Linear(4, 2))


class Bilingual(nn.Module):
    """Tied by hand: outputs are scores of the words' own vectors."""

    def __init__(self):
        super().__init__()
        self.embedding, self.mix = nn.Embedding(6, 3), nn.Linear(3, 3)

    def forward(self, tokens):
        return self.mix(self.embedding(tokens).mean(1)) @ self.embedding.weight.T


class Raw(nn.Module):
    """A parameter beside layers, in the same module."""

    def __init__(self, *shape):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 2), nn.Parameter(torch.rand(shape) + 0.5)

    def forward(self, x):
        return self.layer(x) * self.scale
