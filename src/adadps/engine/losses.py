"""Losses with one value per example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
"""loss(outputs, targets) with one value per example."""

IGNORED = -100
"""The target of examples that have no loss, as in torch."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """-log softmax(outputs)[target] for integer targets.

    >>> import torch
    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([1]))
    tensor([0.6931])
    """
    return functional.cross_entropy(outputs, targets, reduction="none")


def label_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """-Σ_k t_k log softmax(outputs)_k against a distribution t over classes.

    For examples with several labels, t is uniform over them.

    >>> import torch
    >>> label_cross_entropy(torch.zeros(1, 4), torch.tensor([[0.5, 0.5, 0.0, 0.0]]))
    tensor([1.3863])
    """
    return -(targets.to(outputs.dtype) * functional.log_softmax(outputs, 1)).sum(1)


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


def next_token(outputs: Any, tokens: Tensor) -> Tensor:
    """-log softmax(outputs_t)[token_{t+1}], averaged over each sequence: one value per sequence.

    ``outputs`` are logits, or have them as ``logits``. Tokens of -100 (padding, say) are no target;
    a sequence without any target has the loss 0.

    >>> import torch
    >>> next_token(torch.zeros(1, 3, 2), torch.tensor([[0, 1, -100]]))
    tensor([0.6931])
    """
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    found, wanted = logits[:, :-1].transpose(1, 2), tokens[:, 1:]
    each = functional.cross_entropy(found, wanted, reduction="none", ignore_index=IGNORED)
    counted = (wanted != IGNORED).sum(1).clamp_min(1)
    return each.sum(1) / counted


def of_logits(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Return a loss that reads the ``logits`` of what a model returns.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> of_logits(cross_entropy)(SimpleNamespace(logits=torch.zeros(1, 2)), torch.tensor([1]))
    tensor([0.6931])
    """

    def on_logits(outputs: Any, targets: Tensor) -> Tensor:
        return loss(outputs.logits, targets)

    return on_logits


def treats_examples_alone(loss: Loss) -> bool:
    """Is ``loss`` one that cannot mix examples, by its construction?"""
    ours = (cross_entropy, label_cross_entropy, binary_cross_entropy, squared_error)
    of_torch = (
        type(loss) is nn.CrossEntropyLoss
        and loss.reduction == "none"
        and not ("forward" in vars(loss) or loss._forward_hooks or loss._forward_pre_hooks)
    )
    return of_torch or any(loss is one for one in ours)
