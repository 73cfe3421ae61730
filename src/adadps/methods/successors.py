"""Methods that came after the paper, or beside it, one expression each.

As in `adadps.methods.paper`, ``privacy`` is a `privatize` stage, which `fit` fills in if it is left
out. What these methods learn during training they learn from what they have released before, which
costs nothing more; the one exception, the count of adaptive clipping, is a part of what every step
pays for.
"""

from adadps.methods.paper import OPEN
from adadps.methods.side import delayed_releases, release_moments
from adadps.methods.stages import Chain, adam, adam_bc, alternate, chain, clip_automatically
from adadps.methods.stages import clip_adaptively, precondition, sgd, unscale
from adadps.methods.stages.gradients import Privatize
from adadps.engine.waist import Schedule


# fmt: off
# ruff: noqa: I001
def dp_adam_bc(privacy: Privatize = OPEN, *, lr: Schedule, floor: float = 1e-8) -> Chain:
    """Adam with the variance of the noise subtracted from its second moment (DP-AdamBC)."""
    return chain(privacy, adam_bc(lr, floor=floor))

def dp_sgd_auto_clip(privacy: Privatize = OPEN, *, lr: Schedule, stability: float = 0.01) -> Chain:
    """Gradients divided by their norms instead of clipped: no clip norm to tune (AUTO-S)."""
    return chain(clip_automatically(privacy, stability=stability), sgd(lr))

def dp2(privacy: Privatize = OPEN, *, lr: Schedule, preconditioned_lr: Schedule, delay: int,
        reuse: int | None = None, decay: float = 0.9, epsilon: float = 1e-3,
        gain: float = 1.0) -> Chain:
    """Averages of its own releases precondition the next steps, before the clip (DP²)."""
    own = delayed_releases(delay=delay, reuse=reuse, decay=decay, epsilon=epsilon, gain=gain)
    rates = alternate(lr, own.delay, preconditioned_lr, own.reuse)
    return chain(precondition(own), privacy, sgd(rates))

def scale_then_privatize(privacy: Privatize = OPEN, *, lr: Schedule,
                         betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
                         scale_epsilon: float | None = None) -> Chain:
    """Adam whose own second moment scales gradients before the clip, and back after the noise."""
    own = release_moments(decay=betas[1],
                          epsilon=epsilon if scale_epsilon is None else scale_epsilon)
    return chain(precondition(own), privacy, unscale(own), adam(lr, betas=betas, epsilon=epsilon))

def dp_sgd_adaptive_clip(privacy: Privatize = OPEN, *, lr: Schedule, quantile: float = 0.5,
                         rate: float = 0.2, share: float = 0.01) -> Chain:
    """A clip norm that follows a quantile of the norms; its noisy count is a part of the price."""
    return chain(clip_adaptively(privacy, quantile=quantile, rate=rate, share=share), sgd(lr))
