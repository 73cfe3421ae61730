"""The ledger on disk: the same errors and numbers as in memory, and nothing private in the file."""

import itertools
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
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    SingleEpochTreeAggregationDpEvent,
    rdp,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adadps import (
    Budget,
    DiskLedger,
    PrivateRun,
    dp_sgd,
    examples,
    fit,
    poisson,
    privatize,
    shuffled,
)
from adadps.accounting.contract import Grouping
from adadps.accounting.epsilon import Life
from adadps.accounting.events import event_of, text_of
from adadps.accounting.ledger import MemoryLedger, RunFacts
from adadps.errors import BudgetError, ContractError, DataError, ModelError
from adadps.methods.paper import adadps
from adadps.methods.side import fixed
from support.ledgers import ADD, BUDGET, LARGE, PLD, RDP, REPLACE, SAMPLED, SMALL, ZERO, spend_all
from support.problems import squared

PRIVACY = privatize(clip_norm=1.0, noise_multiplier=10.0)
LESS_NOISE = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.2))
SAMPLER = poisson(examples=20, expected_size=10)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.ledger"


def opened(path, budget=BUDGET, accountant=RDP, relation=ADD):
    ledger = DiskLedger(path, budget=budget)
    ledger.open("first", relation, accountant)
    return ledger


def rows(size=20, value=1.0):
    return examples(np.full((size, 2), value, np.float32), np.ones((size, 1), np.float32))


def content(path):
    """Return every statement that would rebuild the file."""
    with closing(sqlite3.connect(path)) as connection:
        return "\n".join(connection.iterdump())


def trained(ledger, steps=5, method=None, data=None, **options):
    return fit(
        nn.Linear(2, 1),
        squared,
        data or rows(),
        method=method or dp_sgd(PRIVACY, lr=0.1),
        sampler=SAMPLER,
        steps=steps,
        ledger=ledger,
        **options,
    )


# --- the same as in memory ---

CHARGES = st.lists(
    st.tuples(
        st.sampled_from([SMALL, LARGE, SAMPLED, NoOpDpEvent(), GaussianDpEvent(2.0), "open"]),
        st.integers(1, 50),
    ),
    max_size=15,
)


@given(charges=CHARGES, budget=st.sampled_from([BUDGET, Budget(3.0, 1e-6), None]))
@settings(max_examples=15)
def test_disk_and_memory_accept_refuse_and_cost_the_same(tmp_path_factory, charges, budget):
    disk = opened(tmp_path_factory.mktemp("ledger") / "ledger", budget)
    memory = MemoryLedger(budget)
    memory.open("first", ADD, RDP)
    for event, ahead in charges:
        answers = []
        for ledger in (disk, memory):
            try:
                if event == "open":
                    ledger.open("next", ADD, RDP)
                else:
                    ledger.authorise(event, ahead=ahead)
                answers.append("yes")
            except BudgetError as refusal:
                answers.append(str(refusal))
        assert answers[0] == answers[1]
    again = DiskLedger(disk.path)
    for ledger in (disk, again):
        assert (ledger.entries, ledger.budget) == (memory.entries, memory.budget)
        assert ledger.epsilon(1e-5) == memory.epsilon(1e-5)


@pytest.mark.parametrize("accountant", [PLD, RDP])
def test_a_reopened_ledger_goes_on_where_it_stopped(path, accountant):
    alone = MemoryLedger(BUDGET)
    alone.open("first", ADD, accountant)
    for _ in range(3):
        alone.authorise(LARGE)
    with opened(path, accountant=accountant) as ledger:
        for _ in range(3):
            ledger.authorise(LARGE)
    with DiskLedger(path) as ledger:
        assert (ledger.entries, ledger.epsilon(1e-5)) == (3, alone.epsilon(1e-5))


def test_without_a_budget_an_exposure_makes_epsilon_infinite(path):
    ledger = opened(path, None)
    ledger.authorise(NonPrivateDpEvent())
    assert DiskLedger(path).epsilon(1e-5) == float("inf")


def test_what_does_not_fit_is_refused_and_not_written(path):
    ledger = opened(path)
    ledger.authorise(LARGE)
    before = content(path)
    with pytest.raises(BudgetError, match=r"found epsilon = 0\.\d+ already spent .* Left: 0\.\d+"):
        ledger.authorise(GaussianDpEvent(1.0))
    assert content(path) == before


