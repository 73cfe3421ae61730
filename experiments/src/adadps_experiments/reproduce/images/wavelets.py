"""Fixed wavelet features of images: the scattering transform (Bruna and Mallat 2013).

An image is convolved with Morlet wavelets of two scales and eight directions; the moduli, and those
of the coarse wavelets applied to the fine moduli, are smoothed and sampled on a grid of 7 x 7. With
the smoothed image that makes 81 channels. Then every channel of every image is normalised by its
own mean and deviation, so that nothing is learned from data: the features of an image depend on
that image alone, as Tramer and Boneh (ICLR 2021) use them. Last, they are projected on the
directions in which public images differ most, which leaves less for the noise to fill.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import group_norm, pad

from adadps.files import new_file

SIDE, PADDING, STRIDE = 28, 4, 4
WIDTH = SIDE + 2 * PADDING
GRID = SIDE // STRIDE
SCALES, DIRECTIONS = 2, 8
CHANNELS = 1 + SCALES * DIRECTIONS + DIRECTIONS**2
FEATURES = CHANNELS * GRID**2
CHUNK = 500
DIRECTIONS_KEPT = 599
"""All that 600 images span; a validation split was better with more of them."""
VERSION = 1
"""Increase it when features change, so that kept ones are not read."""


def wavelet_features(images: Tensor) -> Tensor:
    """Return the features of images, of shape (rows, 784) in [0, 1], as (rows, FEATURES).

    >>> wavelet_features(torch.rand(2, 784)).shape
    torch.Size([2, 3969])
    """
    return torch.cat([_normalised(scattering(part)) for part in torch.split(images, CHUNK)])


def projected_features(images: Tensor, public: Tensor, kept: Path) -> Tensor:
    """Return features of ``images`` along the main directions of the ``public`` images' features.

    Features are computed once, and kept in the file ``kept``.
    """
    if not kept.exists():
        centre, directions = _main_directions(wavelet_features(public))
        parts = [
            (wavelet_features(part) - centre) @ directions for part in torch.split(images, CHUNK)
        ]
        kept.parent.mkdir(parents=True, exist_ok=True)
        with new_file(kept, overwrite=True) as draft, draft.open("wb") as stream:
            np.save(stream, torch.cat(parts).numpy())
    return torch.from_numpy(np.load(kept, allow_pickle=False))


def _main_directions(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of features, and the directions of their largest variances as columns."""
    centre = features.mean(0)
    _, _, directions = torch.linalg.svd((features - centre).double(), full_matrices=False)
    return centre, directions[:DIRECTIONS_KEPT].T.to(features.dtype)


def _normalised(channels: Tensor) -> Tensor:
    return group_norm(channels, CHANNELS).flatten(1)


def scattering(images: Tensor) -> Tensor:
    """Return the smoothed moduli, of shape (rows, CHANNELS, GRID, GRID)."""
    fine, coarse = (_wavelets(scale) for scale in range(SCALES))
    padded = pad(images.reshape(-1, 1, SIDE, SIDE), (PADDING,) * 4, mode="reflect")
    spectrum = torch.fft.fft2(padded)
    first = torch.fft.ifft2(spectrum * fine).abs()
    found = [_smoothed(padded), _smoothed(first), _smoothed(_halved(spectrum * coarse).abs())]
    for direction in torch.fft.fft2(first).unbind(1):
        found.append(_smoothed(_halved(direction[:, None] * coarse).abs()))
    return torch.cat(found, 1)


def _halved(spectrum: Tensor) -> Tensor:
    """Return every second pixel of each direction of the image with this spectrum."""
    half = WIDTH // 2
    folded = spectrum.reshape(*spectrum.shape[:-2], 2, half, 2, half).sum((-4, -2))
    return torch.div(torch.fft.ifft2(folded), 4)


def _smoothed(images: Tensor) -> Tensor:
    """Return Gaussian means around the points of the grid."""
    weights = _gaussian(images.shape[-1])
    return weights @ images @ weights.T


@cache
def _gaussian(width: int) -> Tensor:
    """Return one row of weights, which add up to 1, for each point of the grid."""
    pixels = torch.arange(width) * (WIDTH / width)
    centres = PADDING + (STRIDE - 1) / 2 + STRIDE * torch.arange(GRID)
    deviation = 0.8 * 2 ** (SCALES - 1)
    weights = torch.exp(-((pixels - centres[:, None]) ** 2) / (2 * deviation**2))
    return weights / weights.sum(1, keepdim=True)


@cache
def _wavelets(scale: int) -> Tensor:
    """Return the spectra of the wavelets of all directions; their mean is 0."""
    angles = [math.pi * direction / DIRECTIONS for direction in range(DIRECTIONS)]
    return torch.stack([torch.fft.fft2(_morlet(scale, angle)) for angle in angles]).to(
        torch.complex64
    )


def _morlet(scale: int, angle: float) -> Tensor:
    deviation, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    pixels = (torch.arange(WIDTH, dtype=torch.float64) + WIDTH // 2) % WIDTH - WIDTH // 2
    x, y = torch.meshgrid(pixels, pixels, indexing="ij")
    along = x * math.cos(angle) + y * math.sin(angle)
    across = y * math.cos(angle) - x * math.sin(angle)
    slant = 4 / DIRECTIONS
    window = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * deviation**2))
    wave = torch.polar(window, frequency * along)
    wave = wave - window * (wave.sum() / window.sum())
    return torch.mul(wave, slant / (2 * math.pi * deviation**2))
