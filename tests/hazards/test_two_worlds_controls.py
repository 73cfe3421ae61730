"""Planted leaks: the comparison of two worlds notices what it should."""

import logging
import sqlite3
import sys
import warnings
from contextlib import closing

import pytest
import torch
from torch import nn

from adadps import Relation
from adadps.errors import DataError
from adadps.methods.stages.gradients import Privatize
from adadps.report.result import save_tensors
from adadps.training.stepper import Batches
from support.two_worlds import differences, distance, left_by
from support.two_worlds_problems import (
    CLIP,
    KINDS,
    PLAIN,
    SAMPLERS,
    both,
    one_step,
    same,
)
from support.two_worlds_runs import Options, run_of


def honest(world, given):
    rows, labels = given
    run_of(KINDS["linear"], Options("all", "dp_sgd", True, "disk", None, False, 2), 4)[0](
        world, (rows, labels)
    )


def prints(world, given):
    honest(world, given)
    print(f"{len(given[0])} rows")


def warns(world, given):
    honest(world, given)
    warnings.warn(f"{sum(given[1])}", stacklevel=1)


def logs(world, given):
    honest(world, given)
    logging.getLogger("adadps").warning("%d rows", len(given[0]))


def refuses(world, given):
    honest(world, given)
    if len(given[0]) > 4:
        raise DataError("Expected four rows, found more.")


def writes(world, given):
    honest(world, given)
    (world.folder / "result" / "cache.bin").write_bytes(bytes(len(given[0])))


def leaves_a_larger_file_of_weights(world, given):
    honest(world, given)
    tensors = {"weight": torch.zeros(len(given[0]))}
    save_tensors(tensors, world.folder / "result" / "more.safetensors")


def draws(world, given):
    honest(world, given)
    torch.rand(len(given[0]))


def charges(world, given):
    honest(world, given)
    with closing(sqlite3.connect(world.folder / "paid")) as ledger:
        ledger.execute(f"UPDATE terms SET most_planned_count = {len(given[0])}")
        ledger.commit()


def keeps(world, given):
    honest(world, given)
    model = nn.Linear(2, 1)
    model.register_buffer("seen", torch.tensor(len(given[0])))
    world.take(model)


LEAKS = {
    prints: "console",
    warns: "warned",
    logs: "logged",
    refuses: "ended",
    writes: "files, result/cache.bin",
    leaves_a_larger_file_of_weights: "files, result/more.safetensors",
    draws: "generators, torch",
    charges: "files, paid",
    keeps: "told",
}


def test_the_same_world_twice_leaves_the_same():
    rows, labels, names = PLAIN.world(Relation.ADD_OR_REMOVE_ONE, other=True)
    one, other = (left_by(honest, (rows, labels), names) for _ in range(2))
    same((one, other))
    assert distance(one, other) == 0
    assert {name.split("/")[0] for name in one.files} >= {"paid", "result", "kept"}


def test_the_one_row_more_has_its_part_in_the_weights():
    assert distance(*same(both(honest, PLAIN))) > 0


@pytest.mark.parametrize(("pipeline", "where"), LEAKS.items(), ids=[one.__name__ for one in LEAKS])
def test_a_planted_leak_is_noticed(pipeline, where):
    found = differences(*both(pipeline, PLAIN))
    assert [one for one in found if one.startswith(where)]


def test_a_batch_that_says_how_many_are_in_it_is_noticed(monkeypatch):
    drawn = Batches.next

    def says(self, batch):
        found = drawn(self, batch)
        print(len(found.rows))
        return found

    monkeypatch.setattr(Batches, "next", says)
    assert differences(*both(honest, PLAIN))


def test_a_step_beyond_the_clip_is_noticed(monkeypatch):
    stage = sys.modules[Privatize.__module__]
    monkeypatch.setattr(stage, "clip_weights", lambda norms, _: torch.ones_like(norms))
    pipeline = one_step(KINDS["linear"], SAMPLERS["all"](4))
    assert distance(*both(pipeline, PLAIN)) * 4 > 1.2 * CLIP