def test_two_ledgers_on_one_file_see_each_other(path):
    one = opened(path)
    other = DiskLedger(path, budget=BUDGET)
    other.open("second", ADD, RDP)
    alone = MemoryLedger(BUDGET)
    alone.open("first", ADD, RDP)
    alone.open("second", ADD, RDP)
    fits = spend_all(alone, SMALL, ahead=100)
    for _ in range(3):
        one.authorise(SMALL, ahead=100)
        other.authorise(SMALL, ahead=100)
    assert one.entries == other.entries == 6
    assert spend_all(one, SMALL, ahead=100) == fits - 6
    assert spend_all(other, SMALL, ahead=100) == 0


def test_what_another_one_spends_takes_room_that_was_known(path):
    """There is room for many steps, until another process charges something else."""
    one, other = opened(path), DiskLedger(path)
    other.open("second", ADD, RDP)
    one.authorise(SMALL, ahead=20)
    spent = spend_all(other, LARGE)
    assert spent > 1
    assert one.epsilon(1e-5) <= 1.0
    spend_all(one, SMALL, ahead=20)
    assert one.epsilon(1e-5) == other.epsilon(1e-5) <= 1.0


# --- runs chosen after looking ---


@pytest.mark.parametrize("make", [lambda _: MemoryLedger(BUDGET), None])
def test_a_second_run_is_filtered_at_one_order_that_the_first_plan_has_set(path, make):
    """The best order in hindsight would let more through; no theorem covers it."""
    ledger = make(path) if make else DiskLedger(path, budget=BUDGET)
    ledger.open("first", ADD, RDP)
    ledger.authorise(SMALL, ahead=1000)
    ledger.open("second", ADD, RDP)
    count = spend_all(ledger, LESS_NOISE, ahead=1000)

    def price(times, orders=None):
        accountant = rdp.RdpAccountant(orders) if orders else rdp.RdpAccountant()
        return accountant.compose(SMALL).compose(LESS_NOISE, times).get_epsilon(BUDGET.delta)

    assert 10 < count < 300
    assert price(count, [14.0]) <= 1.0 < price(count + 1, [14.0])
    assert price(count + 1) <= 1.0


@pytest.mark.parametrize("sigma", [0.8, 1.5, 3.0])
def test_the_order_of_the_filter_affords_nearly_all_that_the_best_one_does(sigma):
    budget = Budget(3.0, 1e-6)
    alone, filtered = MemoryLedger(budget), MemoryLedger(budget)
    event = PoissonSampledDpEvent(0.1, GaussianDpEvent(sigma))
    alone.open("first", ADD, RDP)
    filtered.open("first", ADD, RDP)
    filtered.open("second", ADD, RDP)
    counts = [spend_all(ledger, event, ahead=9_000) for ledger in (alone, filtered)]
    assert 0.85 * counts[0] <= counts[1] <= counts[0]


def test_a_pld_ledger_on_disk_refuses_a_second_run(path):
    opened(path, accountant=PLD).close()
    with pytest.raises(ContractError, match=r"one run on a PLD ledger.*Run with accountant RDP"):
        DiskLedger(path).open("second", ADD, PLD)


def test_runs_on_a_shared_ledger_use_rdp_unless_told(path):
    ledger = DiskLedger(path, budget=Budget(50.0, 1e-5))
    one = trained(ledger)
    other = trained(DiskLedger(path))
    assert (one.privacy.accountant, other.privacy.accountant) == ("rdp", "rdp")
    assert (one.privacy.delta, ledger.entries) == (1e-5, 10)
    assert ledger.epsilon(1e-5) > one.privacy.epsilon


def test_one_planned_run_on_disk_may_use_pld(path):
    ledger = DiskLedger(path)
    result = trained(ledger, accountant=PLD)
    assert ledger.epsilon(result.privacy.delta) == pytest.approx(result.privacy.epsilon)


def test_fit_refuses_a_plan_that_the_ledger_would_cut_short(path):
    """The second run does not fit beside the first; nothing is drawn or charged for it."""
    ledger = DiskLedger(path, budget=Budget(2.0, 1e-5))
    trained(ledger, steps=20)
    before, model = ledger.entries, nn.Linear(2, 1)
    weights = model.weight.detach().clone()
    with pytest.raises(BudgetError, match=r"2000 steps.* beside 20 charges.*Nothing was drawn"):
        fit(
            model,
            squared,
            rows(),
            method=dp_sgd(PRIVACY, lr=0.1),
            sampler=SAMPLER,
            steps=2000,
            ledger=ledger,
        )
    assert ledger.entries == before == 20
    assert torch.equal(model.weight, weights)


