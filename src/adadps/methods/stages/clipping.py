"""Releases that clip by another rule than min(1, C/‖g‖), with the same Gaussian mechanism.

`clip_automatically` normalises gradients, so that no clip norm has to be tuned. A unit still
contributes at most C to the sum, and a step costs what it costs with `privatize`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.engine.waist import Step
from adadps.errors import ContractError, require
from adadps.methods.stages.gradients import Privatize
from adadps.methods.stages.users import Users

LEAST_STABILITY = 1e-6
"""With less, gradients that are rounding errors would be stretched to the clip norm."""


@dataclass(frozen=True)
class AutomaticClip(Privatize):
    """(1/b) (Σ_i C g_i / (‖g_i‖ + γ) + N(0, σ²C²)). Build it with `clip_automatically`."""

    stability: float

    def __post_init__(self) -> None:
        _require_no_noise_on_devices(self)

    def _weights(self, norms: Tensor, step: Step) -> Tensor:
        """C / (‖g_i‖ + γ), and 0 for a norm that is NaN or infinite."""
        step.watch("norms", norms)
        return torch.nan_to_num(self.clip_norm / (norms + self.stability), nan=0.0)

    @property
    def clipping(self) -> str:
        """What C means here."""
        return f"every gradient g is multiplied by C / (‖g‖ + {self.stability:g})"

    def __str__(self) -> str:
        return f"clip_automatically({super().__str__()}, γ={self.stability:g})"


def clip_automatically(privacy: Privatize, *, stability: float = 0.01) -> AutomaticClip:
    """Multiply each unit's gradient by C / (‖g‖ + γ) instead of clipping it at C.

    Every contribution is shorter than C, however long the gradient, so that the noise σC and its
    price are those of ``privacy``. C only scales what is released, as a learning rate does: where
    ``privacy`` leaves it open, it is 1. ``stability`` is γ: gradients much shorter than γ keep
    their relative lengths, so that training can end (Bu, Wang, Zha and Karypis, 2023).

    >>> from adadps.methods.stages import privatize
    >>> print(clip_automatically(privatize(noise_multiplier=2.0)))
    clip_automatically(privatize(C=1, σ=2), γ=0.01)
    """
    require(
        LEAST_STABILITY <= stability < math.inf,
        f"a finite stability of at least {LEAST_STABILITY:g}",
        stability,
        "0.01 is a common choice.",
    )
    _require_plain(privacy)
    clip_norm = 1.0 if math.isnan(privacy.clip_norm) else privacy.clip_norm
    require(clip_norm < math.inf, "a finite clip_norm", clip_norm, "Gradients are scaled to it.")
    return AutomaticClip(clip_norm, privacy.noise_multiplier, privacy.groups, stability)


def _require_plain(privacy: Privatize) -> None:
    if type(privacy) is not Privatize:
        raise ContractError(
            f"Expected `privatize(...)`, found `{privacy}`. Gradients are clipped by one rule."
        )


def _require_no_noise_on_devices(release: Privatize) -> None:
    """Refuse devices that add noise: they clip at a fixed C before it."""
    if isinstance(release.groups, Users) and release.groups.noise.on_device(1.0) > 0:
        raise ContractError(
            f"Expected noise that is added where gradients are clipped, found `{release}`, whose "
            "devices clip at a fixed norm and add noise. Use `privatize`, or `by_server()`."
        )
