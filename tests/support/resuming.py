"""A small run that is stopped and resumed, for the tests of checkpoints."""

from functools import partial

import numpy as np
import torch
from dp_accounting import GaussianDpEvent
from scipy import sparse

import adadps
import adadps.accounting.ledger.summary
from adadps import (
    Checkpoints,
    PrivateRun,
    chain,
    examples,
    poisson,
    privatize,
    public_examples,
    side,
    sparse_linear,
)
from adadps.methods.side.source import Transform
from adadps.methods.stages import (
    average_weights,
    momentum,
    precondition,
    rmsprop,
    sgd,
    update_with,
)
from support.problems import cross_entropy

RNG = np.random.default_rng(5)
DENSE = RNG.normal(size=(30, 6)).astype(np.float32)
WORDS = sparse.random(30, 6, density=0.4, format="csr", random_state=RNG, dtype=np.float32)
LABELS = RNG.integers(3, size=30)
TOLD = {"source": "a table", "public_because": "made up for a test"}
PUBLIC = public_examples(RNG.normal(size=(8, 6)), RNG.integers(3, size=8), batch_size=4, **TOLD)
FREQUENCIES = side.given_frequencies(np.arange(1, 7) / 6, **TOLD)
FREQUENT = side.frequency(FREQUENCIES, floor=0.01, power=0.5)
FULL = side.fixed({"weight": torch.linspace(0.5, 2, 18).view(3, 6)}, **TOLD)
RMS = side.public(PUBLIC, side.RMSPropStatistics(decay=0.9, epsilon=1e-3), refresh_every=3)
ADAM = side.public(
    PUBLIC, side.AdamStatistics(mixing=0.5, first_decay=0.9, second_decay=0.99, epsilon=1e-3)
)
SILENT = privatize(clip_norm=0.5, noise_multiplier=0.0)
NOISY = privatize(clip_norm=1.0, noise_multiplier=5.0)
METHODS = {
    "dp_sgd": adadps.dp_sgd(SILENT, lr=0.3),
    "dp_adam": adadps.dp_adam(SILENT, lr=0.1),
    "dp_rmsprop": adadps.methods.dp_rmsprop(SILENT, lr=0.1),
    "dp_adagrad": adadps.methods.dp_adagrad(SILENT, lr=0.1),
    "frequency": adadps.adadps(FREQUENT, SILENT, lr=0.3),
    "full diagonal": adadps.adadps(FULL, SILENT, lr=0.3),
    "weight decay": chain(precondition(FREQUENT), SILENT, sgd(0.3, weight_decay=0.1)),
    "public rmsprop": adadps.adadps(RMS, SILENT, lr=0.3),
    "public adam": adadps.adadps(ADAM, SILENT, lr=0.3),
    "momentum": chain(SILENT, momentum(0.9, debias=True), sgd(0.3)),
    "mixed": chain(
        SILENT, adadps.stages.mix(PUBLIC, 0.7), momentum(0.9), precondition(RMS), sgd(0.3)
    ),
    "weighted": adadps.methods.dp_sgd_weighted(FREQUENT, SILENT, lr=0.3),
    "warm start": chain(adadps.stages.pretrain(PUBLIC, rmsprop(0.01), epochs=2), SILENT, sgd(0.3)),
    "dp_adam_bc": adadps.methods.dp_adam_bc(SILENT, lr=0.1),
    "dp_sgd_auto_clip": adadps.methods.dp_sgd_auto_clip(SILENT, lr=0.3),
    "dp2": adadps.methods.dp2(SILENT, lr=0.3, preconditioned_lr=0.01, delay=3, reuse=2),
    "scale_then_privatize": adadps.methods.scale_then_privatize(SILENT, lr=0.1),
    "dp_sgd_adaptive_clip": adadps.methods.dp_sgd_adaptive_clip(SILENT, lr=0.3),
    "decaying rate": adadps.dp_sgd(SILENT, lr=lambda t: 0.5 / t),
    "averaged": chain(precondition(FREQUENT), SILENT, sgd(0.3), average_weights(0.8)),
    "optimizer of torch": chain(
        SILENT,
        update_with(
            torch.optim.AdamW,
            lr=0.1,
            parameter_groups={"*": {"weight_decay": 0.1}},
            scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=12),
        ),
        average_weights(0.5),
    ),
}
WHITENED = adadps.methods.whitened(PUBLIC, SILENT, lr=0.3, refresh_every=3)
KINDS = {"dense": DENSE, "words": WORDS}
EVERYONE = poisson(examples=30, expected_size=30)
SOME = poisson(examples=30, expected_size=6)


def model():
    torch.manual_seed(3)
    return sparse_linear(6, 3, bias=False)


def begin(folder, method=None, *, features=DENSE, sampler=SOME, steps=12, every=4, **options):
    return PrivateRun(
        model(),
        cross_entropy,
        examples(features, LABELS),
        method=method or adadps.dp_sgd(NOISY, lr=0.1),
        sampler=sampler,
        steps=steps,
        checkpoints=Checkpoints(folder, every=every),
        **options,
    )


def advance(run, until=None):
    """Step until ``until`` steps are taken; then the process is as good as dead."""
    for batch in run.batches():
        run.step(batch)
        if batch.index == until:
            break
    return run


def weights(run):
    return {name: value.clone() for name, value in run.params.items()}


class Measured:
    """Side information that is drawn when it is read, and has a price."""

    provenance = FREQUENCIES.provenance
    event = GaussianDpEvent(20.0)

    def __init__(self):
        self.drawn = 0

    def init(self, params):
        return params

    def observe(self, state, _step):
        if isinstance(state, Transform):
            return state, state
        self.drawn += 1
        scale = {name: torch.rand(p.shape).double() + 1 for name, p in state.items()}
        return Transform(scale, lent=False), Transform(scale, lent=False)
