"""Hazard 29: choices by private rows, and models that mix the rows of a batch."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from adadps import examples
from adadps.engine.general import GeneralEngine
from adadps.engine.passes.validation import objective
from adadps.errors import ModelError
from support import ground_truth
from support.habits import (
    WIDTH,
    N,
    run_on,
    trained,
)
from support.problems import cross_entropy

# --- 29: choices by private rows ---


class GatedBypass(nn.Module):
    """Uses its layer's weight a second time, behind a gate that is closed for most rows."""

    def __init__(self, gate):
        super().__init__()
        self.layer, self.gate = nn.Linear(WIDTH, WIDTH), gate

    def forward(self, x):
        beside = functional.linear(x, self.layer.weight)
        return self.layer(x) + self.gate(x) * 200 * beside


GATES = {
    "multiplied": lambda x: (x[:, :1] > 5).to(x),
    "chosen": lambda x: torch.where(x[:, :1] > 5, x[:, :1], torch.zeros_like(x[:, :1])),
    "clamped": lambda x: functional.relu(x[:, :1] - 5),
}


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES.keys())
def test_hazard_29_a_parameter_behind_a_gate_has_the_right_gradient(gate):
    """The gate is closed for synthetic rows and for the first private ones."""
    rows = torch.randn(N, WIDTH).clamp(-2, 2)
    rows[20:, 0] = 6.0
    data = examples(rows, torch.randint(WIDTH, (N,)))
    model = GatedBypass(gate)
    held = objective(model, cross_entropy, data)
    found = held.per_unit(held.params(), data, None).norms()
    truth = ground_truth.gradients_one_by_one(model, cross_entropy, data)
    torch.testing.assert_close(found, ground_truth.norms(truth), rtol=1e-4, atol=1e-5)


class Branching(nn.Module):
    def __init__(self, branch):
        super().__init__()
        self.one, self.other, self.branch = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2), branch

    def forward(self, x):
        return self.one(x) if self.branch(x) else self.other(x)


@pytest.mark.parametrize(
    "branch",
    [lambda x: bool(x.sum() > 100), lambda x: x.max().item() > 100, lambda x: len(x.nonzero()) > 9,
     lambda x: x.detach().tolist()[0][0] > 100, lambda x: x.detach().numpy().max() > 100,
     lambda x: torch.equal(x, x + 1)],
)  # fmt: skip
def test_hazard_29_control_flow_that_depends_on_values_is_refused(branch):
    with pytest.raises(ModelError, match="data-dependent"):
        run_on(Branching(branch))


class LayerDropped(nn.Module):
    """Python's generator decides which layers run: no recording of calls would hold."""

    def __init__(self, kept=0.5):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(6)])
        self.top, self.kept = nn.Linear(WIDTH, 2), kept

    def forward(self, x):
        for layer in self.layers:
            if random.random() < self.kept:
                x = torch.relu(layer(x))
        return self.top(x)


@pytest.mark.parametrize("kept", [0.5, 1 - 1e-12])
def test_hazard_29_layers_that_python_skips_by_chance_have_the_general_engine(kept):
    """Also if none of them happens to be skipped while the model is tried."""
    run = run_on(LayerDropped(kept), steps=20)
    assert isinstance(run.objective.engine, GeneralEngine)
    assert trained(run).taken == 20


class OpenedByWeights(nn.Module):
    """Its second use of a weight begins when a bias has grown."""

    def __init__(self):
        super().__init__()
        self.layer, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        outputs = self.layer(x) + self.gate(x)
        if float(self.gate.bias.detach().abs().sum()) > 50:
            outputs = outputs + 1000 * functional.linear(x, self.layer.weight)
        return outputs


