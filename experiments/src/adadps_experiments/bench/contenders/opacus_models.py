"""The models of the workloads in the form that is right in Opacus, and fastest.

- An embedding bag becomes an embedding and a mean: in Opacus 1.6 an embedding bag counts a repeated
  word once, and has no ghost form.
- Attention becomes four linear layers and torch's fused product: with ``batch_first`` the
  `DPMultiheadAttention` of Opacus 1.6 mixes heads and positions (its pull request 825).
- A parameter for positions becomes an embedding of the numbers 0, 1, ...: for a parameter outside
  of a layer, Opacus would differentiate the whole model a second time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadps_experiments.bench.workloads import Workload
from adadps_experiments.bench.workloads.texts import SmallTransformer


class MeanEmbedding(nn.Module):
    """What `nn.EmbeddingBag` computes on a matrix of tokens."""

    def __init__(self, bag: nn.EmbeddingBag) -> None:
        super().__init__()
        self.embedding = nn.Embedding(bag.num_embeddings, bag.embedding_dim)
        self.embedding.weight = bag.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean embedding of each row."""
        mean: Tensor = self.embedding(tokens).mean(1)
        return mean


class LinearAttention(nn.Module):
    """Self-attention as `nn.MultiheadAttention` computes it, through linear layers."""

    batch_first = True
    _qkv_same_embed_dim = False  # what an encoder layer asks before it takes its own fast path

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.heads, width = attention.num_heads, attention.embed_dim
        projections = [nn.Linear(width, width) for _ in range(4)]
        self.query, self.key, self.value, self.out_proj = projections
        weights = (*attention.in_proj_weight.chunk(3), attention.out_proj.weight)
        biases = (*attention.in_proj_bias.chunk(3), attention.out_proj.bias)
        with torch.no_grad():
            for layer, weight, bias in zip(projections, weights, biases, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)

    def forward(self, hidden: Tensor, *_: Tensor, **__: object) -> tuple[Tensor, None]:
        """Return the attention of ``hidden`` to itself, without masks."""
        split = (*hidden.shape[:2], self.heads, -1)
        q, k, v = (
            layer(hidden).view(split).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


class EmbeddedPositions(nn.Module):
    """A `SmallTransformer` whose positions are an embedding."""

    def __init__(self, model: SmallTransformer) -> None:
        super().__init__()
        self.embedding, self.layers, self.linear = model.embedding, model.layers, model.linear
        self.positions = nn.Embedding(*model.positions.shape)
        self.positions.weight = model.positions

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the score of each class."""
        places = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
        hidden = self.embedding(tokens) + self.positions(places)
        for layer in self.layers:
            hidden = layer(hidden)
        scores: Tensor = self.linear(hidden.mean(1))
        return scores


def model_of(workload: Workload) -> nn.Module:
    """Return the workload's model in a form that Opacus accepts."""
    from opacus import PrivacyEngine

    fixed: nn.Module = PrivacyEngine.get_compatible_module(_rewritten(workload.model()))
    return fixed


def _rewritten(model: nn.Module) -> nn.Module:
    for module in list(model.modules()):
        for name, inner in module.named_children():
            if isinstance(inner, nn.EmbeddingBag):
                setattr(module, name, MeanEmbedding(inner))
            elif isinstance(inner, nn.MultiheadAttention):
                setattr(module, name, LinearAttention(inner))
    return EmbeddedPositions(model) if isinstance(model, SmallTransformer) else model
