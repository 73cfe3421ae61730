"""What a ledger on disk writes, how it reserves several steps at once, and accidents."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import torch
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    SingleEpochTreeAggregationDpEvent,
)

from adadps import (
    DiskLedger,
)
from adadps.accounting.epsilon import Life
from adadps.accounting.events import event_of, text_of
from adadps.accounting.ledger import MemoryLedger, RunFacts
from adadps.errors import BudgetError, ContractError, DataError
from adadps.methods.paper import adadps
from adadps.methods.side import fixed
from support.disk_ledgers import (
    PRIVACY,
    content,
    rows,
    trained,
)
from support.ledgers import ADD, BUDGET, LARGE, PLD, RDP, SAMPLED, SMALL, spend_all


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.ledger"


# --- what is written ---


def test_a_run_is_written_with_its_plan_and_provenance(path):
    counts = {"weight": (torch.ones(2), 1)}
    side = fixed(counts, source="noisy counts", public_because="measured with noise", event=LARGE)
    method = adadps(side, PRIVACY, lr=0.1)
    trained(DiskLedger(path), steps=3, method=method)
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        run = dict(connection.execute("SELECT * FROM runs").fetchone())
    assert run["chain"] == str(method)
    assert json.loads(run["sampler"])["examples"] == 20
    assert json.loads(run["side_information"])[0]["source"] == "noisy counts"
    assert (run["planned_steps"], run["paid_first"]) == (3, 1)
    assert len(run["plan_hash"]) == 64
    assert run["code_version"]


def test_the_same_plan_has_the_same_hash(path):
    ledger = DiskLedger(path)
    for steps in (3, 3, 4):
        trained(ledger, steps=steps)
    with closing(sqlite3.connect(path)) as connection:
        one, two, other = [row for (row,) in connection.execute("SELECT plan_hash FROM runs")]
    assert one == two != other


def test_hazard_22_the_file_does_not_depend_on_private_data(tmp_path):
    """Other examples, another number of them, other batches: the file differs only in its name."""
    files = []
    for name, data in (("one", rows(20, 1.0)), ("other", rows(13, -7.0))):
        trained(DiskLedger(tmp_path / name), steps=6, data=data)
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            (run,) = connection.execute("SELECT name FROM runs").fetchone()
            (identity,) = connection.execute("SELECT identity FROM terms").fetchone()
        files.append(content(tmp_path / name).replace(run, "run").replace(identity, "identity"))
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "event",
    [
        SMALL,
        SAMPLED,
        GaussianDpEvent(np.float64(1 / 3)),
        NoOpDpEvent(),
        NonPrivateDpEvent(),
        LaplaceDpEvent(0.1 + 0.2),
        SampledWithoutReplacementDpEvent(1000, 8, GaussianDpEvent(0.35)),
        ComposedDpEvent([SMALL, SelfComposedDpEvent(LARGE, 3)]),
        SingleEpochTreeAggregationDpEvent(2.0, [1, 2, 3]),
    ],
)
def test_events_come_back_exactly(event):
    assert event_of(text_of(event)) == event


@pytest.mark.parametrize(
    "text", ['{"Unheard":{}}', "[]", "{}", "no json", '{"GaussianDpEvent":{"sigma":1}}', "3"]
)
def test_text_that_is_no_event_is_refused(text):
    with pytest.raises(DataError, match="event that this version knows"):
        event_of(text)


# --- several at once ----------------------------------------------------------------------------


def test_what_is_reserved_at_once_counts_at_once(tmp_path):
    ledger = DiskLedger(tmp_path / "ledger", budget=BUDGET)
    ledger.open("first", ADD, RDP)
    for taken in range(1, 11):
        ledger.authorise(SMALL, ahead=11 - taken, at_once=4)
        other = DiskLedger(tmp_path / "ledger")
        expected = min(10, 4 * -(-taken // 4))
        assert other.entries == ledger.entries == expected
        assert sum(life.steps for life in other.lives("first")) == expected
        assert other.epsilon(1e-5) == ledger.epsilon(1e-5)


def test_no_more_are_reserved_at_once_than_fit(tmp_path):
    alone = DiskLedger(tmp_path / "alone", budget=BUDGET)
    alone.open("first", ADD, RDP)
    fits = spend_all(alone, LARGE)
    ledger = DiskLedger(tmp_path / "ledger", budget=BUDGET)
    ledger.open("first", ADD, RDP)
    for _ in range(fits):
        ledger.authorise(LARGE, ahead=1000, at_once=fits - 1 or 1)
    with pytest.raises(BudgetError):
        ledger.authorise(LARGE, ahead=1000, at_once=fits)
    assert ledger.entries == fits


def test_reserved_at_once_for_one_run_is_not_another_runs(tmp_path):
    ledger = DiskLedger(tmp_path / "ledger", budget=BUDGET)
    ledger.open("first", ADD, RDP)
    ledger.open("second", ADD, RDP)
    ledger.authorise(SMALL, run="first", ahead=9, at_once=3)
    ledger.authorise(SMALL, run="second", ahead=9, at_once=3)
    ledger.authorise(SMALL, run="first", ahead=8, at_once=3)
    assert [ledger.lives(name)[0].steps for name in ("first", "second")] == [3, 3]
    with pytest.raises(ContractError, match="open"):
        ledger.authorise(SMALL, run="unknown")


def test_a_name_that_comes_back_is_the_same_run_with_the_same_plan(tmp_path):
    for ledger in (DiskLedger(tmp_path / "ledger", budget=BUDGET), MemoryLedger(BUDGET)):
        plan = RunFacts(chain="one", planned_steps=5, paid_first=1)
        ledger.open("first", ADD, PLD, plan)
        ledger.authorise(SMALL)
        ledger.authorise(SMALL)
        ledger.open("first", ADD, PLD, RunFacts(chain="one", planned_steps=5))
        ledger.authorise(SMALL)
        assert ledger.lives("first") == (Life(1, informed=True), Life(1, informed=False))
        assert ledger.lives("unknown") == ()
        assert ledger.entries == 3
        with pytest.raises(ContractError, match="plan"):
            ledger.open("first", ADD, PLD, RunFacts(chain="two", planned_steps=5))
        with pytest.raises(ContractError, match="one run"):
            ledger.open("second", ADD, PLD)


# --- accidents ----------------------------------------------------------------------------------


def test_threads_cannot_overspend_a_ledger_in_memory():
    alone = MemoryLedger(BUDGET)
    alone.open("first", ADD, RDP)
    fits = spend_all(alone, LARGE)
    for _ in range(20):
        ledger = MemoryLedger(BUDGET)
        ledger.open("first", ADD, RDP)
        with ThreadPoolExecutor(8) as pool:
            spent = sum(pool.map(lambda _, held=ledger: spend_all(held, LARGE), range(8)))
        assert spent == fits == ledger.entries


def test_an_interrupt_while_waiting_for_the_ledger_leaves_it_free(tmp_path, monkeypatch):
    ledger = DiskLedger(tmp_path / "ledger", budget=BUDGET)
    ledger.open("first", ADD, RDP)
    connection = ledger._connection

    class Interrupted:
        def execute(self, statement, *values):
            done = connection.execute(statement, *values)
            if statement.startswith("BEGIN"):
                raise KeyboardInterrupt
            return done

        def __getattr__(self, name):
            return getattr(connection, name)

    monkeypatch.setattr(ledger, "_connection", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        ledger.authorise(SMALL)
    monkeypatch.undo()
    DiskLedger(tmp_path / "ledger").open("second", ADD, RDP)
    ledger.authorise(SMALL)
    assert ledger.entries == 1


def test_a_ledger_that_is_replaced_under_a_run_is_noticed(tmp_path):
    ledger = DiskLedger(tmp_path / "ledger", budget=BUDGET)
    ledger.open("first", ADD, RDP)
    ledger.authorise(SMALL)
    DiskLedger(tmp_path / "other", budget=BUDGET).close()
    (tmp_path / "other").replace(tmp_path / "ledger")
    with pytest.raises(DataError, match="replaced"):
        ledger.authorise(SMALL)


def test_a_changed_event_is_noticed(tmp_path):
    path = tmp_path / "ledger"
    with DiskLedger(path, budget=BUDGET) as ledger:
        ledger.open("first", ADD, RDP)
        ledger.authorise(GaussianDpEvent(5.125))
    content = path.read_bytes()
    assert content.count(b"5.125") == 2  # the event, and the index that keeps events apart
    path.write_bytes(content.replace(b"5.125", b"7.125", 1))
    with pytest.raises(DataError, match="damaged"):
        DiskLedger(path)


def test_two_ledgers_have_two_identities(tmp_path):
    one, other = (DiskLedger(tmp_path / name, budget=BUDGET) for name in ("one", "other"))
    assert one.identity == DiskLedger(tmp_path / "one").identity != other.identity
    assert MemoryLedger().identity != MemoryLedger().identity
