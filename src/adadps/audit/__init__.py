"""Audits: an empirical lower bound on ε, with its confidence, beside the ε that is claimed."""

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
