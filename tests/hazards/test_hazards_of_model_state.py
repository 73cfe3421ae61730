"""Hazard 27: what a model notes about private rows would leave with it."""

from contextlib import suppress
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from adadps import AdaDPSClassifier, accuracy, examples, on_held_out
from adadps.errors import ModelError
from support.habits import WIDTH, N, Plain, Wrapped, private_rows, run_on, trained

# --- 27: a forward pass that writes into the model ---


class Writer(nn.Module):
    """A linear layer, and something on the side."""

    def __init__(self, write=None, begins_at=0):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.last, self.rows, self.calls = None, [], {"count": 0}
        self.hidden, self.recorder, self.slotted = [Shared()], Recorder(), Slotted()
        self.write, self.begins_at = write, begins_at

    def forward(self, x):
        if self.write and _calls["count"] >= self.begins_at:
            self.write(self, x)
        _calls["count"] += 1
        return self.layer(x)


_calls = {"count": 0}  # outside of the model: a model that behaves until it is looked at no more


@pytest.fixture(autouse=True)
def _counted_anew():
    _calls["count"] = 0


def overwrite_weight(model, x):
    model.layer.weight.data.mul_(0.5)


class Recorder:
    """An object that is called, as helpers and hooks are."""

    def __init__(self):
        self.last = None

    def __call__(self, *given):
        self.last = given[-1].detach()


class Slotted:
    __slots__ = ("last",)

    def __init__(self):
        self.last = None


class Shared(nn.Module):
    """Hidden in a list, where `modules()` does not find it."""

    seen: ClassVar[list] = []

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(()))


def nested_cell():
    held = [None]

    def write(_model, x):
        held[0] = x.detach()

    return write


WRITES = {
    "a buffer": lambda model, x: model.seen.copy_(x[0].detach()),
    "a buffer by its data": lambda model, x: model.seen.data.copy_(x[0].detach()),
    "an attribute": lambda model, x: setattr(model, "last", x.detach()),
    "a list": lambda model, x: model.rows.append(x.detach()),
    "a dictionary": lambda model, x: model.calls.update(count=float(x.sum())),
    "a new buffer": lambda model, x: model.register_buffer("extra", x.detach()),
    "a new attribute of a layer": lambda model, x: setattr(model.layer, "noted", x.detach()),
    "a module in a list": lambda model, x: model.hidden[0].last.copy_(x.detach().sum()),
    "an object that is called": lambda model, x: model.recorder(x),
    "an object with slots": lambda model, x: setattr(model.slotted, "last", x.detach()),
    "a list of a class": lambda _, x: Shared.seen.append(x.detach()),
    "an attribute of a class": lambda _, x: setattr(Writer, "of_all", x.detach()),
    "a closure": nested_cell(),
    "a weight": overwrite_weight,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_hazard_27_a_model_that_writes_into_itself_is_refused_unpaid(write):
    model = Writer(write)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError, match="writes into"):
        run_on(model)
    after = model.state_dict()
    assert after.keys() == before.keys(), "the refused model is as it was"
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert recorded_rows(model) == []


def recorded_rows(model):
    """Whatever the model still holds of rows after it has run."""
    found = [model.last, model.recorder.last, model.slotted.last, getattr(Writer, "of_all", None)]
    found += [*model.rows, *Shared.seen]
    found += (
        [held[0] for held in [model.write.__closure__[0].cell_contents]]
        if (model.write and model.write.__closure__)
        else []
    )
    return [one for one in found if one is not None]


def test_hazard_27_a_hook_that_records_is_refused_and_its_record_put_back():
    recorder = Recorder()
    model = nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, 2))
    model[0].register_forward_hook(recorder)
    with pytest.raises(ModelError, match="writes into"):
        run_on(model)
    assert recorder.last is None


class LazilyScaled(nn.Module):
    """ActNorm: the first batch decides the parameters."""

    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(WIDTH)), nn.Linear(WIDTH, 2)
        self.register_buffer("ready", torch.tensor(0))

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
                self.ready.fill_(1)
        return self.layer(x * self.scale)


