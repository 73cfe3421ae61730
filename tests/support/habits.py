"""Small private data, a run on it, and models with habits: for the tests of hazards of models."""

import random

import numpy as np
import torch
from torch import nn

from adadps import PrivateRun, dp_sgd, examples, poisson, privatize
from support.problems import cross_entropy

SILENT = privatize(clip_norm=1.0, noise_multiplier=0.0)
NOISY = privatize(clip_norm=1.0, noise_multiplier=2.0)
N, WIDTH = 40, 4


def private_rows(n=N):
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(n, WIDTH, generator=generator)
    return examples(rows, (rows[:, 0] > 0).long())


def run_on(model, data=None, *, method=None, steps=3, size=8, loss=cross_entropy, **options):
    data = private_rows() if data is None else data
    sampler = poisson(examples=len(data), expected_size=size)
    method = method or dp_sgd(NOISY, lr=0.1)
    return PrivateRun(model, loss, data, method=method, sampler=sampler, steps=steps, **options)


def trained(run):
    for batch in run.batches():
        run.step(batch)
    return run


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Plain(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(WIDTH, 2), draw

    def forward(self, x):
        return self.layer(self.draw(x))


def dropping(known=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    return model if known else Wrapped(model)


class PythonsDropout(nn.Module):
    """Chance from numpy and from Python, for the whole batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.layer(x * (random.random() + np.random.rand()))


MODELS = {
    "a sequence": dropping,
    "a forward of its own": lambda: dropping(known=False),
    "chance of Python": PythonsDropout,
}
