"""Several processes on one ledger, and processes that are killed."""

import os
import random
import signal
import struct
import time

import pytest
from dp_accounting import GaussianDpEvent

from adadps import Budget, DiskLedger
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import BudgetError, ContractError
from support.ledgers import ADD, BUDGET, LARGE, RDP, SMALL, heard, in_a_child, spend_all

PLENTY = Budget(1e3, 1e-5)
TINY = GaussianDpEvent(1000.0)


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def paying(path, budget):
    """Open a ledger and charge it forever; write a byte after each charge that returned."""

    def action(say):
        ledger = DiskLedger(path, budget=budget)
        ledger.open("killed", ADD, RDP)
        while True:
            ledger.authorise(TINY, ahead=10_000)
            say(b".")

    return action


def test_hazard_16_a_killed_process_has_paid_for_every_step_it_began(tmp_path):
    """Kill the process at sixty instants during its reservations."""
    path, paid, chance = tmp_path / "ledger", 0, random.Random(0)
    for _ in range(60):
        child, reading = in_a_child(paying(path, PLENTY))
        written = b"".join(os.read(reading, 1) for _ in range(chance.randrange(8)))
        time.sleep(chance.uniform(0, 0.004))  # a reservation takes about a millisecond
        os.kill(child, signal.SIGKILL)
        ended(child)
        paid += len(written + heard(reading))
        with DiskLedger(path, budget=PLENTY) as ledger:
            found = ledger.entries
        assert paid <= found <= paid + 1  # the last one may be written and not yet returned
        paid = found
    assert paid > 100


def test_hazard_16_a_new_ledger_is_there_whole_or_not_at_all(tmp_path):
    """Kill the process while the file is created: no incomplete ledger is left behind."""
    waits = random.Random(1)
    for kill in range(30):
        path = tmp_path / f"ledger-{kill}"
        child, reading = in_a_child(paying(path, PLENTY))
        time.sleep(waits.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        ended(child)
        paid = len(heard(reading))
        with DiskLedger(path, budget=PLENTY) as ledger:
            assert paid <= ledger.entries <= paid + 1


def spending(path, event):
    """At the signal, open a ledger, charge it until it refuses, and report how often it paid."""

    def action(say):
        while not path.with_name("go").exists():
            time.sleep(0.0002)
        ledger = DiskLedger(path, budget=BUDGET)
        ledger.open(str(os.getpid()), ADD, RDP)
        say(struct.pack("i", spend_all(ledger, event, ahead=100, pause=0.003)))

    return action


@pytest.mark.parametrize("events", [(SMALL, SMALL), (SMALL, LARGE), (SMALL, SMALL, LARGE)])
def test_processes_that_compete_never_spend_more_than_the_budget(tmp_path, events):
    """They also create the file at the same time."""
    path = tmp_path / "ledger"
    children = [in_a_child(spending(path, event)) for event in events]
    path.with_name("go").touch()
    counts = []
    for child, reading in children:
        (count,) = struct.unpack("i", heard(reading))
        assert ended(child) == 0
        counts.append(count)
    alone = MemoryLedger()
    alone.open("all", ADD, RDP)
    for event, count in zip(events, counts, strict=True):
        for _ in range(count):
            alone.authorise(event)
    with DiskLedger(path) as ledger:
        assert ledger.entries == sum(counts) == alone.entries
        assert ledger.epsilon(BUDGET.delta) == pytest.approx(alone.epsilon(BUDGET.delta))
        assert alone.epsilon(BUDGET.delta) <= BUDGET.epsilon
        ledger.open("late", ADD, RDP)
        for event in events:
            with pytest.raises(BudgetError):
                ledger.authorise(event)


def test_processes_with_the_same_step_share_exactly_what_there_is(tmp_path):
    alone = MemoryLedger(BUDGET)
    alone.open("first", ADD, RDP)
    alone.open("second", ADD, RDP)
    path = tmp_path / "ledger"
    with DiskLedger(path, budget=BUDGET) as ledger:
        ledger.open("first", ADD, RDP)
        ledger.open("second", ADD, RDP)
    children = [in_a_child(spending(path, SMALL)) for _ in range(2)]
    path.with_name("go").touch()
    counts = [struct.unpack("i", heard(reading))[0] for _, reading in children]
    assert [ended(child) for child, _ in children] == [0, 0]
    assert sum(counts) == spend_all(alone, SMALL, ahead=100)


def test_hazard_16_a_forked_child_cannot_use_the_ledger_of_its_parent(tmp_path):
    ledger = DiskLedger(tmp_path / "ledger", budget=BUDGET)
    ledger.open("parent", ADD, RDP)

    def action(say):
        with pytest.raises(ContractError, match="Open it again in the child"):
            ledger.authorise(SMALL)
        ledger.close()
        own = DiskLedger(ledger.path)
        own.open("child", ADD, RDP)
        own.authorise(SMALL)
        own.close()

    child, reading = in_a_child(action)
    heard(reading)
    assert ended(child) == 0
    ledger.authorise(SMALL)
    assert ledger.entries == 2
