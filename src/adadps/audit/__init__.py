"""Audits: an empirical lower bound on ε, with its confidence, against the ε that is claimed.

- `repeated`: many runs with and without one worst-case example (`worst_case`); `repeated_bound` has
  the mathematics.
- `one_run`: one run with many canaries (`canaries`); `one_run_bound` has the mathematics.
- `built_in`: the settings of `adadps audit`, one per path through the engines. A new engine or
  method is added to its tables `PATHS` and `METHODS`.
- `outcome`: claims, bounds and verdicts.
"""

from adadps.audit.canaries import (
    Canaries,
    distance,
    given_canaries,
    loss_drop,
    own_feature_canaries,
    pull,
    stillness,
)
from adadps.audit.one_run import audit_one_run
from adadps.audit.outcome import AuditResult, PrivacyClaim
from adadps.audit.repeated import Neighbours, Released, audit_repeated, observers_along, trainer_of

__all__ = [
    "AuditResult",
    "Canaries",
    "Neighbours",
    "PrivacyClaim",
    "Released",
    "audit_one_run",
    "audit_repeated",
    "distance",
    "given_canaries",
    "loss_drop",
    "observers_along",
    "own_feature_canaries",
    "pull",
    "stillness",
    "trainer_of",
]
