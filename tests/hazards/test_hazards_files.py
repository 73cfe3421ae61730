"""Hazard 32: cleaning up takes away our own files by their exact names, and a ledger never."""

import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import adadps
import adadps_experiments
from adadps import Budget, Checkpoints, DiskLedger
from adadps.cli.demo import running
from adadps.errors import DataError
from adadps.estimators.tables.request import TrainingRequest
from adadps.estimators.tables.training import train_from_table
from adadps.files import is_ledger, new_file
from support.commands import files
from support.mixed_tables import make, rows
from support.resuming import advance, begin

pytestmark = pytest.mark.filterwarnings("ignore::adadps.errors.AssumedPublicWarning")
SOURCES = Path(adadps.__file__).parent, Path(adadps_experiments.__file__).parent
PLACES = (
    "ledger",
    "ledger.db",
    "ledgers/reviews",
    "ledger-2026",
    "reviews.ledger",
    ".adadps-ledger",
    ".adadps-abcdefgh/ledger",
    ".adadps-draft-abcdefgh",
    ".adadps-draft-abcdefgh/.adadps-lock",
    ".adadps-draft-abcdefgh/step-00000001/checkpoint.json",
    "step-x",
    "step-00000000/ledger",
    "step-00000000/tensors.safetensors",
    "step-00000003/ledger",
    "step-77777777",
    "checkpoint.json",
)
"""Where somebody may put a ledger in the folder of a run, some with names like ours."""


def spent(path):
    with DiskLedger(path) as ledger:
        return ledger.entries


def new_ledger(path):
    DiskLedger(path, budget=Budget(50.0, 1e-5)).close()
    return path


@pytest.mark.parametrize("place", [place for place in PLACES if not place.startswith("step-0000")])
def test_hazard_32_a_finished_command_leaves_the_ledger_in_its_folder(tmp_path, place):
    make(tmp_path / "data.csv", rows(60))
    folder = tmp_path / "model.checkpoint"
    ledger = folder / place
    train_from_table(
        TrainingRequest(
            data=tmp_path / "data.csv", texts=("title",), label="kind", epsilon=8.0,
            out=tmp_path / "model", words=50, epochs=1, ledger=ledger, ledger_budget=20.0,
        ),
        lambda _: None,
    )  # fmt: skip
    assert (tmp_path / "model" / "model.json").exists()
    assert spent(ledger) > 0
    assert {path for path in folder.rglob("*") if path.is_file()} == {ledger}


@pytest.mark.parametrize("place", PLACES)
def test_hazard_32_checkpoints_leave_a_ledger_in_their_folder(tmp_path, place):
    """One that other runs use, and that was there before."""
    ledger = new_ledger(tmp_path / place)
    own = DiskLedger(tmp_path.parent / f"{tmp_path.name}.ledger", budget=Budget(50.0, 1e-5))
    content = ledger.read_bytes()
    in_the_way = place.startswith("step-00000000")  # of the first checkpoint: refused, and kept
    with own, pytest.raises(DataError) if in_the_way else nullcontext():
        advance(begin(tmp_path, ledger=own))
    assert ledger.read_bytes() == content


def test_hazard_32_a_checkpoint_goes_without_the_ledger_in_it(tmp_path):
    advance(begin(tmp_path), until=5)
    ledger = new_ledger(tmp_path / "step-00000004" / "ledger")
    content = ledger.read_bytes()
    advance(begin(tmp_path))
    assert files(tmp_path / "step-00000004") == ["ledger"]
    assert ledger.read_bytes() == content
    assert Checkpoints(tmp_path).latest().taken == 12


def test_hazard_32_a_refused_command_leaves_a_ledger_that_was_there(tmp_path):
    """Without a single charge it still holds a budget that somebody has set."""
    make(tmp_path / "data.csv", rows(60))
    ledger = new_ledger(tmp_path / "model.checkpoint" / "ledger")
    request = TrainingRequest(
        data=tmp_path / "data.csv", texts=("title",), label="kind", epsilon=8.0,
        out=tmp_path / "model", words=50, epochs=1,
    )  # fmt: skip
    with pytest.raises(
        adadps.errors.ContractError, match="budget"
    ):  # another one than that ledger has
        train_from_table(request, lambda _: None)
    assert spent(ledger) == 0


