"""What the tests of engines have in common."""

from dataclasses import replace

import torch

from adadps.data.examples import Examples
from adadps.data.sparse_rows import SparseRows
from adadps.engine.choice import engine_for
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine
from adadps.engine.passes.validation import objective
from adadps.tensors.sums import dense
from support import ground_truth
from support.problems import squared


def trainable(model):
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def objective_of(case):
    """The objective of a problem, with the engine that the problem is about."""
    return replace(objective(case.model, case.loss, case.batch), engine=case.engine)


def only(row, size):
    """Weights that pick one example."""
    weights = torch.zeros(size, dtype=torch.float64)
    weights[row] = 1
    return weights


def contribution(batch, weights):
    """The weighted sum of all parameters as one vector."""
    return torch.cat([dense(leaf).flatten() for leaf in batch.weighted_sum(weights).values()])


def with_rows(batch, other, rows):
    """``batch`` with some rows from ``other``."""
    held, replacement = (as_dense(b.features) for b in (batch, other))
    features, targets = held.clone(), batch.targets.clone()
    features[rows], targets[rows] = replacement[rows], other.targets[rows]
    if isinstance(batch.features, SparseRows):
        return Examples(SparseRows.from_torch(features.to_sparse()), targets)
    return Examples(features, targets)


def as_dense(features):
    return features.to_dense() if isinstance(features, SparseRows) else features


def assert_right(engine, model, loss, batch, *, tolerance=2e-5):
    """Norms and sums equal those of autograd on one example at a time.

    Norms may be raised by a bound on their rounding.
    """
    truth = ground_truth.gradients_one_by_one(model, loss, batch)
    found = engine.per_unit(trainable(model), batch, None)
    expected = ground_truth.norms(truth)
    scale = max(1.0, float(expected.max()))
    near = max(tolerance, 1e-6)
    torch.testing.assert_close(found.norms(), expected, rtol=near, atol=near * scale)
    assert (found.norms() >= expected * (1 - tolerance) - tolerance * scale).all()
    for row in range(len(batch)):
        sums = found.weighted_sum(only(row, len(batch)))
        assert sums.keys() == truth[row].keys()
        for name, leaf in truth[row].items():
            assert dense(sums[name]).shape == leaf.shape
            torch.testing.assert_close(
                dense(sums[name]), leaf, rtol=tolerance, atol=tolerance * scale
            )


def in_sequence(engine):
    return isinstance(engine, GhostEngine) and engine.sequence is not None


def under_vmap(engine):
    return isinstance(engine, GhostEngine) and engine.sequence is None


def in_general(engine):
    return isinstance(engine, GeneralEngine)


def chosen(model, batch, loss=squared):
    """The engine, whose gradients were compared with autograd."""
    engine = engine_for(model, loss, batch)
    assert_right(engine, model, loss, batch)
    return engine
