"""The device's part of a round: train on its own rows, clip, and add noise if it has to.

Nothing else leaves the device: no loss, no norm, no number of rows.
"""

from __future__ import annotations

import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from torch import Tensor, nn

from adadps.accounting.ledger import Ledger, RunFacts
from adadps.data.examples import Examples, require_examples
from adadps.data.sparse_rows import lay_out_by_feature
from adadps.engine.local import LocalEngine, Part, of_updates
from adadps.engine.losses import Loss
from adadps.engine.noise.randomness import Randomness, secure
from adadps.engine.passes.validation import objective
from adadps.engine.waist import clip_weights
from adadps.methods.side.source import Uniform
from adadps.tensors.sums import Params, RowSparse, Sum, dense
from adadps.training.federated.task import Task
from adadps.types import Accountant, Relation, Unit

OWN_RUN = "answers of this device"


def local_update(
    task: Task,
    model: nn.Module,
    loss: Loss,
    data: Examples,
    *,
    scale: Params | None = None,
    randomness: Randomness | None = None,
) -> dict[str, Part]:
    """Return this device's answer from the weights of ``model``: clip(w_0 - w_T, C) + noise.

    ``scale`` is D = 1/A for every parameter, as in `FederatedRun.scale`. Without noise, a table of
    words keeps only the rows of the device's own words. An update that is not finite becomes zero,
    and is noised like any other: whether training failed is private too.
    """
    randomness = randomness or secure()
    held = objective(model, loss, require_examples(data), randomness=randomness)
    lay_out_by_feature(held.tables_by_feature())
    params = held.params()
    factors = Uniform().init(params).scale if scale is None else scale
    engine = LocalEngine(held.engine, task.steps, factors)
    rows = _chosen_rows(data, task.most, randomness).to(next(iter(params.values())).device)
    with held.isolation():
        found = of_updates([engine.update(params, rows)])
    clipped = found.weighted_sum(clip_weights(found.norms(), task.clip_norm))
    return {
        name: _to_send(total, params[name].dtype, task.noise * task.clip_norm, randomness)
        if task.noise
        else _to_send(total, params[name].dtype)
        for name, total in clipped.items()
    }


def empty_update(
    task: Task, model: nn.Module, *, randomness: Randomness | None = None
) -> dict[str, Part]:
    """Return the answer of a device whose rows could not be used: zero, with its noise.

    Where devices add noise, a missing share shows in the sum. Whether a user's rows can be used
    for training is a fact about that user, so whether there is an answer must not depend on it.
    """
    randomness = randomness or secure()
    return {
        name: _to_send(
            torch.zeros_like(value), value.dtype, task.noise * task.clip_norm, randomness
        )
        if task.noise
        else torch.zeros_like(value)
        for name, value in model.named_parameters()
        if value.requires_grad
    }


def pay_on_device(ledger: Ledger, task: Task) -> None:
    """Charge one answer to the device's own ledger before it is drawn, or refuse it.

    This is for devices that do not trust the server. Whatever the server asks for, and however
    often, what it can learn stays within the ledger's budget. An answer costs one Gaussian with
    multiplier ``task.noise``, no matter who else was asked; an answer without noise fits no budget.
    Its epsilon compares this user's rows with no rows ("zero out"), not with other rows.
    """
    event = GaussianDpEvent(task.noise) if task.noise else NonPrivateDpEvent()
    ledger.open(OWN_RUN, Relation.ZERO_OUT, Accountant.RDP, RunFacts(unit=Unit.USER.value))
    ledger.authorise(event, run=OWN_RUN)


def _chosen_rows(data: Examples, most: int, randomness: Randomness) -> Examples:
    """Return all rows, or ``most`` rows chosen anew and uniformly, in their original order."""
    if len(data) <= most:
        return data
    chosen = randomness.generator.choice(len(data), most, replace=False, shuffle=False)
    return data.take(torch.from_numpy(chosen).sort().values)


def _to_send(
    total: Sum, dtype: torch.dtype, deviation: float = 0.0, randomness: Randomness | None = None
) -> Part:
    """Return a part of the answer: noised in float64, then rounded to the type of the weights."""
    if randomness is not None:
        whole: Tensor = randomness.release(dense(total), standard_deviation=deviation)
        return whole.to(dtype)
    if isinstance(total, RowSparse):
        return RowSparse(total.rows, total.values.to(dtype), total.shape, total.axis)
    return dense(total).to(dtype)
