"""Events, terms and processes for tests of ledgers."""

import os
import time
import warnings

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from adadps.accounting.epsilon import Budget
from adadps.errors import BudgetError
from adadps.types import Accountant, Relation

PLD, RDP = Accountant.PLD, Accountant.RDP
ADD, ZERO, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT, Relation.REPLACE_ONE
BUDGET = Budget(epsilon=1.0, delta=1e-5)
SMALL, LARGE = GaussianDpEvent(30.0), GaussianDpEvent(10.0)
SAMPLED = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))


def spend_all(ledger, event, ahead=1, pause=0.0):
    """Charge ``event`` until it is refused; how often it was not."""
    for count in range(10_000):
        time.sleep(pause)
        try:
            ledger.authorise(event, ahead=ahead)
        except BudgetError:
            return count
    raise AssertionError("the ledger never refused")


def in_a_child(action):
    """Run ``action(say)`` in a fork; its process id, and where to read what it says."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: none is used
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            action(lambda said: os.write(writing, said))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    return child, reading


def heard(reading):
    """All that a child has said, after it ended."""
    said = b""
    while chunk := os.read(reading, 65536):
        said += chunk
    os.close(reading)
    return said