@pytest.mark.parametrize(
    "build",
    [
        LazilyScaled,
        lambda: nn.Sequential(nn.LazyLinear(2)),
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, 2))),
    ],
)
def test_hazard_27_lazy_initialisation_is_refused_with_the_cure(build):
    with pytest.raises(ModelError, match=r"public or made-up rows first"):
        run_on(build().train())


def test_hazard_27_a_model_that_was_initialised_on_public_rows_is_trained():
    model = LazilyScaled()
    model(torch.randn(20, WIDTH))
    trained(run_on(model))


LATE_WRITES = {name: write for name, write in WRITES.items() if name != "a weight"}


@pytest.mark.parametrize("write", LATE_WRITES.values(), ids=LATE_WRITES.keys())
def test_hazard_27_what_is_written_in_a_private_pass_is_put_back(write):
    """A model that begins to write only when nobody tries it out any more."""
    model = Writer(write, begins_at=10**9)
    run = run_on(model)
    model.begins_at = 0
    names = set(model.state_dict())
    with suppress(ModelError):  # a pass example by example cannot write rows into a buffer at all
        trained(run)
    assert set(model.state_dict()) == names
    assert not model.seen.any()
    assert not model.hidden[0].last.any()
    assert recorded_rows(model) == []
    assert model.calls == {"count": 0}
    assert not hasattr(model.layer, "noted")


def test_hazard_27_held_out_rows_leave_nothing_either():
    model = Writer(WRITES["an attribute"], begins_at=10**9)
    data = private_rows()
    run = run_on(model)
    model.begins_at = 0
    run.evaluate(on_held_out("mine", data.features, data.targets, accuracy=accuracy))
    assert model.last is None


def test_hazard_27_an_estimator_refuses_such_a_module_as_well():
    rows = np.random.default_rng(0).normal(size=(N, WIDTH)).clip(-1, 1)
    estimator = AdaDPSClassifier(
        epsilon=1, classes=[0, 1], feature_bounds=(-1, 1), module=Writer(WRITES["a buffer"])
    )
    with pytest.raises(ModelError, match="writes into"):
        estimator.fit(rows, (rows[:, 0] > 0).astype(int))


KEPT = []


def with_default():
    kept = []
    return lambda x, kept=kept: (kept.append(x), x)[1]


def with_attribute():
    def draw(x):
        draw.last = x
        return x

    return draw


def in_a_generator():
    def noting():
        seen = []
        while True:
            seen.append((yield))

    held = noting()
    next(held)
    return lambda x: (held.send(x), x)[1]


KEEPING = {
    "a default argument": with_default(),
    "an attribute of a function": with_attribute(),
    "a global list": lambda x: (KEPT.append(x), x)[1],
    "a generator's locals": in_a_generator(),
    "only with gradients": lambda x: (KEPT.append(x), x)[1] if torch.is_grad_enabled() else x,
}


@pytest.mark.parametrize("keep", KEEPING.values(), ids=KEEPING.keys())
def test_hazard_27_a_tensor_that_outlives_a_pass_is_refused_wherever_it_is(keep):
    with pytest.raises(ModelError, match="writes into"):
        run_on(Plain(keep))
    KEPT.clear()


class Cached(nn.Module):
    """A table that is made once, from no row."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.layer(x + positions(x.shape[-1]))


@cache
def positions(width):
    return torch.arange(width) / width


def test_a_table_that_was_made_in_the_first_pass_is_no_row():
    trained(run_on(Cached()))


def test_the_modes_of_all_modules_stay_as_they_are():
    model = Wrapped(nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    model.inner[1].eval()
    before = [module.training for module in model.modules()]
    run = run_on(model)
    data = private_rows()
    run.evaluate(on_held_out("mine", data.features, data.targets, accuracy=accuracy))
    assert [module.training for module in model.modules()] == before


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layer, self.top = nn.Embedding(9, 3), nn.LSTM(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.top(self.layer(self.words(x).transpose(0, 1))[0][-1])


def test_an_lstm_keeps_weights_it_was_given_and_is_trained():
    trained(run_on(Recurrent(), examples(torch.randint(9, (N, 5)), torch.arange(N) % 2)))
