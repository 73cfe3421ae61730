"""Federations: users are devices, who train on their own rows, and a server that has no data.

`adadps.federated.flower` runs them on Flower (extra ``federated``); in one process, `adadps.fit`
with a method that begins with `train_locally` simulates the same.
"""

from adadps.federated.client import empty_update, local_update, pay_on_device
from adadps.federated.dry_runs import Preview, Refusal, dry_run
from adadps.federated.server import FederatedRun
from adadps.federated.simulated import simulated_users
from adadps.federated.task import Task

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
