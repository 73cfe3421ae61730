"""Models in shards over four processes, for many steps, and with more processes than rows."""

import os

import pytest
import torch

from support import sharded_work as work
from support.team import Team

pytestmark = pytest.mark.skipif(
    not int(os.environ.get("ADADPS_PROCESS_KILLS", "0")), reason="set ADADPS_PROCESS_KILLS=20"
)

STEPS = 100


@pytest.fixture(scope="module")
def four():
    with Team(4) as started:
        yield started


@pytest.mark.parametrize("name", ["LSTM", "Transformer", "autoencoder"])
def test_four_processes_train_what_one_does(name, four):
    """The last one has no row of three classes, and of the autoencoder no row at all."""
    found = four.run(work.after_many_steps, name, STEPS)
    expected = work.after_many_steps(name, STEPS)
    for one in found:
        for parameter, value in expected.items():
            assert torch.equal(one[parameter], found[0][parameter])
            assert torch.allclose(one[parameter], value, atol=1e-4), parameter


def test_four_processes_resume_what_two_have_begun(four, tmp_path):
    folder = tmp_path / "run"
    with Team(2) as two:
        two.run(work.first_steps, folder, 4)
    for begun_at, _ in four.run(work.first_steps, folder, 8):
        assert begun_at == 4
    begun_at, whole = work.first_steps(folder, 12)
    assert begun_at == 8
    _, expected = work.first_steps(tmp_path / "other", 12)
    assert all(torch.allclose(whole[n], expected[n], atol=1e-5) for n in expected)


def test_pieces_and_empty_batches_in_four_processes(four):
    found = four.run(work.in_small_pieces)
    assert len({tuple(count for _, count in pieces) for _, pieces in found}) == 1
    assert len({tuple(rows for rows, _ in pieces) for _, pieces in found}) > 1
    four.run(work.empty_batches)


def test_a_process_without_any_row_takes_part(four):
    first, *others = four.run(work.of_few_rows)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)
