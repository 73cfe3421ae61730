"""Habits from torch and Opacus: what cannot work here is refused, with what to do instead."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from adadps import PrivateRun, dp_sgd, examples, losses, methods, privatize
from adadps.errors import DataError, ModelError, OrderError, SettingError
from adadps.methods.stages import chain, update_with
from adadps.training.stepper import DataStepper

GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(40, 6, generator=GENERATOR)
LABELS = torch.randint(2, (40,), generator=GENERATOR)
NOISY = privatize(clip_norm=1.0, noise_multiplier=1.0)


def begun(data=None, model=None, method=None, loss=losses.cross_entropy, steps=2):
    data = examples(ROWS, LABELS) if data is None else data
    return PrivateRun(
        model or nn.Linear(6, 2), loss, data, method=method or dp_sgd(NOISY, lr=0.5),
        batch_size=8, steps=steps, delta=1e-3,
    )  # fmt: skip


def by_adamw(**more):
    return chain(NOISY, update_with(torch.optim.AdamW, lr=0.1, **more))


def scheduled():
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1), 2)


def wrapped():
    from opacus import GradSampleModule

    return GradSampleModule(nn.Linear(6, 2))


class Checkpointing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(checkpoint(self.layer, x, use_reentrant=False))


def switched_on():
    model = nn.Sequential(nn.Linear(6, 2))
    model[0].gradient_checkpointing = True  # as layers of transformers have it
    return model


class AsksItsMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x):
        return self.layer(x) if bool((x < 9).all()) else self.layer(-x)


REFUSED = {
    "a loader": (lambda: begun(DataLoader(TensorDataset(ROWS, LABELS))), DataError, "its dataset"),
    "a dataset as it is": (
        lambda: begun(TensorDataset(ROWS, LABELS)), DataError, r"adadps.examples\(dataset\)"),
    "an optimizer as method": (
        lambda: begun(method=torch.optim.SGD(nn.Linear(6, 2).parameters(), 0.1)), OrderError,
        r"update_with\(torch.optim.SGD, lr="),
    "a text as method": (lambda: begun(method="dp_sgd"), OrderError, "adadps.methods"),
    "a scheduler that is made": (
        lambda: by_adamw(scheduler=scheduled()), SettingError, r"functools.partial\(StepLR"),
    "parameters in groups": (
        lambda: by_adamw(parameter_groups={"*bias": {"params": []}}), SettingError, "Leave it out"),
    "wrapped by Opacus": (lambda: begun(model=wrapped()), ModelError, "to_standard_module"),
    "bytes of images": (
        lambda: begun(examples(ROWS.abs().byte(), LABELS)), DataError, "image.float"),
    "a loss that is a mean over tokens": (
        lambda: begun(model=nn.Linear(6, 2), loss=lambda outputs, _: outputs.flatten()),
        ModelError, r"2 for each example.*view\(len\(targets\), -1\)"),
    "a loss without a value": (lambda: begun(loss=lambda *_: None), ModelError, "found NoneType"),
    "a loss of another form": (
        lambda: begun(loss=lambda outputs: outputs), ModelError, r"`loss\(outputs, targets\)`"),
    "checkpoints of activations": (
        lambda: begun(model=Checkpointing()), ModelError, "physical_batch_size"),
    "activations that are computed twice": (
        lambda: begun(model=switched_on()), ModelError, "gradient_checkpointing_disable"),
    "a mask that is asked for padding": (
        lambda: begun(model=AsksItsMask()), ModelError, r"prepared\(model\)"),
    "a name that the model lacks": (
        lambda: begun(examples({"image": ROWS}, LABELS)), DataError, "the names of the inputs"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_work_is_refused_with_the_cure(name):
    if "Opacus" in name:
        pytest.importorskip("opacus", reason="needs the extra bench")
    attempt, kind, says = REFUSED[name]
    with pytest.raises(kind, match=says):
        attempt()


def test_autocast_around_a_run_is_refused():
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ModelError, match="inside of the model's `forward`"),
    ):
        begun()


def test_hazard_autocast_around_a_step_changes_nothing(monkeypatch):
    """Neither what is measured nor what is added up is in half precision."""
    seen = []
    move = DataStepper.move

    def noting(self, *given):
        seen.append(torch.is_autocast_enabled("cpu"))
        return move(self, *given)

    monkeypatch.setattr(DataStepper, "move", noting)
    run = begun()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for batch in run.batches():
            run.step(batch)
        assert torch.is_autocast_enabled("cpu")
    assert seen == [False, False]


def test_dp2_with_a_delay_as_long_as_the_run_is_refused():
    """It would be DP-SGD under another name."""
    method = partial(methods.dp2, NOISY, lr=0.1, preconditioned_lr=0.1)
    with pytest.raises(SettingError, match="the method would be DP-SGD"):
        begun(method=method(delay=2))
    assert begun(method=method(delay=1)).steps == 2
