"""`fit(processes=2)`: workers train what one process does, and are gone whatever happens."""

import multiprocessing
import signal
from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch

from adadps import Checkpoints, DiskLedger, dp_sgd, fit, poisson, privatize
from adadps.accounting.ledger import MemoryLedger
from adadps.data.identity import key_for_workers, take_over_key
from adadps.engine.losses import cross_entropy
from adadps.engine.noise.randomness import secure
from adadps.errors import BudgetError, ContractError, DataError, PrivacyWarning, SettingError
from adadps.training import workers
from adadps.training.processes import Shard
from adadps.training.worker_process import WorkerFailure
from adadps.training.workers import UNGUARDED, _as_error, _of_the_silent
from adadps.types import Accountant
from support import local_work as work


@pytest.fixture(autouse=True)
def _as_in_a_terminal():
    """Processes in the background ignore Ctrl-C."""
    others = set(multiprocessing.active_children())
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)
    assert set(multiprocessing.active_children()) <= others


def trained(model, *, sigma=2.0, share=0.3, steps=12, loss=cross_entropy, **options):
    method = dp_sgd(privatize(clip_norm=0.5, noise_multiplier=sigma), lr=0.5)
    options.setdefault("data", work.data())
    return fit(
        model,
        loss,
        options.pop("data"),
        method=method,
        sampler=poisson(examples=work.ROWS, expected_size=share * work.ROWS),
        steps=steps,
        accountant=Accountant.RDP,
        **options,
    )


class Bar:
    """A bar that notes how it was moved."""

    notes: ClassVar[list] = []

    def advance(self, note=None):
        self.notes.append(note)


@contextmanager
def noted(steps, shown):
    assert (steps, shown) == (12, True)
    yield Bar()


def test_workers_train_what_one_process_does(monkeypatch):
    """Without noise, on all rows; with a ledger in the caller's memory, a warning and a bar."""
    monkeypatch.setattr(workers, "progress_bar", noted)
    alone, model, ledger = work.model(), work.model(), MemoryLedger()
    trained(alone, sigma=0.0, share=1.0)
    texts = [f"text {row}" for row in range(work.ROWS)]  # whose hashes are sent, too
    with pytest.warns(PrivacyWarning, match="a worker says so"):
        result = trained(
            model, sigma=0.0, share=1.0, processes=2, ledger=ledger, progress=True,
            evaluate=[work.at_step(3, work.warn)], data=work.data(texts=texts),
            settings={"name": "two"}, assumed_public=(fact for fact in ["a fact"]),
        )  # fmt: skip
    for name, value in alone.named_parameters():
        assert torch.allclose(dict(model.named_parameters())[name], value, atol=2e-6)
        assert torch.equal(dict(model.named_parameters())[name], result.params[name])
    assert ledger.entries == result.privacy.steps_paid == 12
    assert [entry.step for entry in result.history] == list(range(1, 13))
    assert result.settings["name"] == "two"
    assert "a fact" in result.privacy.assumed_public
    assert len(Bar.notes) == 12
    assert "not private" in Bar.notes[-1]


def test_ctrl_c_keeps_the_step_and_the_run_resumes_in_one_process(tmp_path):
    kept = Checkpoints(tmp_path / "run", every=5)
    untouched = work.model()
    pressed = work.at_step(7, work.press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        trained(untouched, processes=2, checkpoints=kept, evaluate=[pressed])
    held = kept.latest()
    assert held.taken == held.paid
    assert 7 <= held.taken < 12
    assert torch.equal(untouched[0].weight, work.model()[0].weight)
    privacy = trained(work.model(), checkpoints=kept).privacy
    assert privacy.steps == privacy.steps_paid == 12


def test_a_worker_that_is_killed_ends_all_and_nothing_paid_is_lost(tmp_path):
    folder = tmp_path / "run"
    kept = Checkpoints(folder, every=5)
    with pytest.raises(ContractError, match="worker 1 was ended by SIGKILL"):
        trained(
            work.model(), steps=3000, loss=work.dies_in_the_second, processes=2, checkpoints=kept
        )
    taken = kept.latest().taken
    assert taken > 0
    with DiskLedger(folder / "ledger") as ledger:
        assert taken <= ledger.entries < 3000


# --- what is refused before a worker is started ---


def test_what_cannot_be_sent_is_named():
    with pytest.raises(ContractError, match=r"Expected a loss that can be sent.*no lambda"):
        trained(work.model(), processes=2, loss=lambda outputs, _: outputs[:, 0])
    model = work.model()
    model[1].forward = lambda inputs: inputs
    with pytest.raises(ContractError, match="Expected a model that can be sent"):
        trained(model, processes=2)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"processes": 0}, SettingError, "processes >= 1"),
        ({"processes": 2.5}, SettingError, "processes >= 1"),
        ({"data": Shard(work.data())}, DataError, "found a shard"),
        ({"debug": True}, ContractError, "debug=False"),
    ],
    ids=["none", "a fraction", "a shard", "debugging"],
)
def test_refusals(options, error, words):
    with pytest.raises(error, match=words):
        trained(work.model(), **{"processes": 2, **options})


def test_randomness_and_torchrun_are_refused(monkeypatch):
    with pytest.raises(ContractError, match="no `randomness`"):
        trained(work.model(), processes=2, randomness=secure())
    monkeypatch.setattr(workers, "number_of_processes", lambda: 2)
    with pytest.raises(ContractError, match="found both"):
        trained(work.model(), processes=2)


def test_a_model_on_another_device_is_refused():
    with pytest.raises(ValueError, match=r"on the CPU for local processes, found \['cpu', 'meta'"):
        trained(work.model().to("meta"), processes=2)


def test_a_sharded_model_is_refused():
    model = work.model()
    next(model.parameters()).device_mesh = "as FSDP2 marks them"
    with pytest.raises(ValueError, match="Leave `fully_shard` out, or start the script with"):
        trained(model, processes=2)


def test_a_worker_that_imports_an_unguarded_script_starts_no_others(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SystemExit) as ended:
        trained(work.model(), processes=2)
    assert ended.value.code == UNGUARDED


# --- what is said when a worker has ended ---


class Ended:
    """A worker that has ended."""

    rank, is_ready = 1, False

    def __init__(self, code):
        self.process = self
        self.exitcode = code

    in_words = workers.StartedWorker.in_words


def test_workers_that_end_before_they_begin_are_explained():
    unguarded, broken = (str(_of_the_silent(Ended(code), 2)) for code in (UNGUARDED, 1))
    assert "a worker process calls it, too" in unguarded
    assert "ended with exit code 1 before" in broken
    assert all('`if __name__ == "__main__":`' in text for text in (unguarded, broken))


def test_errors_of_workers_are_raised_as_they_are_but_quote_no_row():
    ours = _as_error(WorkerFailure.of(BudgetError("Expected less.")))
    assert (type(ours), str(ours)) == (BudgetError, "Expected less.")
    other = _as_error(WorkerFailure.of(OSError("row 17")))
    assert "found OSError in one of them" in str(other)
    assert "17" not in str(other)
    assert "row 17" in other.__notes__[0]


def test_a_worker_recognises_the_rows_of_its_caller():
    """Hashes are made under the caller's key, which is known to no other process."""
    usual = key_for_workers()
    try:
        take_over_key(b"1" * 32)
        assert key_for_workers() != usual
        here = work.data(texts=["a"] * work.ROWS).texts
        take_over_key(b"2" * 32)
        elsewhere = work.data(texts=["a"] * work.ROWS).texts
        assert not here.within([elsewhere]).any()
    finally:
        take_over_key(usual)
