"""Several processes train as one does: the same weights, one ledger, one word when they stop."""

import pytest
import torch

from adadps import DiskLedger
from adadps.engine.group import ALONE, Group
from adadps.errors import ContractError
from adadps.methods.side.source import Transform
from adadps.methods.side.whitening import WhiteningState, _of_first
from adadps.tensors.sums import SinglePrecision
from adadps.training.processes import _lists_in, current_group
from support import team_work as work
from support.team import Raised, Team


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def close(one, other):
    return all(torch.allclose(one[name], other[name], atol=2e-6) for name in one)


@pytest.fixture(scope="module")
def alone():
    """What one process makes of all examples, without noise."""
    return work.all_trained(0.0, 1.0)


@pytest.fixture(scope="module")
def by_two(team):
    return team.run(work.all_trained, 0.0, 1.0)


@pytest.fixture(scope="module")
def with_noise(team):
    return team.run(work.all_trained, 1.0, 0.3, 20)


@pytest.mark.parametrize("name", work.PROBLEMS)
def test_two_processes_without_noise_train_what_one_does(name, alone, by_two):
    first, second = (found[name][0] for found in by_two)
    assert same(first, second)
    assert close(first, alone[name][0])


@pytest.mark.parametrize("name", work.PROBLEMS)
def test_replicas_are_bit_equal_and_draw_noise_from_the_same_place(name, with_noise):
    (first, place, *price), (second, other_place, *other_price) = (
        found[name] for found in with_noise
    )
    assert same(first, second)
    assert place == other_place > 0
    assert price == other_price
    assert sum(price[1]) == 20


def test_without_torchrun_there_is_no_group():
    assert work.current_group().is_alone
    assert not torch.distributed.is_initialized()


def test_no_process_adds_up_more_rows_in_float32_than_its_share(team):
    most = SinglePrecision.for_batches(work.ROWS, 0.5).most_rows
    assert [2 * one <= most for one in team.run(work.most_rows_in_single)] == [True] * 2


def test_shards_may_be_uneven_and_empty(alone, team):
    for sizes in ((90, 0), (1, 89), (0, 90)):
        first, second = team.run(work.uneven, sizes)
        assert same(first, second)
        assert close(first, alone["dense"][0])
    first, second = team.run(work.uneven, (90, 0), 0.01, 1.0)  # nearly all batches are empty
    assert same(first, second)


def test_a_dataset_is_read_by_the_process_that_draws_a_row(alone, team):
    first, second = team.run(work.of_a_dataset)
    assert same(first, second)
    assert close(first, alone["dense"][0])


def test_all_rows_of_a_user_are_in_one_process(team):
    (one, first), (other, second) = team.run(work.users_of_each)
    assert not one & other
    assert one | other == set(range(17))
    assert same(first, second)


# --- one ledger, one checkpoint ---


def test_the_first_process_pays_once_for_all(team, tmp_path):
    path = str(tmp_path / "shared.ledger")
    (epsilon, charges, identity), *others = team.run(work.paid_on, path, 12)
    assert others == [(epsilon, charges, identity)]
    with DiskLedger(path) as ledger:
        assert (ledger.entries, ledger.identity) == (12, identity)
    with DiskLedger(tmp_path / "shared.1") as unused:
        assert unused.entries == 0


def test_a_budget_is_refused_by_all_with_the_same_words(team):
    first, second = team.outcomes(work.beyond_the_budget)
    assert first.kind == second.kind == "BudgetError"
    assert first.text == second.text
    assert "within epsilon = 0.1" in first.text


def test_a_run_resumes_with_another_number_of_processes(team, tmp_path):
    folder = tmp_path / "run"
    (begun_at, weights, paid), (_, others, _) = team.run(work.first_steps, folder, 12, 30)
    assert (begun_at, paid) == (0, 12)
    assert same(weights, others)
    begun_at, weights, paid = work.first_steps(folder, 20, 30)  # in this process, alone
    assert (begun_at, paid) == (12, 20)
    (first, paid, history), (second, _, other_history) = team.run(work.fitted, folder, 30)
    assert same(first, second)
    assert paid == 30
    assert history == other_history
    assert [step for step, _ in history] == [20, 24, 28, 30][-len(history) :]
    with DiskLedger(folder / "ledger") as ledger:
        assert ledger.entries == 30


