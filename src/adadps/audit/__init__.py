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
from adadps.audit.observers import Released, observers_along
from adadps.audit.one_run import audit_one_run
from adadps.audit.outcome import AuditResult, Claim
from adadps.audit.repeated import Neighbours, audit_repeated, trainer_of

__all__ = [
    "AuditResult",
    "Canaries",
    "Claim",
    "Neighbours",
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
