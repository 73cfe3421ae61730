"""The call of `fit` that stands for a project's call of Opacus' `PrivacyEngine`.

Only settings are read: the optimizer and its groups, the size of batches, the length of the
dataset, the kinds of layers. No row of the dataset is looked at.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.data import RandomSampler, SequentialSampler, default_collate

from adadps.data.datasets import require_map_style
from adadps.errors import SettingError

_AS_OURS = ("module", "criterion", "data_loader", "optimizer", "grad_sample_mode", "wrap_model")
_READ = (
    *("max_grad_norm", "noise_multiplier", "target_epsilon", "target_delta", "epochs"),
    *("poisson_sampling", "clipping", "noise_generator", "loss_reduction", "batch_first"),
)


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
    require_map_style(data_loader.dataset)
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
    yield f"method={_method(optimizer, noise, _names(settings.get('module')))},"
    yield f"clip_norm={_clip_norm(settings['max_grad_norm'])!r},"
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


def _clip_norm(given: Any) -> Any:
    """One clip norm; of one for each layer, that of the whole gradient."""
    return math.hypot(*given) if isinstance(given, list | tuple) else given


def _names(module: Any) -> dict[int, str]:
    """The name of each trainable parameter, by its identity."""
    if not isinstance(module, nn.Module):
        return {}
    return {id(p): name for name, p in module.named_parameters() if p.requires_grad}


def _method(optimizer: Optimizer, noise: float | None, names: dict[int, str]) -> str:
    kind, groups = type(optimizer), optimizer.param_groups
    own = _own_settings(optimizer, groups[0])
    given = "" if noise is None else f"noise_multiplier={noise!r}"
    if kind is SGD and own.keys() == {"lr"} and len(groups) == 1:
        release = f"adadps.privatize({given}), " if given else ""
        return f"adadps.dp_sgd({release}lr={own['lr']!r})"
    module = kind.__module__
    name = f"torch.optim.{kind.__name__}" if module.startswith("torch.optim") else kind.__name__
    settings = "".join(f", {key}={value!r}" for key, value in own.items())
    patterns = {
        pattern: {key: value for key, value in found.items() if own.get(key) != value}
        for group in groups[1:]
        for found in [_own_settings(optimizer, group, own)]
        for pattern in _patterns(group, names)
    }
    if patterns:
        settings += f", parameter_groups={patterns!r}"
    update = f"adadps.stages.update_with({name}{settings})"
    return f"adadps.chain(adadps.privatize({given}), {update})"


def _own_settings(
    optimizer: Optimizer, group: dict[str, Any], others: Iterable[str] = ()
) -> dict[str, Any]:
    """The learning rate of a group, and what differs from the defaults of the class."""
    usual = inspect.signature(type(optimizer)).parameters
    found = {
        name: group[name]
        for name in optimizer.defaults
        if name in ("lr", *others) or (name in usual and group[name] != usual[name].default)
    }
    if "lr" in found:  # before its scheduler has moved it
        found["lr"] = float(group.get("initial_lr", found["lr"]))
    return found


def _patterns(group: dict[str, Any], names: dict[int, str]) -> list[str]:
    """Patterns for the parameters of a group: by the ends of their names, or name by name."""
    held = [names[id(p)] for p in group["params"] if id(p) in names]
    ends = {name.rpartition(".")[2] for name in held}
    patterns = [f"*{end}" for end in sorted(ends)]
    like = [name for name in names.values() if any(fnmatchcase(name, one) for one in patterns)]
    return patterns if len(like) == len(held) else held


def _notes(optimizer: Optimizer, loader: Any, settings: dict[str, Any]) -> Iterator[str]:
    yield from _notes_on_model(settings.get("module"))
    yield from _notes_on_optimizer(optimizer, settings)
    yield from _notes_on_loader(loader)
    if settings.get("poisson_sampling", True) is False:
        yield "Opacus prices shuffled batches as if they were Poisson samples; here they cost more."
    if settings.get("clipping", "flat") != "flat":
        yield (
            f"clipping={settings['clipping']!r}: here examples are clipped as a whole; see also "
            "adadps.methods.dp_sgd_adaptive_clip."
        )
    if settings.get("batch_first", True) is False:
        yield "batch_first=False: here examples lie along the first axis of every input and output."
    if settings.get("noise_generator") is not None:
        yield "noise_generator: noise comes from a secure generator; a seed makes epsilon infinite."
    for name in sorted(settings.keys() - {*_AS_OURS, *_READ}):
        yield f"{name}: has no counterpart here."


def _notes_on_model(module: Any) -> Iterator[str]:
    modules = list(module.modules()) if isinstance(module, nn.Module) else []
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules):
        yield "BatchNorm mixes examples: use GroupNorm or LayerNorm in its place."
    if any(type(module).__module__.startswith("opacus.layers") for module in modules):
        yield "Layers of Opacus (DPLSTM, ...) are not needed: use those of torch."
    if type(module).__name__ == "DifferentiallyPrivateDistributedDataParallel":
        yield (
            "DistributedDataParallel: give the model inside, `module.module`; under torchrun, "
            "`fit` trains on all processes."
        )


def _notes_on_optimizer(optimizer: Optimizer, settings: dict[str, Any]) -> Iterator[str]:
    names, groups = _names(settings.get("module")), optimizer.param_groups
    if len(groups) > 1 and not names:
        yield (
            f"{len(groups)} parameter groups: name them by patterns, e.g. "
            'update_with(..., parameter_groups={"*bias": {"weight_decay": 0.0}}).'
        )
    given = {id(p) for group in groups for p in group["params"]}
    idle = [name for key, name in names.items() if key not in given]
    if idle:
        yield (
            f"The optimizer does not have {len(idle)} trainable parameters ({idle[0]}, ...), which "
            "would be trained here: call `requires_grad_(False)` on them first."
        )
    if any("initial_lr" in group for group in groups):
        yield (
            "The optimizer has a scheduler: give what makes it, e.g. update_with(..., "
            "scheduler=functools.partial(torch.optim.lr_scheduler.StepLR, step_size=10))."
        )
    if settings.get("loss_reduction", "mean") != "mean":
        yield (
            'loss_reduction="sum": here a sum is divided by batch_size, so that a learning rate of '
            "SGD must be multiplied by it."
        )


def _notes_on_loader(loader: Any) -> Iterator[str]:
    sampler = getattr(loader, "sampler", None)
    if sampler is not None and type(sampler) not in (SequentialSampler, RandomSampler):
        yield (
            f"{type(sampler).__name__}: the run draws the batches, and each row with the same "
            "probability. Weigh classes in the loss instead, by public weights."
        )
    if getattr(loader, "batch_sampler", None) is not None and _batch_size(loader) == "...":
        yield "The loader has a sampler of its own: batches are drawn by the run, at random."
    if getattr(loader, "collate_fn", default_collate) is not default_collate:
        yield (
            "collate_fn is not called: let the dataset give items of one shape, with texts padded "
            "to one length. A row of another shape would weigh nothing, without a word."
        )
