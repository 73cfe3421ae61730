"""Devices that fail at every round, each by a mistake in its code or its configuration."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from support.federations import CLASSES, WIDTH, rows_of
from support.problems import cross_entropy

PATIENT = "Ann of row 7"


def mean_loss(outputs, targets):
    return cross_entropy(outputs, targets).mean()


def with_batch_norm():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))


def without_batch_norm():
    """The same weights by name and shape, so that only the devices' own check can tell."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.GroupNorm(1, 4), nn.Linear(4, CLASSES))


def loader(user):
    own = rows_of(user, "dense")
    return DataLoader(TensorDataset(own.features, own.targets), batch_size=2)


def misspelt(user):
    """A function that reads rows, on a node with partition_id in place of partition-id."""
    settings = {"partition_id": user}
    return lambda: rows_of(settings["partition-id"], "dense")


def fails_on_rows(problem):
    """A function that cannot read the rows, and says something about them."""

    def read():
        raise problem(PATIENT)

    return read
