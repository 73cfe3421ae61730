"""Products of matrices in float32, by the faster of the two libraries that torch brings along.

torch multiplies float32 by MKL, which uses half of what processors of other makers can do. oneDNN,
which torch uses for convolutions, multiplies the same numbers with all their digits, and took half
the time where this was measured (docs/decisions/products.md). Every row of a product comes out the
same, bit by bit, whatever the other rows are, however many and at which place
(`tests/tensors/test_products.py`). MKL keeps that only for sizes in multiples of 16, and gets no
others. Which library multiplies depends on the device, the types and the size of the
weight, never on rows.
"""

from __future__ import annotations

import inspect
import os
import platform
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from adadps.tensors.loops import SWITCHED_OFF
from adadps.tensors.squares import multiplies_all_digits

LARGE = 2**13
"""A weight of fewer entries is multiplied as quickly by torch."""

MULTIPLE = 16
"""With other numbers of inputs or outputs, MKL adds up the terms of a row in an order that depends
on the place of the row in its batch."""

WORTH_A_FUNCTION = 2**17
"""This many products for one example are worth a function inside of torch.func.vmap."""

_DIGITS = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
"""Variables of the environment that allow oneDNN to drop digits of float32."""


def _is_ready() -> bool:
    """Is oneDNN there, on a processor on which it was tested, and told to keep all digits?"""
    strict = all(os.environ.get(name, "STRICT").upper() == "STRICT" for name in _DIGITS)
    tested = platform.machine().lower() in {"x86_64", "amd64"}
    there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    offered = there and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return strict and tested and offered and not SWITCHED_OFF


_READY = _is_ready()


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rows · weightᵀ + bias for a matrix of rows, without a graph.

    >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[11.]])
    """
    if not (_by_onednn(rows, weight) and _is_plain(bias, len(weight))):
        return _by_torch(rows, weight, bias)
    if bias is not None:
        bias = bias.contiguous()  # oneDNN is told no strides of a bias
    given = _packed(rows), _packed(weight), bias
    found: Tensor = torch.ops.mkldnn._linear_pointwise(*given, "none", [], "")
    return found


def _packed(matrix: Tensor) -> Tensor:
    """The same without gaps in memory: a part of a larger matrix takes oneDNN a thousand times."""
    return matrix if matrix.is_contiguous() or matrix.mT.is_contiguous() else matrix.contiguous()


def _by_onednn(rows: Tensor, weight: Tensor) -> bool:
    # An empty product is not worth a second path, and MKL-DNN may be switched off for a while.
    return (
        _READY
        and _single_on_cpu(rows, weight)
        and weight.numel() >= LARGE
        and rows.numel() > 0
        and bool(torch._C._get_mkldnn_enabled())
        and multiplies_all_digits(rows.device)
    )


def _single_on_cpu(rows: Tensor, weight: Tensor) -> bool:
    single = rows.dtype == weight.dtype == torch.float32
    return single and rows.device.type == weight.device.type == "cpu"


def _by_torch(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same by torch, with zeros up to multiples of 16: they add nothing, and round nothing.

    In float64 the order of terms matters as little as that of the sums over examples.
    """
    more = [-size % MULTIPLE for size in reversed(weight.shape)]
    single = _single_on_cpu(rows, weight) and not torch.is_autocast_enabled("cpu")
    if not (any(more) and weight.ndim == 2 and single):
        return functional.linear(rows, weight, bias)
    inputs, outputs = more
    wide = functional.pad(rows, (0, inputs)) if inputs else rows
    found = functional.linear(wide, functional.pad(weight, (0, inputs, 0, outputs)))
    found = found[..., : len(weight)]
    return found.contiguous() if bias is None else found + bias


def batched(one: Tensor, other: Tensor) -> Tensor:
    """Return one @ other for a product of each sequence, with zeros up to multiples of 16.

    Without them rows of sequences of odd lengths would depend on their place in the batch.

    >>> batched(torch.ones(1, 1, 2), torch.ones(1, 2, 1))
    tensor([[[2.]]])
    """
    rows, columns = one.shape[-2], other.shape[-1]
    if not _single_on_cpu(one, other) or torch.is_autocast_enabled("cpu"):
        return one @ other
    return (_wide(one) @ _wide(other))[..., :rows, :columns]


def _wide(matrices: Tensor) -> Tensor:
    more = [-size % MULTIPLE for size in matrices.shape[-2:]]
    return functional.pad(matrices, (0, more[1], 0, more[0])) if any(more) else matrices


def _is_plain(bias: Tensor | None, outputs: int) -> bool:
    return bias is None or (bias.dtype == torch.float32 and bias.shape == (outputs,))


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what ``torch.nn.functional.linear`` returns; it can be differentiated like that."""
    fits = weight.ndim == 2 and _is_plain(bias, len(weight))
    if not (fits and _is_worth_a_function(rows, weight) and _by_onednn(rows, weight)):
        return _by_torch(rows, weight, bias)
    found: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return found


def _is_worth_a_function(rows: Tensor, weight: Tensor) -> bool:
    """Inside of torch.func, where ``rows`` are those of one example, a function costs a while."""
    if not torch._C._are_functorch_transforms_active():
        return True
    return rows.numel() // max(1, rows.shape[-1]) * weight.numel() >= WORTH_A_FUNCTION


def with_known_signature(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """Look up the arguments of ``forward`` once; torch would do so at every call."""
    forward: Any = function.forward
    forward.__signature__ = inspect.signature(forward)
    return function


@with_known_signature
class _Linear(torch.autograd.Function):
    """rows · weightᵀ + bias; its derivatives are such products again."""

    @staticmethod
    def forward(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply all rows at once."""
        flat = product(rows.reshape(-1, rows.shape[-1]), weight, bias)
        return flat.view(*rows.shape[:-1], len(weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep both factors."""
        rows, weight, _ = inputs
        ctx.save_for_backward(rows, weight)
        ctx.save_for_forward(rows, weight)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients that are wanted."""
        rows, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        of_rows = linear(above, weight.T) if wanted[0] else None
        flat = above.reshape(-1, above.shape[-1])
        of_weight = flat.T @ rows.reshape(-1, rows.shape[-1]) if wanted[1] else None
        return of_rows, of_weight, flat.sum(0) if wanted[2] else None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """Return the derivative along the given tangents."""
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = tangents
        parts = [linear(of_rows, weight)] if of_rows is not None else []
        parts += [linear(rows, of_weight)] if of_weight is not None else []
        total = sum(parts, rows.new_zeros(*rows.shape[:-1], len(weight)))
        return total if of_bias is None else total + of_bias

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Tensor, int]:
        """Multiply the rows of all examples at once, where they share the weight."""
        rows, weight, bias = given
        if in_dims[0] is not None and in_dims[1] is None and in_dims[2] is None:
            return linear(rows.movedim(in_dims[0], 0), weight, bias), 0
        rows, weight = (
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((rows, weight), in_dims, strict=False)
        )
        flat = rows.reshape(len(rows), -1, rows.shape[-1]) @ weight.mT
        if bias is not None:
            flat = flat + (bias if in_dims[2] is None else bias.movedim(in_dims[2], 0).unsqueeze(1))
        return flat.view(*rows.shape[:-1], weight.shape[-2]), 0
