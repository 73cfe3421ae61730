"""Late noise, beyond its law: what is drawn, when, by whom, and what can be seen meanwhile."""

import copy
import os
import pickle
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from adadps.data.sparse_rows import SparseRows
from adadps.engine.noise import late
from adadps.engine.noise.late import LateRows
from adadps.engine.noise.randomness import secure
from adadps.engine.rules.sparse import FactoredRows
from adadps.errors import ContractError
from adadps.tensors.sums import RowSparse
from support.late_tables import BATCHES, NOISE, TABLES, WORDS, Changed, begun, take

tables = pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)


class Counting(Changed):
    """Noise that knows for how many rows it gave normals."""

    def __init__(self, width=3):
        super().__init__()
        self.width = width

    @property
    def rows(self):
        return self.count // self.width


@pytest.fixture
def released(monkeypatch):
    """All values that releases wrote to tables."""
    seen, release = set(), late.release_rows

    def noted(table, rest, has_rest, rows, *others):
        release(table, rest, has_rest, rows, *others)
        seen.update(tuple(row) for row in table[rows].tolist())

    monkeypatch.setattr(late, "release_rows", noted)
    return seen


@pytest.fixture
def counted(monkeypatch):
    """How many rows of late tables a run has drawn."""
    drawn = []
    release = LateRows._release

    def noted(self, rows):
        drawn.append(sorted(rows.tolist()))
        return release(self, rows)

    monkeypatch.setattr(LateRows, "_release", noted)
    return drawn


def touched(*rows, width=3, height=6):
    values = torch.arange(1.0, 1 + len(rows) * width, dtype=torch.float64).reshape(-1, width) / 7
    return RowSparse(torch.tensor(rows).long(), values.reshape(len(rows), width), (height, width))


def late_table(noise, room=10_000, width=3):
    """A table of 6 rows, and ``room`` bytes for changes that wait."""
    table = torch.randn(6, width)
    with mock.patch("adadps.engine.noise.late.PENDING_BYTES", room):
        held = LateRows(table, 0, noise)
        held._pending._allowed = room  # small tables would have less
        return table, held


# --- nothing is drawn twice, nothing is seen without noise ---


def test_a_second_read_draws_nothing():
    noise = Counting()
    table, late = late_table(noise)
    late.add(touched(0, 4), deviation=1.0, keep=0.9)
    assert noise.rows == 0
    late.settle()
    assert noise.rows == 6
    read = table.clone()
    late.settle()
    late.settle(torch.tensor([0, 3]))
    assert noise.rows == 6
    assert torch.equal(table, read)


def test_a_step_draws_for_the_rows_that_it_touches_and_for_no_others():
    noise = Counting()
    _, late = late_table(noise)
    for drawn, rows in enumerate([(0, 1), (0, 1), (0, 1), (0, 1)]):
        late.add(touched(*rows), deviation=1.0, keep=1.0)
        assert noise.rows == 2 * drawn


@pytest.mark.parametrize("room", [10_000, 500, 0])
def test_memory_holds_only_what_was_released(room, released):
    """Whoever looks at the memory itself, at any time, sees starting points and releases."""
    table, late = late_table(secure(), room)
    alias, begin = table[:], {tuple(row) for row in table.tolist()}
    for rows in [(0, 1), (1, 2, 3), (), (4,), (0, 5, 1), (2,), (3, 4)]:
        late.add(touched(*rows), deviation=0.5, keep=0.9)
        assert {tuple(row) for row in alias.tolist()} <= begin | released
    late.settle()
    assert {tuple(row) for row in alias.tolist()} <= released


def test_the_oldest_changes_go_when_there_is_no_room():
    noise = Counting()
    _, late = late_table(noise, room=0)
    late.add(touched(0, 1), deviation=1.0, keep=1.0)
    assert noise.rows == 0  # the latest always waits
    late.add(touched(2, 3), deviation=1.0, keep=1.0)
    assert noise.rows == 2 + 2  # 2 and 3 are read, 0 and 1 have to go
    late.add(touched(0, 2, 4, 5), deviation=1.0, keep=1.0)
    assert noise.rows == 4 + 4 + 1  # all four are read, then 3 has to go
    late.settle()
    settled = noise.rows
    late.add(touched(0, 1, 2), deviation=1.0, keep=1.0)
    assert noise.rows == settled  # what was read does not wait any longer


