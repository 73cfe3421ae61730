"""Convolutions: linear layers on patches, with one position for each patch.

With the patches p_t of an example (the numbers under the filter at position t), its gradient is
Σ_t b_t p_tᵀ, separately for each group of channels.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadps.engine.rules.built import BuiltGradients

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def of_filters(layer: Convolution, images: Tensor, b: Tensor) -> BuiltGradients:
    """Return the gradients of the filters; images are (examples × inner batch × channels × ...)."""
    patches = layer.in_channels * math.prod(layer.kernel_size) * math.prod(b.shape[3:]) * b.shape[1]
    numbers = layer.weight.numel() + patches
    return BuiltGradients(((partial(_filters, layer), images, b),), numbers)


def _filters(layer: Convolution, images: Tensor, b: Tensor) -> Tensor:
    """Σ_t b_t p_tᵀ for every example, in the shape of the filters."""
    examples, inner = images.shape[:2]
    patches = _patches(layer, images.flatten(0, 1))  # images × groups × (channels, filter) × places
    outputs = b.reshape(examples * inner, layer.groups, -1, patches.shape[-1])
    if inner == 1:
        found = outputs @ patches.mT
    else:
        patches, outputs = (
            rows.view(examples, inner, *rows.shape[1:]).movedim(1, 3).flatten(3, 4)
            for rows in (patches, outputs)
        )
        found = outputs @ patches.mT
    return found.view(examples, *layer.weight.shape)


def _patches(layer: Convolution, images: Tensor) -> Tensor:
    padded = _padded(layer, images)
    sizes = zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)
    for axis, (size, dilation, stride) in enumerate(sizes, start=2):
        padded = padded.unfold(axis, (size - 1) * dilation + 1, stride)[..., ::dilation]
    axes = len(layer.kernel_size)  # images × channels × places × filter
    turned = padded.movedim(tuple(range(2, 2 + axes)), tuple(range(2 + axes, 2 + 2 * axes)))
    return turned.reshape(len(images), layer.groups, -1, math.prod(turned.shape[2 + axes :]))


def _padded(layer: Convolution, images: Tensor) -> Tensor:
    around = layer._reversed_padding_repeated_twice
    if not any(around):
        return images
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(images, list(around), mode=mode)


def patches_in(built: BuiltGradients) -> tuple[Tensor, Tensor] | None:
    """Return the patches under the filters and the output gradients there, one row for each place.

    With several groups of channels, each has rows of its own. None stands for other layers.
    """
    inputs, outputs = [], []
    for build, images, b in built.uses:
        if not isinstance(build, partial) or build.func is not _filters:
            return None
        (layer,) = build.args
        found = _patches(layer, images.flatten(0, 1))
        own = b.reshape(len(found), layer.out_channels, found.shape[-1])
        inputs.append(found.movedim(2, 3).flatten(0, 2))
        outputs.append(own.movedim(1, 2).flatten(0, 1))
    return torch.cat(inputs), torch.cat(outputs)


def of_bias(b: Tensor) -> Tensor:
    """Return the gradients of the bias."""
    return b.sum([1, *range(3, b.ndim)])
