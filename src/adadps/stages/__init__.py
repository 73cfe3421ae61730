"""Stages and the chain that joins them: the order of the stages is the method."""

from adadps.stages.average import average
from adadps.stages.chain import Chain, Stage, chain
from adadps.stages.groups import Groups, by_label, by_position, in_advance
from adadps.stages.local import train_locally
from adadps.stages.mixing import mix, momentum
from adadps.stages.noise_place import by_each_device, by_server, in_shares
from adadps.stages.precondition import precondition
from adadps.stages.prepare import pretrain, reparametrise
from adadps.stages.privatize import privatize
from adadps.stages.schedules import cosine, inverse_sqrt
from adadps.stages.updates import adagrad, adam, rmsprop, sgd
from adadps.stages.users import Users, by_user

__all__ = [
    "Chain",
    "Groups",
    "Stage",
    "Users",
    "adagrad",
    "adam",
    "average",
    "by_each_device",
    "by_label",
    "by_position",
    "by_server",
    "by_user",
    "chain",
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
]
