"""What a run cannot be resumed with."""

import shutil

import pytest
from torch import nn

import adadps
import adadps.accounting.ledger.summary
from adadps import (
    Accountant,
    Checkpoints,
    DiskLedger,
    PrivateRun,
    examples,
    poisson,
    reproducible_not_private,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import ContractError, DataError
from support.problems import cross_entropy
from support.resuming import DENSE, FREQUENT, LABELS, NOISY, SOME, Measured, advance, begin


def test_another_plan_is_refused(tmp_path):
    advance(begin(tmp_path), until=5)
    for other in (
        {"method": adadps.dp_adam(NOISY, lr=0.1)},
        {"steps": 13},
        {"sampler": poisson(examples=30, expected_size=5)},
        {"accountant": Accountant.RDP},
    ):
        with pytest.raises(ContractError, match="Expected"):
            begin(tmp_path, **other)
    assert advance(begin(tmp_path)).taken == 12


def test_another_ledger_is_refused(tmp_path):
    advance(begin(tmp_path / "run"), until=5)
    with (
        DiskLedger(tmp_path / "empty") as empty,
        pytest.raises(ContractError, match="ledger on which run"),
    ):
        begin(tmp_path / "run", ledger=empty, accountant=Accountant.PLD)
    with pytest.raises(ContractError, match="in memory"):
        begin(tmp_path / "run", ledger=MemoryLedger())


def test_a_ledger_in_memory_serves_as_long_as_it_lives(tmp_path):
    ledger = MemoryLedger()
    advance(begin(tmp_path, ledger=ledger), until=7)
    assert advance(begin(tmp_path, ledger=ledger)).result().privacy.steps_paid == 15
    assert ledger.entries == 15


def test_hazard_16_an_old_copy_of_the_ledger_is_refused(tmp_path):
    advance(begin(tmp_path / "run"), until=4)
    with DiskLedger(tmp_path / "run" / "ledger"):
        pass  # closing it folds its journal in
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    advance(begin(tmp_path / "run"), until=8)
    shutil.rmtree(tmp_path / "old" / "step-00000000", ignore_errors=True)
    advance(begin(tmp_path / "run"))
    for file in ("ledger", "ledger-wal", "ledger-shm"):
        (tmp_path / "run" / file).unlink(missing_ok=True)
    shutil.copy(tmp_path / "old" / "ledger", tmp_path / "run" / "ledger")
    with pytest.raises(ContractError, match="old copy"):
        begin(tmp_path / "run")


def test_hazard_16_a_seed_cannot_be_resumed(tmp_path):
    advance(begin(tmp_path, randomness=reproducible_not_private(1)), until=5)
    with pytest.raises(ContractError, match="same noise"):
        begin(tmp_path, randomness=reproducible_not_private(1))


@pytest.mark.parametrize("options", [{"debug": True}, {"randomness": None}])
def test_hazard_24_a_life_that_was_not_private_marks_the_whole_run(tmp_path, options):
    marked = {"randomness": reproducible_not_private(1)} if "randomness" in options else options
    advance(begin(tmp_path, **marked), until=5)
    privacy = advance(begin(tmp_path)).result().privacy
    assert not privacy.private
    assert privacy.not_private_because


def test_a_model_of_another_shape_is_refused(tmp_path):
    advance(begin(tmp_path), until=5)
    with pytest.raises(DataError, match="shapes"):
        PrivateRun(
            nn.Linear(6, 3),
            cross_entropy,
            examples(DENSE, LABELS),
            method=adadps.dp_sgd(NOISY, lr=0.1),
            sampler=SOME,
            steps=12,
            checkpoints=tmp_path,
        )


def test_a_state_that_cannot_be_kept_is_refused_before_the_first_step(tmp_path):
    class Odd(Measured):
        event = FREQUENT.event

        def init(self, _params):
            return {"state": object()}

    with pytest.raises(ContractError, match="object"):
        begin(tmp_path, adadps.adadps(Odd(), NOISY, lr=0.1))


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("something")
    with pytest.raises(DataError, match="file"):
        begin(tmp_path / "file")
    with pytest.raises(adadps.errors.SettingError, match="every"):
        Checkpoints(tmp_path, every=0)


def test_two_processes_on_one_folder_do_not_mix(tmp_path):
    advance(begin(tmp_path), until=5)
    one, other = begin(tmp_path), begin(tmp_path)
    advance(one, until=9)
    with pytest.raises(DataError, match="alone"):
        advance(other)


def test_a_run_does_not_go_on_with_other_facts_assumed_public(tmp_path):
    """Classes that were read off the data do not become declared ones by a crash."""
    advance(begin(tmp_path, assumed_public=["the classes, read off the data: a, b"]), until=5)
    with pytest.raises(DataError, match="facts assumed public"):
        begin(tmp_path, assumed_public=["the classes, declared: b, a"])
    again = begin(tmp_path, assumed_public=["the classes, read off the data: a, b"])
    assert advance(again).taken == 12
