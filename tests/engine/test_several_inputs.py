"""Models with several inputs and outputs: right against autograd, one example at a time."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import adadps
from adadps import Budget, dp_sgd, examples, losses
from adadps.accounting.ledger import MemoryLedger
from adadps.data.examples import Examples, private_rows
from adadps.data.fields import one_input
from adadps.engine.passes.validation import objective
from adadps.errors import DataError, ModelError
from adadps.tensors.sums import dense

ROWS, WORDS, LENGTH, CLASSES = 24, 30, 7, 3


@dataclass
class Outputs:
    logits: Tensor
    pooled: Tensor
    mean: Tensor
    cache: object = None


class Masked(nn.Module):
    """Tokens and a mask to logits, in several forms."""

    def __init__(self, returns="dataclass"):
        super().__init__()
        self.returns = returns
        self.table = nn.Embedding(WORDS, 6)
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.last = nn.Linear(5, CLASSES)

    def forward(self, tokens, mask):
        states, _ = self.lstm(self.table(tokens))
        weights = mask.unsqueeze(-1).to(states.dtype)
        pooled = (states * weights).sum(1) / weights.sum(1).clamp_min(1)
        logits = self.last(pooled)
        if self.returns == "tensor":
            return logits
        if self.returns == "tuple":
            return logits, pooled
        if self.returns == "mapping":
            return {"logits": logits, "pooled": pooled, "cache": None}
        return Outputs(logits, pooled, pooled.detach().mean())


LOSSES = {
    "tensor": losses.cross_entropy,
    "tuple": lambda outputs, targets: losses.cross_entropy(outputs[0], targets),
    "mapping": lambda outputs, targets: losses.cross_entropy(outputs["logits"], targets),
    "dataclass": lambda outputs, targets: losses.cross_entropy(outputs.logits, targets),
}


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(WORDS, (ROWS, LENGTH), generator=generator)
    mask = (torch.rand(ROWS, LENGTH, generator=generator) < 0.7).long()
    return tokens, mask, torch.randint(CLASSES, (ROWS,), generator=generator)


def by_autograd(model, loss, inputs, targets):
    found = []
    for row in range(len(targets)):
        given = [tensor[row : row + 1] for tensor in inputs]
        value = loss(model(*given), targets[row : row + 1]).sum()
        gradients = torch.autograd.grad(value, list(model.parameters()))
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(found)


def per_example(held, data):
    """All gradients, one row per example, from weighted sums with one weight each."""
    batch = held.per_unit(held.params(), data, None)
    rows = []
    for weights in torch.eye(len(data), dtype=torch.float64):
        total = batch.weighted_sum(weights)
        rows.append(torch.cat([dense(value).flatten() for value in total.values()]))
    return torch.stack(rows), batch


@pytest.mark.parametrize("returns", LOSSES)
@pytest.mark.parametrize("named", [True, False])
def test_gradients_are_those_of_autograd(rows, returns, named):
    tokens, mask, targets = rows
    torch.manual_seed(0)
    model = Masked(returns).double()
    features = {"mask": mask, "tokens": tokens} if named else (tokens, mask)
    data = examples(features, targets)
    held = objective(model, LOSSES[returns], data)
    assert not held.engine.stored  # all by rules
    found, batch = per_example(held, data)
    expected = by_autograd(model, LOSSES[returns], (tokens, mask), targets)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(batch.norms().double(), expected.norm(dim=1), rtol=1e-4, atol=0)


def test_what_a_mask_hides_changes_nothing(rows):
    """A mask is an input like any other: hidden states have no gradient through the readout."""
    tokens, mask, targets = rows
    model = Masked().double()
    last = torch.zeros_like(mask)
    last[:, 0] = 1
    changed = tokens.clone()
    changed[:, 1:] = 0  # the first state does not depend on later words
    found = [
        per_example(objective(model, LOSSES["dataclass"], data), data)[0]
        for data in (examples((tokens, last), targets), examples((changed, last), targets))
    ]
    used = torch.cat([torch.zeros(WORDS * 6), torch.ones(found[0].shape[1] - WORDS * 6)]).bool()
    torch.testing.assert_close(found[0][:, used], found[1][:, used])


def test_rows_of_zeros_in_a_length_do_not_stop_a_pass():
    """The plan of a pass comes from synthetic rows: a length of 0 would index before the start."""

    class LastState(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)
            self.last = nn.Linear(4, 2)

        def forward(self, steps, lengths):
            states, _ = self.rnn(steps)
            places = (lengths - 1).view(-1, 1, 1).expand(-1, 1, 4)
            return self.last(states.gather(1, places).squeeze(1))

    steps, lengths = torch.randn(20, 6, 3), torch.randint(1, 7, (20,))
    data = examples((steps, lengths), torch.randint(2, (20,)))
    model = LastState()
    held = objective(model, losses.cross_entropy, data)
    found, _ = per_example(held, data)
    expected = by_autograd(model, losses.cross_entropy, (steps, lengths), data.targets)
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-5)


def test_neighbours_change_nothing(rows):
    tokens, mask, targets = rows
    data = examples((tokens, mask), targets)
    held = objective(Masked(), LOSSES["dataclass"], data)
    whole = held.per_unit(held.params(), data, None).norms()
    part = held.per_unit(held.params(), data.take(torch.arange(5)), None).norms()
    assert torch.equal(whole[:5], part)


def test_absent_rows_weigh_nothing(rows):
    tokens, mask, targets = rows
    data = examples((tokens, mask), targets)
    held = objective(Masked(), LOSSES["dataclass"], data)
    absent = torch.zeros(ROWS, dtype=torch.bool)
    absent[[2, 9]] = True
    marked = Examples(data.features, targets, absent=absent)
    batch = held.per_unit(held.params(), marked, None)
    assert torch.equal(batch.present[:ROWS], ~absent)
    full = batch.weighted_sum((~absent).double())
    fewer = held.per_unit(held.params(), data.take(torch.nonzero(~absent)[:, 0]), None)
    wanted = fewer.weighted_sum(torch.ones(ROWS - 2, dtype=torch.float64))
    for name, value in wanted.items():
        torch.testing.assert_close(dense(full[name]), dense(value), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ["sequence", "general"])
def test_absent_rows_weigh_nothing_in_every_engine(engine):
    class Tied(nn.Module):
        """All gradients are stored: the weight is used twice."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return functional.linear(functional.linear(x, self.weight).tanh(), self.weight)

    model = nn.Sequential(nn.Linear(4, 4)) if engine == "sequence" else Tied()
    rows, targets = torch.randn(6, 4), torch.randint(4, (6,))
    held = objective(model, losses.cross_entropy, examples(rows, targets))
    absent = torch.tensor([False, True, False, False, False, False])
    marked = Examples(rows, targets, absent=absent)
    assert torch.equal(held.per_unit(held.params(), marked, None).present[:6], ~absent)


