"""Any optimizer of torch after the release: the same steps as in an ordinary loop of torch."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import adadps
from adadps import chain, examples, losses, poisson, privatize
from adadps.errors import OrderError, SettingError
from adadps.methods.stages import average, average_weights, sgd, update_with
from adadps.training.fit import PrivateRun

ROWS, STEPS = 40, 7
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(ROWS, 5, generator=GENERATOR), torch.randint(3, (ROWS,), generator=GENERATOR)
EVERYONE = poisson(examples=ROWS, expected_size=ROWS)
NOISE = privatize(clip_norm=1.0, noise_multiplier=2.0)


def model(bias=True):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4, bias=bias), nn.Tanh(), nn.Linear(4, 3, bias=bias)).double()


def run_of(method, held, steps=STEPS, **more):
    return PrivateRun(
        held, losses.cross_entropy, examples(X, Y), method=method, sampler=EVERYONE, steps=steps,
        delta=1e-3, **more,
    )  # fmt: skip


def by_adadps(update, held, *others, steps=STEPS):
    run = run_of(chain(average(), update, *others), held, steps)
    for batch in run.batches():
        run.step(batch)
    return run.result()


def by_torch(held, optimizer, scheduler=None, after=lambda: None):
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.cross_entropy(held(X.double()), Y).mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        after()


def require_equal(one, other):
    for (name, found), (_, expected) in zip(
        one.named_parameters(), other.named_parameters(), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=name)


OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}),
    "AdamW, amsgrad": (torch.optim.AdamW, {"lr": 0.05, "amsgrad": True}),
    "Adam with L2": (torch.optim.Adam, {"lr": 0.05, "weight_decay": 0.1}),
    "SGD, Nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "SGD, plain": (torch.optim.SGD, {"lr": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.05}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.05}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.05}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.1, "t0": 2}),
    "Rprop": (torch.optim.Rprop, {"lr": 0.05}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.05}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_a_loop_of_torch(name):
    kind, settings = OPTIMIZERS[name]
    ours, theirs = model(), model()
    by_adadps(update_with(kind, **settings), ours)
    by_torch(theirs, kind(theirs.parameters(), **settings))
    require_equal(ours, theirs)


def warm_up_and_decay(optimizer):
    return lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(optimizer, 0.5)],
        milestones=[3],
    )


SCHEDULERS = {
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=STEPS),
    "in turn": warm_up_and_decay,
    "one cycle": partial(lr_scheduler.OneCycleLR, max_lr=[0.1, 0.2], total_steps=STEPS + 1),
    "by a function": partial(lr_scheduler.LambdaLR, lr_lambda=lambda t: 1 / (1 + t)),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedules_and_groups_are_those_of_torch(name):
    settings = {"lr": 0.05, "weight_decay": 0.1}
    ours, theirs = model(), model()
    own = {"weight_decay": 0.0, "lr": 0.02}
    update = update_with(
        torch.optim.AdamW, parameter_groups={"*.bias": own}, scheduler=SCHEDULERS[name], **settings
    )
    by_adadps(update, ours)
    biases = [p for n, p in theirs.named_parameters() if n.endswith("bias")]
    weights = [p for n, p in theirs.named_parameters() if not n.endswith("bias")]
    optimizer = torch.optim.AdamW([{"params": weights}, {"params": biases, **own}], **settings)
    by_torch(theirs, optimizer, SCHEDULERS[name](optimizer))
    require_equal(ours, theirs)


def test_averages_are_those_of_torch():
    ours, theirs = model(), model()
    averaged = AveragedModel(theirs, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    result = by_adadps(sgd(0.1), ours, average_weights(0.8))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    by_torch(theirs, optimizer, after=lambda: averaged.update_parameters(theirs))
    require_equal(ours, averaged.module)
    require_equal(result.restore(model()), averaged.module)
    assert result.settings["weights"] == "averaged: average_weights(0.8)"


def test_evaluations_see_the_averages_and_gradients_do_not():
    held, plain = model(), model()
    run = run_of(chain(average(), sgd(0.5), average_weights(0.9)), held)
    twin = run_of(chain(average(), sgd(0.5)), plain)
    seen = adadps.on_public("rows", X, Y, first=lambda outputs, _: float(outputs[0, 0]))
    for batch, other in zip(run.batches(), twin.batches(), strict=False):
        run.step(batch)
        twin.step(other)
        if batch.index == 4:
            require_equal(held, plain)  # until the end the model has the weights that move
            given = {n: v.float() for n, v in run.result().params.items()}
            (found,) = run.evaluate(seen)
            expected = torch.func.functional_call(held.float(), given, X)[0, 0]
            assert found.value == pytest.approx(float(expected), rel=1e-5)
            held.double()
            break


def test_a_private_run_is_private_and_states_its_optimizer():
    update = update_with(torch.optim.AdamW, lr=0.01, scheduler=SCHEDULERS["cosine"])
    run = run_of(chain(NOISE, update, average_weights(0.9)), model())
    for batch in run.batches():
        run.step(batch)
    result = run.result()
    sgds = run_of(chain(NOISE, sgd(0.1)), model())
    for batch in sgds.batches():
        sgds.step(batch)
    assert result.privacy.epsilon == sgds.result().privacy.epsilon < 100
    assert result.method == (
        "privatize(C=1, σ=2) > update_with(AdamW, lr=0.01, scheduler=CosineAnnealingLR(T_max=7))"
        " > average_weights(0.9)"
    )
    rates = result.public_facts["learning_rates"]
    assert rates["first"] == 0.01
    assert rates["last"] < 0.001


def test_noise_is_drawn_at_every_step():
    """An optimizer sees values, and an average the weights of every step."""
    update = update_with(torch.optim.SGD, lr=0.1)
    assert not chain(NOISE, update).allows_late_noise
    assert chain(NOISE, sgd(0.1)).allows_late_noise
    assert not chain(NOISE, sgd(0.1), average_weights(0.5)).allows_late_noise


def test_the_state_before_the_first_step_is_not_that_of_the_trial():
    ours, theirs = model(), model()
    update = update_with(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=2.0)
    by_adadps(update, ours)
    optimizer = torch.optim.Adagrad(theirs.parameters(), lr=0.1, initial_accumulator_value=2.0)
    by_torch(theirs, optimizer)
    require_equal(ours, theirs)


def test_one_stage_serves_several_runs():
    update = update_with(torch.optim.AdamW, lr=0.05, scheduler=SCHEDULERS["cosine"])
    first, second = model(), model()
    by_adadps(update, first)
    by_adadps(update, second)
    require_equal(first, second)


class Remembers(torch.optim.SGD):
    """Has a state that nobody can see."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            group["lr"] /= self.count
        return super().step(closure)