def test_a_checkpoint_without_its_ledger_is_refused_by_all(team, tmp_path):
    folder = tmp_path / "run"
    team.run(work.first_steps, folder, 6, 30)
    for file in folder.glob("ledger*"):
        file.unlink()
    found = team.outcomes(work.first_steps, folder, 12, 30)
    assert [(one.kind, "Expected the ledger on which run" in one.text) for one in found] == [
        ("ContractError", True)
    ] * 2


# --- refusals ---

REFUSED = {
    "a shuffle": ("ContractError", "Poisson sampling with several processes"),
    "a fixed size": ("ContractError", "Poisson sampling with several processes"),
    "groups": ("ContractError", "clipped alone"),
    "debugging": ("ContractError", "debug=False"),
    "a measurement": ("SideInformationError", "public side information"),
    "users in shards": ("DataError", "all rows in every process"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_several_processes_cannot_do_is_refused(how, team):
    kind, words = REFUSED[how]
    for found in team.outcomes(work.refused, how):
        assert (found.kind, words in found.text) == (kind, True), found


def test_a_shard_without_a_declared_number_is_refused(team):
    for found in team.outcomes(work.a_shard_without_a_number):
        assert found.kind == "DataError", found
        assert "Expected the declared number" in found.text


@pytest.mark.parametrize("what", ["method", "steps", "data", "side information"])
def test_processes_that_disagree_stop_before_the_first_step(what, team):
    first, second = team.outcomes(work.other_in_the_second, what)
    assert first.kind == second.kind == "ContractError"
    assert first.text == second.text
    assert f"Expected the same {'plan' if what == 'side information' else what}" in first.text
    assert "in process 1" in first.text


@pytest.mark.parametrize("does", ["reads", "publishes", "evaluates"])
def test_the_first_process_may_not_read_late_weights_alone(does, team):
    first, second = team.outcomes(work.the_first_alone, does)
    assert isinstance(first, Raised), first
    assert isinstance(second, Raised), second
    assert "Expected all processes to" in first.text
    assert "Expected all processes to" in second.text


def test_weights_that_all_have_read_may_then_be_read_alone(team):
    first, second = team.run(work.together_then_alone)
    assert same(first, second)


def test_an_error_in_one_process_ends_all_and_quotes_no_row(team):
    first, second = team.outcomes(work.one_process_fails)
    assert first.kind == "ContractError"
    assert "process 1 has ended with OSError" in first.text
    assert "17" not in first.text.split("process 1")[1]
    assert second.kind == "OSError"


def test_a_process_that_dies_stops_the_others_and_nothing_paid_is_lost(tmp_path):
    folder = tmp_path / "run"
    with Team(2) as team:
        team.tell(work.long_run, folder)
        while len(list(folder.glob("step-*"))) == 0 or (folder / "step-00000000").exists():
            assert team.processes[1].is_alive()
        team.processes[1].kill()
        found = team.answer(0)
    assert found.kind == "ContractError"
    assert "found that one has ended" in found.text
    (kept,) = folder.glob("step-*")
    with DiskLedger(folder / "ledger") as ledger:
        assert ledger.entries >= int(kept.name[5:]) > 0


# --- what is sent ---


def test_rows_that_are_touched_are_sent_and_not_the_table(team):
    sparse, _ = team.run(work.bytes_of_a_step, "sparse, late", 0.05)
    whole = 8 * work.WORDS * work.CLASSES
    assert sparse < whole
    dense, _ = team.run(work.bytes_of_a_step, "dense", 0.05)
    assert dense == 8 * (5 * 7 + 7 + 7 * 3 + 3)


def test_a_process_that_was_started_with_others_but_has_not_joined_them_is_refused(monkeypatch):
    """It would train on all rows, and its epsilon would leave out what the others release."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ContractError, match="torchrun"):
        current_group()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert current_group() is ALONE


def test_lists_of_files_are_compared():
    class Files:
        def __init__(self, files):
            self.files, self.cache = files, {}

    assert _lists_in(Files(["a", "b"])) != _lists_in(Files(["b", "a"]))
    assert _lists_in(Files([object()])) == {}


class Talks(Group):
    """Two processes, of which the first has said the same."""

    size = 2

    def first(self, tensors):
        return tensors


def test_whitening_without_a_median_can_be_kept_in_checkpoints():
    ones = {"w": torch.ones(2)}
    held = WhiteningState(ones, Transform(ones, inputs=ones, outputs={}))
    assert _of_first(held, Talks()).first_median == 0.0
