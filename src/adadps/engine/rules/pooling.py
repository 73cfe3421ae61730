"""Pooling of images inside of torch.func.vmap, by our own loops where those can work."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from adadps.engine.rules.tape import Tape
from adadps.errors import ModelError
from adadps.tensors import loops
from adadps.tensors.pooling import Window, largest, to_winners
from adadps.tensors.products import with_known_signature

MOST_SKIPPED = 4
"""Our loops compare at every place of an image; if windows begin at fewer, torch is faster."""

MaxPool = nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d


def require_winners(layer: MaxPool, images: Tensor) -> None:
    """Refuse dilated windows that step over the whole image, from padding to padding.

    Nothing wins there, and torch adds the gradient to other memory: that of the next example.
    """
    axes = 1 if isinstance(layer, nn.MaxPool1d) else 2 if isinstance(layer, nn.MaxPool2d) else 3
    strides, paddings, dilations = (
        (given,) * axes if isinstance(given, int) else (*given,) * (axes // len(given))
        for given in (layer.stride, layer.padding, layer.dilation)
    )
    sizes = zip(images.shape[-axes:], strides, paddings, dilations, strict=True)
    for length, stride, padding, dilation in sizes:
        if min(stride, dilation) < 1:
            return  # torch says what is wrong
        if any(start % dilation >= length for start in range(-padding, 0, stride)):
            raise ModelError(
                f"Expected windows that hold a part of the image, found {layer} on images of "
                f"{' × '.join(map(str, images.shape[-axes:]))}, where some hold padding alone. "
                "Use less padding or dilation, or larger images."
            )


def run_checked_pool(layer: nn.MaxPool1d | nn.MaxPool3d, tape: Tape, input: Tensor) -> Any:  # noqa: ARG001
    """Compute ``layer(input)`` by torch."""
    require_winners(layer, input)
    forward: Any = type(layer).forward
    return forward(layer, input)


def run_max_pool(layer: nn.MaxPool2d, tape: Tape, input: Tensor) -> Any:  # noqa: ARG001
    """Compute what ``layer(input)`` computes."""
    require_winners(layer, input)
    window = _window(layer)
    plain = not (layer.ceil_mode or layer.return_indices or loops.SWITCHED_OFF)
    plain = plain and math.prod(window.stride) <= MOST_SKIPPED
    ready = input.device.type == "cpu" and input.dtype in loops.LINE_TYPES and input.ndim == 4
    if not (plain and ready and _fits(window, input)):
        return nn.MaxPool2d.forward(layer, input)  # which also says what is wrong with a window
    return _LargestOfWindow.apply(input, window)[0]  # type: ignore[no-untyped-call]


def _window(layer: nn.MaxPool2d) -> Window:
    given = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return Window(*((v, v) if isinstance(v, int) else (v[0], v[-1]) for v in given))


def _fits(window: Window, images: Tensor) -> bool:
    """Would torch accept the window on these images?"""
    height, width = images.shape[-2:]
    numbers = (*window.size, *window.stride, *window.dilation)
    if min(numbers) < 1 or height * width >= 2**31 or min(window.padding) < 0:
        return False
    narrow = all(2 * p <= size for p, size in zip(window.padding, window.size, strict=True))
    return narrow and min(*window.places((height, width)), *images.shape[1:]) > 0


@with_known_signature
class _LargestOfWindow(torch.autograd.Function):
    """The largest numbers of each window, and where they were found."""

    @staticmethod
    def forward(images: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        """Return values and winners, (images × channels × height × width) each."""
        values, winners = largest(images.contiguous().flatten(0, 1), window)
        shape = (*images.shape[:2], *values.shape[1:])
        return values.view(shape), winners.view(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep the winners."""
        ctx.image = tuple(inputs[0].shape[-2:])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradients: Tensor, _: Any) -> tuple[Tensor, None]:
        """Give the gradient of each window to its winner."""
        (winners,) = ctx.saved_tensors
        return _ToWinners.apply(gradients, winners, ctx.image), None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangents: Tensor, _: Any) -> tuple[Tensor, None]:
        """Take the tangents of the winners."""
        return _at_winners(tangents, ctx.saved_tensors[0]), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], images: Tensor, window: Window) -> Any:
        """Run the images of all examples together."""
        flat = _merged(images, in_dims[0], info.batch_size)
        found = _LargestOfWindow.apply(flat, window)  # type: ignore[no-untyped-call]
        return tuple(_split(t, info.batch_size) for t in found), (0, 0)


@with_known_signature
class _ToWinners(torch.autograd.Function):
    """Gradients of windows, added up where the largest numbers were."""

    @staticmethod
    def forward(gradients: Tensor, winners: Tensor, image: tuple[int, int]) -> Tensor:
        """Return gradients of images."""
        flat, won = (t.contiguous().flatten(0, 1) for t in (gradients, winners))
        return to_winners(flat, won, image).view(*gradients.shape[:2], *image)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the winners."""
        ctx.image = inputs[2]
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None]:
        """Take what stands where the winners were."""
        return _at_winners(above, ctx.saved_tensors[0]), None, None

    @staticmethod
    def jvp(ctx: Any, tangents: Tensor, *_: Any) -> Tensor:
        """Give the tangent of each window to its winner, as it is linear."""
        found: Tensor = _ToWinners.apply(tangents, ctx.saved_tensors[0], ctx.image)  # type: ignore[no-untyped-call]
        return found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:
        """Run the images of all examples together."""
        flat = (_merged(t, d, info.batch_size) for t, d in zip(given[:2], in_dims, strict=False))
        found = _ToWinners.apply(*flat, given[2])  # type: ignore[no-untyped-call]
        return _split(found, info.batch_size), 0


def _at_winners(images: Tensor, winners: Tensor) -> Tensor:
    return images.flatten(-2).gather(-1, winners.flatten(-2).long()).view(winners.shape)


def _merged(images: Tensor, dim: int | None, batch: int) -> Tensor:
    """The images of all examples along one axis."""
    each = images.expand(batch, *images.shape) if dim is None else images.movedim(dim, 0)
    return each.flatten(0, 1)


def _split(images: Tensor, batch: int) -> Tensor:
    return images.view(batch, -1, *images.shape[1:])
