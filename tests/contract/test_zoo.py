"""A zoo of models as users write them: each is right, whichever engine takes it.

Every model is built as training builds it, and compared with autograd on one example at a time.
"""

from functools import cache

import numpy as np
import pytest
import torch

from adadps.data.examples import Examples
from adadps.engine.passes.validation import objective
from adadps.engine.waist import clip_weights, reduce
from adadps.tensors.sums import dense
from support.engine_checks import contribution, only
from support.zoo import SIZE, replaced
from support.zoo_attention import ATTENTION
from support.zoo_checks import (
    OF_TORCH,
    SLACK,
    Compared,
    assert_never_below,
    assert_sums,
    matrices_for,
    transform,
    units_of,
)
from support.zoo_convolution import CONVOLUTIONS
from support.zoo_plain import PLAIN
from support.zoo_recurrent import RECURRENT

ZOO = PLAIN | RECURRENT | CONVOLUTIONS | ATTENTION
EVERY = pytest.mark.parametrize("name", ZOO)
ROW = 2
RNG = np.random.default_rng(5)
pytestmark = [pytest.mark.filterwarnings(warning) for warning in OF_TORCH]


@cache
def compared(name):
    """Built once for all tests: an engine holds nothing of the rows that it has seen."""
    return Compared(ZOO[name], name=name)


def test_the_zoo_has_many_models():
    parts = (PLAIN, RECURRENT, CONVOLUTIONS, ATTENTION)
    assert len(ZOO) == sum(len(part) for part in parts) >= 40


@EVERY
def test_norms_and_sums_equal_one_example_autograd(name):
    """Plain, under D of every form, shifted, and in units."""
    compared(name).assert_right()


@EVERY
def test_neighbours_and_poison_leave_a_row_bit_equal(name):
    """Another row, fewer rows, or a row that is not finite: the others stay as they were."""
    case = compared(name)
    others = torch.arange(SIZE) != ROW
    before, _ = transform(case.per_unit(), case.params, "shift")
    other = replaced(case.batch, case.entry.batch(seed=9), ROW)
    after, _ = transform(case.per_unit(other), case.params, "shift")
    _assert_bit_equal(name, before, after, others)
    assert after.norms()[ROW] != before.norms()[ROW], f"{name}: the test changed nothing"
    few = torch.arange(3)
    fewer, _ = transform(case.per_unit(case.batch.take(few)), case.params, "shift")
    assert torch.equal(fewer.norms(), before.norms()[few]), f"{name}: norms of fewer rows differ"
    for kind, batch in _poisoned(case.batch):
        poisoned, _ = transform(case.per_unit(batch), case.params, "shift")
        _assert_bit_equal(f"{name}, {kind}", before, poisoned, others)
        alone = contribution(poisoned, only(ROW, SIZE))
        assert poisoned.norms()[ROW] == 0, f"{name}, {kind}: the poisoned row is present"
        assert (alone == 0).all(), f"{name}, {kind}: the poisoned row contributes"


@EVERY
def test_a_row_is_bit_equal_at_every_place_and_in_batches_of_any_size(name):
    """One more example moves all others to another place.

    Kernels that treat the rows at the end of a batch in another way would move them all, too.
    """
    case = compared(name)
    batch, size = case.entry.batch(seed=4, size=20), 20
    matrices = matrices_for(case.per_unit(batch), np.random.default_rng(5))
    places = (torch.arange(size).roll(1), torch.tensor([17, 3, 9, 0, 11]))

    def norms(rows):
        held = case.per_unit(batch.take(rows))
        return torch.stack([held.norms(), held.whiten(*matrices).norms()])

    first = norms(torch.arange(size))
    for rows in places:
        assert torch.equal(norms(rows), first[:, rows]), name


@EVERY
def test_whitened_rows_do_not_depend_on_their_neighbours(name):
    """Another row leaves the others bit-equal, and norms are never below what is added."""
    case = compared(name)
    matrices = matrices_for(case.per_unit(), np.random.default_rng(5))
    others = torch.arange(SIZE) != ROW
    before = case.per_unit().whiten(*matrices)
    other = replaced(case.batch, case.entry.batch(seed=9), ROW)
    _assert_bit_equal(name, before, case.per_unit(other).whiten(*matrices), others)
    for row in range(SIZE):
        added = contribution(before, only(row, SIZE))
        missing = 1 - before.norms()[row] / torch.linalg.vector_norm(added)
        assert missing <= SLACK, f"{name}: the whitened norm of row {row} is too small"


