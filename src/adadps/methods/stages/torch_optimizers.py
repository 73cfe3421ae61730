"""Any optimizer of torch as an update: post-processing.

The optimizer sees the weights and what was released, noise included, and nothing else. Its state is
taken apart into tensors and numbers, so that checkpoints need no pickle; a trial of two steps shows
that an optimizer which is put together again goes on as if nothing had happened. Learning rates are
public functions of the number of the step: a scheduler is run beside, on an optimizer without
weights.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from adadps.engine.waist import Step, Update
from adadps.errors import SettingError
from adadps.methods.stages.chain import TO_UPDATE
from adadps.methods.stages.updates import described
from adadps.tensors.sums import Params
from adadps.types import Kind

SCHEDULED = ("lr", "momentum", "betas")
"""The settings of a group that schedulers move."""

State = tuple[Params, dict[str, dict[str, Any]], tuple[dict[str, Any], ...]]
"""The weights, the optimizer's state for each of them, and what it notes in its groups."""


@dataclass(frozen=True)
class UpdateWith:
    """The step of an optimizer of torch. Build it with `update_with`."""

    optimizer: type[Optimizer]
    settings: Mapping[str, Any]
    parameter_groups: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    scheduler: Callable[[Optimizer], Any] | None = None
    _beside: list[_Scheduled] = field(default_factory=list, compare=False, repr=False)

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes released or exposed gradients and gives an update."""
        return TO_UPDATE

    @property
    def lr(self) -> Callable[[int], float]:
        """The learning rate of the weights that are in no group of their own."""
        return lambda index: float(self._scheduled(index)[0]["lr"])

    def require_steps(self, steps: int) -> None:
        """Refuse a scheduler that ends before the last step."""
        self._scheduled(steps)

    def init(self, params: Params) -> State:
        """Return zeros in the form of the optimizer's state, which a trial shows."""
        held, noted = _tried(self, params)
        zeros = {name: {key: _zero(value) for key, value in own.items()}
                 for name, own in held.items()}  # fmt: skip
        return params, zeros, noted

    def apply(self, signal: Params, state: State, step: Step) -> tuple[Update, State]:
        """Take a step on a copy of the weights, and return how far they have moved."""
        weights, held, noted = state
        copies = {name: nn.Parameter(value.clone()) for name, value in weights.items()}
        if step.index == 1:
            held, noted = {}, ()
        held, noted = self.step(copies, signal, held, noted, step.index)
        moved = {
            name: copy.detach().double() - weights[name].double() for name, copy in copies.items()
        }
        return Update(moved), (weights, held, noted)

    def step(
        self,
        weights: Mapping[str, nn.Parameter],
        gradients: Params,
        held: Mapping[str, dict[str, Any]],
        noted: tuple[dict[str, Any], ...],
        index: int,
    ) -> tuple[dict[str, dict[str, Any]], tuple[dict[str, Any], ...]]:
        """Change the weights in place by step ``index``; return the state after it."""
        optimizer = self.made_for(weights)
        for name, own in held.items():
            optimizer.state[weights[name]] = {key: _copy(value) for key, value in own.items()}
        for group, own in zip(optimizer.param_groups, noted, strict=False):
            group.update(own)
        for group, own in zip(optimizer.param_groups, self._scheduled(index), strict=True):
            group.update(own)
        before = [_noted_in(group) for group in optimizer.param_groups]
        for name, parameter in weights.items():
            parameter.grad = gradients[name].to(parameter.dtype)
        with _explained(self), torch.enable_grad():
            optimizer.step()
        after = tuple(
            {key: value for key, value in _noted_in(group).items()
             if key in own or key not in old or old[key] != value}
            for group, old, own in zip(
                optimizer.param_groups, before, noted or [{}] * len(before), strict=True
            )
        )  # fmt: skip
        return {name: dict(optimizer.state[p]) for name, p in weights.items()}, after

    def made_for(self, weights: Mapping[str, nn.Parameter]) -> Optimizer:
        """Return the optimizer of these weights, in their groups."""
        parts: list[dict[str, Any]] = [
            {"params": []},
            *({"params": [], **s} for _, s in self.parameter_groups),
        ]
        for name, parameter in weights.items():
            places = (
                n for n, (like, _) in enumerate(self.parameter_groups, 1) if fnmatchcase(name, like)
            )
            parts[next(places, 0)]["params"].append(parameter)
        with _explained(self):
            return self.optimizer(parts, **self.settings)

    @property
    def settings_of_groups(self) -> list[Mapping[str, Any]]:
        """The settings of each group; the first has what no pattern matches."""
        return [{}, *(settings for _, settings in self.parameter_groups)]

    def _scheduled(self, index: int) -> list[dict[str, Any]]:
        """The settings of each group that a scheduler may move, at step ``index``."""
        if not self._beside or self._beside[0].index > index:
            self._beside[:] = [_Scheduled(self)]
        return self._beside[0].at(index)

    def __str__(self) -> str:
        given = [f"{name}={described(value)}" for name, value in self.settings.items()]
        if self.parameter_groups:
            each = (f"{like!r}: {described(settings)}" for like, settings in self.parameter_groups)
            given.append(f"parameter_groups={{{', '.join(each)}}}")
        if self.scheduler is not None:
            given.append(f"scheduler={described(self.scheduler)}")
        return f"update_with({', '.join([self.optimizer.__name__, *given])})"


