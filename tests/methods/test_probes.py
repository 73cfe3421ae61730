"""Made-up examples: of the kind they promise, the same in every process, and useful to whiten."""

import numpy as np
import pytest
import torch
from torch import nn

import adadps
from adadps.engine.passes.validation import objective
from adadps.errors import SettingError
from adadps.methods.side import given_frequencies, image_probes, token_probes, whiten

SHARES = given_frequencies(
    np.array([0.5, 0.3, 0.2, 0.0]), source="a list", public_because="published", of_texts=False
)


def test_the_amplitude_of_a_frequency_falls_like_one_over_f():
    pixels = image_probes(200, (64, 64), mean=0.0, spread=1.0, bounds=(-9, 9)).examples.features
    spectrum = np.abs(np.fft.rfft2(pixels.numpy()))
    amplitude = np.sqrt((spectrum**2).mean(0))
    # along one axis, at 4 and 16 periods an image: four times the frequency, a quarter
    assert amplitude[0, 4] / amplitude[0, 16] == pytest.approx(4, rel=0.15)
    assert amplitude[4, 0] / amplitude[16, 0] == pytest.approx(4, rel=0.15)
    assert float(pixels.std()) == pytest.approx(1, rel=0.01)


def test_images_have_the_form_that_was_asked_for():
    probes = image_probes(7, (3, 8, 9), classes=4, mean=0.2, spread=0.5, seed=3)
    held = probes.examples
    assert held.features.shape == (7, 3, 8, 9)
    assert held.features.dtype == torch.float32
    assert float(held.features.min()) >= 0
    assert float(held.features.max()) <= 1
    assert set(held.targets.tolist()) <= set(range(4))
    again = image_probes(7, (3, 8, 9), classes=4, mean=0.2, spread=0.5, seed=3)
    assert torch.equal(held.features, again.examples.features)
    other = image_probes(7, (3, 8, 9), classes=4, mean=0.2, spread=0.5, seed=4)
    assert not torch.equal(held.features, other.examples.features)
    assert len(probes.batch(5).examples) == 7


def test_tokens_are_as_frequent_as_the_list_says():
    probes = token_probes(SHARES, 500, 40, classes=2, first=2)
    tokens = probes.examples.features
    assert tokens.shape == (500, 40)
    shares = torch.bincount(tokens.flatten(), minlength=6) / tokens.numel()
    assert shares.tolist() == pytest.approx([0, 0, 0.5, 0.3, 0.2, 0], abs=0.015)
    assert "a list" in probes.provenance.source


@pytest.mark.parametrize(
    "asked",
    [
        lambda: image_probes(0, (8, 8)),
        lambda: image_probes(5, (8,)),
        lambda: image_probes(5, (8, 0)),
        lambda: image_probes(5, (8, 8), spread=0),
        lambda: image_probes(5, (8, 8), bounds=(1, 0)),
        lambda: image_probes(5, (8, 8), classes=0),
        lambda: token_probes(SHARES, 5, 0, classes=2),
        lambda: token_probes(SHARES, 5, 3, classes=0),
        lambda: token_probes(SHARES, 5, 3, classes=2, first=-1),
    ],
)
def test_what_cannot_be_drawn_is_refused(asked):
    with pytest.raises(SettingError, match="Expected"):
        asked()


def test_probes_whiten_images_that_they_have_never_seen():
    """Sums of waves are smooth, too: their strong directions are those of 1/f noise."""
    rng = np.random.default_rng(0)
    line = np.arange(12) / 12
    waves = [
        np.outer(np.sin(2 * np.pi * (a * line + b)), np.cos(2 * np.pi * (c * line + d)))
        for a, b, c, d in rng.random((2000, 4)) * 2
    ]
    images = torch.tensor(np.array(waves), dtype=torch.float32).flatten(1) / 4 + 0.5
    probes = image_probes(600, (12, 12)).examples.features.flatten(1)
    public = adadps.public_examples(
        probes, probes, source="1/f noise", public_because="made up", batch_size=600
    )
    model = nn.Sequential(nn.Linear(144, 144, bias=False))
    held = objective(model, lambda out, target: (out - target).square().mean(1), public.examples)
    gradients = held.of_public_rows(held.params(), public.examples)
    transform = whiten(public)._transform(gradients, whiten(public).init(held.params()).ones)
    (root,) = transform.inputs.values()

    def share_of_strongest(rows):
        values = torch.linalg.eigvalsh((rows.T @ rows).double())
        return float(values[-1] / values.sum())

    assert share_of_strongest(images) > 0.8
    assert share_of_strongest(images @ root) < 0.4
