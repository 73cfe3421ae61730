"""The image problems: private images, 600 public ones of the same kind, a model and a loss.

The public images are one percent of the training images, drawn once; they are never trained on as
private ones. For tuning, a sixth of the private images replaces the test images, which are not
read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from adadps.data.examples import Examples, PublicExamples, examples, public_examples
from adadps.engine.losses import Loss, cross_entropy
from adadps.training.evaluation import Metric, accuracy
from adadps_experiments.data.finding import require
from adadps_experiments.data.named_sets import MNIST

PUBLIC = 600
TRAINING_IMAGES = 60_000
WIDTHS = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)
GAIN = 4.0
"""Of Xavier's initialisation; that of the slope of a sigmoid at 0."""


@dataclass(frozen=True)
class ImageProblem:
    """Private training images, held-out images, and what is trained on them."""

    train: Examples
    test: Examples
    public: Examples
    model: Callable[[int], nn.Module]
    loss: Loss
    metric: Metric

    def public_in_batches(self, size: int, seed: int = 0) -> PublicExamples:
        """Return the public images, to be drawn in batches of ``size``."""
        return public_examples(
            self.public.features,
            self.public.targets,
            source=f"{len(self.public.targets)} of the training images",
            public_because="drawn once and taken as public, as in the paper",
            batch_size=size,
            seed=seed,
        )


@dataclass(frozen=True)
class ImageSize:
    """How long an experiment trains, and at what cost in privacy."""

    batch: int
    epochs: float
    trial_epochs: float
    epsilons: tuple[float, ...]
    delta: float
    lower_is_better: bool
    metric: str
    metric_scale: float = 1.0

    @property
    def tuned_at(self) -> float:
        """Return the epsilon of all trials."""
        return self.epsilons[0]


SIZES = {
    "mnist-ae": ImageSize(
        2048, 10, 3, (1.6, 3.0), 1 / TRAINING_IMAGES, True, "test loss x 100", 100.0
    ),
    "mnist": ImageSize(1024, 20, 10, (1.25,), 1 / TRAINING_IMAGES, False, "test accuracy"),
}


def pixel_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared distance of the pixels of each image."""
    return (outputs - targets).square().mean(1)


def mean_pixel_loss(outputs: Tensor, targets: Tensor) -> float:
    """Return the loss of all images, per pixel."""
    return float(pixel_loss(outputs, targets).mean())


def autoencoder(seed: int) -> nn.Module:
    """Return the paper's autoencoder, of 2.8 million weights, with sigmoids and a linear code."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for index, (width, following) in enumerate(pairwise(WIDTHS), start=1):
        layer = nn.Linear(width, following)
        nn.init.xavier_uniform_(layer.weight, gain=GAIN)
        nn.init.zeros_(layer.bias)
        layers += [layer, *([] if index == len(WIDTHS) // 2 else [nn.Sigmoid()])]
    return nn.Sequential(*layers)


def classifier(seed: int) -> nn.Module:
    """Return a small convolutional network, as tutorials of private training have it."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def problem(experiment: str, *, tuning: bool) -> ImageProblem:
    """Return a problem with its test images, or with those held out for tuning."""
    images, labels, test_images, test_labels = _mnist()
    order = np.random.default_rng(600).permutation(len(images))
    public, private = order[:PUBLIC], order[PUBLIC:]
    if tuning:
        held_out, private = np.split(private, [len(private) // 6])
        test_images, test_labels = images[held_out], labels[held_out]

    def part(pixels: Tensor, classes: Tensor) -> Examples:
        return examples(pixels, pixels if experiment == "mnist-ae" else classes)

    rebuilt = experiment == "mnist-ae"
    return ImageProblem(
        train=part(images[private], labels[private]),
        test=part(test_images, test_labels),
        public=part(images[public], labels[public]),
        model=autoencoder if rebuilt else classifier,
        loss=pixel_loss if rebuilt else cross_entropy,
        metric=mean_pixel_loss if rebuilt else accuracy,
    )


@cache
def _mnist() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images in [0, 1] with labels: of training and test."""
    with np.load(require(MNIST, MNIST.files[0]), allow_pickle=False) as held:
        parts = [
            (
                torch.from_numpy(held[f"x_{part}"].reshape(-1, 784).astype(np.float32) / 255),
                torch.from_numpy(held[f"y_{part}"].astype(np.int64)),
            )
            for part in ("train", "test")
        ]
    return parts[0][0], parts[0][1], parts[1][0], parts[1][1]
