"""Which methods train a model in shards: those that treat every entry of a weight alone.

A stage after the clip sees the rows of each weight that its process holds. If it needs others, say
for a norm or a median, it would compute something else in every process, and is refused.
"""

from __future__ import annotations

from torch import optim

from adadps.errors import ContractError
from adadps.methods.side.public import GradientStatistics
from adadps.methods.side.source import Fixed, Uniform
from adadps.methods.side.whitening import Whitening
from adadps.methods.stages.chain import Chain, Stage
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


def reads_whole(stage: Stage) -> bool:
    """Does it act on gradients of whole layers, before the clip?"""
    return type(stage) is Precondition and isinstance(stage.side, Fixed | Uniform | Whitening)


def require_rows(method: Chain) -> None:
    """Refuse a method that needs more of a weight than the rows that a process holds."""
    after = False
    for stage in method.stages:
        if type(stage) in _RELEASES:
            after = True
        elif not (_treats_entries_alone(stage) if after else _acts_before(stage)):
            raise ContractError(
                f"Expected a method that treats every entry of a weight alone after the clip, and "
                f"fixed side information or `whiten(...)` before it, found `{stage}` in a model "
                "that is sharded. Use `dp_sgd`, `dp_adam`, `adadps` with fixed side information, "
                "`whitened` or `clip_automatically`, or give the model without `fully_shard`."
            )


def _acts_before(stage: object) -> bool:
    return type(stage) is Precondition and reads_whole(stage)


def _treats_entries_alone(stage: object) -> bool:
    if type(stage) is UpdateWith:
        return stage.optimizer in _OPTIMIZERS
    if type(stage) is Precondition:
        return isinstance(stage.side, GradientStatistics)
    return type(stage) in _ON_ENTRIES
