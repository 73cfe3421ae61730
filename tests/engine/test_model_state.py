"""What a model holds between passes: one record serves many, and hides no change."""

import functools
import types
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from adadps.engine.by_example import PassByExample
from adadps.engine.passes import model_state
from adadps.engine.passes.model_state import SameState
from adadps.errors import ContractError


class Slotted:
    __slots__ = ("late", "value")

    def __init__(self):
        self.value = 1


def noted(x, seen=()):
    return x, seen


def closed_over(value):
    def read():
        return value

    return read


def empty_closure():
    def read():
        return value

    if False:
        value = 1
    return read


class Holder(nn.Module):
    """Holds one of everything that a pass can write to."""

    of_all: ClassVar[list] = []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.last, self.rows, self.empty = None, [1], []
        self.slotted, self.read, self.unread = Slotted(), closed_over(1), empty_closure()
        self.noted = types.FunctionType(noted.__code__, globals(), "noted", noted.__defaults__)
        self.part = functools.partial(self.noted, {"a": 1})


PLACES = {
    "a buffer": (lambda m, v: m.mean.fill_(v), lambda m: float(m.mean[0])),
    "an attribute": (lambda m, v: setattr(m, "last", v), lambda m: m.last),
    "a list": (lambda m, v: m.rows.append(v), lambda m: m.rows[1:]),
    "an empty list": (lambda m, v: m.empty.append(v), lambda m: list(m.empty)),
    "hooks of a layer": (
        lambda m, v: m.layer._forward_hooks.update({v: print}),
        lambda m: list(m.layer._forward_hooks),
    ),
    "a list of the class": (lambda m, v: m.of_all.append(v), lambda m: list(m.of_all)),
    "a slot": (lambda m, v: setattr(m.slotted, "value", v), lambda m: m.slotted.value),
    "a slot without a value": (
        lambda m, v: setattr(m.slotted, "late", v),
        lambda m: getattr(m.slotted, "late", None),
    ),
    "a closure": (
        lambda m, v: setattr(m.read.__closure__[0], "cell_contents", v),
        lambda m: m.read(),
    ),
    "a default": (
        lambda m, v: setattr(m.noted, "__defaults__", ((v,),)),
        lambda m: m.noted(0)[1],
    ),
    "an argument of a partial function": (
        lambda m, v: m.part.args[0].update(a=v),
        lambda m: m.part.args[0]["a"],
    ),
}


@pytest.fixture(autouse=True)
def _empty_class():
    yield
    Holder.of_all.clear()


@pytest.mark.parametrize(("write", "read"), PLACES.values(), ids=PLACES.keys())
def test_each_pass_restores_what_its_user_left_and_no_older_state(write, read):
    model = Holder()
    same = SameState(model)
    first = read(model)
    for _ in range(2):  # the second time with the record of the first
        with same():
            write(model, 7)
        assert read(model) == first
    write(model, 8)  # by the user, between passes
    left = read(model)
    assert left != first
    with same():
        write(model, 9)
    assert read(model) == left


def test_a_variable_that_a_function_reads_is_empty_again_after_the_pass():
    model = Holder()
    same = SameState(model)
    for _ in range(2):
        with same():
            model.unread.__closure__[0].cell_contents = 7
        with pytest.raises(NameError):
            model.unread()


def test_what_was_put_into_a_new_object_is_restored_too():
    model = Holder()
    same = SameState(model)
    with same():
        pass
    model.last = {"rows": []}
    with same():
        model.last["rows"].append(7)
    assert model.last == {"rows": []}


def test_one_record_serves_all_passes_between_which_nothing_changes(monkeypatch):
    made = []

    class Counted(model_state.ModelState):
        def __init__(self, *given):
            made.append(given)
            super().__init__(*given)

    monkeypatch.setattr(model_state, "ModelState", Counted)
    model = Holder()
    same = SameState(model)
    for _ in range(3):
        with same():
            model.last = torch.ones(2)
            model.layer(torch.ones(2))
        with torch.no_grad():
            model.layer.weight.add_(1.0)  # a step moves the weights
    assert len(made) == 1


def test_a_pass_that_writes_to_a_parameter_is_refused_also_by_an_older_record():
    model = Holder()
    same = SameState(model)
    with same():
        pass
    with pytest.raises(ContractError, match="writes to them"), same():
        nn.init.ones_(model.layer.weight)


def test_frozen_linear_layers_run_by_the_products_of_trained_ones():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2), nn.LayerNorm(2))
    model[0].requires_grad_(False)
    model[3].requires_grad_(False)
    passes = PassByExample(model, {"1.weight", "1.bias"})
    assert set(passes.replacements) == {model[0], model[2], model[3]}, "all but what is stored"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_numbers_are_compared_bit_by_bit(dtype):
    """The sign of a zero could tell the sign of a private number."""
    zeros, held = torch.zeros(3, dtype=dtype), torch.tensor([1.0, float("nan"), 0.0], dtype=dtype)
    assert model_state._same_numbers(held, held.clone())
    assert not model_state._same_numbers(zeros, -zeros)


def test_the_sign_of_a_zero_in_an_array_is_restored():
    model = Holder()
    model.array = np.zeros(3)
    with SameState(model)():
        model.array *= -1
    assert not np.signbit(model.array).any()


@pytest.mark.parametrize("part", [torch.conj, lambda held: held.conj().imag], ids=["conj", "imag"])
def test_views_that_wait_to_be_conjugated_are_restored_too(part):
    model = Holder()
    model.turned = part(torch.tensor([1 + 2j, 0]))
    expected = model.turned.clone()
    for _ in range(2):
        with SameState(model)():
            model.turned.add_(1)
        assert torch.equal(model.turned, expected)
