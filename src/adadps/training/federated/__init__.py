"""Federations: each user is a device that trains on its own rows; the server has no data.

`adadps.training.federated.flower` runs federations on Flower (extra ``federated``). In a single
process, `adadps.fit` simulates them, given a method that begins with `train_locally`.
"""

from adadps.training.federated.client import empty_update, local_update, pay_on_device
from adadps.training.federated.dry_runs import Preview, Refusal, dry_run
from adadps.training.federated.server import FederatedRun
from adadps.training.federated.simulated import simulated_users
from adadps.training.federated.task import Task

__all__ = [
    "FederatedRun",
    "Preview",
    "Refusal",
    "Task",
    "dry_run",
    "empty_update",
    "local_update",
    "pay_on_device",
    "simulated_users",
]
