"""Synthetic rows of the shape and type of the private ones.

Every check of a model before training (of its shapes, engine, loss, layout) runs on these: no
private row is read outside a step that is paid for. Batches are padded with them, too, so that
neither an empty batch nor a small one takes a path of its own.

Only the form of the data enters: types, the shape of one row, the width of sparse rows, and the
sizes of the model's tables of words.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples, Features
from adadps.data.sparse_rows import SparseRows

ROWS = 16
"""The number of synthetic rows, and the multiple to which batches are padded.

A matrix product with very few rows is computed by another routine than one with many, and some
routines treat the rows beyond a multiple of four differently, too: the last bit of a row would then
tell how many others were drawn. In multiples of 16, rows are bit-equal
(`tests/contract/test_padding.py`).
"""

_WORDS_PER_ROW = 8


def synthetic_like(data: Examples, model: nn.Module) -> Examples:
    """Return `ROWS` synthetic examples: those given with the data, or made up here."""
    if data.synthetic is not None:
        return data.synthetic.take(torch.arange(ROWS) % len(data.synthetic))
    generator = torch.Generator().manual_seed(0)
    device = data.targets.device
    return Examples(
        _features(data.features, model, generator).to(device),
        _targets(data.targets, generator).to(device),
    )


def _features(like: Features, model: nn.Module, generator: torch.Generator) -> Features:
    if isinstance(like, SparseRows):
        return _sparse(like.width, like.values.dtype, generator)
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
