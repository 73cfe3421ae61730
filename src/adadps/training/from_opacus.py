"""The call of `fit` that stands for a project's call of Opacus' `PrivacyEngine`.

Only settings are read: the optimizer and its groups, the size of batches, the length of the
dataset, the kinds of layers. No row of the dataset is looked at.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from adadps.errors import SettingError

_AS_OURS = ("batch_first", "loss_reduction", "module", "criterion", "data_loader", "optimizer")
_READ = ("max_grad_norm", "noise_multiplier", "target_epsilon", "target_delta", "epochs")


def from_opacus(*, optimizer: Optimizer, data_loader: Any, **settings: Any) -> str:
    """Return the Python text of our call, given what a project gives to its `PrivacyEngine`.

    Put ``print(from_opacus(...))`` in place of ``engine.make_private(...)`` or
    ``engine.make_private_with_epsilon(...)``, with the same arguments. What has no counterpart
    stands below the call as a comment.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> model = nn.Linear(20, 2)
    >>> print(from_opacus(
    ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
    ...     data_loader=DataLoader(TensorDataset(torch.zeros(1000, 20)), batch_size=50),
    ...     target_epsilon=2.0, target_delta=1e-5, epochs=5, max_grad_norm=1.0,
    ... ))
    result = adadps.fit(
        model,
        loss,  # one value per example: adadps.losses.cross_entropy, say
        adadps.examples(dataset),
        method=adadps.dp_sgd(lr=0.5),
        clip_norm=1.0,
        batch_size=50,
        epochs=5,
        examples=1000,  # declared, and public
        budget=adadps.Budget(epsilon=2.0, delta=1e-05),
    )
    """
    missing = [name for name in ("max_grad_norm",) if name not in settings]
    if missing or ("target_epsilon" in settings) == ("noise_multiplier" in settings):
        raise SettingError(
            "Expected the arguments of `make_private_with_epsilon` (target_epsilon, target_delta, "
            "epochs, max_grad_norm) or of `make_private` (noise_multiplier, max_grad_norm), found "
            f"{', '.join(settings) or 'none of them'}. Give what the project gives to Opacus."
        )
    lines = ["result = adadps.fit(", *(f"    {line}" for line in _arguments(
        optimizer, data_loader, settings
    )), ")"]  # fmt: skip
    notes = [f"# {note}" for note in _notes(optimizer, data_loader, settings)]
    return "\n".join([*lines, *notes])


def _arguments(optimizer: Optimizer, loader: Any, settings: dict[str, Any]) -> Iterator[str]:
    workers = f", workers={loader.num_workers}" if getattr(loader, "num_workers", 0) else ""
    number, size = len(loader.dataset), _batch_size(loader)
    noise = settings.get("noise_multiplier")
    delta = settings.get("target_delta")
    yield "model,"
    yield "loss,  # one value per example: adadps.losses.cross_entropy, say"
    yield f"adadps.examples(dataset{workers}),"
    yield f"method={_method(optimizer, noise)},"
    yield f"clip_norm={settings['max_grad_norm']!r},"
    if settings.get("poisson_sampling", True):
        yield f"batch_size={size},"
        yield f"epochs={settings.get('epochs', '...')},"
        yield f"examples={number},  # declared, and public"
    else:
        yield f"sampler=adadps.shuffled(examples={number}, expected_size={size}),"
        yield f"epochs={settings.get('epochs', '...')},"
    if noise is None:
        epsilon = settings["target_epsilon"]
        yield f"budget=adadps.Budget(epsilon={epsilon!r}, delta={delta!r}),"
    else:
        yield "delta=...,  # the one that you gave to `get_epsilon`"


def _batch_size(loader: Any) -> Any:
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return "..." if size is None else size


def _method(optimizer: Optimizer, noise: float | None) -> str:
    kind, own = type(optimizer), _own_settings(optimizer)
    given = "" if noise is None else f"noise_multiplier={noise!r}"
    if kind is SGD and own.keys() == {"lr"}:
        release = f"adadps.privatize({given}), " if given else ""
        return f"adadps.dp_sgd({release}lr={own['lr']!r})"
    module = kind.__module__
    name = f"torch.optim.{kind.__name__}" if module.startswith("torch.optim") else kind.__name__
    settings = "".join(f", {key}={value!r}" for key, value in own.items())
    update = f"adadps.stages.update_with({name}{settings})"
    return f"adadps.chain(adadps.privatize({given}), {update})"


def _own_settings(optimizer: Optimizer) -> dict[str, Any]:
    """The learning rate, and what differs from the defaults of the class."""
    usual = inspect.signature(type(optimizer)).parameters
    return {
        name: value
        for name, value in optimizer.defaults.items()
        if name == "lr" or (name in usual and value != usual[name].default)
    }


def _notes(optimizer: Optimizer, loader: Any, settings: dict[str, Any]) -> Iterator[str]:
    if len(optimizer.param_groups) > 1:
        yield (
            f"{len(optimizer.param_groups)} parameter groups: name them by patterns, e.g. "
            'update_with(..., parameter_groups={"*bias": {"weight_decay": 0.0}}).'
        )
    modules = settings["module"].modules() if isinstance(settings.get("module"), nn.Module) else ()
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules):
        yield "BatchNorm mixes examples: use GroupNorm or LayerNorm in its place."
    if any(type(module).__module__.startswith("opacus.layers") for module in modules):
        yield "Layers of Opacus (DPLSTM, ...) are not needed: use those of torch."
    if settings.get("poisson_sampling", True) is False:
        yield "Opacus prices shuffled batches as if they were Poisson samples; here they cost more."
    if settings.get("clipping", "flat") != "flat":
        yield (
            f"clipping={settings['clipping']!r}: here examples are clipped as a whole; see also "
            "adadps.methods.dp_sgd_adaptive_clip."
        )
    if settings.get("noise_generator") is not None:
        yield "noise_generator: noise comes from a secure generator; a seed makes epsilon infinite."
    if getattr(loader, "batch_sampler", None) is not None and _batch_size(loader) == "...":
        yield "The loader has a sampler of its own: batches are drawn by the run, at random."
    if type(settings.get("module")).__name__ == "DifferentiallyPrivateDistributedDataParallel":
        yield "Training on several processes is not supported yet."
    known = {
        *_AS_OURS, *_READ, "poisson_sampling", "clipping", "noise_generator", "grad_sample_mode",
        "wrap_model",
    }  # fmt: skip
    for name in settings.keys() - known:
        yield f"{name}: has no counterpart here."
