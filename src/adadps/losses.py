"""Losses with one number an example, known to look at one example at a time."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """-log softmax(outputs)[target] for whole-number targets.

    >>> import torch
    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([1]))
    tensor([0.6931])
    """
    return functional.cross_entropy(outputs, targets, reduction="none")


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """-log σ(±output) for targets in [0, 1]; several outputs of an example are averaged.

    >>> import torch
    >>> binary_cross_entropy(torch.zeros(1, 1), torch.ones(1))
    tensor([0.6931])
    """
    shaped = targets.to(outputs.dtype).reshape(outputs.shape)
    losses = functional.binary_cross_entropy_with_logits(outputs, shaped, reduction="none")
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """(output - target)²; several outputs of an example are averaged.

    >>> import torch
    >>> squared_error(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 2))
    tensor([5.])
    """
    losses = (outputs - targets.to(outputs.dtype).reshape(outputs.shape)).square()
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


BY_EXAMPLE = (cross_entropy, binary_cross_entropy, squared_error)
"""Losses that cannot mix examples, by their construction."""
