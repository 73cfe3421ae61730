"""Settings of the methods that came after the paper, from public numbers alone.

All of them are in units of the noise, whose standard deviation in an entry of the released mean is
σC/b:

- *DP-AdamBC* subtracts (σC/b)² from its second moment. An average over a few hundred steps leaves
  an error of some percent of it, so that the floor is a share of (σC/b)², and the learning rate
  falls with the root of that share: noise then moves the weights as far as with DP-Adam.
- *DP²* averages s releases, a share of the run. Entries of A that are noise alone are about
  √(1 - β) σC/(b√s), which is its ε; ``gain`` takes A back to 1 there, times `GAIN`, because
  gradients are divided by more where there is something to learn.
- *Adaptive clipping* starts at the clip norm of the rule and moves to the median norm, which begins
  at that of the first gradient and falls as the model learns. Noise grows with C, so that the
  learning rate is the one for a clip norm between the two: their geometric mean.
"""

from __future__ import annotations

import math

from adadps.errors import SettingError
from adadps.methods.stages import Chain
from adadps.methods.stages.gradients import Privatize
from adadps.methods.successors import (
    dp2,
    dp_adam_bc,
    dp_sgd_adaptive_clip,
    dp_sgd_auto_clip,
    scale_then_privatize,
)
from adadps.types import Method

SUCCESSORS = (
    Method.DP_ADAM_BC,
    Method.DP_SGD_AUTO_CLIP,
    Method.DP_SGD_ADAPTIVE_CLIP,
    Method.DP2,
    Method.SCALE_THEN_PRIVATIZE,
)
NORMALISED = (Method.DP_ADAM, Method.DP_ADAM_BC, Method.SCALE_THEN_PRIVATIZE)
"""Methods whose steps have the same length whatever the noise."""

FLOOR_SHARE = 0.1
"""The floor of DP-AdamBC, as a share of the variance of the noise."""
PERIODS, DECAY, GAIN = 5, 0.9, 4.0
"""DP² averages and preconditions in turns, this many times in a run."""


def successor(method: Method, privacy: Privatize, lr: float, *, steps: int, size: float) -> Chain:
    """Return the stages of a method, for a run of ``steps`` steps on batches of ``size`` units.

    >>> from adadps.methods.stages import privatize
    >>> privacy = privatize(clip_norm=1.0, noise_multiplier=2.0)
    >>> str(successor(Method.DP_ADAM_BC, privacy, 0.1, steps=400, size=20.0))
    'privatize(C=1, σ=2) > adam_bc(0.1, floor=0.001)'
    """
    noise = privacy.noise_multiplier * privacy.clip_norm / size
    match method:
        case Method.DP_ADAM_BC:
            return dp_adam_bc(privacy, lr=lr, floor=FLOOR_SHARE * noise**2)
        case Method.DP_SGD_AUTO_CLIP:
            return dp_sgd_auto_clip(privacy, lr=lr)
        case Method.DP_SGD_ADAPTIVE_CLIP:
            return dp_sgd_adaptive_clip(privacy, lr=lr)
        case Method.DP2:
            delay = max(1, steps // (2 * PERIODS))
            level = math.sqrt((1 - DECAY) / delay) * noise
            return dp2(
                privacy,
                lr=lr,
                preconditioned_lr=lr,
                delay=delay,
                decay=DECAY,
                epsilon=level,
                gain=GAIN * level,
            )
        case Method.SCALE_THEN_PRIVATIZE:
            return scale_then_privatize(privacy, lr=lr)
    raise SettingError(f"Expected one of {', '.join(SUCCESSORS)}, found {method.value}.")


def rate_factor(method: Method, clip_share: float) -> float:
    """Return by what a successor multiplies the learning rate of DP-SGD, or of DP-Adam.

    ``clip_share`` is the clip norm of the first step divided by the norm of a first gradient.

    >>> rate_factor(Method.DP_SGD_ADAPTIVE_CLIP, 0.25), rate_factor(Method.DP2, 0.25)
    (0.5, 1.0)
    """
    if method is Method.DP_ADAM_BC:
        return math.sqrt(FLOOR_SHARE)
    return math.sqrt(min(1.0, clip_share)) if method is Method.DP_SGD_ADAPTIVE_CLIP else 1.0