def test_most_models_of_the_zoo_can_be_whitened():
    found = [name for name in ZOO if any(matrices_for(compared(name).per_unit(), RNG))]
    assert len(found) > len(ZOO) / 2


def test_rows_that_overflow_under_a_matrix_are_absent():
    case = compared("residual")
    large = case.batch.features.clone()
    large[ROW] = 1e30
    inputs, _ = matrices_for(case.per_unit(), RNG)
    huge = {name: 1e20 * p for name, p in inputs.items()}
    found = case.per_unit(Examples(large, case.batch.targets)).whiten(huge, {})
    plain = case.per_unit().whiten(huge, {})
    others = torch.arange(SIZE) != ROW
    assert found.norms()[ROW] == 0
    assert (contribution(found, only(ROW, SIZE)) == 0).all()
    assert torch.equal(found.norms()[others], plain.norms()[others])


def _assert_bit_equal(said, before, after, rows):
    was, now = before.norms()[rows], after.norms()[rows]
    apart = float(((was - now) / was).abs().max())
    assert torch.equal(was, now), f"{said}: norms of other rows moved by {apart:.1e}"
    row = int(torch.nonzero(rows)[0])
    sums = [contribution(batch, only(row, len(rows))) for batch in (before, after)]
    assert torch.equal(*sums), f"{said}: the contribution of row {row} moved"


def _poisoned(batch):
    """NaN in the features and in the target of one row, where they can have one."""
    if batch.features.is_floating_point():
        features = batch.features.clone()
        features[ROW].view(-1)[0] = float("nan")
        yield "NaN in features", Examples(features, batch.targets)
    if batch.targets.is_floating_point():
        targets = batch.targets.clone()
        targets[ROW] = float("nan")
        yield "NaN in targets", Examples(batch.features, targets)


@EVERY
def test_norms_are_never_too_small_and_pieces_change_nothing(name):
    """A norm covers what its row adds to the sum; small physical batches give the same."""
    case = compared(name)
    whole = case.per_unit()
    for form in ("plain", "full", "rank one", "shift"):
        assert_never_below(whole, case.params, form)
    for units in (None, units_of(SIZE, mean=True)):
        found = []
        for chunk in (2, 64):
            batch, _ = transform(case.per_unit(units=units, chunk=chunk), case.params, "shift")
            found.append((batch.norms(), reduce(batch, lambda norms: clip_weights(norms, 0.7))))
        (small, of_small), (large, of_large) = found
        torch.testing.assert_close(small, large, rtol=5e-5, atol=1e-6)
        wanted = {leaf: dense(value) for leaf, value in of_large.items()}
        assert_sums(of_small, wanted, 1e-4, f"{name}, in pieces")


@pytest.mark.parametrize("name", ["residual", "LSTM, two layers", "Conv2d, groups", "attention"])
def test_an_empty_batch_adds_nothing(name):
    case = compared(name)
    found = case.per_unit(case.batch.take(torch.arange(0)))
    assert found.norms().shape == (0,)
    assert (contribution(found, torch.zeros(0)) == 0).all()


DRAWING = [name for name, entry in ZOO.items() if entry.evaluating]


@pytest.mark.parametrize("name", DRAWING)
def test_models_that_draw_are_trained_with_a_draw_for_each_row(name):
    """In training mode, copies of one row differ, and so do two passes."""
    entry = ZOO[name]
    model = entry.model().train()
    batch = entry.batch().take(torch.zeros(24, dtype=torch.int64))
    held = objective(model, entry.loss, batch)
    one, other = (held.per_unit(held.params(), batch, None).norms() for _ in range(2))
    assert (one > 0).any()
    assert torch.isfinite(one).all()
    assert len(torch.unique(one)) > 6, f"{name}: rows share their draws"
    assert not torch.equal(one, other), f"{name}: every pass has the same draws"


@pytest.mark.parametrize(
    "name", ["encoder layer", "encoder, padding from the words", "attention", "LSTM, two layers"]
)
def test_models_in_evaluation_mode(name):
    """torch has short cuts in evaluation mode, which must not be taken, or be right."""
    entry = ZOO[name]
    evaluated = type(entry)(lambda: entry.build().eval(), entry.rows, entry.classes, True)
    Compared(evaluated, name=name).assert_right(("plain", "full"))
