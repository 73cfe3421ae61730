"""Items of datasets: tuples, mappings, half precision, and the form that is declared for them."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.utils.data import TensorDataset

import adadps
from adadps import Budget, dp_sgd, examples, losses
from adadps.data.examples import private_rows
from adadps.engine.passes.validation import objective
from adadps.errors import DataError
from adadps.training.fit import PrivateRun
from support.datasets import ROWS, Images, Items, private_run, small_cnn


def test_mappings_are_given_by_name():
    held = examples(
        Items(lambda row: {"tokens": [row, 1], "mask": [1, 0], "labels": row % 2}),
    ).take(torch.tensor([4, 5]))
    assert held.features.names == ("tokens", "mask")
    assert held.features.tensors[0].tolist() == [[4, 1], [5, 1]]
    assert held.targets.tolist() == [0, 1]


def test_the_target_has_any_name():
    dataset = Items(lambda row: {"x": [1.0], "stars": row})
    assert examples(dataset, target="stars").take(torch.tensor([7])).targets.tolist() == [7]
    with pytest.raises(DataError, match="Name it by `target=`"):
        examples(dataset)


def test_longer_tuples_have_several_inputs():
    held = examples(Items(lambda row: ([1.0 * row], [2], row))).take(torch.tensor([3]))
    assert [tensor.tolist() for tensor in held.features.tensors] == [[[3.0]], [[2]]]
    nested = examples(Items(lambda row: (([1.0 * row], [2]), row))).take(torch.tensor([3]))
    assert [tensor.tolist() for tensor in nested.features.tensors] == [[[3.0]], [[2]]]


def test_half_precision_trains():
    images = torch.rand(ROWS, 16).half()
    held = examples(TensorDataset(images, torch.randint(2, (ROWS,))))
    made = objective(nn.Linear(16, 2), losses.cross_entropy, held)
    found = made.per_unit(made.params(), held.take(torch.arange(4)), None).norms()
    single = held.take(torch.arange(4))
    whole = adadps.data.examples.Examples(single.features.float(), single.targets)
    torch.testing.assert_close(found, made.per_unit(made.params(), whole, None).norms())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["linear", "sequence", "by example", "stored"])
def test_half_precision_in_memory(dtype, kind):
    """Rows in half precision are rows like others: converted, and identified among public ones."""

    class ByExample(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(16, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.last(self.layer(x).tanh())

    class Stored(ByExample):
        def forward(self, x):
            return self.last(nn.functional.linear(x, self.layer.weight).tanh())

    models = {
        "linear": lambda: nn.Linear(16, 2),
        "sequence": lambda: nn.Sequential(nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 2)),
        "by example": ByExample,
        "stored": Stored,
    }
    rows, targets = torch.rand(ROWS, 16).to(dtype), torch.randint(2, (ROWS,))
    model = models[kind]()
    held, single = examples(rows, targets), examples(rows.float(), targets)
    if kind == "stored":
        model.layer.bias.requires_grad_(False)
    found, expected = (
        made.per_unit(made.params(), data, None).norms()
        for data in (held, single)
        for made in [objective(model, losses.cross_entropy, data)]
    )
    torch.testing.assert_close(found, expected)
    public = adadps.public_examples(
        rows[:3].float(), targets[:3], source="made up", public_because="made up", batch_size=1
    )
    assert private_rows(held, [public.rows]).tolist() == [False] * 3 + [True] * (ROWS - 3)
    result = adadps.fit(
        model, losses.cross_entropy, held, method=dp_sgd(lr=0.5), clip_norm=1.0, batch_size=8,
        steps=2, budget=Budget(epsilon=8, delta=1e-3),
        evaluate=[adadps.on_held_out("rows", rows, targets, accuracy=adadps.accuracy)],
    )  # fmt: skip
    assert result.params
    assert all(value.dtype == torch.float32 for value in result.params.values())


# --- the form of rows, declared ---


MADE_UP = (torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 0, 1]))


def test_with_a_declared_form_nothing_is_read_before_a_step():
    dataset = Images(broken=[0])
    held = examples(dataset, synthetic=MADE_UP)
    run = private_run(held)
    assert dataset.read == []
    assert not any("form" in fact for fact in run.result().privacy.assumed_public)
    assert held.take(torch.tensor([0, 1])).absent.tolist() == [True, False]


def test_a_form_that_was_read_off_the_first_row_is_stated():
    (fact,) = [
        fact for fact in private_run(examples(Images())).result().privacy.assumed_public
        if "form" in fact
    ]  # fmt: skip
    assert fact == ("the form of a row, read off the first one: (1, 4, 4) of float32, () of int64")


def test_declared_forms_of_several_inputs():
    dataset = Items(lambda row: {"mask": [1, 0], "tokens": [row, 1], "stars": row % 2})
    made_up = {"tokens": torch.ones(2, 2).long(), "mask": torch.ones(2, 2).long()}
    held = examples(dataset, target="stars", synthetic=(made_up, torch.tensor([0, 1])))
    found = held.take(torch.tensor([4, 7]))
    assert found.features.names == ("tokens", "mask")
    assert found.features.tensors[0].tolist() == [[4, 1], [7, 1]]
    assert found.targets.tolist() == [0, 1]


def test_sparse_rows_declare_no_form():
    rows = sparse.csr_matrix(np.eye(3, dtype=np.float32))
    with pytest.raises(DataError, match="dense synthetic rows"):
        examples(Images(), synthetic=(rows, [0, 1, 0]))


def test_the_declared_number_is_the_one_that_counts():
    """Rate and steps come from it; a dataset of another length is not reported."""
    for rows in (ROWS, ROWS + 1):
        run = PrivateRun(
            small_cnn(), losses.cross_entropy, examples(Images(rows=rows)), method=dp_sgd(lr=0.5),
            clip_norm=1.0, batch_size=8, epochs=2, examples=100,
            budget=Budget(epsilon=8, delta=1e-3),
        )  # fmt: skip
        assert (run.steps, run.sampler.examples, run.sampler.expected_size) == (25, 100, 8)


def test_a_dataset_that_has_shrunk_loses_rows_in_silence():
    dataset = Images()
    held = examples(dataset)
    dataset.images = dataset.images[:5]
    assert held.take(torch.tensor([4, 5])).absent.tolist() == [False, True]


def test_the_owner_sees_which_rows_would_weigh_nothing_and_why():
    def item(row):
        if row == 2:
            raise OSError("broken file")
        x = torch.ones(3 if row == 5 else 2)
        return (x * float("nan") if row == 7 else x), 0

    held = examples(Items(item))
    assert held.unreadable() == {
        2: "OSError: broken file",
        5: "DataError: Expected items of (2,) of float32, () of int64, found the shapes (3,), ().",
        7: "DataError: Expected finite numbers, found NaN or infinity.",
    }
    assert held.unreadable(torch.arange(3)).keys() == {2}


def test_text_beside_numbers_is_refused_by_its_name():
    dataset = Items(lambda row: {"tokens": [row, 1], "title": "a title", "label": 0})
    with pytest.raises(DataError, match="text under 'title'"):
        examples(dataset)
    made_up = {"tokens": torch.ones(2, 2).long()}  # where the form is declared, it is not read
    held = examples(dataset, synthetic=(made_up, torch.tensor([0, 1])))
    assert held.take(torch.arange(3)).features.names == ("tokens",)
