"""Wavelet features: those of the scattering transform, of each image alone."""

import math

import numpy as np
import pytest
import torch

from adadps_experiments.reproduce.images import wavelets


def images(rows, seed=0):
    return torch.rand(rows, 784, generator=torch.Generator().manual_seed(seed))


def stripes(angle):
    x, y = np.meshgrid(np.arange(28), np.arange(28), indexing="ij")
    wave = np.cos(0.75 * math.pi * (x * math.cos(angle) + y * math.sin(angle)))
    return torch.from_numpy(0.5 + 0.5 * wave).float().reshape(1, 784)


def test_features_of_an_image_do_not_depend_on_the_others():
    few = images(5)
    alone = torch.cat([wavelets.wavelet_features(image[None]) for image in few])
    assert torch.allclose(wavelets.wavelet_features(few), alone, atol=1e-4)


def test_an_even_image_has_no_moduli():
    found = wavelets.scattering(torch.full((1, 784), 0.7))
    assert torch.allclose(found[:, 0], torch.tensor(0.7), atol=1e-5)
    assert found[:, 1:].abs().max() < 1e-5


@pytest.mark.parametrize("direction", range(wavelets.DIRECTIONS))
def test_stripes_are_seen_by_the_wavelet_of_their_direction(direction):
    found = wavelets.scattering(stripes(math.pi * direction / wavelets.DIRECTIONS))
    fine = found[0, 1 : 1 + wavelets.DIRECTIONS, 2:5, 2:5].mean((1, 2))
    assert int(fine.argmax()) == direction


def test_half_the_resolution_is_enough_for_coarse_wavelets():
    spectrum = torch.fft.fft2(images(3).reshape(-1, 1, 28, 28).repeat(1, 1, 2, 2)[..., :36, :36])
    coarse = spectrum * wavelets._wavelets(1)
    whole = torch.fft.ifft2(coarse)
    assert torch.allclose(wavelets._halved(coarse), whole[..., ::2, ::2], atol=1e-5)
    half, full = (wavelets._smoothed(held.abs()) for held in (wavelets._halved(coarse), whole))
    assert (half - full).abs().mean() < 0.05 * full.mean()


def test_only_public_images_choose_the_directions_and_features_are_kept(tmp_path, monkeypatch):
    few, public = images(12), images(6, seed=1)
    every = wavelets.projected_features(few, public, tmp_path / "new" / "a.npy")
    assert every.shape == (12, 6)
    some = wavelets.projected_features(few[:4], public, tmp_path / "b.npy")
    assert torch.allclose(every[:4], some, atol=1e-3)
    monkeypatch.setattr(wavelets, "wavelet_features", None)
    again = wavelets.projected_features(few, public, tmp_path / "new" / "a.npy")
    assert torch.equal(again, every)
