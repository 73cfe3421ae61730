"""A ledger on disk, small runs that are charged to it, and all that its file holds."""

import sqlite3
from contextlib import closing

import numpy as np
from dp_accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
)
from torch import nn

from adadps import (
    DiskLedger,
    dp_sgd,
    examples,
    fit,
    poisson,
    privatize,
)
from support.ledgers import ADD, BUDGET, RDP
from support.problems import squared

PRIVACY = privatize(clip_norm=1.0, noise_multiplier=10.0)
LESS_NOISE = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.2))
SAMPLER = poisson(examples=20, expected_size=10)


def opened(path, budget=BUDGET, accountant=RDP, relation=ADD):
    ledger = DiskLedger(path, budget=budget)
    ledger.open("first", relation, accountant)
    return ledger


def rows(size=20, value=1.0):
    return examples(np.full((size, 2), value, np.float32), np.ones((size, 1), np.float32))


def content(path):
    """Return every statement that would rebuild the file."""
    with closing(sqlite3.connect(path)) as connection:
        return "\n".join(connection.iterdump())


def trained(ledger, steps=5, method=None, data=None, **options):
    return fit(
        nn.Linear(2, 1),
        squared,
        data or rows(),
        method=method or dp_sgd(PRIVACY, lr=0.1),
        sampler=SAMPLER,
        steps=steps,
        ledger=ledger,
        **options,
    )
