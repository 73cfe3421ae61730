"""Torch's fused attention, for all examples of a batch in one call.

torch.func.vmap has no rule for torch's attention on a CPU: it calls it for one example after the
other. Here the axis of the examples is folded into the batch that the function has anyway, each of
whose sequences it treats alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from adadps.errors import ModelError
from adadps.tensors.products import with_known_signature

_READY = all(
    hasattr(torch.ops.aten, name)
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
)


class AttendingTogether(TorchFunctionMode):
    """While it is active under torch.func.vmap, attention runs on all examples at once.

    ``watches`` tells whether the pass has looked at its own graph, as hooks on gradients need to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watches = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look for calls of attention, and for reads of the graph."""
        if func is functional.scaled_dot_product_attention:
            found = _fused(*args, **(kwargs or {}))
            if found is not None:
                return found
        self.watches |= func in _OF_GRAPHS
        return func(*args, **(kwargs or {}))


_OF_GRAPHS = {
    Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.retain_grad,
    Tensor.grad_fn.__get__, Tensor.requires_grad.__get__,  # type: ignore[attr-defined,union-attr]
}  # fmt: skip


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Return what torch would return; None where it is better left to torch."""
    given = (query, key, value)
    single = all(rows.dtype == torch.float32 for rows in given)
    on_cpu = all(rows.device.type == "cpu" for rows in given)
    alike = query.ndim == 4 and key.shape == value.shape
    alike = alike and key.ndim == 4 and query.shape[:2] == key.shape[:2]
    alike = alike and query.shape[3] == key.shape[3]
    if not (_READY and single and on_cpu and alike and _fits(attn_mask, query, key)):
        return None
    if dropout_p or enable_gqa or (is_causal and attn_mask is not None):
        return None
    if not torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled("cpu"):
        return None
    if min(query.numel(), key.numel()) == 0:
        return None
    mask = None if attn_mask is None else _as_numbers(attn_mask, query)
    found: tuple[Tensor, Tensor] = _Attention.apply(*given, mask, is_causal, scale)  # type: ignore[no-untyped-call]
    return found[0]


def _fits(mask: Tensor | None, query: Tensor, key: Tensor) -> bool:
    """Is there no mask, or one for which no gradient is wanted, and that torch's function takes?"""
    if mask is None:
        return True
    pairs = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if mask.ndim not in (2, 4) or mask.dtype not in (torch.bool, torch.float32):
        return False
    own = zip(mask.shape, pairs[-mask.ndim :], strict=True)
    return not mask.requires_grad and all(size in (1, whole) for size, whole in own)


def _as_numbers(mask: Tensor, query: Tensor) -> Tensor:
    """The mask with four axes, as numbers to add."""
    if mask.dtype == torch.bool:
        seen = torch.zeros((), dtype=query.dtype, device=query.device)
        mask = torch.where(mask, seen, -torch.inf)
    return mask[None, None] if mask.ndim == 2 else mask


def _folded(rows: Tensor, dim: int | None, size: int) -> Tensor:
    """(examples × batch × ...) as (examples · batch × ...), with entries side by side in memory.

    Torch's function takes that for granted along the last axis, and would read others.
    """
    rows = rows.expand(size, *rows.shape) if dim is None else rows.movedim(dim, 0)
    rows = rows.reshape(-1, *rows.shape[2:])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _folded_mask(mask: Tensor | None, dim: int | None, size: int, batch: int) -> Tensor | None:
    """The mask of each sequence of the folded batch; one mask for all stays one."""
    if mask is None or (dim is None and len(mask) == 1):
        return mask
    whole = mask.expand(size, *mask.shape) if dim is None else mask.movedim(dim, 0)
    return whole.expand(-1, batch, -1, -1, -1).reshape(-1, *whole.shape[2:])


@with_known_signature
class _Attention(torch.autograd.Function):
    """softmax(q kᵀ · scale + mask) v, and the logarithms of the sums of the softmax."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
        scale: float | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Call torch's function."""
        found: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the backward pass reads."""
        query, key, value, mask, ctx.causal, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(query, key, value, mask, *output)

    @staticmethod
    def backward(ctx: Any, above: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value."""
        if ctx.needs_input_grad[3]:  # under vmap alone, a mask does not say so before
            raise RuntimeError("a mask that is learned")
        found = _Gradients.apply(above, *ctx.saved_tensors, ctx.causal, ctx.scale)  # type: ignore[no-untyped-call]
        return (*found, None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, tuple[int, int]]:
        """Fold the examples into the batch."""
        *rows, mask, causal, scale = given
        size = info.batch_size
        rows = [_folded(part, dim, size) for part, dim in zip(rows, in_dims, strict=False)]
        mask = _folded_mask(mask, in_dims[3], size, len(rows[0]) // size)
        out, sums = _Attention.apply(*rows, mask, causal, scale)  # type: ignore[no-untyped-call]
        return (out.unflatten(0, (size, -1)), sums.unflatten(0, (size, -1))), (0, 0)


@with_known_signature
class _Gradients(torch.autograd.Function):
    """The gradients of query, key and value."""

    @staticmethod
    def forward(
        above: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
        out: Tensor, sums: Tensor, causal: bool, scale: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Call torch's function."""
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        found: tuple[Tensor, Tensor, Tensor] = backward(
            above, query, key, value, out, sums, 0.0, causal, attn_mask=mask, scale=scale
        )
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:  # noqa: ARG004
        """Refuse second derivatives."""
        raise ModelError(
            "Expected a loss of the model's outputs, found one that needs second derivatives of "
            "attention. Leave gradients out of the loss."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, tuple[int, ...]]:
        """Fold the examples into the batch."""
        above, query, key, value, mask, out, sums, causal, scale = given
        size = info.batch_size
        dims = (*in_dims[:4], *in_dims[5:7])
        parts = zip((above, query, key, value, out, sums), dims, strict=True)
        above, query, key, value, out, sums = (_folded(part, dim, size) for part, dim in parts)
        mask = _folded_mask(mask, in_dims[4], size, len(query) // size)
        found = _Gradients.apply(above, query, key, value, mask, out, sums, causal, scale)  # type: ignore[no-untyped-call]
        return tuple(part.unflatten(0, (size, -1)) for part in found), (0, 0, 0)