def test_asking_for_room_charges_nothing(path):
    ledger = opened(path)
    fits = ledger.room(SMALL, 1000)
    assert (ledger.room(SMALL, 3), ledger.entries) == (3, 0)
    assert ledger.room(NonPrivateDpEvent(), 1) == 0
    assert spend_all(ledger, SMALL, ahead=10) == fits


# --- terms ---


@pytest.mark.parametrize(
    ("relation", "accountant", "unit"),
    [(ZERO, RDP, "example"), (REPLACE, RDP, "example"), (ADD, PLD, "example"), (ADD, RDP, "user")],
)
def test_a_run_under_other_terms_is_refused(path, relation, accountant, unit):
    opened(path).close()
    ledger = DiskLedger(path)
    before = content(path)
    with pytest.raises(ContractError, match=r"Expected a run under 'add or remove one' with rdp"):
        ledger.open("second", relation, accountant, RunFacts(unit=unit))
    assert content(path) == before


@pytest.mark.parametrize("held", [BUDGET, None])
def test_another_budget_is_refused(path, held):
    DiskLedger(path, budget=held).close()
    with pytest.raises(ContractError, match=r"budget that the ledger .* began with.*Leave the"):
        DiskLedger(path, budget=Budget(2.0, 1e-5))
    assert DiskLedger(path).budget == held


def test_nothing_is_charged_before_a_run_is_opened(path):
    opened(path).close()
    with pytest.raises(ContractError, match=r"`open` before anything is charged\. Open a run"):
        DiskLedger(path).authorise(LARGE)


# --- one entry per step, never rolled back ---


@pytest.mark.parametrize("physical_batch_size", [None, 1, 3, 100])
def test_hazard_09_steps_taken_are_entries_on_disk(path, physical_batch_size):
    ledger = DiskLedger(path)
    result = trained(ledger, steps=7, physical_batch_size=physical_batch_size)
    assert result.privacy.steps == ledger.entries == 7


def test_hazard_09_steps_of_a_shuffled_epoch_are_entries_too(path):
    ledger = DiskLedger(path)
    fit(
        nn.Linear(2, 1),
        squared,
        rows(),
        method=dp_sgd(PRIVACY, lr=0.1),
        sampler=shuffled(examples=20, expected_size=6),
        steps=7,
        ledger=ledger,
    )
    assert ledger.entries == 7


def test_hazard_13_the_event_on_disk_is_the_one_of_the_step(path):
    trained(DiskLedger(path), steps=1)
    with closing(sqlite3.connect(path)) as connection:
        ((text,),) = connection.execute("SELECT content FROM events").fetchall()
    assert event_of(text) == SAMPLER.step_event(10.0, 1, RDP, Grouping.NONE)


def test_hazard_16_a_step_that_fails_has_been_paid_for(path):
    class Fails(nn.Linear):
        fails = False

        def forward(self, features):
            if self.fails:
                raise LookupError("broken")
            return super().forward(features)

    model, ledger = Fails(2, 1), DiskLedger(path)
    run = PrivateRun(
        model,
        squared,
        rows(),
        method=dp_sgd(PRIVACY, lr=0.1),
        sampler=poisson(examples=20, expected_size=20),
        steps=5,
        ledger=ledger,
    )
    for batch in itertools.islice(run.batches(), 2):
        run.step(batch)
    model.fails = True
    with pytest.raises(ModelError, match="found LookupError"):
        run.step(next(run.batches()))
    assert DiskLedger(path).entries == ledger.entries == 3


def test_hazard_16_a_run_that_begins_again_pays_again(path):
    for attempt in (1, 2):
        with DiskLedger(path, budget=Budget(50.0, 1e-5)) as ledger:
            trained(ledger, steps=4)
            assert ledger.entries == 4 * attempt


@pytest.mark.parametrize("table", ["terms", "runs", "events", "reservations"])
def test_entries_cannot_be_deleted(path, table):
    trained(DiskLedger(path))
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="never rolled back"),
    ):
        connection.execute(f"DELETE FROM {table}")


def test_every_reservation_waits_for_the_disk(path):
    ledger = DiskLedger(path)
    (mode,) = ledger._connection.execute("PRAGMA journal_mode").fetchone()
    (synchronous,) = ledger._connection.execute("PRAGMA synchronous").fetchone()
    assert (mode, synchronous) == ("wal", 2)


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
