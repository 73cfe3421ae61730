"""An audit by one run that the processes of a `support.team.Team` take together."""

import torch
from scipy import sparse

from adadps import dp_sgd, examples, poisson, privatize
from adadps.audit import audit_one_run, own_feature_canaries
from adadps.audit.worst_case import zero_linear
from adadps.engine.losses import squared_error
from museum.broken_parts import NoNoise

ROWS, CANARIES, STEPS = 40, 300, 2


def audited(waits, noise):
    """Return verdict, bound and claim; ``noise`` is added, or missing in all processes."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.rand(ROWS, 3, generator=generator)
    held = sparse.csr_matrix(rows.numpy()) if waits else rows
    data, canaries = own_feature_canaries(
        examples(held, torch.rand(ROWS, generator=generator)), count=CANARIES, target=100.0
    )
    stage = NoNoise(1.0, 12.0, None) if noise == "missing" else privatize(
        clip_norm=1.0, noise_multiplier=12.0
    )  # fmt: skip
    found = audit_one_run(
        zero_linear(3 + CANARIES),
        squared_error,
        data,
        canaries=canaries,
        method=dp_sgd(stage, lr=0.1),
        sampler=poisson(examples=ROWS + CANARIES, expected_size=ROWS + CANARIES),
        steps=STEPS,
        delta=1e-12,
        confidence=1 - 1e-6,
        progress=False,
    )
    return found.verdict, found.lower_bound, found.claim.epsilon
