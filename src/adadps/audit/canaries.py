"""Canaries: examples whose presence an observer tries to detect in what one run released.

The best ones do not interfere with each other. A canary that *owns a feature* touches only the
weights of that feature: its clipped gradient is orthogonal to all others, and the observer looks at
weights that only the canary and noise can change. For other models, use any examples that the model
would not learn from the rest, such as mislabelled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.func import functional_call

from adadps.data.examples import Examples, examples
from adadps.data.fields import Rows, arguments, one_input
from adadps.data.sparse_rows import SparseRows
from adadps.engine.losses import Loss
from adadps.engine.objective import Objective
from adadps.errors import DataError, require
from adadps.tensors.sums import Params

AT_ONCE = 512
"""How many canaries are scored at once."""


@dataclass(frozen=True)
class View:
    """What an observer of one run knows: the model, the loss, and the weights before and after."""

    objective: Objective
    loss: Loss
    before: Params
    after: Params


Score = Callable[[View, Examples], Tensor]
"""One value per canary: the larger, the likelier it was in the data."""


@dataclass(frozen=True)
class Canaries:
    """The canaries of an audit, their scores, and a row that replaces an excluded canary.

    The allowed error is shared between ``scores``. ``blank`` has no gradient. It is needed for
    samplers whose guarantee depends on the number of examples; under Poisson sampling, an excluded
    canary is simply absent.
    """

    examples: Examples
    scores: Mapping[str, Score]
    blank: Examples | None = field(default=None)

    def __len__(self) -> int:
        return len(self.examples)


def pull(view: View, canaries: Examples) -> Tensor:
    """Return -⟨∇ loss_i(w₀), w_T - w₀⟩: how far the weights moved where the canary pulls them.

    This is white-box, for any model that torch can differentiate twice. All products ⟨∇ loss_i, m⟩
    come from one backward pass through ⟨Σ u_i ∇ loss_i, m⟩, which is linear in u.
    """
    model, first = view.objective.model, next(iter(view.before.values()))
    moved = [view.after[name] - value for name, value in view.before.items()]
    scores = []
    for rows in torch.split(torch.arange(len(canaries)), AT_ONCE):
        part = canaries.take(rows).to(first.device)
        given, named = arguments(view.objective.prepare(part.features), first.dtype)
        params = {name: value.detach().requires_grad_() for name, value in view.before.items()}
        with _evaluating(model):
            losses = view.loss(functional_call(model, params, given, named), part.targets)
        shares = torch.ones_like(losses, requires_grad=True)
        gradients = torch.autograd.grad(
            losses, list(params.values()), shares, create_graph=True, materialize_grads=True
        )
        products = [(g * m).sum() for g, m in zip(gradients, moved, strict=True)]
        along = torch.stack(products).sum()
        scores.append(-torch.autograd.grad(along, shares)[0].double().cpu())
    return torch.cat(scores)


def distance(view: View, canaries: Examples) -> Tensor:
    """Return |⟨∇ loss_i(w₀), w_T - w₀⟩|: how far the weights moved along the canary's gradient.

    It reveals noise that is missing or too small for excluded canaries.
    """
    return pull(view, canaries).abs()


def stillness(view: View, canaries: Examples) -> Tensor:
    """Return -|⟨∇ loss_i(w₀), w_T - w₀⟩|, which reveals missing noise for included canaries."""
    return -distance(view, canaries)


def loss_drop(view: View, canaries: Examples) -> Tensor:
    """Return loss_i(w₀) - loss_i(w_T): how much the loss on the canary fell; for any model."""

    def losses(params: Params) -> Tensor:
        outputs = view.objective.outputs(params, canaries.features)
        return view.loss(outputs, canaries.targets.to(outputs.device)).detach().double().cpu()

    return losses(view.before) - losses(view.after)


OWN_FEATURE: Mapping[str, Score] = {"pull": pull, "distance": distance, "stillness": stillness}
"""Scores of canaries that own a feature: only the canary and noise move its weights."""


def own_feature_canaries(
    data: Examples,
    *,
    count: int,
    target: float,
    value: float = 1.0,
    scores: Mapping[str, Score] = OWN_FEATURE,
) -> tuple[Examples, Canaries]:
    """Widen ``data`` by ``count`` features, one per canary and zero everywhere else.

    Build the model for the wider rows, without a bias, which all examples would share. ``target``
    is the label of the canaries: choose it far from the initial outputs, so that the canaries are
    clipped.

    >>> wide, canaries = own_feature_canaries(examples(torch.rand(5, 2), torch.rand(5)),
    ...                                       count=3, target=100.0)
    >>> wide.features.shape, canaries.examples.features[1]
    (torch.Size([5, 5]), tensor([0., 0., 0., 1., 0.]))
    """
    require(count >= 1, "at least one canary", count, "Use some hundreds for a useful bound.")
    features = one_input(data.features)
    targets = torch.full((count, *data.targets.shape[1:]), target).to(data.targets.dtype)
    if isinstance(features, SparseRows):
        places = features.width + np.arange(count)
        entries = (np.full(count, value), (np.arange(count), places))
        rows = sparse.csr_matrix(entries, shape=(count, features.width + count))
        wide: Rows = SparseRows(
            features.offsets, features.columns, features.values, features.width + count
        )
        blank = examples(sparse.csr_matrix((1, features.width + count)), targets[:1])
        held = examples(rows, targets)
    elif features.ndim == 2:
        own = value * torch.eye(count)
        wide = torch.cat([features, features.new_zeros(len(features), count)], 1)
        held = examples(torch.cat([own.new_zeros(count, features.shape[1]), own], 1), targets)
        blank = examples(torch.zeros(1, features.shape[1] + count), targets[:1])
    else:
        raise DataError(
            f"Expected features with one row per example, found shape {tuple(features.shape)}. Use "
            "`given_canaries` for other models."
        )
    return Examples(wide, data.targets), Canaries(held, scores, blank)


GIVEN: Mapping[str, Score] = {"loss drop": loss_drop}
"""The score of any canaries, for any model."""


def given_canaries(
    canaries: Examples, *, scores: Mapping[str, Score] = GIVEN, blank: Examples | None = None
) -> Canaries:
    """Use given examples as canaries, scored by the drop of their loss, for any model.

    >>> held = given_canaries(examples(torch.rand(3, 2), torch.rand(3)))
    >>> len(held)
    3
    """
    return Canaries(canaries, scores, blank)


def joined(first: Examples, second: Examples) -> Examples:
    """Return the rows of both, one set after the other."""
    targets = torch.cat([first.targets, second.targets.to(first.targets)])
    a, b = first.features, second.features
    if isinstance(a, SparseRows) and isinstance(b, SparseRows):
        rows = SparseRows(
            torch.cat([a.offsets, a.offsets[-1] + b.offsets[1:]]),
            torch.cat([a.columns, b.columns]),
            torch.cat([a.values, b.values]),
            a.width,
        )
        return examples(rows, targets)
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape[1:] == b.shape[1:]:
        return examples(torch.cat([a, b.to(a)]), targets)
    raise DataError(
        "Expected canaries with features of the same kind and width as the data, found others. "
        "Prepare both in the same way."
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluate without dropout."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