def update_with(
    optimizer: type[Optimizer],
    *,
    parameter_groups: Mapping[str, Mapping[str, Any]] | None = None,
    scheduler: Callable[[Optimizer], Any] | None = None,
    **settings: Any,
) -> UpdateWith:
    """Update weights by an optimizer of torch, from what was released: free post-processing.

    ``optimizer`` is a class, ``settings`` are what it is given beside the parameters.
    ``parameter_groups`` have other settings for the parameters whose names match a pattern; the
    first one that matches counts. ``scheduler`` makes a scheduler of an optimizer; it takes one
    step after each step of the run. All of it is stored in checkpoints. The noise is drawn at every
    step.

    >>> from functools import partial
    >>> from torch.optim.lr_scheduler import LinearLR
    >>> print(update_with(torch.optim.AdamW, lr=1e-3, scheduler=partial(LinearLR, total_iters=9)))
    update_with(AdamW, lr=0.001, scheduler=LinearLR(total_iters=9))
    >>> biases = {"*bias": {"weight_decay": 0.1}}
    >>> print(update_with(torch.optim.SGD, lr=1.0, parameter_groups=biases))
    update_with(SGD, lr=1, parameter_groups={'*bias': {weight_decay=0.1}})
    """
    if isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        raise SettingError(
            f"Expected the class of an optimizer, found an object of {kind}, which has its own "
            f"parameters. Give the class and its settings: `update_with(torch.optim.{kind}, "
            "lr=...)`."
        )
    if not (isinstance(optimizer, type) and issubclass(optimizer, Optimizer)):
        raise SettingError(
            f"Expected the class of an optimizer of torch, found {optimizer!r}. Give e.g. "
            "`torch.optim.AdamW`."
        )
    if isinstance(scheduler, LRScheduler | ReduceLROnPlateau):
        kind = type(scheduler).__name__
        raise SettingError(
            f"Expected what makes a scheduler of an optimizer, found an object of {kind}, which "
            f"has an optimizer of its own. Give e.g. `functools.partial({kind}, ...)`."
        )
    for like, own in (parameter_groups or {}).items():
        if "params" in own:
            raise SettingError(
                f"Expected settings of the parameters that {like!r} matches, found `params`. "
                "Leave it out: the pattern chooses them by their names."
            )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SettingError(
            f"Expected an optimizer that moves by one gradient, found {optimizer.__name__}, which "
            "evaluates the loss on private rows again in every step; that would have to be paid "
            "for. Choose another one, such as `torch.optim.AdamW`."
        )
    made = UpdateWith(optimizer, settings, tuple((parameter_groups or {}).items()), scheduler)
    made.lr(1)  # settings and schedulers that do not fit are refused now
    return made


