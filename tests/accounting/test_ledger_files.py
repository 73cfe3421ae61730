"""Ledger files that are damaged, foreign, locked or out of reach, and `adadps ledger show`."""

import json
import os
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pytest
import torch
from dp_accounting import NonPrivateDpEvent
from torch import nn
from typer.testing import CliRunner

from adadps import Budget, DiskLedger, dp_sgd, examples, fit, poisson, privatize
from adadps.accounting.ledger import RunFacts, file
from adadps.accounting.ledger.summary import summarise
from adadps.accounting.ledger.summary_table import _facts
from adadps.cli import main as cli
from adadps.cli.main import app
from adadps.errors import DataError
from adadps.methods.paper import adadps
from adadps.methods.side import fixed
from support.ledgers import ADD, BUDGET, LARGE, PLD, RDP, SMALL
from support.problems import squared

ROOMY = Budget(50.0, 1e-5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.ledger"


def charged(path, times=200, budget=ROOMY):
    with DiskLedger(path, budget=budget) as ledger:
        ledger.open("first", ADD, RDP)
        for _ in range(times):
            ledger.authorise(SMALL)
    return path


def changed(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def shown(*arguments):
    return CliRunner().invoke(app, ["ledger", "show", *map(str, arguments)])


# --- files that are not ledgers ---

FOREIGN = {
    "text": lambda path: path.write_text("epsilon: 1\n" * 500),
    "empty": lambda path: path.write_bytes(b""),
    "another database": lambda path: changed(path, "CREATE TABLE terms (epsilon REAL)"),
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_is_refused_and_left_as_it_is(path, make):
    make(path)
    before = path.read_bytes() if path.is_file() else None
    for attempt in (DiskLedger, summarise):
        with pytest.raises(DataError, match=r"Expected a ledger .*found.*[Cc]heck"):
            attempt(path)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert [kept.name for kept in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("found", [0, 2, 77])
def test_a_file_from_the_future_is_refused_and_left_as_it_is(path, found):
    charged(path, 1)
    changed(path, f"PRAGMA user_version = {found}")
    before = path.read_bytes()
    for attempt in (DiskLedger, summarise):
        with pytest.raises(DataError, match=rf"format 1 .*found format {found}.*later one"):
            attempt(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("attempt", [DiskLedger, summarise])
@pytest.mark.parametrize("garbage", [b"\xa5", b"\x00"])
def test_a_damaged_page_is_refused_and_left_as_it_is(path, attempt, garbage):
    whole = charged(path).read_bytes()
    for start in range(0, len(whole), 4096):
        damaged = whole[:start] + garbage * 4096 + whole[start + 4096 :]
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"Expected .*found.*([Rr]estore a copy|Check)"):
            attempt(path)
        assert path.read_bytes() == damaged


@pytest.mark.parametrize("attempt", [DiskLedger, summarise])
def test_a_file_that_was_cut_off_is_refused(path, attempt):
    charged(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"Expected .*found.*[Rr]estore a copy"):
        attempt(path)


def test_a_file_from_which_entries_were_taken_is_refused(path):
    charged(path, 5)
    changed(path, "DROP TRIGGER reservations_no_DELETE", "DELETE FROM reservations WHERE id = 3")
    with pytest.raises(DataError, match="entries are missing"):
        DiskLedger(path)


def test_a_journal_without_its_ledger_is_refused(path):
    """A new ledger of that name would begin at zero and replay the journal of the old one."""
    path.with_name(path.name + "-wal").write_bytes(b"charges")
    with pytest.raises(DataError, match=r"found only its journal.*Restore the ledger"):
        DiskLedger(path)
    assert not path.exists()


def test_terms_of_another_version_are_refused(path):
    charged(path, 1)
    changed(path, "UPDATE terms SET accountant = 'gdp'")
    with pytest.raises(DataError, match="terms that this version knows"):
        DiskLedger(path)


# --- files out of reach ---


def test_a_locked_ledger_is_said_to_be_locked_and_loses_nothing(path, monkeypatch):
    monkeypatch.setattr(file, "PATIENCE_IN_SECONDS", 0.1)
    ledger = DiskLedger(charged(path, 3))
    ledger.open("second", ADD, RDP)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DataError, match=r"found it locked.*nothing was charged"):
            ledger.authorise(SMALL)
        with pytest.raises(DataError, match="found it locked"):
            DiskLedger(path)
        assert summarise(path)["entries"] == 3
        other.execute("ROLLBACK")
    ledger.authorise(SMALL)
    assert ledger.entries == 4


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_to_is_refused():
    with pytest.raises(DataError, match=r"Expected to create the ledger.*writable folder"):
        DiskLedger("/proc/data.ledger")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "folder").write_text("")
    with pytest.raises(DataError, match="Expected to create the ledger"):
        DiskLedger(tmp_path / "folder" / "data.ledger")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_ledger_that_may_only_be_read_is_shown_and_not_charged(path):
    charged(path, 3)
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        assert summarise(path)["entries"] == 3
        with pytest.raises(DataError, match="permissions"):
            DiskLedger(path)
    finally:
        path.parent.chmod(0o700)


def test_a_full_disk_charges_nothing(path):
    ledger = DiskLedger(path, budget=ROOMY)
    ledger.open("first", ADD, RDP)
    (pages,) = ledger._connection.execute("PRAGMA page_count").fetchone()
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    returned = []

    def charge_for_ever():
        while True:
            ledger.authorise(SMALL)
            returned.append(SMALL)

    with pytest.raises(DataError, match=r"full.*disk space"):
        charge_for_ever()
    assert ledger.entries == DiskLedger(path).entries == len(returned) > 0


def test_names_with_strange_characters_are_fine(tmp_path):
    path = tmp_path / "new folder" / "data ?mode=memory#%41 é.ledger"
    charged(path, 2)
    assert path.exists()
    assert DiskLedger(path).entries == 2


# --- adadps ledger show ---


def trained(path, method, **options):
    return fit(
        nn.Linear(2, 1),
        squared,
        examples(np.ones((20, 2), np.float32), np.ones((20, 1), np.float32)),
        method=method,
        sampler=poisson(examples=20, expected_size=10),
        steps=3,
        ledger=DiskLedger(path, budget=ROOMY),
        **options,
    )


PRIVACY = privatize(clip_norm=1.0, noise_multiplier=10.0)
COUNTS = fixed(
    {"weight": (torch.ones(2), 1)},
    source="noisy counts",
    public_because="measured with noise",
    event=LARGE,
)


def test_show_has_runs_steps_provenance_epsilon_and_what_is_left(path):
    trained(path, adadps(COUNTS, PRIVACY, lr=0.1))
    trained(path, dp_sgd(PRIVACY, lr=0.1))
    summary = json.loads(shown(path, "--json").stdout)
    first, second = summary["runs"]
    assert (first["steps_reserved"], first["steps_planned"], first["entries"]) == (3, 3, 4)
    assert first["side_information"][0]["source"] == "noisy counts"
    assert second["chain"] == "privatize(C=1, σ=10) > sgd(0.1)"
    assert second["sampler"]["examples"] == 20
    assert (summary["entries"], summary["budget"]) == (7, {"epsilon": 50.0, "delta": 1e-5})
    with DiskLedger(path) as ledger:
        assert summary["epsilon"] == {"rdp": pytest.approx(ledger.epsilon(1e-5))}
    assert summary["filter"] is True
    assert 0 < summary["left"] < 50 - summary["epsilon"]["rdp"] + 1e-9


def test_one_planned_run_is_shown_by_both_accountants(path):
    result = trained(path, dp_sgd(PRIVACY, lr=0.1), accountant=PLD)
    summary = json.loads(shown(path, "--json").stdout)
    assert summary["epsilon"]["pld"] == pytest.approx(result.privacy.epsilon)
    assert summary["epsilon"]["rdp"] > summary["epsilon"]["pld"]
    assert summary["left"] == pytest.approx(50 - summary["epsilon"]["pld"])


def test_show_says_what_is_spent_what_is_left_and_on_what(path, monkeypatch):
    monkeypatch.setattr(cli.out, "_width", 80)
    trained(path, adadps(COUNTS, PRIVACY, lr=0.1))
    told = shown(path)
    assert told.exit_code == 0
    summary = summarise(path)
    assert f"spent       ε = {summary['epsilon']['rdp']:.4g} at δ = 1e-05" in told.stdout
    assert f"left        ε = {summary['left']:.4g}" in told.stdout
    for words in ("budget      ε = 50", "protects    one example", "3 of 3", "noisy counts"):
        assert words in told.stdout
    assert "1 charged for side information" in told.stdout
    assert "about 10 of 20 examples per step" in told.stdout
    assert "precondition > privatize > sgd" in told.stdout
    for internal in (
        "expected_size",
        "entries",
        "σ=",
        "lives",
        "filter",
        summary["runs"][0]["run"],
    ):
        assert internal not in told.stdout


def test_with_several_runs_spent_and_left_make_the_budget(path, monkeypatch):
    monkeypatch.setattr(cli.out, "_width", 80)
    for _ in range(2):
        trained(path, dp_sgd(PRIVACY, lr=0.1))
    left = summarise(path)["left"]
    text = shown(path).stdout
    assert f"spent       ε = {50 - left:.4g}" in text
    assert "ε = 50 for each model" in text
    assert max(map(len, text.splitlines())) <= 80


def test_runs_that_paid_nothing_are_said_to_have_paid_nothing(path):
    with DiskLedger(path, budget=BUDGET) as ledger:
        ledger.open("stopped early", ADD, RDP, RunFacts(planned_steps=400))
    text = " ".join(shown(path).stdout.split())
    assert "1 more run paid nothing: refused, or stopped before the first step" in text
    assert "of 400" not in text
    assert "left ε = 1" in text


def test_what_is_too_little_for_a_run_is_called_nothing(path):
    charged(path, 2)
    summary = {**summarise(path), "left": 1e-6}
    assert dict(_facts(summary))["left"] == "nothing (ε = 1e-06)"
    assert "no budget" in dict(_facts({**summary, "budget": None}))["left"]


def test_an_exposure_is_shown_as_infinite(path):
    with DiskLedger(path) as ledger:
        ledger.open("exposed", ADD, RDP, RunFacts(sampler={"examples": 100}))
        ledger.authorise(NonPrivateDpEvent())
    assert json.loads(shown(path, "--json").stdout)["epsilon"] == {"pld": None, "rdp": None}
    assert "not private" in shown(path).stdout


def test_a_new_ledger_can_be_shown(path):
    DiskLedger(path, budget=BUDGET).close()
    summary = json.loads(shown(path, "--json").stdout)
    assert (summary["runs"], summary["entries"], summary["left"]) == ([], 0, 1.0)
    assert shown(path).exit_code == 0


def test_show_needs_a_delta_where_none_can_be_known(path):
    charged(path, 1, budget=None)
    assert "Give --delta" in shown(path).stderr
    assert json.loads(shown(path, "--json", "--delta", "1e-5").stdout)["delta"] == 1e-5


def test_a_ledger_in_use_is_shown_and_not_changed(path):
    ledger = DiskLedger(path, budget=ROOMY)
    ledger.open("first", ADD, RDP)
    ledger.authorise(SMALL)
    assert summarise(path)["entries"] == 1
    ledger.authorise(SMALL)
    assert summarise(path)["entries"] == 2


@pytest.mark.parametrize("make", [*FOREIGN.values(), lambda _: None], ids=[*FOREIGN, "missing"])
def test_show_says_what_is_wrong_and_exits_with_1(path, make):
    make(path)
    told = shown(path)
    assert (told.exit_code, told.stdout) == (1, "")
    assert "DataError: Expected a ledger" in told.stderr
    assert "Traceback" not in told.stderr
