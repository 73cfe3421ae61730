"""What `fit(processes=2)` is given in tests: workers import these functions from here."""

import gc
import os
import signal
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn

from adadps import examples, on_public
from adadps.engine.losses import cross_entropy
from adadps.errors import PrivacyWarning
from adadps.training.fit import Interruption

ROWS = 80
_generator = torch.Generator().manual_seed(3)
FEATURES = torch.randn(ROWS, 5, generator=_generator)
LABELS = torch.randint(3, (ROWS,), generator=_generator)


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def data(**more):
    return examples(FEATURES.clone(), LABELS.clone(), **more)


class At:
    """A metric that does something in its n-th call; it is computed in the first worker."""

    def __init__(self, call, deed):
        self.left, self.deed = call, deed

    def __call__(self, _outputs, _targets):
        self.left -= 1
        if self.left == 0:
            self.deed()
        return 0.0


def at_step(step, deed):
    """An evaluation in which the first worker does something after a step."""
    return on_public("some", FEATURES, LABELS, every=1, done=At(step, deed))


def press_ctrl_c():
    """Press it for the caller, and wait until this worker has been told."""
    os.kill(os.getppid(), signal.SIGINT)
    while not any(one.asked for one in gc.get_objects() if type(one) is Interruption):
        time.sleep(0.05)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def warn():
    warnings.warn("a worker says so", PrivacyWarning, stacklevel=1)


def fail():
    raise OSError("row 17 of the private table")


computed = []
"""How often a loss of this process was computed; what a loss itself holds is put back."""


def dies_in_the_second(outputs, targets):
    """A loss that ends the second worker after some batches."""
    computed.append(None)
    if len(computed) == 60 and dist.is_initialized() and dist.get_rank() == 1:
        die()
    return cross_entropy(outputs, targets)
