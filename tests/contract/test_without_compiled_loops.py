"""Where the compiled loops cannot work, on other devices, torch does the same.

Here they are switched off. `make torture` runs the whole contract suite in this way.
"""

import numpy as np
import pytest
import torch

from adadps.tensors import loops, pooling, recurrence_loops, squares, token_loops
from adadps.tensors.recurrences import Cell, Start, backward, forward
from support import ground_truth
from support.engine_checks import trainable
from support.problems import PROBLEMS
from support.zoo_attention import ATTENTION
from support.zoo_checks import OF_TORCH, Compared
from support.zoo_convolution import CONVOLUTIONS
from support.zoo_plain import PLAIN
from support.zoo_recurrent import RECURRENT

pytestmark = [pytest.mark.filterwarnings(warning) for warning in OF_TORCH]
LOOPS = [
    (recurrence_loops, "lstm_forward"), (recurrence_loops, "lstm_backward"),
    (recurrence_loops, "gru_forward"), (recurrence_loops, "gru_backward"),
    (recurrence_loops, "rnn_forward"), (recurrence_loops, "rnn_backward"),
    (squares, "_sums_of_squares"), (squares, "_unit_squares"), (squares, "_inner_products"),
    (squares, "_largest_bits"), (squares, "_weighted_rows"),
    (token_loops, "squares"), (token_loops, "weighted"),
    (pooling, "_largest"), (pooling, "_to_winners"),
]  # fmt: skip


@pytest.fixture
def switched_off(monkeypatch):
    """The loops are not only avoided: a call of one of them would fail."""
    monkeypatch.setattr(loops, "SWITCHED_OFF", True)
    for module, name in LOOPS:
        monkeypatch.setattr(module, name, None)


@pytest.mark.usefixtures("switched_off")
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_norms_and_sums_of_every_problem(problem):
    case, rng = problem(3, 5), np.random.default_rng(3)
    params = trainable(case.model)
    diagonal = {n: torch.from_numpy(np.exp(rng.normal(size=p.shape))) for n, p in params.items()}
    none = {name: torch.zeros_like(value) for name, value in params.items()}
    truth = ground_truth.gradients_one_by_one(case.model, case.loss, case.batch)
    truth = ground_truth.transformed(truth, 1.0, none, diagonal)
    found = case.engine.per_unit(params, case.batch, None).scale(diagonal)
    torch.testing.assert_close(found.norms(), ground_truth.norms(truth), rtol=2e-5, atol=1e-5)


MODELS = (
    {name: RECURRENT[name] for name in list(RECURRENT)[::4]}
    | {name: ATTENTION[name] for name in list(ATTENTION)[::5]}
    | {name: CONVOLUTIONS[name] for name in list(CONVOLUTIONS)[::5]}
    | {name: PLAIN[name] for name in list(PLAIN)[::5]}
)


@pytest.mark.usefixtures("switched_off")
@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_zoo(name):
    Compared(MODELS[name], name=name).assert_right()


@pytest.mark.parametrize("cell", Cell)
@pytest.mark.parametrize(("sequences", "time", "size"), [(1, 1, 3), (16, 4, 8), (37, 6, 5)])
def test_recurrences_in_loops_and_in_torch_agree(cell, sequences, time, size, monkeypatch):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    width = cell.gates * size
    gates, d_hidden = 2 * draw(sequences, time, width), draw(sequences, time, size)
    start = Start(draw(width, size) / 2, draw(width), draw(sequences, size), draw(sequences, size))
    d_cell = draw(sequences, size) if cell is Cell.LSTM else torch.zeros(sequences, size)

    def both_ways():
        states = forward(cell, gates, start)
        slopes = backward(cell, gates, start, states, d_hidden, d_cell)
        last = states.memory[:, -1] if cell is Cell.LSTM else states.hidden
        return states.hidden, last, slopes.gates, slopes.products, slopes.hidden, slopes.cell

    compiled = both_ways()
    monkeypatch.setattr(loops, "SWITCHED_OFF", True)
    for found, wanted in zip(compiled, both_ways(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_sequence_is_bit_equal_among_any_others():
    generator = torch.Generator().manual_seed(1)
    gates = torch.randn(48, 5, 24, generator=generator)
    weight = torch.randn(24, 6, generator=generator)

    def hidden(rows):
        zeros = torch.zeros(len(rows), 6)
        return forward(Cell.LSTM, rows, Start(weight, torch.zeros(24), zeros, zeros)).hidden

    whole = hidden(gates)
    for count in (1, 3, 16, 17, 33):
        assert torch.equal(hidden(gates[:count].contiguous()), whole[:count])
    turned = torch.arange(47, -1, -1)
    assert torch.equal(hidden(gates[turned]), whole[turned])


def test_tanh_is_as_good_as_single_precision():
    rows = torch.cat([torch.linspace(-20, 20, 200_001), torch.tensor([1e-30, 1e30, -torch.inf])])
    found = torch.tensor([float(recurrence_loops.tanh(x)) for x in rows[::50].numpy()])
    torch.testing.assert_close(found, torch.tanh(rows[::50]), rtol=6e-7, atol=0)
    assert np.isnan(recurrence_loops.tanh(np.float32("nan")))
