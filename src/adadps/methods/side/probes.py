"""Examples that are made up, for side information where there is no public data at all.

What a layer reads depends on the kind of its inputs more than on their content. Neighbouring pixels
of almost any picture are alike: the power of their frequencies f falls like 1/f². Texts of almost
any kind consist of few frequent words and many rare ones. Noise of that kind, sent through a
model, shows in which directions the inputs of its layers are large. Gradients of such
examples say nothing about the task: use probes with `whiten`, whose matrices depend on inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from adadps.data.examples import PublicExamples, public_examples
from adadps.errors import require, require_positive
from adadps.methods.side.frequency import Frequencies

MADE_UP = "made up, from random numbers"


def image_probes(
    count: int,
    shape: Sequence[int],
    *,
    classes: int | None = None,
    mean: float = 0.5,
    spread: float = 0.25,
    bounds: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
) -> PublicExamples:
    """Return ``count`` images of 1/f noise; the last two axes of ``shape`` are height and width.

    Pixels have this ``mean`` and standard deviation before they are cut to ``bounds``: take what is
    publicly known of images of your kind. With ``classes``, labels are drawn at random; without,
    every image is its own target, as for an autoencoder. A batch is all of them.

    >>> probes = image_probes(4, (1, 8, 8), classes=10)
    >>> tuple(probes.examples.features.shape), probes.provenance.public_because
    ((4, 1, 8, 8), 'made up, from random numbers')
    """
    _require_count(count)
    require(
        len(shape) >= 2 and all(length >= 1 for length in shape),
        "a shape that ends with height and width",
        tuple(shape),
        "Give e.g. (1, 28, 28).",
    )
    require_positive("spread", spread)
    require(bounds[0] < bounds[1], "bounds that rise", bounds, "Give the smallest value first.")
    rng = np.random.default_rng(seed)
    noise = _one_over_f(rng, (count, *shape))
    pixels = torch.from_numpy((mean + spread * noise).clip(*bounds).astype(np.float32))
    targets = pixels if classes is None else _labels(rng, count, classes)
    return public_examples(
        pixels,
        targets,
        source=f"{count:,} images of 1/f noise, drawn with seed {seed}",
        public_because=MADE_UP,
        batch_size=count,
    )


def token_probes(
    frequencies: Frequencies,
    count: int,
    length: int,
    *,
    classes: int,
    first: int = 0,
    seed: int = 0,
) -> PublicExamples:
    """Return ``count`` texts of ``length`` words, each drawn by how common it is.

    Word ``w`` of ``frequencies`` is the token ``first + w``; smaller tokens (padding, unknown
    words) do not occur. Labels are drawn at random.

    >>> from adadps.methods.side import word_frequencies
    >>> probes = token_probes(word_frequencies(["the", "zebra"]), 5, 20, classes=2)
    >>> bool((probes.examples.features == 0).double().mean() > 0.9)
    True
    """
    _require_count(count)
    require(length >= 1, "a length of at least one word", length, "Give that of usual texts.")
    require(first >= 0, "a first token >= 0", first, "Give the token of the first word.")
    shares = frequencies.values.double().numpy()
    require_positive("the sum of the frequencies", float(shares.sum()))
    rng = np.random.default_rng(seed)
    drawn = rng.choice(len(shares), (count, length), p=shares / shares.sum()) + first
    origin = frequencies.provenance
    return public_examples(
        torch.from_numpy(drawn.astype(np.int64)),
        _labels(rng, count, classes),
        source=f"{count:,} texts of random words, by {origin.source}, drawn with seed {seed}",
        public_because=f"{MADE_UP}; frequencies: {origin.public_because}",
        batch_size=count,
    )


def _one_over_f(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return noise of mean 0 and variance 1 whose amplitude falls like 1/f in every image."""
    height, width = shape[-2:]
    down, across = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    slowest = 1 / max(height, width)
    amplitude = 1 / np.maximum(np.hypot(down, across), slowest)
    coloured = np.fft.irfft2(np.fft.rfft2(rng.standard_normal(shape)) * amplitude, (height, width))
    return np.asarray(coloured / max(float(coloured.std()), math.ulp(1.0)))


def _labels(rng: np.random.Generator, count: int, classes: int) -> Tensor:
    require(classes >= 1, "at least one class", classes, "Give the number of classes.")
    return torch.from_numpy(rng.integers(classes, size=count))


def _require_count(count: int) -> None:
    whole = isinstance(count, int) and not isinstance(count, bool) and count >= 1
    require(whole, "a whole number of probes, at least 1", count, "A few hundred are usual.")
