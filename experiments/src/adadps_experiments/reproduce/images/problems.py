"""The image problems: private images, 600 public ones of the same kind, a model and a loss.

The public images are one percent of the training images, drawn once; they are never trained on as
private ones. For tuning, a sixth of the private images replaces the test images, which then play
no part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from adadps.data.examples import Examples, examples
from adadps.engine.losses import cross_entropy
from adadps.errors import SettingError
from adadps.training.evaluation import accuracy
from adadps_experiments.data.finding import cache_folder
from adadps_experiments.data.images import fashion_mnist, mnist
from adadps_experiments.reproduce.fitting import DeepProblem
from adadps_experiments.reproduce.images import wavelets

PUBLIC = 600
TRAINING_IMAGES = 60_000
WIDTHS = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)
GAIN = 4.0
"""Of Xavier's initialisation; that of the slope of a sigmoid at 0."""


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
    dataset: str = "mnist"
    wavelets: bool = False
    """Is a linear model trained on wavelet features?"""
    batch_without_noise: int = 128

    @property
    def tuned_at(self) -> float:
        """Return the epsilon of all trials."""
        return self.epsilons[0]


SIZES = {
    "mnist-ae": ImageSize(
        2048, 20, 3, (1.6, 3.0), 1 / TRAINING_IMAGES, True, "test loss x 100", 100.0,
        batch_without_noise=256,
    ),
    "mnist": ImageSize(1024, 20, 5, (1.25,), 1 / TRAINING_IMAGES, False, "test accuracy"),
    "mnist-wavelets": ImageSize(
        4096, 20, 20, (1.25,), 1 / TRAINING_IMAGES, False, "test accuracy",
        wavelets=True, batch_without_noise=512,
    ),
    "fashion-mnist": ImageSize(
        4096, 20, 20, (1.0, 3.0), 1 / TRAINING_IMAGES, False, "test accuracy",
        dataset="fashion-mnist", wavelets=True, batch_without_noise=512,
    ),
}  # fmt: skip
PARTS = {
    "mnist-ae": ("mnist-ae",),
    "mnist": ("mnist", "mnist-wavelets"),
    "fashion-mnist": ("fashion-mnist",),
}
"""The problems behind each command of `adadps reproduce`."""


def parts_of(experiment: str, part: str | None = None) -> tuple[str, ...]:
    """Return the problems of a command, or the one that was asked for.

    >>> parts_of("mnist", "mnist-wavelets")
    ('mnist-wavelets',)
    """
    known = PARTS[experiment]
    if part is not None and part not in known:
        raise SettingError(
            f"Expected --dataset among those of '{experiment}', found '{part}'. It has: "
            f"{', '.join(known)}."
        )
    return known if part is None else (part,)


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


def linear(features: int) -> Callable[[int], nn.Module]:
    """Return a linear model that starts at 0, whatever the seed."""

    def build(_seed: int) -> nn.Module:
        layer = nn.Linear(features, 10)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return nn.Sequential(layer)

    return build


def problem(experiment: str, *, tuning: bool) -> DeepProblem:
    """Return a problem with its test images, or with those held out for tuning."""
    size, rebuilt = SIZES[experiment], experiment == "mnist-ae"
    images, labels, test_images, test_labels = _pixels(size.dataset)
    order = np.random.default_rng(600).permutation(len(images))
    public, private = order[:PUBLIC], order[PUBLIC:]
    model: Callable[[int], nn.Module] = autoencoder if rebuilt else classifier
    if size.wavelets:
        images, test_images = _wavelets(size.dataset, images, test_images, images[public])
        model = linear(images.shape[1])
    if tuning:
        held_out, private = np.split(private, [len(private) // 6])
        test_images, test_labels = images[held_out], labels[held_out]

    def part(pixels: Tensor, classes: Tensor) -> Examples:
        return examples(pixels, pixels if rebuilt else classes)

    return DeepProblem(
        train=part(images[private], labels[private]),
        test=part(test_images, test_labels),
        public=part(images[public], labels[public]),
        model=model,
        loss=pixel_loss if rebuilt else cross_entropy,
        metric=mean_pixel_loss if rebuilt else accuracy,
        kind="images",
    )


def _wavelets(
    dataset: str, images: Tensor, test_images: Tensor, public: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the features of the training and the test images."""
    name = f"{dataset}-wavelets-{wavelets.VERSION}-{len(public)}-{wavelets.DIRECTIONS_KEPT}.npy"
    everything = torch.cat([images, test_images])
    found = wavelets.projected_features(everything, public, cache_folder() / "features" / name)
    return found[: len(images)], found[len(images) :]


@cache
def _pixels(dataset: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images in [0, 1] with labels: of training and test."""
    splits = fashion_mnist() if dataset == "fashion-mnist" else mnist()
    (images, labels), (test_images, test_labels) = (
        (
            torch.from_numpy(pixels.reshape(-1, 784).astype(np.float32) / 255),
            torch.from_numpy(classes.astype(np.int64)),
        )
        for pixels, classes in splits
    )
    return images, labels, test_images, test_labels
