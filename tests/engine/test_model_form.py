"""A model that is changed in the middle of a run is refused, before the next batch is paid for."""

import pytest
import torch
from torch import nn

from adadps import Accountant, PrivateRun, dp_sgd, examples, losses, privatize
from adadps.errors import ModelError

GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(40, 6, generator=GENERATOR)
LABELS = torch.randint(2, (40,), generator=GENERATOR)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 2)
        self.gate.requires_grad_(False)

    def forward(self, x):
        return self.last(self.first(x).tanh() * self.gate(x).sigmoid())


def in_sequence():
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2), nn.Dropout(0.1))
    model[0].bias.requires_grad_(False)
    return model


def begun(model, steps=4):
    return PrivateRun(
        model, losses.cross_entropy, examples(ROWS, LABELS), steps=steps, delta=1e-3,
        method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=1.0), lr=0.5), batch_size=8,
        accountant=Accountant.RDP,
    )  # fmt: skip


def first_linear(model):
    return next(module for module in model.modules() if isinstance(module, nn.Linear))


def replace_weight(model):
    layer = first_linear(model)
    layer.weight = nn.Parameter(torch.zeros_like(layer.weight))


def another_memory(model):
    weight = first_linear(model).weight
    weight.data = weight.data.clone()


def hook_on_all_modules(model):
    return nn.modules.module.register_module_forward_hook(lambda *_: None)


CHANGES = {
    "frozen": (lambda m: first_linear(m).weight.requires_grad_(False), "frozen"),
    "unfrozen": (lambda m: m.requires_grad_(True), "frozen, unfrozen"),
    "another weight": (replace_weight, "replaced"),
    "another type": (lambda m: m.double(), "other memory"),
    "another memory": (another_memory, "'.*weight' was put into other memory"),
    "a hook": (lambda m: first_linear(m).register_forward_hook(lambda *_: None), "hooks of module"),
    "a hook of all modules": (hook_on_all_modules, "hooks of all modules"),
    "another mode": (lambda m: m.eval(), "another mode"),
    "a parametrization": (
        lambda m: nn.utils.parametrizations.weight_norm(first_linear(m)), "found that",
    ),
    "another layer": (lambda m: m.add_module("more", nn.Linear(1, 1)), "parts of the model itself"),
}  # fmt: skip


@pytest.mark.parametrize("build", [Gated, in_sequence])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_refused_before_it_is_paid_for(change, build):
    model = build()
    run = begun(model)
    batches = run.batches()
    run.step(next(batches))
    apply, says = CHANGES[change]
    undo = apply(model)
    try:
        with pytest.raises(ModelError, match=says):
            next(batches)
        assert run.result().privacy.steps_paid == 1
    finally:
        if change.startswith("a hook"):
            undo.remove()


def test_a_change_that_is_undone_lets_the_run_continue():
    """Also between a batch and its step, where the batch is paid for already."""
    model = Gated()
    run = begun(model)
    for batch in run.batches():
        model.eval()
        with pytest.raises(ModelError, match="another mode"):
            run.step(batch)
        model.train()
        run.step(batch)
    assert run.taken == 4