def test_outputs_come_as_the_model_returns_them(rows):
    tokens, mask, targets = rows
    data = examples((tokens, mask), targets)
    model = Masked().eval()
    held = objective(model, LOSSES["dataclass"], data)
    found = held.outputs(held.params(), data.features, chunk=7)
    assert isinstance(found, Outputs)
    torch.testing.assert_close(found.logits, model(tokens, mask).logits)
    assert found.mean is None  # it does not belong to examples


def run(model, loss, data, **more):
    return adadps.fit(
        model, loss, data, method=dp_sgd(lr=0.5), clip_norm=1.0, batch_size=8, steps=3,
        budget=Budget(epsilon=5, delta=1e-3), **more,
    )  # fmt: skip


def test_a_run_trains_and_evaluates(rows):
    tokens, mask, targets = rows

    def accuracy(outputs, wanted):
        return adadps.accuracy(outputs.logits, wanted)

    model = Masked()
    before = model.last.weight.detach().clone()
    held_out = adadps.on_held_out(
        "rows", {"mask": mask, "tokens": tokens}, targets, accuracy=accuracy
    )
    data = examples({"tokens": tokens, "mask": mask}, targets)
    result = run(model, LOSSES["dataclass"], data, evaluate=[held_out])
    assert result.privacy.epsilon <= 5
    assert 0 <= result.history[-1].value <= 1
    assert not torch.equal(before, model.last.weight)
    outputs = result.outputs(Masked(), (tokens, mask))
    torch.testing.assert_close(outputs.logits, model.eval()(tokens, mask).logits)