def test_the_ledger_that_a_command_made_for_itself_stays_with_the_model(tmp_path):
    make(tmp_path / "data.csv", rows(60))
    request = TrainingRequest(
        data=tmp_path / "data.csv", texts=("title",), label="kind", epsilon=8.0,
        out=tmp_path / "model", words=50, epochs=1,
    )  # fmt: skip
    result = train_from_table(request, lambda _: None)
    assert spent(tmp_path / "model" / "ledger") == result.privacy.steps_paid
    assert not (tmp_path / "model.checkpoint").exists()


def test_hazard_32_force_does_not_replace_a_ledger(tmp_path):
    ledger = new_ledger(tmp_path / "predictions.csv")
    with (
        pytest.raises(DataError, match=r"found a ledger .* never replaced"),
        new_file(ledger, overwrite=True),
    ):
        pytest.fail("work was done for a file that cannot be written")
    with (
        pytest.raises(DataError, match="found a ledger"),
        new_file(tmp_path / "late", overwrite=True),
    ):
        new_ledger(tmp_path / "late")  # while the draft was made
    assert files(tmp_path) == ["late", "predictions.csv"]
    assert is_ledger(ledger)


HOLDING = """
import sys, time
from pathlib import Path
from adadps.files import new_folder

with new_folder(Path(sys.argv[1]) / "step-00000099") as draft:
    (draft / "checkpoint.json").write_text("half")
    print(draft.parent.name, flush=True)
    time.sleep(100)
"""


def test_hazard_32_drafts_of_the_living_stay_and_those_of_the_dead_go(tmp_path):
    advance(begin(tmp_path), until=5)
    others = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        draft = tmp_path / others.stdout.readline().strip()
        half = draft / "step-00000099" / "checkpoint.json"
        advance(begin(tmp_path), until=9)
        assert half.read_text(encoding="utf-8") == "half"
    finally:
        others.send_signal(signal.SIGKILL)
        others.communicate()
    (draft / "mine").write_text("not one of yours", encoding="utf-8")
    advance(begin(tmp_path))
    assert files(draft) == ["mine"]


def test_hazard_32_without_locks_nobody_is_taken_for_dead(tmp_path, monkeypatch):
    draft = tmp_path / ".adadps-draft-abcdefgh" / "step-00000099"
    draft.mkdir(parents=True)
    (draft / "checkpoint.json").write_text("half", encoding="utf-8")
    (draft.parent / ".adadps-lock").touch()
    monkeypatch.setattr("adadps.files.surely_locked", lambda _: False)
    advance(begin(tmp_path), until=5)
    assert (draft / "checkpoint.json").exists()


def test_hazard_32_the_demo_replaces_an_earlier_demo_and_nothing_else(tmp_path):
    (tmp_path / "demo.json").write_text("[]", encoding="utf-8")
    ledger = new_ledger(tmp_path / "model" / "ledger")
    with pytest.raises(DataError, match="nothing was changed"):
        running.run_demo(tmp_path, 1.0, lambda _: None)
    assert spent(ledger) == 0


def test_hazard_32_only_one_module_removes_anything():
    """Code elsewhere that removes or replaces a file must be added here."""
    removes = re.compile(
        r"\b(?:unlink|rmtree|rmdir|removedirs|TemporaryDirectory|os\.(?:remove|replace|renames?)"
        r"|shutil\.move|truncate)\("
        r"|(?:draft|path|file|folder|part|target)\.(?:replace|rename)\("
    )
    found = {
        str(file.relative_to(source)): len(lines)
        for source in SOURCES
        for file in source.rglob("*.py")
        if (lines := removes.findall(file.read_text(encoding="utf-8")))
    }
    assert found.pop("files.py") > 0
    assert found == {
        "accounting/ledger/file.py": 2,  # a ledger that was never used: a draft, and a new one
        "bench/together.py": 1,  # a temporary folder of its own
        "training/workers.py": 1,  # a temporary folder of its own, where processes meet
        "data/conversion.py": 1,  # the packed archive that it has just unpacked
        "data/downloading.py": 3,  # a download that is its own, locked, and no ledger
        "reproduce/records.py": 1,  # a line of its own that was cut short
    }
