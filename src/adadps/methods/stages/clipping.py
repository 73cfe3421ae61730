"""Releases that clip by another rule than min(1, C/‖g‖), with the same Gaussian mechanism.

`clip_automatically` normalises gradients, so that no clip norm has to be tuned. A unit still
contributes at most C to the sum, and a step costs what it costs with `privatize`.

`clip_adaptively` lets C follow a quantile of the norms, by a noisy count in every step. The count
is paid for: a step releases *two* sums over the same batch, S of clipped gradients and B of ±½, one
for each unit within C or beyond it. With noise of zC and ½z' they are one Gaussian mechanism, since
one unit moves (S/(zC), B/(½z')) by at most √(1/z² + 1/z'²) = 1/σ. The total σ is what is given,
calibrated, charged and reported; 1/z'² is a ``share`` of 1/σ², and 1/z² the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.engine.waist import (
    GradientBatch,
    ReleasedGradient,
    Step,
    clip_weights,
)
from adadps.errors import ContractError, require
from adadps.methods.stages.gradients import Privatize
from adadps.methods.stages.users import Users
from adadps.tensors.sums import LEAST_CLIP_NORM, Params, dense

MOST_CHANGE = 1e6
"""C stays within this factor of where it started."""

LARGEST = 1e300
"""C does not leave the range of float64, wherever it started."""

LEAST_STABILITY = 1e-6
"""With less, gradients that are rounding errors would be stretched to the clip norm."""


@dataclass(frozen=True)
class AutomaticClip(Privatize):
    """(1/b) (Σ_i C g_i / (‖g_i‖ + γ) + N(0, σ²C²)). Build it with `clip_automatically`."""

    stability: float

    def __post_init__(self) -> None:
        _require_own_clip(self)

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
    return AutomaticClip(clip_norm, privacy.noise_multiplier, privacy.groups, stability)


@dataclass(frozen=True)
class AdaptiveClip(Privatize):
    """`privatize` with a clip norm that follows a quantile. Build it with `clip_adaptively`."""

    quantile: float
    rate: float
    share: float

    def __post_init__(self) -> None:
        _require_own_clip(self)

    def init(self, params: Params) -> tuple[Params, Tensor]:
        """The parameters, and the clip norm of the first step.

        It is a tensor, because checkpoints keep what was learnt from releases among the tensors.
        """
        return params, torch.tensor(self.clip_norm, dtype=torch.float64)

    def apply(
        self, signal: GradientBatch, state: tuple[Params, Tensor], step: Step
    ) -> tuple[ReleasedGradient, tuple[Params, Tensor]]:
        """Clip at C of past steps, and let the next C follow from a noisy count."""
        self._require_chosen()
        params, clip_norm = state[0], float(state[1])
        step.watch("clip_norm", torch.tensor([clip_norm], dtype=torch.float64))
        counted = torch.zeros((), dtype=torch.float64)

        def weigh(norms: Tensor) -> Tensor:
            step.watch("norms", norms)
            counted.add_(halves(norms, clip_norm).sum().cpu())
            return clip_weights(norms, clip_norm)

        total = step.sum(signal, weigh, params)
        released = self._noised(total, clip_norm, step)
        count = dense(step.group.sum({"count": counted})["count"])
        return released, (params, self._following(clip_norm, count, step))

    def _following(self, clip_norm: float, counted: Tensor, step: Step) -> Tensor:
        """C exp(-η (p - quantile)), where p is the noisy share of units within C."""
        noisy = step.noise.release(counted, standard_deviation=self.noise_of_count)
        size = step.expected_size
        units = self.groups.expected_units(size) if self.groups else size
        within = 0.5 + float(noisy) / units
        wanted = math.log(clip_norm) - self.rate * (within - self.quantile)
        least = max(self.clip_norm / MOST_CHANGE, min(self.clip_norm, LEAST_CLIP_NORM))
        most = min(self.clip_norm * MOST_CHANGE, LARGEST)
        following = math.exp(min(max(wanted, math.log(least)), math.log(most)))
        return torch.tensor(following, dtype=torch.float64)

    def _noise(self, step: Step) -> float:
        """Of the sum, in units of C: more than σ, because the count has its share."""
        return super()._noise(step) / math.sqrt(1 - self.share)

    @property
    def noise_of_count(self) -> float:
        """The standard deviation of the noise on the count, to which a unit adds ½ at most."""
        return 0.5 * self.noise_multiplier / math.sqrt(self.share)

    @property
    def clipping(self) -> str:
        """What C means here, and what the count costs."""
        of_sum, of_count = 1 / math.sqrt(1 - self.share), 0.5 / math.sqrt(self.share)
        return (
            f"C is where the clip norm starts; it then follows quantile {self.quantile:g} of the "
            f"norms (rate {self.rate:g}) by a noisy count in every step. The count is paid for: it "
            f"takes {self.share:g} of 1/σ². The sum has noise of {of_sum:.6g} σC, the count of "
            f"{of_count:.6g} σ, and both together are one release with noise multiplier σ"
        )

    def __str__(self) -> str:
        settings = f"quantile={self.quantile:g}, rate={self.rate:g}, share={self.share:g}"
        return f"clip_adaptively({super().__str__()}, {settings})"


def halves(norms: Tensor, clip_norm: float) -> Tensor:
    """+½ for a norm of at most C, -½ for a larger one; 0 for a unit that contributes nothing.

    A unit that is blanked out has a gradient of 0 and must not be counted: from -½ to +½ would be
    twice the sensitivity.

    >>> halves(torch.tensor([0.0, 1.0, 2.0, 3.0]), 2.0)
    tensor([ 0.0000,  0.5000,  0.5000, -0.5000])
    """
    signs = torch.where(norms <= clip_norm, 0.5, -0.5)
    return torch.where(norms > 0, signs, 0.0)


def clip_adaptively(
    privacy: Privatize, *, quantile: float = 0.5, rate: float = 0.2, share: float = 0.01
) -> AdaptiveClip:
    """Let the clip norm follow a quantile of the norms, by a noisy count that is paid for.

    The clip norm of ``privacy`` is that of the first step. After each step it is multiplied by
    exp(-rate · (p - quantile)), where p is the share of units whose norm was within it, with noise
    (Andrew, Thakkar, McMahan and Ramaswamy, 2021). The count takes ``share`` of what a step pays
    for: σ stays the noise multiplier of the whole step, and the gradients get noise of
    σC/√(1 - share). With 0.01 that is half a percent more than without the count, whose own noise,
    5 σ, is small beside batches of a hundred units and more.

    >>> from adadps.methods.stages import privatize
    >>> print(clip_adaptively(privatize(clip_norm=0.1, noise_multiplier=2.0), quantile=0.8))
    clip_adaptively(privatize(C=0.1, σ=2), quantile=0.8, rate=0.2, share=0.01)
    """
    require(0 < quantile < 1, "0 < quantile < 1", quantile, "0.5 follows the median norm.")
    require(0 < rate < math.inf, "a finite rate > 0", rate, "0.2 is a common choice.")
    require(
        1e-6 <= share <= 0.5,
        "a share between 1e-6 and 0.5",
        share,
        "It is the part of 1/σ² that goes to the count.",
    )
    _require_plain(privacy)
    return AdaptiveClip(
        privacy.clip_norm, privacy.noise_multiplier, privacy.groups, quantile, rate, share
    )


def _require_plain(privacy: Privatize) -> None:
    if type(privacy) is not Privatize:
        raise ContractError(
            f"Expected `privatize(...)`, found `{privacy}`. Gradients are clipped by one rule."
        )


def _require_own_clip(release: Privatize) -> None:
    """Refuse an infinite C, and devices that add noise: they clip at a fixed C before it."""
    require(
        release.clip_norm != math.inf,
        "a finite clip_norm",
        release.clip_norm,
        "Gradients are clipped by it, or the clip norm starts there.",
    )
    if isinstance(release.groups, Users) and release.groups.noise.on_device(1.0) > 0:
        raise ContractError(
            f"Expected noise that is added where gradients are clipped, found `{release}`, whose "
            "devices clip at a fixed norm and add noise. Use `privatize`, or `by_server()`."
        )
