"""Methods: chains of stages, and the side information that they read.

- `paper`: every method of the paper, one expression each.
- `successors`: methods that came after it, in the same words.
- `stages`: what a chain is made of, and `chain`, which checks the order. A new stage is a frozen
  dataclass with a ``rule``; its contract is tests/contract/test_stage_rules.py.
- `side`: sources of side information. A new source has the methods of `SideSource`; its contract is
  tests/contract/test_side_sources.py.

A new sampler goes into `adadps.accounting.samplers`.
"""

from adadps.methods.paper import (
    adadps,
    adadps_public,
    adadps_two_sided,
    adas,
    dp_adagrad,
    dp_adam,
    dp_adam_pub,
    dp_r_pub,
    dp_rmsprop,
    dp_sgd,
    dp_sgd_weighted,
    ideal,
    pda_dpmd,
    plain_adam,
    plain_rmsprop,
    plain_sgd,
    warm_start,
    whitened,
)
from adadps.methods.successors import (
    dp2,
    dp_adam_bc,
    dp_sgd_adaptive_clip,
    dp_sgd_auto_clip,
    scale_then_privatize,
)

__all__ = [
    "adadps",
    "adadps_public",
    "adadps_two_sided",
    "adas",
    "dp2",
    "dp_adagrad",
    "dp_adam",
    "dp_adam_bc",
    "dp_adam_pub",
    "dp_r_pub",
    "dp_rmsprop",
    "dp_sgd",
    "dp_sgd_adaptive_clip",
    "dp_sgd_auto_clip",
    "dp_sgd_weighted",
    "ideal",
    "pda_dpmd",
    "plain_adam",
    "plain_rmsprop",
    "plain_sgd",
    "scale_then_privatize",
    "warm_start",
    "whitened",
]
