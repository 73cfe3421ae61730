"""The loss, differentiated with respect to the model's outputs, one example at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, vmap

from adadps.engine.losses import (
    Loss,
    cross_entropy,
    gradient_of_cross_entropy,
    looks_at_one_example,
)
from adadps.engine.passes.guard import guarded

__all__ = ["Loss", "output_gradients"]


def output_gradients(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """∂ loss_i / ∂ output_i.

    A loss that is not known to treat examples alone runs under vmap, where each sees only itself.
    """
    if loss is cross_entropy and outputs.ndim == 2 and targets.dtype == torch.int64:
        return gradient_of_cross_entropy(outputs.detach(), targets)
    if looks_at_one_example(loss):
        held = outputs.detach().requires_grad_()
        return torch.autograd.grad(loss(held, targets).sum(), held)[0]

    def single(output: Tensor, target: Tensor) -> Tensor:
        return loss(output.unsqueeze(0), target.unsqueeze(0)).squeeze()

    gradients: Tensor = guarded(vmap(grad(single), randomness="different"), outputs, targets)
    return gradients