class _Scheduled:
    """The scheduler on an optimizer without weights, at one step after the other."""

    def __init__(self, update: UpdateWith) -> None:
        self.index, self._update = 1, update
        parts = [
            {"params": [nn.Parameter(torch.zeros(1, 1))], **own}
            for own in update.settings_of_groups
        ]
        made = update.scheduler
        with _explained(update):
            self._optimizer = update.optimizer(parts, **update.settings)
            self._scheduler = None if made is None else made(self._optimizer)
        if isinstance(self._scheduler, ReduceLROnPlateau):
            raise SettingError(
                "Expected a scheduler that follows the number of the step, found "
                "ReduceLROnPlateau, which follows a loss; that of private data would have to be "
                "paid for. Choose another one, such as CosineAnnealingLR."
            )

    def at(self, index: int) -> list[dict[str, Any]]:
        """Return the settings of each group at step ``index``."""
        while self.index < index:
            if self._scheduler is not None:
                with _explained(self._update):
                    self._optimizer.step()
                    self._scheduler.step()
            self.index += 1
        return [{key: group[key] for key in SCHEDULED if key in group}
                for group in self._optimizer.param_groups]  # fmt: skip


@contextmanager
def _explained(update: UpdateWith) -> Iterator[None]:
    """Say whose error it is; the order of first steps, which torch warns of, is ours."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(
            f"Expected settings and weights that {update.optimizer.__name__} and its scheduler "
            f"accept, found: {error}. Fix `{update}`."
        ) from error


def _tried(
    update: UpdateWith, params: Params
) -> tuple[dict[str, dict[str, Any]], tuple[dict[str, Any], ...]]:
    """The state after a step on made-up numbers; refuse an optimizer that has more of it."""
    for like, _ in update.parameter_groups:
        if not any(fnmatchcase(name, like) for name in params):
            raise SettingError(
                f"Expected groups of the parameters {', '.join(params)}, found a pattern that "
                f"matches none: {like!r}. `*` stands for any part of a name."
            )
    generator = torch.Generator().manual_seed(0)
    gradients = [
        {
            name: torch.randn(value.shape, generator=generator).to(value)
            for name, value in params.items()
        }
        for _ in range(2)
    ]
    whole, again = ({name: nn.Parameter(value.clone()) for name, value in params.items()}
                    for _ in range(2))  # fmt: skip
    optimizer = update.made_for(whole)
    for index, each in enumerate(gradients, 1):
        for group, own in zip(optimizer.param_groups, update._scheduled(index), strict=True):
            group.update(own)
        for name, parameter in whole.items():
            parameter.grad = each[name]
        with _explained(update):
            optimizer.step()
    held, noted = update.step(again, gradients[0], {}, (), 1)
    update.step(again, gradients[1], held, noted, 2)
    odd = [type(value).__name__ for own in (*held.values(), *noted) for value in own.values()
           if not isinstance(value, Tensor | int | float | str | None)]  # fmt: skip
    if odd or not all(torch.equal(whole[name], again[name]) for name in params):
        raise SettingError(
            "Expected an optimizer whose state is in its `state` and `param_groups` as tensors and "
            f"numbers, so that checkpoints can hold it, found that {update.optimizer.__name__} "
            f"{'holds ' + odd[0] if odd else 'remembers more, or draws'}. Choose another one."
        )
    return held, noted


def _noted_in(group: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers in a group, but for what is given by settings or a scheduler."""
    usual = (int, float, str, Tensor)
    left_out = ("params", *SCHEDULED)
    return {k: v for k, v in group.items() if k not in left_out and isinstance(v, usual)}


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _zero(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, Tensor) else value
