"""Engines against autograd on one example at a time, with failures that name the parameter."""

import numpy as np
import torch

from adadps.engine.passes.validation import objective
from adadps.engine.rules.whitening import bias_of
from adadps.engine.waist import Units
from adadps.tensors.sums import dense
from support import ground_truth
from support.engine_checks import only

TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-10}
RAISED = 1e-3
"""By how much a bound on rounding may raise a norm, as for all engines."""
SLACK = 1e-12
OF_TORCH = (
    "ignore:LSTM with projections is not supported with oneDNN",
    "ignore:Using padding=.same. with even kernel lengths",
)
"""Warnings of torch about its own speed."""


def units_of(size, *, mean):
    """Three units, one of them empty; each is a mean, or a third of a sum."""
    labels = torch.tensor([0, 2, 2, 0, 2, 0, 0, 2])[:size]
    return Units(labels, 3, None if mean else 1 / 3)


def normal(rng, shape):
    return torch.from_numpy(np.asarray(rng.normal(size=shape)))


def diagonals_for(params, rng, form):
    """The factors of a positive D, to be applied one after the other."""

    def draw(shape):
        return normal(rng, shape).exp()

    if form == "full":
        return [{name: draw(tuple(p.shape)) for name, p in params.items()}]
    by_input = {n: draw((*[1] * min(p.ndim, 1), *p.shape[1:])) for n, p in params.items()}
    if form == "by input":
        return [by_input]
    by_output = {n: draw((*p.shape[:1], *[1] * (p.ndim - 1))) for n, p in params.items()}
    return [by_output, by_input]


FORMS = (
    "plain", "full", "rank one", "by input", "whitened", "whitened, full", "whitened, shift",
    "shift", "shift, rank one",
)  # fmt: skip


def matrices_for(batch, rng):
    """Random P for the inputs and Q for the outputs of all layers that can be whitened."""

    def draw(size):
        root = normal(rng, (size, size)) / size**0.5 + torch.eye(size)
        return root @ root.T

    held = batch.moments()
    sizes = [
        {name: len(value) for name, value in side.items()} for side in (held.inputs, held.outputs)
    ]
    return tuple({name: draw(size) for name, size in side.items()} for side in sizes)


def whitened_by_hand(gradients, inputs, outputs):
    """Q [G | g] P, written out for one example; a bias has a part in P where P has a row for it."""
    found = dict(gradients)
    for name, p in inputs.items():
        rows = gradients[name].flatten(1)
        bias = bias_of(name)
        joint = len(p) == rows.shape[1] + 1
        if joint:
            rows = torch.cat([rows, gradients[bias].unsqueeze(1)], 1)
        rows = outputs[name] @ rows @ p
        if joint:
            rows, found[bias] = rows[:, :-1], rows[:, -1]
        elif bias in gradients:
            found[bias] = outputs[name] @ gradients[bias]
        found[name] = rows.reshape(gradients[name].shape)
    return found


def transform(batch, params, form, seed=0):
    """``batch`` under one form of D and shift, with β, M and D for the ground truth."""
    form = form.removeprefix("whitened").removeprefix(", ") or "plain"
    rng = np.random.default_rng(seed)
    beta, mean = 1.0, {n: torch.zeros_like(p).double() for n, p in params.items()}
    if form.startswith("shift"):
        beta = 0.8
        mean = {n: normal(rng, tuple(p.shape)) for n, p in params.items()}
        batch = batch.shift(beta, mean)
    product = {n: torch.ones_like(p).double() for n, p in params.items()}
    if form != "plain":
        kind = {"shift": "full", "shift, rank one": "rank one"}.get(form, form)
        for diagonal in diagonals_for(params, rng, kind):
            batch = batch.scale(diagonal)
            product = {n: product[n] * diagonal[n] for n in params}
    return batch, (beta, mean, product)


