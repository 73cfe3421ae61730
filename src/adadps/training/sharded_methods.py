"""Which methods train a model in shards: those that treat every entry of a weight alone.

A stage after the clip sees the rows of each weight that its process holds. If it needs others, say
for a norm or a median, it would compute something else in every process, and is refused.
"""

from __future__ import annotations

from typing import Any

from torch import optim

from adadps.errors import ContractError
from adadps.methods.side.public import GradientStatistics
from adadps.methods.side.source import Fixed, Uniform
from adadps.methods.side.whitening import Whitening
from adadps.methods.stages.chain import Chain
from adadps.methods.stages.clipping import AutomaticClip
from adadps.methods.stages.gradients import Average, Precondition, Privatize
from adadps.methods.stages.mixing import Mix, Momentum
from adadps.methods.stages.torch_optimizers import UpdateWith
from adadps.methods.stages.updates import SGD, AdaGrad, Adam, AdamBC, RMSProp

_RELEASES = {Privatize, AutomaticClip, Average}
_ON_ENTRIES = {SGD, Adam, AdamBC, RMSProp, AdaGrad, Mix, Momentum}
_OPTIMIZERS = {
    optim.SGD, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam, optim.RMSprop,
    optim.Adagrad, optim.Adadelta,
}  # fmt: skip
"""Optimizers of torch that treat every entry alone."""


def reads_whole(stage: object) -> bool:
    """Does it act on gradients of whole layers by side information that every process holds?"""
    return type(stage) is Precondition and isinstance(stage.side, Fixed | Uniform | Whitening)


def maps_in_shards(stage: object) -> bool:
    """Does it act by side information as large as the model, of which each holds a shard?"""
    return type(stage) is Precondition and isinstance(stage.side, GradientStatistics)


def require_rows(method: Chain) -> None:
    """Refuse a method that needs more of a weight than the rows that a process holds."""
    release: Any = method.release
    place = method.stages.index(release)
    before, after = method.stages[:place], method.stages[place + 1 :]
    if len({maps_in_shards(stage) for stage in before}) > 1:
        raise ContractError(
            "Expected one kind of side information before the clip in a model that is sharded, "
            f"found fixed values or matrices and gradients of public examples in `{method}`. Leave "
            "one of them, or give the model without `fully_shard`."
        )
    if release.groups and any(map(maps_in_shards, before)):
        raise ContractError(
            "Expected examples that are clipped alone where side information is in shards, found "
            f"{release.groups}. Use fixed side information or `whiten(...)`, or leave "
            "`fully_shard` out."
        )
    odd = [stage for stage in before if not (reads_whole(stage) or maps_in_shards(stage))]
    odd += [release] if type(release) not in _RELEASES else []
    odd += [stage for stage in after if not _treats_entries_alone(stage)]
    if odd:
        raise ContractError(
            "Expected a method that treats every entry of a weight alone after the clip, and fixed "
            "or public side information before it, found "
            f"`{odd[0]}` in a model that is sharded. Use `dp_sgd`, `dp_adam`, `adadps` or "
            "`whitened`, or give the model without `fully_shard`."
        )


def _treats_entries_alone(stage: object) -> bool:
    if type(stage) is UpdateWith:
        return stage.optimizer in _OPTIMIZERS
    return type(stage) in _ON_ENTRIES or maps_in_shards(stage)