def test_only_so_many_steps_wait():
    noise = Counting()
    with mock.patch("adadps.engine.noise.late.MOST_PENDING_STEPS", 3):
        _, late = late_table(noise)
        for row in range(6):
            late.add(touched(row), deviation=1.0, keep=1.0)
        # Rows 1 to 5 are read before they change, and 0 to 2 have to go.
        assert noise.rows == 5 + 3
        late.settle()
    assert len(late._pending._steps) == 3


@pytest.mark.parametrize("deviations", [(1.0, 1.0), (0.3, 0.07), (0.07, 0.3)])
@pytest.mark.parametrize("room", [10_000, 0])
def test_after_a_read_all_values_lie_on_the_public_grid(deviations, room):
    table, late = late_table(secure(), room, width=50)
    for deviation in deviations:
        late.add(touched(1, 2, width=50), deviation=deviation, keep=0.9)
    late.add(touched(width=50), deviation=0.0, keep=1.0)  # a schedule that pauses
    late.settle()
    cells = table.double() / 2.0 ** (np.floor(np.log2(min(deviations))) - 10)
    assert torch.equal(cells, cells.round())
    assert not torch.equal(cells / 4, (cells / 4).round())


def test_without_noise_nothing_is_rounded():
    table, late = late_table(secure())
    before, step = table.double(), touched(1, 2)
    late.add(step, deviation=0.0, keep=0.9)
    late.settle()
    torch.testing.assert_close(table.double(), 0.9 * before + step.to_dense(), atol=1e-6, rtol=0)


def far_table(turned):
    """Weights that are large beside a noise of 1e-7, released once."""
    table = torch.randn(3, 6).T if turned else torch.randn(6, 3)
    held = LateRows(table, 0, secure())
    held.add(touched(), deviation=1e-7, keep=1.0)
    held.settle()
    assert held._residual.all(1).any()
    return table, held


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_written_to_large_weights_counts_to_the_last_bit(turned):
    """The rest that their rounding left over goes with them."""
    table, late = far_table(turned)
    before = table.double() + torch.from_numpy(late._residual)
    table[:3] = torch.tensor([0.0, 1e-9, float("inf")])
    late.add(touched(), deviation=0.0, keep=1.0)
    late.settle()
    assert torch.equal(table[:3], torch.tensor([0.0, 1e-9, float("inf")]).expand(3, 3))
    assert torch.equal(table[3:].double() + torch.from_numpy(late._residual[3:]), before[3:])


def without_entries():
    rows = SparseRows(torch.zeros(2).long(), torch.empty(0).long(), torch.empty(0), 6)
    return FactoredRows(rows.by_column, torch.zeros(1), torch.zeros(1, 3), (6, 3), 0)


EMPTY = {"no rows": touched, "no entries": without_entries}


@pytest.mark.parametrize("empty", EMPTY.values(), ids=EMPTY)
def test_a_step_without_rows_is_noised_and_draws_nothing(empty):
    """Also with changes that wait under a D of their own: they are not in its way."""
    noise = Counting()
    table, late = late_table(noise)
    scale = torch.full((6, 3), 2.0)
    change = FactoredRows(
        SparseRows(torch.tensor([0, 1]), torch.tensor([4]), torch.ones(1), 6).by_column,
        torch.ones(1), torch.ones(1, 3), (6, 3), 0,
    ).times_(scale)  # fmt: skip
    begin = table.clone()
    late.add(empty(), deviation=1.0, keep=1.0)
    late.add(change, deviation=1.0, keep=1.0)
    held = len(late._pending._steps)
    for _ in range(3):
        late.add(empty(), deviation=1.0, keep=1.0)
    assert noise.rows == 1  # the row that the change has touched
    assert len(late._pending._steps) == held == 1
    _, deviation = late._history.gathered(late._since)
    assert deviation.tolist() == pytest.approx([5**0.5] * 4 + [4**0.5] + [5**0.5])
    late.settle()
    assert (table != begin).any(1).all()  # on its grid one number of some thousand stays
    late._pending.put(np.empty(0, np.int64), empty().factors(), 1.0)
    late.settle()
    assert noise.rows == 1 + 6


# --- a run ---


@tables
def test_a_run_draws_for_the_rows_of_its_batches_and_for_all_at_the_end(make, counted):
    """A row is drawn when a batch reads it after a step that it waited for, and when all leave."""
    table = make(8)
    run = begun(table)
    take(run, len(BATCHES) - 1)
    assert counted == [list(rows) for rows in BATCHES[1:-1]]
    take(run, 1)
    assert counted[-1] == list(range(WORDS))


