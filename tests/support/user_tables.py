"""Small tables with users, and runs on them."""

import numpy as np
import torch
from scipy import sparse
from torch import nn

from adadps import by_user, dp_sgd, examples, poisson, privatize
from adadps.data.examples import Examples
from adadps.engine.noise.randomness import secure
from adadps.training.stepper import Batches

USERS = np.array([0, 0, 0, 0, 0, 0, 1, 2, 2, 3, 4, 4])
WIDTH = 6


def table(users=USERS, *, seed=0, as_sparse=False) -> Examples:
    """Rows of ``users``, dense or as bags of words."""
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(len(users), WIDTH)).astype(np.float32)
    dense[rng.random(dense.shape) < 0.5] = 0
    features = sparse.csr_matrix(dense) if as_sparse else dense
    targets = rng.normal(size=(len(users), 2)).astype(np.float32)
    return examples(features, targets, users=users)


def model(*, hidden=False):
    torch.manual_seed(1)
    if hidden:
        return nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, 2))
    return nn.Linear(WIDTH, 2)


def privacy(most=3, *, clip_norm=1.0, noise_multiplier=1.0, column=None):
    groups = by_user(most=most, column=column)
    return privatize(clip_norm=clip_norm, noise_multiplier=noise_multiplier, groups=groups)


def method(most=3, lr=0.1, **options):
    return dp_sgd(privacy(most, **options), lr=lr)


EVERYBODY = poisson(users=5, expected_size=5)  # rate 1: every user is drawn at every step
SOME = poisson(users=5, expected_size=2)


def batches(data, most, count, *, sampler=EVERYBODY, chosen=None):
    """So many drawn batches: rows, and the unit of each."""
    drawing = Batches(
        data, method=chosen or method(most), sampler=sampler, units=sampler, randomness=secure()
    )
    found = []
    for index in range(count):
        drawn = drawing.next(index)
        units = torch.arange(len(drawn.rows)) if drawn.units is None else drawn.units.labels
        found.append((drawn.rows.numpy(), units.numpy()))
    return found