class HoldsAnObject(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["history"] = [1.0]


REFUSED = {
    "needs the loss again": (lambda: update_with(torch.optim.LBFGS), "private rows again"),
    "an object": (
        lambda: update_with(torch.optim.SGD(model().parameters(), lr=0.1)), "update_with\\(torch"),
    "no optimizer": (lambda: update_with(nn.Linear, lr=0.1), "class of an optimizer"),
    "a wrong setting": (lambda: update_with(torch.optim.AdamW, rate=0.1), "accept, found"),
    "a bad value": (lambda: update_with(torch.optim.AdamW, lr=-1.0), "Invalid learning rate"),
    "sparse": (lambda: update_with(torch.optim.SparseAdam, lr=0.1), "does not support dense"),
    "hidden state": (lambda: update_with(Remembers, lr=0.1), "remembers more"),
    "an object in its state": (lambda: update_with(HoldsAnObject, lr=0.1), "holds list"),
    "follows a loss": (
        lambda: update_with(
            torch.optim.SGD, lr=0.1, scheduler=lr_scheduler.ReduceLROnPlateau), "would have to be"),
    "no such parameter": (
        lambda: update_with(torch.optim.SGD, lr=0.1, parameter_groups={"head.*": {"lr": 1}}),
        "matches none: 'head"),
    "a schedule that is too short": (
        lambda: update_with(torch.optim.SGD, lr=0.1, scheduler=partial(
            lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=3)), "total_steps|Tried to step"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_before_anything_is_paid(name):
    make, says = REFUSED[name]
    ledger = adadps.accounting.ledger.MemoryLedger(adadps.Budget(epsilon=50, delta=1e-3))
    with pytest.raises(SettingError, match=says):
        PrivateRun(
            model(), losses.cross_entropy, examples(X, Y), method=chain(NOISE, make()),
            sampler=EVERYONE, steps=STEPS, ledger=ledger,
        )  # fmt: skip
    assert ledger.epsilon(1e-3) == 0


def test_only_one_average_is_taken():
    with pytest.raises(OrderError, match="found several"):
        chain(NOISE, sgd(0.1), average_weights(0.5), average_weights(0.9))


def test_decays_lie_below_one():
    with pytest.raises(SettingError, match="decay in"):
        average_weights(1.0)
