"""Rows on which models are tried before training: of the form of the data, and without its values.

Only types, the shape of one row, the width of sparse rows, and the sizes of the model's tables of
words enter them, or else the rows that the user has given for it.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples
from adadps.data.fields import Features, Fields
from adadps.data.sparse_rows import SparseRows
from adadps.engine.objective import ROWS

_WORDS_PER_ROW = 8


def synthetic_like(data: Examples, model: nn.Module) -> Examples:
    """Return `ROWS` synthetic examples: those given with the data, or made up here."""
    if data.synthetic is not None:
        return data.synthetic.take(torch.arange(ROWS) % len(data.synthetic))
    generator = torch.Generator().manual_seed(0)
    device = data.targets.device
    return Examples(
        _synthetic_features(data.features, model, generator).to(device),
        _targets(data.targets, generator).to(device),
    )


def _synthetic_features(like: Features, model: nn.Module, generator: torch.Generator) -> Features:
    if isinstance(like, SparseRows):
        return _sparse(like.width, like.values.dtype, generator)
    if isinstance(like, Tensor):
        return _rows(like, model, generator)
    names = like.names or parameter_names(model, len(like.tensors))
    made = (
        _mask(name, tensor) if _MASK in name else _rows(tensor, model, generator)
        for name, tensor in zip(names, like.tensors, strict=True)
    )
    shortest = min((t.shape[1] for t in like.tensors if t.ndim > 1), default=1)
    return Fields(
        tuple(
            tensor.clamp(1, shortest) if _LENGTH in name and not tensor.is_floating_point()
            else tensor
            for name, tensor in zip(names, made, strict=True)
        ),
        like.names,
    )  # fmt: skip


_MASK, _LENGTH = "mask", "length"
"""Inputs with these words in their names hold masks, and lengths of sequences."""


def _mask(name: str, like: Tensor) -> Tensor:
    """A mask that hides nothing: ones, but zeros where it marks padding, as in torch's layers.

    Where a mask is added to scores, ones everywhere change no share of attention.
    """
    shown = 0 if "padding" in name else 1
    return torch.full((ROWS, *like.shape[1:]), shown, dtype=like.dtype)


def parameter_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Return the names of the first parameters of ``forward``; empty ones where it has none."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    return (*names, *[""] * count)[:count]


def _rows(like: Tensor, model: nn.Module, generator: torch.Generator) -> Tensor:
    shape = (ROWS, *like.shape[1:])
    if not like.is_floating_point():
        highest = 2 if like.dtype is torch.bool else _fewest_words(model)
        return torch.randint(highest, shape, generator=generator).to(like.dtype)
    # Half of them positive, for models that take logarithms or roots.
    values = torch.rand(shape, generator=generator)
    values[ROWS // 2 :] = torch.randn((ROWS - ROWS // 2, *shape[1:]), generator=generator)
    return values.to(like.dtype)


def _targets(like: Tensor, generator: torch.Generator) -> Tensor:
    """Values in [0, 1), or alternating 0 and 1, which nearly every loss accepts."""
    shape = (ROWS, *like.shape[1:])
    if like.is_floating_point():
        return torch.rand(shape, generator=generator).to(like.dtype)
    alternating = torch.arange(ROWS) % 2
    return alternating.view(-1, *[1] * (len(shape) - 1)).expand(shape).contiguous().to(like.dtype)


def _sparse(width: int, dtype: torch.dtype, generator: torch.Generator) -> SparseRows:
    """Rows of a few distinct columns with positive values."""
    count = min(_WORDS_PER_ROW, width)
    first = torch.randint(max(1, width), (ROWS, 1), generator=generator)
    columns = ((first + torch.arange(count)) % max(1, width)).sort(1).values
    values = torch.rand(ROWS * count, generator=generator).add_(0.1)
    offsets = torch.arange(ROWS + 1) * count
    return SparseRows(offsets, columns.flatten(), values.to(dtype), width)


def _fewest_words(model: nn.Module) -> int:
    """Integers below this fit every table of words; without a table they are 0 and 1."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    return min((table.num_embeddings for table in tables), default=2)