class Compared:
    """One entry: its objective as training builds it, and the truth in float64."""

    def __init__(self, entry, dtype=torch.float32, name="model", **batch):
        self.entry, self.dtype, self.name = entry, dtype, name
        self.model = entry.model(dtype)
        self.batch = entry.batch(dtype=dtype, **batch)
        self.held = objective(self.model, entry.loss, self.batch)
        self.params = self.held.params()

    def truth(self):
        """Gradients by autograd in float64, one example at a time."""
        doubled = self.batch.features, self.batch.targets
        doubled = [t.double() if t.is_floating_point() else t for t in doubled]
        batch = type(self.batch)(*doubled)
        model = self.entry.model(self.dtype).double()
        return ground_truth.gradients_one_by_one(model, self.entry.loss, batch)

    def per_unit(self, batch=None, units=None, chunk=None):
        rows = self.batch if batch is None else batch
        return self.held.per_unit(self.params, rows, units, chunk)

    def assert_right(self, forms=FORMS, *, mean=False):
        """Norms and sums of examples in every form, and of units in the last one."""
        truth, found = self.truth(), self.per_unit()
        matrices = matrices_for(found, np.random.default_rng(5))
        turned = [whitened_by_hand(one, *matrices) for one in truth]
        for form in forms:
            whitened = form.startswith("whitened")
            batch = found.whiten(*matrices) if whitened else found
            self._assert_form(batch, turned if whitened else truth, form)
        units = units_of(len(self.batch), mean=mean)
        of_units = self.per_unit(units=units)
        self._assert_form(of_units, grouped_truth(truth, units), forms[-1], f"units, {forms[-1]}")
        of_units = of_units.whiten(*matrices)
        self._assert_form(of_units, grouped_truth(turned, units), "whitened", "units, whitened")

    def _assert_form(self, found, truth, form, said=None):
        said = f"{self.name}, {said or form}"
        batch, applied = transform(found, self.params, form)
        present = [one is not None for one in truth]
        wanted = ground_truth.transformed([one for one in truth if one is not None], *applied)
        assert_norms(batch.norms(), wanted, torch.tensor(present), self.tolerance, said)
        weights = torch.from_numpy(np.random.default_rng(1).normal(size=len(truth)))
        sums = ground_truth.weighted_sum(wanted, weights[present])
        assert_sums(batch.weighted_sum(weights), sums, self.tolerance, said)

    @property
    def tolerance(self):
        return TOLERANCE[self.dtype]


def grouped_truth(truth, units):
    """The gradient of each unit; None for one without rows."""
    found = []
    for unit in range(units.count):
        members = [one for one, label in zip(truth, units.labels.tolist(), strict=True)
                   if label == unit]  # fmt: skip
        share = units.weight if units.weight is not None else 1 / max(1, len(members))
        found.append(
            {name: share * sum(one[name] for one in members) for name in truth[0]}
            if members
            else None
        )
    return found


def assert_norms(found, wanted, present, tolerance, said):
    """Equal up to rounding; rounding may be charged, and then raises a norm by little."""
    assert found.dtype == torch.float64
    assert (found[~present] == 0).all(), f"{said}: units without rows have a norm"
    expected = ground_truth.norms(wanted)
    error = (found[present] - expected) / expected.clamp_min(1e-12)
    worst = f"{said}: relative error of norms from {error.min():.1e} to {error.max():.1e}"
    assert float(error.min()) >= -tolerance, f"{worst}: too small"
    assert float(error.max()) <= tolerance + RAISED, f"{worst}: too large"


def assert_sums(found, wanted, tolerance, said):
    """Equal up to rounding, relative to the largest entry of the parameter."""
    assert found.keys() == wanted.keys(), f"{said}: other parameters than the trainable ones"
    largest = max(float(leaf.abs().max()) for leaf in wanted.values())
    for name, leaf in wanted.items():
        got = dense(found[name])
        assert got.shape == leaf.shape, f"{said}: shape of '{name}' is {tuple(got.shape)}"
        scale = max(float(leaf.abs().max()), 1e-2 * largest)
        error = float((got - leaf).abs().max()) / scale
        assert error <= tolerance, f"{said}: relative error of '{name}' is {error:.1e}"


def assert_never_below(batch, params, form):
    """No norm is below that of what the example adds to the sum, by more than float64 rounding."""
    held, _ = transform(batch, params, form)
    norms = held.norms()
    for row in range(len(norms)):
        sums = held.weighted_sum(only(row, len(norms)))
        added = sum(dense(leaf).double().square().sum() for leaf in sums.values()).sqrt()
        missing = float(1 - norms[row] / added)
        assert missing <= SLACK, f"{form}: the norm of row {row} is too small by {missing:.1e}"