@tables
def test_an_alias_of_the_memory_sees_only_values_with_all_their_noise(make):
    """Between a step and the next read, memory holds what was read before."""
    table = make(8)
    run = begun(table, loss=lambda outputs, _: outputs.sum(1))
    take(run, 2)
    alias = run.params[table.name]
    before = alias.clone()
    take(run, 1)
    moved = (alias != before).movedim(table.axis, 0).flatten(1).any(1)
    assert moved.nonzero().flatten().tolist() in ([], list(BATCHES[2]))
    assert not torch.equal(table.rows(table.parameter), table.rows(before))


@tables
def test_afterwards_the_model_is_as_it_was(make):
    table = make(8)
    run = begun(table)
    take(run, 3)
    assert isinstance(table.parameter, nn.Parameter)
    assert table.parameter.requires_grad
    take(run, 3)
    assert table.parameter is table.kept
    assert type(table.parameter) is nn.Parameter
    assert table.parameter.is_contiguous()
    assert torch.equal(table.parameter, table.parameter)
    assert torch.equal(run.params[table.name], table.parameter)
    assert vars(table.parameter) == {}


@tables
def test_copies_are_plain_and_do_not_move_with_the_run(make):
    table = make(8)
    run = begun(table)
    take(run, 3)
    copied = copy.deepcopy(table.model).get_parameter(table.name)
    sent = pickle.loads(pickle.dumps(table.model)).get_parameter(table.name)
    assert {type(copied), type(sent)} == {nn.Parameter}
    held = copied.detach().clone()
    take(run, 3)
    assert torch.equal(copied, held)
    assert torch.equal(sent, held)


@tables
def test_what_the_user_writes_between_steps_stays(make):
    """Noise that is due is drawn before a write, not after it."""
    table = make(8)
    run = begun(table)
    take(run, 3)
    with torch.no_grad():
        table.parameter.fill_(1.0)
    assert (table.parameter == 1).all()
    take(run, 1)
    assert (table.rows(table.parameter)[6] - 1).abs().max() < 8 * NOISE  # one step: p < 1e-14


@tables
def test_the_model_can_be_differentiated_between_steps(make):
    table = make(8)
    run = begun(table)
    take(run, 3)
    table.model(table.inputs).sum().backward()
    assert (table.rows(table.parameter.grad) == 1).all()
    with torch.inference_mode():
        table.model(table.inputs)
    take(run, 3)


@tables
def test_a_parameter_of_another_class_is_noised_in_time(make):
    """What cannot be watched is not late."""

    class Own(nn.Parameter):
        pass

    table = make(8)
    module = table.model.get_submodule(table.name.rpartition(".")[0])
    module.weight = Own(torch.zeros_like(table.parameter))
    run = begun(table)
    for _ in range(3):
        before = table.rows(table.parameter)
        take(run, 1)
        assert (table.rows(table.parameter) != before).any(1).all()


# --- one owner ---


@tables
def test_a_run_with_waiting_noise_cannot_be_copied(make):
    table = make(8)
    run = begun(table)
    take(run, 3)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="copy"):
            copied(run)
        with pytest.raises(TypeError, match="copy"):
            copied(run._stepper.weights._late[table.name]._noise)


def in_a_forked_child(action):
    """The bytes that ``action`` returns in a child of this process."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: none is used
        child = os.fork()
    if child == 0:
        try:
            with os.fdopen(write, "wb") as pipe:
                pipe.write(action())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    return content


@tables
def test_a_forked_child_does_not_noise_what_its_parent_will_noise(make):
    """Two draws for one sum are two releases. A child is refused, or sees what its parent sees."""
    table = make(8)
    run = begun(table)
    take(run, 3)

    def read():
        try:
            return table.rows(table.kept).numpy().tobytes()
        except ContractError:
            return b"refused"

    child = in_a_forked_child(read)
    assert child in (b"refused", read())


def test_a_forked_child_cannot_step():
    run = begun(TABLES["linear"](8))
    take(run, 3)
    batch = next(run.batches())

    def step():
        try:
            run.step(batch)
        except ContractError:
            return b"refused"

    assert in_a_forked_child(step) == b"refused"


# --- one run at a time ---


@tables
def test_a_run_is_over_when_another_begins_on_its_model(make):
    table = make(20)
    first = begun(table)
    take(first, 2)
    second = begun(table)
    take(second, 1)
    with pytest.raises(ContractError, match="another run has begun"):
        take(first, 1)