def test_hazard_29_a_gate_that_weights_open_later_has_the_right_gradient():
    data = examples(torch.randn(N, WIDTH), torch.randint(WIDTH, (N,)))
    model = OpenedByWeights()
    held = objective(model, cross_entropy, data)
    model.gate.bias.data.fill_(100.0)
    found = held.per_unit(held.params(), data, None).norms()
    truth = ground_truth.norms(ground_truth.gradients_one_by_one(model, cross_entropy, data))
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-3)


def test_hazard_29_an_error_in_a_step_quotes_no_row():
    """The text of a lookup out of range has the private value in it."""
    secret = 123457

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.top = nn.Embedding(10, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.top(self.table(x.long() * 1).mean(1))  # a copy: no one sees the range

    data = examples(torch.full((N, 2), secret), torch.arange(N) % 2)
    run = run_on(Shifted(), data)
    with pytest.raises(ModelError, match="in a step") as caught:
        trained(run)
    assert str(secret) not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def mixing_identity():
    """A layer of torch whose `forward` was replaced: its class says nothing about what it does."""
    layer = nn.Identity()
    layer.forward = lambda x: x / (x.abs().amax(0) + 1e-5)
    return nn.Sequential(nn.Linear(WIDTH, 3), layer, nn.Linear(3, 2))


def test_hazard_29_a_patched_layer_is_not_taken_for_one_of_torch():
    with pytest.raises(ModelError, match="depends on that row alone"):
        run_on(mixing_identity())


def test_hazard_29_a_hook_of_all_modules_is_noticed():
    handle = nn.modules.module.register_module_forward_hook(lambda _m, _i, o: o - o.mean(0))
    try:
        with pytest.raises(ModelError, match="depends on that row alone"):
            run_on(nn.Sequential(nn.Linear(WIDTH, 3), nn.Linear(3, 2)))
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("change", "found"),
    [("hook", "hooks of module '1'"), ("patch", "in a step"), ("class", "in a step")],
)
def test_hazard_29_a_model_that_is_changed_during_the_run_ends_it(change, found, monkeypatch):
    model = nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, 2))
    run = run_on(model)
    if change == "hook":
        model[1].register_forward_hook(lambda _m, _i, o: o - o.mean(0))
    elif change == "patch":
        model[1].forward = lambda x: x - x.mean(0)
    else:
        monkeypatch.setattr(nn.Tanh, "forward", lambda _self, x: x - x.mean(0))
    with pytest.raises(ModelError, match=found):
        trained(run)


# --- models that mix the examples of a batch in code of their own ---


class Mixing(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.layer, self.mix = nn.Linear(WIDTH, 2), mix

    def forward(self, x):
        return self.mix(self.layer(x))


MIXES = {
    "centred": lambda y: y - y.mean(0),
    "softmax over examples": lambda y: torch.softmax(y, 0),
    "sorted": lambda y: y.sort(0).values,
    "largest of all": lambda y: y / y.abs().max(),
    "rolled": lambda y: y + y.roll(1, 0),
    "with chance": lambda y: (drawn := functional.dropout(y, 0.1, training=True)) - drawn.mean(0),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_a_model_that_mixes_examples_in_its_own_code_is_refused(mix):
    with pytest.raises(ModelError, match="depends on that row alone"):
        run_on(Mixing(mix))


def test_softmax_over_examples_as_a_layer_is_refused():
    with pytest.raises(ModelError, match="depends on that row alone"):
        run_on(nn.Sequential(nn.Linear(WIDTH, 2), nn.Softmax(dim=0)))


@pytest.mark.parametrize("mix", [lambda y: y.softmax(1), lambda y: y - y.mean(1, keepdim=True)])
def test_statistics_within_a_row_are_fine(mix):
    trained(run_on(Mixing(mix)))


@pytest.mark.parametrize("outputs", [lambda y: (y, y), lambda y: {"logits": y}])
def test_a_loss_that_cannot_read_the_outputs_is_refused_with_the_cure(outputs):
    with pytest.raises(ModelError, match="Pick it in the loss"):
        run_on(Mixing(outputs))
