"""Ground truth: autograd on one example at a time, and everything derived from it by hand."""

import torch
from torch import nn

from adadps.data.sparse_rows import SparseRows


def gradients_one_by_one(model: nn.Module, loss, batch) -> list[dict[str, torch.Tensor]]:
    """The gradient of every example, from its own forward and backward pass."""
    features = batch.features
    dense = features.to_dense() if isinstance(features, SparseRows) else features
    found = []
    for row, target in zip(dense, batch.targets, strict=True):
        model.zero_grad()
        loss(_outputs(model, row), target.unsqueeze(0)).sum().backward()
        found.append(
            {
                name: parameter.grad.detach().double().clone()
                for name, parameter in model.named_parameters()
                if parameter.requires_grad
            }
        )
    model.zero_grad()
    return found


def gradients_of_users(model: nn.Module, loss, batch, users) -> list[dict[str, torch.Tensor]]:
    """The gradient of every user's mean loss, from backward passes of that user's rows alone."""
    found = []
    for user in sorted(set(users.tolist())):
        rows = torch.nonzero(users == user).squeeze(1)
        dense = batch.take(rows)
        dense = (
            dense.features
            if not isinstance(dense.features, SparseRows)
            else (dense.features.to_dense())
        )
        model.zero_grad()
        for row, target in zip(dense, batch.targets[rows], strict=True):
            (loss(_outputs(model, row), target.unsqueeze(0)).sum() / len(rows)).backward()
        found.append(
            {
                name: parameter.grad.detach().double().clone()
                for name, parameter in model.named_parameters()
                if parameter.requires_grad
            }
        )
    model.zero_grad()
    return found


def _outputs(model, row):
    """The model on one example; a bag that gets a row of weights takes them as a bag."""
    first = model[0] if isinstance(model, nn.Sequential) else None
    if isinstance(first, nn.EmbeddingBag) and row.is_floating_point():
        words = torch.nonzero(row).squeeze(1)
        return model[1:](first(words, torch.tensor([0]), per_sample_weights=row[words]))
    return model(row.unsqueeze(0))


def transformed(gradients, beta, mean, diagonal):
    """D ∘ (β g + (1 - β) M) for every gradient."""

    def one(name, gradient):
        return diagonal[name].double() * (beta * gradient + (1 - beta) * mean[name].double())

    return [{name: one(name, leaf) for name, leaf in leaves.items()} for leaves in gradients]


def norms(gradients) -> torch.Tensor:
    """L2 norm over all parameters of each gradient."""
    squares = [sum(leaf.square().sum() for leaf in one.values()) for one in gradients]
    return torch.stack(squares).sqrt()


def weighted_sum(gradients, weights):
    """Σ_i w_i g_i."""
    return {
        name: sum(w * one[name] for w, one in zip(weights.double(), gradients, strict=True))
        for name in gradients[0]
    }


def grouped(gradients, units):
    """The gradient of each unit: its weight times the sum over its examples."""
    zero = {name: torch.zeros_like(leaf) for name, leaf in gradients[0].items()}
    found = [dict(zero) for _ in range(units.count)]
    for label, one in zip(units.labels.tolist(), gradients, strict=True):
        found[label] = {n: found[label][n] + units.weight * leaf for n, leaf in one.items()}
    return found
