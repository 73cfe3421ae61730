"""The ways to train that `adadps bench` compares, in the order of its tables."""

from __future__ import annotations

from adadps_experiments.bench.contenders import microbatch, opacus_steps, ours, plain
from adadps_experiments.bench.contenders.trainer import Trainer

OURS = "adadps"
"""The contender that all others are compared with."""

_CONTENDERS: tuple[Trainer, ...] = (
    Trainer(OURS, "AdaDPS, A for every weight", ours.prepare_with(ours.full), ours.needs),
    Trainer(
        "adadps-feature", "AdaDPS, A by feature", ours.prepare_with(ours.by_feature), ours.needs
    ),
    Trainer("adadps-dp-sgd", "DP-SGD in adadps", ours.prepare_with(ours.dp_sgd), ours.needs),
    Trainer(
        "adadps-whitened",
        "whitening, measured once",
        ours.prepare_whitened,
        ours.needs,
        exists=ours.reads_images,
    ),
    Trainer("torch", "SGD, no privacy, dense gradients", plain.prepare_dense, plain.needs),
    Trainer(
        "torch-sparse",
        "SGD, no privacy, sparse gradients",
        plain.prepare_sparse,
        plain.needs,
        exists=plain.has_sparse_form,
    ),
    Trainer(
        "opacus-hooks",
        "DP-SGD in Opacus, one gradient per example",
        opacus_steps.prepare_hooks,
        opacus_steps.needs_hooks,
        package="opacus",
    ),
    Trainer(
        "opacus-ghost",
        "DP-SGD in Opacus, ghost clipping",
        opacus_steps.prepare_ghost,
        opacus_steps.needs_ghost,
        package="opacus",
    ),
    Trainer(
        "microbatch-loop", "AdaDPS, groups of four, no ε", microbatch.prepare, microbatch.needs
    ),
)
CONTENDERS: dict[str, Trainer] = {contender.name: contender for contender in _CONTENDERS}
"""All contenders by the name that `adadps bench --contender` takes."""
