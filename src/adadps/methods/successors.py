"""Methods that came after the paper, or beside it, one expression each.

As in `adadps.methods.paper`, ``privacy`` is a `privatize` stage, which `fit` fills in if it is left
out. What these methods learn during training they learn from what they have released before, which
costs nothing more; the one exception, the count of adaptive clipping, is a part of what every step
pays for.
"""

from adadps.methods.paper import OPEN
from adadps.methods.stages import Chain, adam_bc, chain, clip_automatically, sgd
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
