"""Stages and the chain that joins them: the order of the stages is the method.

A new stage is a frozen dataclass with the methods of `Stage` (or of `Preparation`, if it acts once
before the first step). Its ``rule`` says which kinds of signal it takes and gives; `chain` refuses
any other place. A stage that reads side information or public data inherits from `ReadsSide` or
`ReadsPublic`. tests/contract/test_stage_rules.py runs the shared checks.
"""

from adadps.accounting.groups import Groups, by_label, by_position, in_advance
from adadps.methods.stages.averaging import average_weights
from adadps.methods.stages.chain import Chain, Stage, chain
from adadps.methods.stages.clipping import clip_adaptively, clip_automatically
from adadps.methods.stages.gradients import (
    average,
    precondition,
    pretrain,
    privatize,
    reparametrise,
)
from adadps.methods.stages.local import train_locally
from adadps.methods.stages.mixing import cosine, mix, momentum, unscale
from adadps.methods.stages.noise_place import by_each_device, by_server, in_shares
from adadps.methods.stages.torch_optimizers import update_with
from adadps.methods.stages.updates import (
    adagrad,
    adam,
    adam_bc,
    alternate,
    inverse_sqrt,
    rmsprop,
    sgd,
)
from adadps.methods.stages.users import Users, by_user

__all__ = [
    "Chain",
    "Groups",
    "Stage",
    "Users",
    "adagrad",
    "adam",
    "adam_bc",
    "alternate",
    "average",
    "average_weights",
    "by_each_device",
    "by_label",
    "by_position",
    "by_server",
    "by_user",
    "chain",
    "clip_adaptively",
    "clip_automatically",
    "cosine",
    "in_advance",
    "in_shares",
    "inverse_sqrt",
    "mix",
    "momentum",
    "precondition",
    "pretrain",
    "privatize",
    "reparametrise",
    "rmsprop",
    "sgd",
    "train_locally",
    "unscale",
    "update_with",
]
