"""Loops that run in torch's own threads, and in a pool of ours where there are none."""

import multiprocessing
import threading
import time
from collections import deque

import pytest
import torch

from adadps.tensors import loops
from adadps.tensors.team import team

of_openmp = pytest.mark.skipif(team() is None, reason="torch does not use GNU's OpenMP")


@pytest.fixture(autouse=True)
def _two_threads():
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)


@pytest.fixture(params=["team", "pool"])
def helpers(request, monkeypatch):
    """Where the second thread comes from."""
    if request.param == "pool":
        monkeypatch.setattr(loops, "team", lambda: None)
    elif team() is None:
        pytest.skip("torch does not use GNU's OpenMP")
    return request.param


def both_at_once(seen):
    """Two pieces that end only if they run at the same time."""
    meeting = threading.Barrier(2)

    def piece():
        meeting.wait(timeout=60)
        seen.append(threading.get_ident())

    return deque([piece, piece])


def test_two_threads_work_at_the_same_time(helpers):
    seen = []
    loops.run_all(both_at_once(seen))
    assert len(set(seen)) == 2
    assert threading.get_ident() in seen


@of_openmp
def test_the_other_thread_is_one_of_torch(monkeypatch):
    """Ours are not even started; and the region is closed afterwards."""

    class NoPool:
        def submit(self, *_):
            raise AssertionError("a pool of ours was used")

    monkeypatch.setattr(loops.pools, "helpers", NoPool())
    for _ in range(3):
        loops.run_all(both_at_once([]))
        assert team() is not None
    assert torch.get_num_threads() == 2


@of_openmp
@pytest.mark.parametrize("pieces", [2, 3, 4])
def test_a_team_is_as_large_as_that_of_torch_though_few_help(monkeypatch, pieces):
    """A smaller team would end threads that torch then has to begin again."""
    sizes, start = [], team()._start
    monkeypatch.setattr(team(), "_start", lambda *given: (sizes.append(given[2]), start(*given)))
    torch.set_num_threads(4)
    seen = []
    loops.run_all(deque([lambda: (time.sleep(0.05), seen.append(threading.get_ident()))] * pieces))
    assert sizes == [4]
    assert len(seen) == pieces
    assert 2 <= len(set(seen)) <= pieces


@of_openmp
def test_threads_of_torch_that_sleep_are_not_waited_for():
    """Within `torch_on_one_thread` they do, and a core may be taken by others."""
    seen = []
    with loops.torch_on_one_thread():
        loops.run_all(deque([lambda: seen.append(team() is not None)] * 2))  # no region is open
    assert seen == [True, True]


def test_pieces_may_have_pieces_of_their_own(helpers):
    done = []

    def outer():
        loops.run_all(deque([lambda: done.append(1)] * 3))

    loops.run_all(deque([outer] * 4))
    assert len(done) == 12


def test_torch_works_inside_of_a_piece(helpers):
    matrix = torch.randn(300, 300)
    expected, found = matrix @ matrix, []
    loops.run_all(deque([lambda: found.append(matrix @ matrix)] * 4))
    for one in found:
        torch.testing.assert_close(one, expected)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("where", ["here", "beside"])
def test_an_error_in_either_thread_is_raised_here_and_ends_the_work(helpers, where):
    begun, here = threading.Barrier(2), threading.get_ident()

    def piece():
        begun.wait(timeout=60)
        if (threading.get_ident() == here) == (where == "here"):
            raise ValueError("one piece has failed")

    pieces = deque([piece, piece])
    with pytest.raises(ValueError, match="one piece has failed"):
        loops.run_all(pieces)
    assert not pieces
    seen = []
    loops.run_all(both_at_once(seen))  # and the threads work on
    assert len(set(seen)) == 2


def test_other_threads_of_a_program_have_teams_of_their_own(helpers):
    results = []

    def program():
        done = []
        for _ in range(20):
            loops.run_all(deque([lambda: done.append(time.sleep(0))] * 4))
        results.append(len(done))

    threads = [threading.Thread(target=program) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [80, 80, 80]


def _of_a_child(answers):
    seen = []
    loops.run_all(both_at_once(seen))
    answers.put((team() is None, len(set(seen))))


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_has_no_team_and_works_all_the_same(helpers):
    """Threads do not survive a fork: whoever waited for them would wait forever."""
    loops.run_all(both_at_once([]))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_of_a_child, args=(answers,))
    child.start()
    found = answers.get(timeout=60)
    child.join(timeout=60)
    assert found == (True, 2)
