"""Hazards 27 to 31: what a model does with private rows, and what is done with it before training.

Each attack was seen to work once; each test fails if it works again.
"""

import random
from contextlib import suppress
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional

import ground_truth
from adadps import (
    AdaDPSClassifier,
    PrivateRun,
    accuracy,
    dp_sgd,
    examples,
    fit,
    losses,
    on_held_out,
    poisson,
    privatize,
    reproducible_not_private,
    secure,
)
from adadps.data.sparse_rows import SparseRows
from adadps.errors import DataError, ModelError
from adadps.gradients.general import GeneralEngine
from adadps.gradients.probing import objective
from adadps.gradients.synthetic import ROWS
from adadps.outer_sum import dense
from late_tables import bag, embedding, linear, nothing
from problems import cross_entropy

SILENT = privatize(clip_norm=1.0, noise_multiplier=0.0)
NOISY = privatize(clip_norm=1.0, noise_multiplier=2.0)
N, WIDTH = 40, 4


def private_rows(n=N):
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(n, WIDTH, generator=generator)
    return examples(rows, (rows[:, 0] > 0).long())


def run_on(model, data=None, *, method=None, steps=3, size=8, loss=cross_entropy, **options):
    data = private_rows() if data is None else data
    sampler = poisson(examples=len(data), expected_size=size)
    method = method or dp_sgd(NOISY, 0.1)
    return PrivateRun(model, loss, data, method=method, sampler=sampler, steps=steps, **options)


def trained(run):
    for batch in run.batches():
        run.step(batch)
    return run


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


# --- 28: chance inside the model ---


def dropping(known=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    return model if known else Wrapped(model)


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class PythonsDropout(nn.Module):
    """Chance from numpy and from Python, for the whole batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.layer(x * (random.random() + np.random.rand()))


MODELS = {
    "a sequence": dropping,
    "a forward of its own": lambda: dropping(known=False),
    "chance of Python": PythonsDropout,
}


def states():
    return torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()


PLAIN = {
    "no chance at all": lambda: nn.Linear(WIDTH, 2),
    "a perceptron": lambda: nn.Sequential(nn.Linear(WIDTH, 3), nn.ReLU(), nn.Linear(3, 2)),
}


@pytest.mark.parametrize("loss", [cross_entropy, losses.cross_entropy], ids=["own", "known"])
@pytest.mark.parametrize("build", [*MODELS.values(), *PLAIN.values()], ids=[*MODELS, *PLAIN])
def test_hazard_28_training_neither_reads_nor_moves_the_global_generators(build, loss):
    model, data = build(), private_rows()
    held_out = on_held_out("mine", data.features, data.targets, every=1, accuracy=accuracy)
    before = states()
    fit(
        model, loss, data, method=dp_sgd(NOISY, 0.1), steps=3, evaluate=[held_out],
        sampler=poisson(examples=N, expected_size=8), progress=False,
    )  # fmt: skip
    for one, other in zip(before, states(), strict=True):
        assert (
            np.array_equal(one, other)
            if isinstance(one, np.ndarray)
            else (torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other)
        )


def gradient_of(model, data, randomness):
    """The clipped sum over all rows, without noise, as the weights show it after one step."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    run = run_on(model, data, method=dp_sgd(SILENT, 1.0), steps=1, size=len(data),
                 randomness=randomness)  # fmt: skip
    trained(run)
    return torch.cat([(p.detach() - start[n]).flatten() for n, p in model.named_parameters()])


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
def test_hazard_28_who_knows_the_global_seed_knows_nothing_about_the_masks(build):
    found = []
    data = examples(torch.ones(N, WIDTH), torch.ones(N).long())  # in whatever order they come
    for _ in range(2):
        model = build()
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        found.append(gradient_of(model, data, secure()))
    assert not torch.allclose(*found), "masks are drawn afresh though all seeds are the same"


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
def test_hazard_28_a_seeded_run_has_seeded_chance_whatever_the_global_seed(build):
    found = []
    for seed in range(2):
        model = build()
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        found.append(gradient_of(model, private_rows(), reproducible_not_private(7)))
    assert torch.equal(*found)


def test_hazard_28_a_generator_of_the_models_own_is_refused():
    model = Writer()
    model.draws = torch.Generator().manual_seed(0)
    with pytest.raises(ModelError, match="its own generator"):
        run_on(model)


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


# --- 30: an empty batch ---


@pytest.mark.parametrize("make", [linear, bag, embedding])
def test_hazard_30_an_empty_batch_leaves_late_rows_as_late_as_any_other(make):
    """Eager noise for empty batches showed on the grid, at an expected batch of one."""
    table = make(8)
    data = examples(table.features, torch.zeros(12, dtype=torch.int64))
    run = PrivateRun(
        table.model, nothing, data, method=dp_sgd(NOISY, 0.5), steps=400,
        sampler=poisson(examples=12, expected_size=0.05),
    )  # fmt: skip
    memory = torch.from_numpy(run._stepper.own_params[table.name].numpy())  # no hook sees this
    moved = []
    for batch in run.batches():
        if batch.index == 300:
            break
        before, rows = memory.clone(), len(run._drawn.rows)
        run.step(batch)
        moved.append((rows, int((before != memory).sum())))
    assert any(rows == 0 for rows, _ in moved)
    most = memory.numel() // 2  # rows that have waited long are drawn whatever the batch
    assert all(drawn <= most for rows, drawn in moved if rows == 0), "no batch draws for all rows"
    assert table.name in run._stepper.weights._late


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
def test_hazard_30_an_empty_batch_is_a_noised_step_like_any_other(build):
    """It runs the model on synthetic rows, and its sum is exactly zero."""
    model, data = build(), private_rows()
    held = objective(model, cross_entropy, data)
    nobody = data.take(torch.arange(0))
    found = held.per_unit(held.params(), nobody, None)
    assert len(found.norms()) == 0
    total = found.weighted_sum(torch.zeros(0))
    assert all(not dense(value).any() for value in total.values())
    assert {n: dense(v).shape for n, v in total.items()} == {
        n: p.shape for n, p in held.params().items()
    }


