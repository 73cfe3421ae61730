"""Models whose parameters are sharded over processes train as whole ones do."""

import pytest
import torch

from support import sharded_refusals
from support import sharded_work as work
from support.team import Raised


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def close(one, other):
    return one.keys() == other.keys() and all(
        torch.allclose(one[name], other[name], atol=5e-6) for name in one
    )


@pytest.fixture(scope="module")
def alone():
    return work.all_trained()


@pytest.fixture(scope="module")
def in_shards(team):
    return team.run(work.all_trained)


@pytest.mark.parametrize("name", [*work.PROBLEMS, *work.METHODS])
def test_shards_without_noise_train_what_one_process_does(name, alone, in_shards):
    first, second = (found[name] for found in in_shards)
    assert same(first, second)
    assert close(first, alone[name])


def test_processes_draw_other_numbers_of_physical_batches(alone, team):
    (first, pieces), (second, others) = team.run(work.in_small_pieces)
    assert same(first, second)
    assert [count for _, count in pieces] == [count for _, count in others]
    whole, other = team.run(work.in_pieces_of_all)
    assert same(whole, other)
    assert close(whole, alone["LSTM"])
    for found in team.run(work.empty_batches):
        assert all(bool(torch.isfinite(value).all()) for value in found.values())


def test_users_are_clipped_whole(team):
    first, second = team.run(work.of_users)
    assert same(first, second)
    assert close(first, work.of_users())


@pytest.mark.parametrize("method", ["dp_sgd", "dp_adam"])
def test_a_process_holds_its_shards_and_gathers_one_layer_after_another(method, team):
    found = team.run(work.held_at_rest, method)
    bundles = found[0]["bundles"]
    whole = sum(bundles.values())
    for one in found:
        assert one["weights"] <= 0.55 * whole
        moments = 2 * 8 * one["weights"] if method == "dp_adam" else 0
        assert moments <= one["states"] <= moments + 4 * one["weights"] + 64
        assert one["gathered"] == max(bundles[name] for name in bundles if name) + bundles[""]
        assert one["gathered"] < whole
        assert one["after"] == 0


# --- runs ---


RESUMED = {
    "Transformer": "dp_adam",
    "a frozen layer": "update_with",
    "classifier": "adadps_adam",
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_sharded_run_resumes_with_another_number_of_processes(name, team, tmp_path):
    folder, method = tmp_path / "run", RESUMED[name]
    for begun_at, _ in team.run(work.first_steps, folder, 4, name, method):
        assert begun_at == 0
    begun_at, _ = work.first_steps(folder, 8, name, method)  # in this process, whole
    assert begun_at == 4
    (begun_at, first), (_, second) = team.run(work.first_steps, folder, 12, name, method)
    assert begun_at == 8
    assert same(first, second)
    _, expected = work.first_steps(tmp_path / "other", 12, name, method)
    assert close(first, expected)


def test_evaluations_results_and_the_model_itself(team):
    (history, runs, first), (others, also, second) = team.run(work.fitted)
    assert runs
    assert also
    assert history == others
    assert [step for step, _ in history] == [2, 4]
    assert same(first, second)


def test_the_model_may_be_run_between_steps(team):
    for found in team.run(work.read_between_steps):
        assert found == [True] * 3


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_an_error_in_one_process_ends_all(where, team):
    for found in team.outcomes(work.one_fails, where):
        assert isinstance(found, Raised)
        assert found.kind in {"ModelError", "ContractError"}
        assert "17" not in found.text


REFUSED = {
    "parts alone": "`fully_shard` on the model itself",
    "mixed precision": "in full precision",
    "read outside": "read while their own module runs",
    "hidden outputs": "as the outputs of 'hiding'",
    "sparse rows": "dense rows or tokens",
    "adaptive clipping": "treats every entry of a weight alone",
    "public side information by user": "examples that are clipped alone",
    "debugging": "debug=False",
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_cannot_be_sharded_is_refused(how, team):
    for found in team.outcomes(sharded_refusals.refused, how):
        assert isinstance(found, Raised), found
        assert REFUSED[how] in found.text, found.trace