def test_a_loss_that_picks_nothing_is_refused(rows):
    tokens, mask, targets = rows
    with pytest.raises(ModelError, match="picks what it reads from the Outputs"):
        run(Masked(), losses.cross_entropy, examples((tokens, mask), targets))


def test_words_and_classes_out_of_range_are_refused(rows):
    tokens, mask, targets = rows
    with pytest.raises(DataError, match="from 0 to 29"):
        run(Masked(), LOSSES["dataclass"], examples((tokens + WORDS, mask), targets))
    with pytest.raises(DataError, match="from 0 to 2"):
        run(Masked(), LOSSES["dataclass"], examples((tokens, mask), targets + CLASSES))


def test_a_wrong_name_is_refused_before_anything_is_paid(rows):
    tokens, mask, targets = rows
    ledger = MemoryLedger(Budget(epsilon=5, delta=1e-3))
    with pytest.raises(DataError, match="unexpected keyword"):
        adadps.fit(
            Masked(), LOSSES["dataclass"], examples({"words": tokens, "mask": mask}, targets),
            method=dp_sgd(lr=1.0), clip_norm=1.0, batch_size=8, steps=3, ledger=ledger,
        )  # fmt: skip
    assert ledger.epsilon(1e-3) == 0


def test_a_model_without_tensors_is_refused(rows):
    class Nothing(Masked):
        def forward(self, tokens, mask):
            super().forward(tokens, mask)
            return "logits"

    tokens, mask, targets = rows
    with pytest.raises(ModelError, match="found str without any"):
        run(Nothing(), LOSSES["tensor"], examples((tokens, mask), targets))


def test_what_reads_features_one_by_one_needs_one_input(rows):
    tokens, mask, targets = rows
    with pytest.raises(DataError, match="several inputs"):
        one_input(examples((tokens, mask), targets).features)


@pytest.mark.parametrize(
    ("features", "says"),
    [
        ({}, "at least one input"),
        ({1: torch.zeros(4, 2)}, "at least one input"),
        ((torch.zeros(4, 2), torch.zeros(3)), "one row for each example"),
        ({"x": torch.full((4, 2), float("nan"))}, "finite"),
        ({"x": "text"}, "numbers as input 'x'"),
    ],
)
def test_bad_inputs_are_refused(features, says):
    with pytest.raises(DataError, match=says):
        examples(features, torch.zeros(4))


def test_tuples_of_lists_stay_one_tensor():
    assert examples(([0.0, 1.0], [1.0, 0.0]), [0, 1]).features.shape == (2, 2)


def test_public_rows_of_several_inputs_leave_training(rows):
    tokens, mask, targets = rows
    public = adadps.public_examples(
        (tokens[:4], mask[:4]), targets[:4], source="made up", public_because="made up",
        batch_size=2,
    )  # fmt: skip
    found = private_rows(examples((tokens, mask), targets), [public.rows])
    assert found.tolist() == [False] * 4 + [True] * (ROWS - 4)
    other = private_rows(examples((tokens, 1 - mask), targets), [public.rows])
    assert other.all()


def test_a_model_that_mixes_rows_by_a_mask_of_numbers_is_refused():
    """Made-up masks of numbers hide nothing, so that what they weigh is seen."""

    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(3, 2)

        def forward(self, rows, mask):
            return self.out((rows * mask.unsqueeze(-1)).sum(1) / mask.sum())

    rows, mask = torch.rand(ROWS, LENGTH, 3), torch.ones(ROWS, LENGTH)
    data = examples({"rows": rows, "mask": mask}, torch.arange(ROWS) % 2)
    with pytest.raises(ModelError, match="depends on that row alone"):
        objective(Mixing(), losses.cross_entropy, data)