def test_hazard_30_synthetic_rows_touch_no_table():
    tokens = torch.randint(1, 9, (5, 3))  # nobody has word 0 or 9
    data = examples(tokens, torch.arange(5) % 2)
    for first in (nn.EmbeddingBag(10, 2), nn.Sequential(nn.Embedding(10, 2), nn.Flatten())):
        model = nn.Sequential(first, nn.Linear(2 if isinstance(first, nn.EmbeddingBag) else 6, 2))
        held = objective(model, cross_entropy, data)
        batch = held.encoded(data)
        total = held.per_unit(held.params(), batch, None).weighted_sum(torch.ones(5))
        table = next(iter(total.values()))
        assert sorted(table.rows.tolist()) == sorted(set(tokens.flatten().tolist()))


# --- 31: what is computed from data that has changed since ---


def test_hazard_31_values_changed_in_place_are_clipped_as_they_are_now():
    matrix = sparse.random(N, 9, density=0.5, format="csr", random_state=0, dtype=np.float32)
    held = SparseRows.from_scipy(matrix)
    data = examples(held, torch.arange(N) % 2)
    model = nn.Linear(9, 2)
    run = run_on(model, data, method=dp_sgd(SILENT, 1.0), steps=4, size=N)
    batches = run.batches()
    for _ in range(3):
        run.step(next(batches))
    before = [p.detach().clone() for p in model.parameters()]
    data.features.values.numpy()[:] *= 50  # no version counter sees this
    run.step(next(batches))
    moved = torch.cat([(p.detach() - b).flatten() for p, b in zip(model.parameters(), before,
                                                                  strict=True)])  # fmt: skip
    assert float(moved.norm()) <= 1 + 1e-5, "each of N rows brings at most C / N"


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


# --- synthetic rows of the user's own ---


def test_rows_of_the_users_own_are_taken_where_made_up_ones_do_not_fit():
    def picky(outputs, targets):
        if not bool((targets >= 5).all()):
            raise ValueError("targets of 5 and more")
        return (outputs[:, 0] - targets).square()

    rows, targets = torch.randn(N, WIDTH), torch.rand(N) + 5
    with pytest.raises(DataError, match="synthetic="):
        run_on(nn.Linear(WIDTH, 2), examples(rows, targets), loss=picky)
    made_up = (torch.zeros(2, WIDTH), torch.full((2,), 6.0))
    data = examples(rows, targets, synthetic=made_up)
    assert len(objective(nn.Linear(WIDTH, 2), losses.squared_error,
                         examples(rows, torch.rand(N, 2))).synthetic) == ROWS  # fmt: skip
    held = objective(Wrapped(nn.Linear(WIDTH, 2)), lambda o, t: (o[:, 0] - t) ** 2, data)
    assert torch.equal(held.synthetic.targets, torch.full((ROWS,), 6.0))
    with pytest.raises(DataError, match="of the form of the data"):
        examples(rows, targets, synthetic=(torch.zeros(2, WIDTH + 1), made_up[1]))


@pytest.mark.parametrize("outputs", [lambda y: (y, y), lambda y: {"logits": y}])
def test_a_model_that_returns_no_tensor_is_refused_with_the_cure(outputs):
    with pytest.raises(ModelError, match="returns the part that the loss reads"):
        run_on(Mixing(outputs))


# --- what an attack on these guards found ---


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


@pytest.mark.parametrize("change", ["hook", "patch", "class"])
def test_hazard_29_a_model_that_is_changed_during_the_run_ends_it(change, monkeypatch):
    model = nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, 2))
    run = run_on(model)
    if change == "hook":
        model[1].register_forward_hook(lambda _m, _i, o: o - o.mean(0))
    elif change == "patch":
        model[1].forward = lambda x: x - x.mean(0)
    else:
        monkeypatch.setattr(nn.Tanh, "forward", lambda _self, x: x - x.mean(0))
    with pytest.raises(ModelError, match="in a step"):
        trained(run)


GLOBAL_GENERATOR = torch.Generator().manual_seed(0)


def dropped(x, generator):
    return x * torch.bernoulli(torch.full_like(x, 0.5), generator=generator)


class Drawing(nn.Module):
    gen = torch.Generator()

    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(WIDTH, 2), draw

    def forward(self, x):
        return self.layer(self.draw(x))


class Plain(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(WIDTH, 2), draw

    def forward(self, x):
        return self.layer(self.draw(x))


def reseeded(x):
    torch.manual_seed(7)
    return functional.dropout(x, 0.5)


DRAWS = {
    "of the class": (Drawing, lambda x: dropped(x, Drawing.gen)),
    "global": (Plain, lambda x: dropped(x, GLOBAL_GENERATOR)),
    "default argument": (Plain, lambda x, gen=GLOBAL_GENERATOR: dropped(x, gen)),
    "seeded in the pass": (Plain, reseeded),
}


@pytest.mark.parametrize(("kind", "draw"), DRAWS.values(), ids=DRAWS.keys())
def test_hazard_28_chance_from_a_known_seed_is_refused_however_it_is_reached(kind, draw):
    with pytest.raises(ModelError, match=r"own generator|sets a seed"):
        run_on(kind(draw))


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
