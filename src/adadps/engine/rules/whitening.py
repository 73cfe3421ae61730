"""Matrices on the inputs and outputs of layers: a change of inputs; the rules stay as they are.

With weights G and bias g of one layer, a whitened gradient is

    [G | g] ↦ Q [G | g] P,    for one position: Q b (P [a; 1])ᵀ.

So a' = P [a; 1] takes the place of the inputs in norms and sums, and b' = Q b that of the output
gradients; the forward pass is unchanged. A matrix P with one row more than the layer has inputs
includes the bias. Gradients that are built or stored are multiplied as they are, without the bias.

P comes from the second moments of inputs, E[a aᵀ], which `moments_of` takes from public examples.
Of a table of words only the diagonal is measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from adadps.engine.moments import Moments
from adadps.engine.rules.built import Build, BuiltGradients
from adadps.engine.rules.convolution import patches_in
from adadps.engine.rules.gradients import (
    MaterialisedGradients,
    PerExampleGradients,
    finite_rows,
)
from adadps.engine.rules.outer import Outer, OverTime, before_building, in_cheapest_form
from adadps.engine.rules.sparse import SparseOuter, TokenRows
from adadps.errors import SideInformationError
from adadps.tensors.products import linear
from adadps.tensors.sums import Params

Leaves = Mapping[str, PerExampleGradients]


def bias_of(weight: str) -> str:
    """Return the name of the bias that belongs to a weight.

    >>> bias_of("0.weight"), bias_of("rnn.weight_ih_l0")
    ('0.bias', 'rnn.bias_ih_l0')
    """
    head, _, last = weight.rpartition(".")
    return f"{head}.{last.replace('weight', 'bias')}" if head else last.replace("weight", "bias")


# --- whitened gradients ---


def whitened(leaves: Leaves, inputs: Params, outputs: Params) -> tuple[Leaves, Tensor | None]:
    """Return whitened gradients, and which examples stay finite (None: all of them)."""
    found, marks = dict(leaves), []
    for name in dict.fromkeys([*inputs, *outputs]):
        if name not in found:
            raise SideInformationError(
                f"Expected matrices for weights of the model, found '{name}'. The model has: "
                f"{', '.join(found)}."
            )
        changed, finite = _layer(name, found, inputs.get(name), outputs.get(name))
        found.update(changed)
        marks.append(finite)
    every = torch.stack(marks).all(0) if marks else None
    return found, None if every is None or bool(every.all()) else every


def _layer(
    name: str, leaves: Leaves, p: Tensor | None, q: Tensor | None
) -> tuple[dict[str, PerExampleGradients], Tensor]:
    leaf, bias = leaves[name], bias_of(name)
    if isinstance(leaf, BuiltGradients):
        leaf = before_building(leaf) or leaf
    if isinstance(leaf, Outer | OverTime):
        return _of_products(name, leaf, bias, leaves.get(bias), p, q)
    if isinstance(leaf, BuiltGradients | MaterialisedGradients):
        return _of_gradients(name, leaf, bias, leaves.get(bias), p, q)
    raise SideInformationError(
        f"Expected a layer with dense inputs for a matrix, found '{name}', which reads sparse rows "
        "or words, or stands in two layers. Give public examples in the form of the private ones: "
        "then tables of words get a diagonal."
    )


def _of_products(
    name: str,
    leaf: Outer | OverTime,
    bias: str,
    of_bias: PerExampleGradients | None,
    p: Tensor | None,
    q: Tensor | None,
) -> tuple[dict[str, PerExampleGradients], Tensor]:
    a, b = leaf.inputs, leaf.output_gradients
    if q is not None:
        b = linear(b, _fitting(name, q, b).to(b.dtype))
    constant: Tensor | None = None  # the bias' input: 1, or its row of P [a; 1]
    if p is not None:
        width = a.shape[-1]
        joint = len(p) == width + 1 and isinstance(of_bias, MaterialisedGradients)
        p = (p if joint else _fitting(name, p, a)).to(a.dtype)
        if joint:
            constant = linear(a, p[width:, :width], p[width:, width]).squeeze(-1)
            a = linear(a, p[:width, :width], p[:width, width])
        else:
            a = linear(a, p)
    finite = _finite(a) & _finite(b)
    if constant is not None:
        finite &= _finite(constant)
    found: dict[str, PerExampleGradients] = {}
    a, b = _kept(a, finite), _kept(b, finite)
    if constant is not None:
        own = b * _kept(constant, finite).unsqueeze(-1)
        found[bias] = MaterialisedGradients(own.sum(1) if own.ndim > 2 else own)
    elif q is not None and isinstance(of_bias, MaterialisedGradients):
        turned = _turned(bias, of_bias, q)
        finite &= turned.finite()
        found[bias] = turned.where(finite)
    found[name] = Outer(a, b) if isinstance(leaf, Outer) else in_cheapest_form(OverTime(a, b))
    return found, finite


def _of_gradients(
    name: str,
    leaf: BuiltGradients | MaterialisedGradients,
    bias: str,
    of_bias: PerExampleGradients | None,
    p: Tensor | None,
    q: Tensor | None,
) -> tuple[dict[str, PerExampleGradients], Tensor]:
    """Multiply each gradient, as a matrix of outputs × all other axes; a bias has no part in P."""
    found: dict[str, PerExampleGradients] = {}
    if isinstance(leaf, BuiltGradients):
        growth = _growth(p) * _growth(q)
        uses = tuple((partial(_multiplied, name, p, q, build), a, b) for build, a, b in leaf.uses)
        found[name] = changed = replace(leaf, uses=uses, growth=leaf.growth * growth, _pieces=[])
        finite = changed.finite()
    else:
        product = _times(name, leaf.gradients, p, q)
        finite = _finite(product)
        found[name] = MaterialisedGradients(_kept(product, finite))
    if q is not None and isinstance(of_bias, MaterialisedGradients):
        turned = _turned(bias, of_bias, q)
        finite = finite & turned.finite()
        found[bias] = turned.where(finite)
    return found, finite


def _turned(bias: str, leaf: MaterialisedGradients, q: Tensor) -> MaterialisedGradients:
    """Q g for the gradient g of a bias: the sum over all its uses."""
    own = leaf.gradients
    return MaterialisedGradients(linear(own, _fitting(bias, q, own).to(own.dtype)))


def _multiplied(
    name: str, p: Tensor | None, q: Tensor | None, build: Build, a: Tensor, b: Tensor
) -> Tensor:
    return _times(name, build(a, b), p, q)


def _times(name: str, gradients: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    flat = gradients.flatten(2) if gradients.ndim > 3 else gradients
    if flat.ndim != 3:
        raise SideInformationError(
            f"Expected a matrix of weights, found '{name}' of shape {tuple(gradients.shape[1:])}. "
            "Give it a diagonal."
        )
    if p is not None:
        flat = linear(flat, _fitting(name, _without_bias(p, flat.shape[-1]), flat).to(flat.dtype))
    if q is not None:
        flat = _fitting(name, q, flat.mT).to(flat.dtype) @ flat
    return flat.reshape(gradients.shape)


def _without_bias(p: Tensor, width: int) -> Tensor:
    return p[:width, :width] if len(p) == width + 1 else p


def _fitting(name: str, matrix: Tensor, rows: Tensor) -> Tensor:
    width = rows.shape[-1]
    if matrix.shape != (width, width):
        raise SideInformationError(
            f"Expected a matrix of {width} × {width} for '{name}', found "
            f"{' × '.join(map(str, matrix.shape))}. It multiplies the inputs (or, on the other "
            "side, the outputs) of that layer."
        )
    return matrix


def _growth(matrix: Tensor | None) -> float:
    """By how much a product with this matrix can exceed the largest entry of the other factor."""
    return 1.0 if matrix is None else max(1.0, float(matrix.abs().sum(1).max()))


def _finite(values: Tensor) -> Tensor:
    return finite_rows(values)


def _kept(values: Tensor, finite: Tensor) -> Tensor:
    if bool(finite.all()):
        return values
    return torch.where(finite.view(-1, *[1] * (values.ndim - 1)), values, 0)


def whitened_mean(gradient: Params, inputs: Params, outputs: Params) -> Params:
    """Return Q [G | g] P for a mean gradient, such as one that was released."""
    found = dict(gradient)
    for name in dict.fromkeys([*inputs, *outputs]):
        weight, bias = found[name], found.get(bias_of(name))
        rows = weight.flatten(1).double()
        p, q = inputs.get(name), outputs.get(name)
        joint = p is not None and bias is not None and len(p) == rows.shape[1] + 1
        if joint:
            assert bias is not None
            rows = torch.cat([rows, bias.double().unsqueeze(1)], 1)
        if p is not None:
            rows = rows @ _fitting(name, p, rows).to(rows).T
        if q is not None:
            rows = _fitting(name, q, rows.T).to(rows) @ rows
            if bias is not None and not joint:
                found[bias_of(name)] = q.to(rows) @ bias.double()
        if joint:
            rows, found[bias_of(name)] = rows[:, :-1], rows[:, -1]
        found[name] = rows.reshape(weight.shape)
    return found


# --- second moments ---


def moments_of(leaves: Leaves, shared: Collection[str] = ()) -> Moments:
    """Return the second moments of all layers that can be whitened, summed over the examples.

    ``shared`` parameters have further uses: the gradient of such a bias is not that of an input 1.
    """
    found = Moments()
    for name, held in leaves.items():
        leaf = before_building(held) or held if isinstance(held, BuiltGradients) else held
        if isinstance(leaf, Outer | OverTime):
            a, b = (
                rows.reshape(-1, rows.shape[-1]) for rows in (leaf.inputs, leaf.output_gradients)
            )
            bias = bias_of(name)
            biased = isinstance(leaves.get(bias), MaterialisedGradients)
            biased = biased and not {name, bias} & set(shared)
            found.inputs[name] = _square(_with_one(a) if biased else a)
            found.outputs[name] = _square(b)
        elif isinstance(leaf, BuiltGradients) and (use := patches_in(leaf)) is not None:
            found.inputs[name], found.outputs[name] = map(_square, use)
        elif isinstance(leaf, SparseOuter):
            rows, values = leaf.inputs, leaf.inputs.values.double().square()
            found.words[name] = values.new_zeros(rows.width).index_add_(0, rows.columns, values)
            found.axes[name] = leaf.axis
        elif isinstance(leaf, TokenRows):
            counts = torch.bincount(leaf.tokens.flatten(), minlength=leaf.words)
            found.words[name], found.axes[name] = counts.double(), 0
    return found


def _with_one(a: Tensor) -> Tensor:
    return torch.cat([a, a.new_ones(len(a), 1)], 1)


def _square(rows: Tensor) -> Tensor:
    wide = rows.double()
    return wide.T @ wide
