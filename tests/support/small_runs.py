"""Small finished runs of every kind, for cards and reports."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from adadps import (
    Result,
    accuracy,
    adadps,
    dp_sgd,
    examples,
    fit,
    on_held_out,
    poisson,
    privatize,
    side,
)
from adadps.engine.losses import cross_entropy
from adadps.methods import adadps_two_sided
from adadps.methods.stages import Chain

FEATURES, LABELS = torch.rand(60, 5), torch.arange(60) % 3
KNOWN = [1.0, 0.5, 0.25, 0.1, 0.001]


def privacy(noise_multiplier: float = 4.0) -> Any:
    return privatize(clip_norm=0.5, noise_multiplier=noise_multiplier)


def words() -> Any:
    known = side.given_frequencies(KNOWN, source="a book", public_because="printed")
    return side.frequency(known, floor=0.01)


def noisy_words() -> Any:
    return side.noisy_frequencies(
        FEATURES > 0.5, clip_norm=1.0, noise_multiplier=9.0, floor=0.1, source="the mails"
    )


def before_the_clip() -> Chain:
    return adadps(words(), privacy(), lr=0.5)


def two_sided() -> Chain:
    known = words()
    return adadps_two_sided(known, known, privacy(), lr=0.5)


def trained(method: Chain | None = None, *, steps: int = 8, **options: Any) -> Result:
    """A run on random data; by default private, by PLD, and measured four times."""
    model = nn.Linear(5, 3, bias=False)
    nn.init.zeros_(model.weight)
    options.setdefault("sampler", poisson(examples=60, expected_size=6))
    options.setdefault(
        "evaluate", [on_held_out("the test", FEATURES, LABELS, every=2, accuracy=accuracy)]
    )
    return fit(
        model,
        cross_entropy,
        examples(FEATURES, LABELS),
        method=method or dp_sgd(privacy(), lr=0.5),
        steps=steps,
        **options,
    )
