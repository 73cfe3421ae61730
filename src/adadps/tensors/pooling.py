"""The largest number under a window that moves over images, and where it was found.

torch's own loop visits one window after the other. Here all windows are worked on together, for one
place of the window after the other, which vector instructions do eight at a time. Values,
winners (the first of several that are equal, the last NaN) and the order in which gradients are
added up are torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadps.tensors.loops import as_array, compiled, run_in_parts


@dataclass(frozen=True)
class Window:
    """Size, stride, padding and dilation of a window, each along both axes of an image."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def places(self, image: tuple[int, int]) -> tuple[int, int]:
        """Return how many places the window has along both axes of an image."""
        high, wide = (
            (length + 2 * padding - dilation * (size - 1) - 1) // stride + 1
            for length, size, stride, padding, dilation in zip(
                image, self.size, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return high, wide


def largest(images: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Return the largest number under each place of the window, and its number in the image.

    ``images`` are contiguous (images × height × width).
    """
    shape = (len(images), *window.places((images.shape[1], images.shape[2])))
    values, winners = images.new_empty(shape), images.new_empty(shape, dtype=torch.int32)
    form = (*window.size, *window.stride, *window.padding, *window.dilation)
    arrays = (as_array(images), form, as_array(values), as_array(winners))
    work = values.numel() * window.size[0] * window.size[1]
    run_in_parts(len(images), lambda part: _largest((part.start, part.stop), *arrays), work=work)
    return values, winners


def to_winners(gradients: Tensor, winners: Tensor, image: tuple[int, int]) -> Tensor:
    """Add the gradient of every place of the window to the number that won there."""
    found = gradients.new_zeros(len(gradients), image[0] * image[1])
    arrays = tuple(as_array(t) for t in (gradients.flatten(1), winners.flatten(1), found))
    work = gradients.numel()
    run_in_parts(len(found), lambda part: _to_winners((part.start, part.stop), *arrays), work=work)
    return found.view(len(found), *image)


@compiled
def _largest(part: Any, images: Any, form: Any, values: Any, winners: Any) -> None:
    """``part`` holds the first image and the end.

    An image is compared with itself, moved to each place of the window. Of the result, those
    numbers are taken at which a window begins.
    """
    high, wide, down, right, above, before, row_gap, gap = form
    width, line = images.shape[2] + 2 * before, images.shape[2]
    padded = np.full((images.shape[1] + 2 * above, width), -np.inf, images.dtype)
    inside = padded[above : above + images.shape[1], before : before + line]
    flat = padded.reshape(-1)
    count = ((values.shape[1] - 1) * down + 1) * width - (wide - 1) * gap
    best, won = np.empty(count, images.dtype), np.empty(count, np.int32)
    nothing = np.int32(-(2**31))
    for n in range(part[0], part[1]):
        inside[:] = images[n]
        best[:] = -np.inf
        won[:] = nothing
        for i in range(high):
            for j in range(wide):
                first = i * row_gap * width + j * gap
                within = np.int32(i * row_gap * line + j * gap)
                _keep_larger(flat[first : first + count], within, best, won)
        for y in range(values.shape[1]):
            top = y * down - above
            into, places = values[n, y], winners[n, y]
            for x in range(len(into)):
                into[x] = best[y * down * width + x * right]
                within = won[y * down * width + x * right]
                if within == nothing:  # -inf alone: the first number that is not padding
                    within = np.int32(max(0, -(top // row_gap)) * row_gap * line)
                    within += np.int32(max(0, -((x * right - before) // gap)) * gap)
                places[x] = top * line + x * right - before + within


@compiled
def _keep_larger(moved: Any, within: int, best: Any, won: Any) -> None:
    """Compare an image, moved by ``within``, with the best so far."""
    for x in range(len(best)):
        value = moved[x]
        larger = (value > best[x]) | np.isnan(value)
        best[x] = value if larger else best[x]
        won[x] = within if larger else won[x]


@compiled
def _to_winners(part: Any, gradients: Any, winners: Any, found: Any) -> None:
    """``part`` holds the first image and the end."""
    for n in range(part[0], part[1]):
        for place in range(gradients.shape[1]):
            found[n, winners[n, place]] += gradients[n, place]
