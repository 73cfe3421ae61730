"""Tables of words, one example a word, so that a batch is the list of rows that it touches."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import sparse
from scipy.linalg import solve_triangular
from torch import nn

from adadps import Accountant, PrivateRun, chain, examples, privatize, shuffled
from adadps.engine.noise.randomness import secure
from adadps.methods.stages import sgd

WORDS = 12
SIZE, CLIP, SIGMA, LR = 4, 0.5, 2.0, 0.8
NOISE = LR * SIGMA * CLIP / SIZE
"""c: the standard deviation that a step of `noisy` adds to every weight."""

BATCHES = ([0, 1], [1, 2, 3], [0, 5], [7], [1, 7, 8], [2, 4, 9])
"""Rows 6, 10 and 11 are never touched, row 4 only at the end."""


def nothing(outputs, targets):
    """A loss without a gradient: weights are nothing but noise."""
    return 0 * outputs.sum(1)


def noisy(lr=LR, **options):
    return chain(privatize(clip_norm=CLIP, noise_multiplier=SIGMA), sgd(lr, **options))


class Changed:
    """Secure normals, put through a function before they are used."""

    def __init__(self, change=lambda z: z):
        self.change, self.count = change, 0

    def draw(self, count, use):
        self.count += count
        use(0, self.change(secure().normal((count,)).numpy()))


@dataclass
class Table:
    """A model whose outputs, one word an example, are the rows of its table."""

    model: nn.Module
    features: object
    inputs: torch.Tensor
    name: str
    axis: int
    kept: nn.Parameter = field(init=False)

    def __post_init__(self):
        nn.init.zeros_(self.parameter)
        self.kept = self.parameter

    @property
    def parameter(self):
        return self.model.get_parameter(self.name)

    def rows(self, weights):
        """A copy with one row a word."""
        return weights.detach().movedim(self.axis, 0).clone()

    def data(self):
        return examples(self.features, torch.zeros(WORDS, 1))


def linear(width):
    model = nn.Linear(WORDS, width, bias=False)
    return Table(model, sparse.eye(WORDS, format="csr"), torch.eye(WORDS), "weight", 1)


def bag(width):
    model = nn.Sequential(nn.EmbeddingBag(WORDS, width, mode="sum"), nn.Identity())
    tokens = torch.arange(WORDS).unsqueeze(1)
    return Table(model, sparse.eye(WORDS, format="csr"), tokens, "0.weight", 0)


def embedding(width):
    model = nn.Sequential(nn.Embedding(WORDS, width), nn.Flatten())
    tokens = torch.arange(WORDS).unsqueeze(1)
    return Table(model, tokens, tokens, "0.weight", 0)


TABLES = {"linear": linear, "bag": bag, "embedding": embedding}


def begun(table, method=None, batches=BATCHES, loss=nothing, **options):
    """A run that will draw these batches."""
    run = PrivateRun(
        table.model,
        loss,
        table.data(),
        method=method or noisy(),
        sampler=shuffled(examples=WORDS, expected_size=SIZE),  # the fastest to account for
        steps=len(batches),
        **{"accountant": Accountant.RDP, **options},
    )
    run._stepper.batches._batches = iter([np.array(batch, dtype=np.int64) for batch in batches])
    return run


def take(run, steps):
    """Take this many steps."""
    batches = run.batches()
    for _ in range(steps):
        run.step(next(batches))


BOUND = 7.0
"""How many standard errors `departures` allows."""


def departures(samples, mean, covariance):
    """Where means, variances and covariances are not what they should be, in standard errors.

    Samples are made white with the exact covariance; what comes out must have covariance 1.
    """
    white = solve_triangular(
        np.linalg.cholesky(covariance), np.asarray(samples) - np.asarray(mean)[:, None], lower=True
    )
    count, draws = white.shape
    errors = (white @ white.T / draws - np.eye(count)) * math.sqrt(draws)
    errors[np.diag_indices(count)] /= math.sqrt(2)
    found = {
        ("mean", i): z for i, z in enumerate(white.mean(1) * math.sqrt(draws)) if abs(z) > BOUND
    }
    far = np.argwhere(np.tril(np.abs(errors)) > BOUND)
    return found | {("covariance", int(i), int(j)): errors[i, j] for i, j in far}
