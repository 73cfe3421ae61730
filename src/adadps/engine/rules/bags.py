"""Rows of tokens as bags of words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adadps.data.sparse_rows import SparseRows, require_within, scratch
from adadps.tensors.kernels import rows as compiled


def as_bags(tokens: Tensor, layer: nn.EmbeddingBag) -> SparseRows:
    """Counts of words in each row of tokens, divided by the bag's size for a mean."""
    require_within(tokens, layer.num_embeddings)
    if tokens.device.type == "cpu":
        padding = -1 if layer.padding_idx is None else layer.padding_idx
        found = compiled.bags(
            tokens.numpy(), padding, layer.mode == "mean", scratch(layer.num_embeddings)
        )
        offsets, columns, values = map(torch.from_numpy, found)
        dtype = torch.float64 if layer.weight.dtype == torch.float64 else torch.float32
        return SparseRows(offsets, columns, values.to(dtype), layer.num_embeddings)
    size, length = tokens.shape
    example = torch.arange(size, device=tokens.device).unsqueeze(1)
    counted = tokens != layer.padding_idx if layer.padding_idx is not None else None
    keys = example * layer.num_embeddings + tokens
    kept = keys.flatten() if counted is None else keys[counted]
    keys, counts = torch.unique(kept, return_counts=True)
    owners = keys // layer.num_embeddings
    values = counts.to(layer.weight.dtype)
    if layer.mode == "mean":
        sizes = (
            values.new_zeros(size).index_add_(0, owners, values)
            if counted is not None
            else (values.new_full((size,), length))
        )
        values = values / sizes[owners]
    offsets = torch.searchsorted(owners, torch.arange(size + 1, device=tokens.device))
    return SparseRows(offsets, keys % layer.num_embeddings, values, layer.num_embeddings)
