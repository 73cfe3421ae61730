"""A dataset of small images that notes which rows are read, and a run on it."""

import torch
from torch import nn
from torch.utils.data import Dataset

from adadps import dp_sgd, losses, privatize
from adadps.training.fit import PrivateRun

ROWS = 40


class Images(Dataset):
    """Notes which rows were read; some of them are broken."""

    def __init__(self, broken=(), rows=ROWS):
        self.broken, self.rows, self.read = set(broken), rows, []
        generator = torch.Generator().manual_seed(0)
        self.images = torch.rand(rows, 1, 4, 4, generator=generator)
        self.labels = torch.randint(2, (rows,), generator=generator)

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        self.read.append(row)
        if row in self.broken:
            raise OSError("broken file")
        return self.images[row], int(self.labels[row])


class Items(Dataset):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 12

    def __getitem__(self, row):
        return self.make(row)


def small_cnn():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))


def private_run(data, steps=6, **more):
    noisy = privatize(clip_norm=1.0, noise_multiplier=1.0)
    return PrivateRun(
        small_cnn(), losses.cross_entropy, data, method=dp_sgd(noisy, lr=0.5),
        batch_size=8, steps=steps, delta=1e-3, **more,
    )  # fmt: skip
