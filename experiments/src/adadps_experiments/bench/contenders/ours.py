"""adadps itself: a `PrivateRun` with Poisson sampling, secure noise and a ledger."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from adadps.accounting.samplers import Sampler, poisson
from adadps.data.examples import Examples, examples, public_examples
from adadps.data.sparse_rows import sparse_linear
from adadps.engine.ghost import GhostEngine
from adadps.methods import paper as methods
from adadps.methods import side
from adadps.methods.side.source import Named
from adadps.methods.stages import Chain, chain, precondition, privatize, sgd
from adadps.methods.stages.gradients import Privatize
from adadps.training.fit import PrivateRun
from adadps_experiments.bench.contenders.trainer import (
    BYTES,
    CLIP_NORM,
    LR,
    NOISE_MULTIPLIER,
    Build,
    TimedStep,
)
from adadps_experiments.bench.workloads import (
    Autoencoder,
    ImageClassifier,
    SparseLogisticRegression,
    SyntheticData,
    Workload,
)

MOST_STEPS = 10_000
"""The declared length of a run, of which a measurement uses as many steps as it needs."""
PUBLIC = 200
"""How many made-up images are whitened by."""

Method = Callable[[nn.Module], Chain]


def full(model: nn.Module) -> Chain:
    """Return AdaDPS with one entry of A per weight: there is no structure that could save work."""
    return _adadps(full_side(model))


def by_feature(model: nn.Module) -> Chain:
    """Return AdaDPS with one entry of A per input feature, word or unit."""
    return _adadps(feature_side(model))


def dp_sgd(model: nn.Module) -> Chain:  # noqa: ARG001  (every method is made for a model)
    """Return DP-SGD, which has no side information."""
    return methods.dp_sgd(_privacy(), lr=LR)


def whitened_by(data: SyntheticData) -> Method:
    """Return whitening by made-up images, measured once: the time of a refresh does not count."""
    assert isinstance(data.features, Tensor)
    features = torch.rand(PUBLIC, *data.features.shape[1:])
    targets = features if data.targets is data.features else data.targets[:PUBLIC]
    public = public_examples(
        features,
        targets,
        source="drawn at random",
        public_because="it does not depend on any data",
        batch_size=PUBLIC,
    )
    return lambda _model: chain(
        precondition(side.whiten(public, refresh_every=MOST_STEPS)), _privacy(), sgd(LR)
    )


def reads_images(workload: Workload) -> bool:
    """Tell whether rows are images, which can be made up for whitening."""
    return isinstance(workload, Autoencoder | ImageClassifier)


def full_side(model: nn.Module) -> Named:
    """Draw a random A for every weight; biases get the median."""
    return {name: _positive(weight) for name, weight in _weights(model).items()}


def feature_side(model: nn.Module) -> Named:
    """Draw a random A along the inputs of each layer: axis 0 of an embedding, else axis 1."""
    axes = {
        f"{name}.weight": 0
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    named: dict[str, tuple[Tensor, int]] = {}
    for name, weight in _weights(model).items():
        axis = axes.get(name, 1)
        named[name] = (_positive(torch.empty(weight.shape[axis])), axis)
    return named


METHODS: dict[str, Method] = {
    "adadps": full,
    "adadps-feature": by_feature,
    "adadps-dp-sgd": dp_sgd,
}


def prepare_with(method: Method) -> Callable[[Workload, SyntheticData], Build]:
    """Return the ``prepare`` of a contender that trains by ``method``."""

    def prepare(workload: Workload, data: SyntheticData) -> Build:
        held = examples(data.features, data.targets)
        return lambda: _running(private_run(workload, held, method, MOST_STEPS))

    return prepare


def prepare_whitened(workload: Workload, data: SyntheticData) -> Build:
    """Prepare whitening."""
    return prepare_with(whitened_by(data))(workload, data)


def prepare_epoch(method: Method, workload: Workload, data: SyntheticData) -> Build:
    """Prepare a run of exactly one epoch by ``method``."""
    held = examples(data.features, data.targets)
    return lambda: _running(private_run(workload, held, method, steps=None))


def steps_of_epoch(workload: Workload) -> int:
    """Return the number of steps of one epoch."""
    return _sampler(workload).steps(1)


def private_run(
    workload: Workload, held: Examples, method: Method, steps: int | None
) -> PrivateRun:
    """Return a run of ``steps`` steps, or of one epoch if ``steps`` is None."""
    model = model_of(workload)
    sampler = _sampler(workload)
    return PrivateRun(
        model,
        workload.loss,
        held,
        method=method(model),
        sampler=sampler,
        steps=sampler.steps(1) if steps is None else steps,
    )


def model_of(workload: Workload) -> nn.Module:
    """Return the workload's model; for sparse rows, its weight is stored feature-major."""
    if isinstance(workload, SparseLogisticRegression):
        return sparse_linear(workload.features, workload.classes)
    return workload.model()


def engine_of(run: PrivateRun) -> str:
    """Say which engine a run has chosen, and whether it runs on whole batches."""
    engine = run.objective.engine
    name = type(engine).__name__.removesuffix("Engine").lower()
    if not isinstance(engine, GhostEngine):
        return name
    return f"{name}, {'example by example' if engine.sequence is None else 'whole batches'}"


def needs(workload: Workload) -> int:
    """Estimate the bytes of the weights, and of A, D and their squares in float64."""
    return 12 * workload.parameters() * BYTES


def _running(run: PrivateRun) -> TimedStep:
    batches = run.batches()
    return TimedStep(
        step=lambda: run.step(next(batches)),
        weights=lambda: run.params,
        engine=engine_of(run),
    )


def _sampler(workload: Workload) -> Sampler:
    return poisson(examples=workload.examples, expected_size=workload.batch)


def _privacy() -> Privatize:
    return privatize(clip_norm=CLIP_NORM, noise_multiplier=NOISE_MULTIPLIER)


def _adadps(named: Named) -> Chain:
    known = side.fixed(
        named, source="drawn at random", public_because="it does not depend on any data"
    )
    return methods.adadps(known, _privacy(), lr=LR)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    trained = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return {name: value for name, value in trained if value.ndim > 1}


def _positive(like: Tensor) -> Tensor:
    """Draw random values in the shape and memory layout of ``like``."""
    return torch.empty_like(like, requires_grad=False).uniform_(0.1, 1.0)
