"""Torch datasets: rows are read when a paid step has drawn them, and never otherwise."""

import fcntl
import multiprocessing
import os
import random
import signal
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

import adadps
from adadps import Budget, dp_sgd, examples, losses
from adadps.data.datasets import from_dataset
from adadps.engine.passes.validation import objective
from adadps.errors import DataError
from support.datasets import ROWS, Images, Items, private_run, small_cnn


def test_only_drawn_rows_are_read(monkeypatch):
    dataset = Images()
    run = private_run(examples(dataset))
    assert dataset.read == [0]  # its form
    drawn = []
    take = type(run._stepper._data).take

    def noting(self, rows):
        drawn.extend(rows.tolist())
        return take(self, rows)

    monkeypatch.setattr(type(run._stepper._data), "take", noting)
    for batch in run.batches():
        run.step(batch)
    assert dataset.read[1:] == drawn
    assert drawn


def test_rows_are_those_of_a_tensor():
    dataset = Images()
    held = examples(dataset)
    rows = torch.tensor([3, 1, 1, 30])
    found = held.take(rows)
    assert torch.equal(found.features, dataset.images[rows])
    assert torch.equal(found.targets, dataset.labels[rows])
    assert not found.absent.any()


def test_a_broken_row_weighs_nothing_and_is_not_reported():
    dataset = Images(broken=[5])
    held = examples(dataset)
    found = held.take(torch.tensor([4, 5, 6]))
    assert found.absent.tolist() == [False, True, False]
    model = small_cnn()
    made = objective(model, losses.cross_entropy, held)
    with_it = made.per_unit(made.params(), found, None)
    without = made.per_unit(made.params(), held.take(torch.tensor([4, 6])), None)
    assert with_it.present[:3].tolist() == [True, False, True]
    torch.testing.assert_close(with_it.norms()[[0, 2]], without.norms()[:2])


def test_debugging_counts_the_rows_that_cannot_be_read():
    run = private_run(examples(Images(broken=range(1, ROWS, 2))), debug=True)
    for batch in run.batches():
        run.step(batch)
    facts = run.result().debug
    assert sum(held["unreadable"] for held in facts) > 0
    assert all(held["unreadable"] <= held["batch_size"] for held in facts)
    assert not run.result().privacy.private


def test_a_run_over_broken_rows_says_nothing_of_them(capsys):
    result = adadps.fit(
        small_cnn(), losses.cross_entropy, examples(Images(broken=range(1, ROWS))),
        method=dp_sgd(lr=0.5), clip_norm=1.0, batch_size=8, steps=4,
        budget=Budget(epsilon=8, delta=1e-3),
    )  # fmt: skip
    assert result.privacy.steps == 4
    printed = capsys.readouterr()
    assert "broken" not in printed.out + printed.err


@pytest.mark.parametrize(
    "other",
    [torch.rand(1, 5, 4), torch.full((1, 4, 4), float("nan")), "text", None],
    ids=["shape", "not finite", "text", "nothing"],
)
def test_rows_of_another_form_weigh_nothing(other):
    class Mixed(Images):
        def __getitem__(self, row):
            return (other, 1) if row == 3 else super().__getitem__(row)

    assert examples(Mixed()).take(torch.tensor([2, 3])).absent.tolist() == [False, True]


def test_empty_batches_have_the_form_of_the_data():
    held = examples(Images()).take(torch.arange(0))
    assert held.features.shape == (0, 1, 4, 4)
    assert len(held) == 0
    assert held.targets.dtype == torch.int64


# --- rows that the model cannot read ---


class Tokens(Dataset):
    """Tokens and labels as they are given."""

    def __init__(self, tokens, labels):
        self.tokens, self.labels = tokens, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return torch.tensor(self.tokens[row]), self.labels[row]


def words(table):
    return nn.Sequential(table, nn.Tanh(), nn.Linear(3, 2))


class WithLengths(nn.Module):
    """Fails for a length of zero."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(10, 3), nn.Linear(3, 2)

    def forward(self, tokens):
        length = (tokens > 0).sum(1)
        places = (length - 1).view(-1, 1, 1).expand(-1, 1, 3)
        return self.last(self.table(tokens).gather(1, places).squeeze(1))


@pytest.mark.parametrize("kind", ["bag", "by example"])
@pytest.mark.parametrize(
    "odd", [([1, 99, 2], 0), ([1, -1, 2], 0), ([1, 2, 3], 7), ([1, 2], 0)],
    ids=["word", "negative", "class", "length"],
)  # fmt: skip
def test_hazard_rows_that_the_model_cannot_read_weigh_nothing(kind, odd):
    """A step that stops, or a message, would tell that such a row was drawn."""
    tokens, labels = [[1, 2, 3], [4, 5, 6], odd[0], [7, 8, 9]], [0, 1, odd[1], 1]
    model = words(nn.EmbeddingBag(10, 3, mode="sum")) if kind == "bag" else WithLengths()
    synthetic = (torch.randint(1, 10, (4, 3)), torch.tensor([0, 1, 0, 1]))
    held = examples(Tokens(tokens, labels), synthetic=synthetic)
    made = objective(model, losses.cross_entropy, held)
    found = made.per_unit(made.params(), made.encoded(held.take(torch.arange(4))), None)
    assert found.present[:4].tolist() == [True, True, False, True]
    without = held.take(torch.tensor([0, 1, 3]))
    expected = made.per_unit(made.params(), made.encoded(without), None).norms()
    torch.testing.assert_close(found.norms()[[0, 1, 3]], expected[:3])
    run = adadps.PrivateRun(
        model, losses.cross_entropy, held, method=dp_sgd(lr=0.5), clip_norm=1.0,
        sampler=adadps.poisson(examples=4, expected_size=4), steps=2,
        budget=Budget(epsilon=8, delta=1e-3),
    )  # fmt: skip
    for batch in run.batches():
        run.step(batch)


# --- refusals ---


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.rand(2), 1


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (Stream(), "map-style"),
        (DataLoader(Images()), "found DataLoader, which draws rows"),
        (WeightedRandomSampler([1.0] * 3, 3), "found WeightedRandomSampler, which draws rows"),
        (Images(rows=0), "at least one row"),
        (torch.rand(3, 2), "targets beside the features"),
        (Items(lambda _: torch.rand(2)), "features and a target"),
        (Images(broken=[0]), "cannot be read"),
    ],
    ids=["iterable", "loader", "sampler", "empty", "features alone", "no target", "first row"],
)
def test_other_data_is_refused(dataset, says):
    with pytest.raises(DataError, match=says):
        examples(dataset)


def test_images_without_a_transform_are_refused():
    kind = type("Image", (), {})
    kind.__module__ = "PIL.Image"
    with pytest.raises(DataError, match="transform that makes tensors"):
        examples(Items(lambda row: (kind(), row)))


# --- chance, processes, public rows, users ---


class WithChance(Dataset):
    """Draws from all three generators."""

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        drawn = [float(torch.rand(())), random.random(), float(np.random.rand())]
        return torch.tensor(drawn), 0


@pytest.mark.parametrize("workers", [0, 2])
def test_hazard_transforms_draw_from_secret_generators(workers):
    """Whoever knows the seeds of the default generators cannot tell what was drawn."""
    held = examples(WithChance(), workers=workers)
    found = []
    for _ in range(2):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        before = torch.get_rng_state(), random.getstate()
        found.append(held.take(torch.arange(6)).features)
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1] == random.getstate()
    assert not (found[0] == found[1]).any()
    assert len(found[0].unique()) == found[0].numel()  # processes do not share a state


class WithOwnChance(Dataset):
    """Draws from generators of its own, whose seeds everyone knows."""

    def __init__(self):
        self.of_torch = torch.Generator().manual_seed(0)
        self.hidden = [{"deep": np.random.default_rng(0)}, (np.random.RandomState(0),)]
        self.transform = random.Random(0).random

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        drawn = [
            float(torch.rand((), generator=self.of_torch)),
            self.hidden[0]["deep"].random(), self.hidden[1][0].rand(), self.transform(),
        ]  # fmt: skip
        return torch.tensor(drawn), 0


@pytest.mark.parametrize("workers", [0, 2])
def test_hazard_generators_of_the_dataset_are_secret_too(workers):
    found = [examples(WithOwnChance(), workers=workers).take(torch.arange(4)).features
             for _ in range(2)]  # fmt: skip
    assert not (found[0] == found[1]).any()


_OF_MODULE = random.Random(0)
_KEPT = {"rng": np.random.default_rng(0)}


def _shift():
    return _OF_MODULE.random()


class Base(Dataset):
    def __getitem__(self, row):
        return torch.tensor([_shift(), self.of_property.random()]), 0

    @property
    def of_property(self):
        return _KEPT["rng"]


class WithChanceOfItsModule(Base):
    """Its methods name generators of the module, through a function, a base and a property."""

    def __len__(self):
        return ROWS


@pytest.mark.parametrize("workers", [0, 2])
def test_hazard_generators_of_the_module_are_secret_too(workers):
    found = []
    for _ in range(2):
        _OF_MODULE.seed(0)
        _KEPT["rng"] = np.random.default_rng(0)
        found.append(examples(WithChanceOfItsModule(), workers=workers).take(torch.arange(4)))
    assert not (found[0].features == found[1].features).any()


class SeedsInOneRow(WithChance):
    def __getitem__(self, row):
        if row == 7:
            torch.manual_seed(0), random.seed(0), np.random.seed(0)
        return super().__getitem__(row)


class MakesItsGenerator(Dataset):
    rng = None

    def __len__(self):
        return 6

    def __getitem__(self, row):
        if self.rng is None:
            self.rng = np.random.default_rng(0)
        return torch.tensor([self.rng.random()]), torch.tensor(0)


def test_hazard_a_generator_that_a_row_makes_is_secret_from_that_row_on():
    made_up = torch.rand(6, 1), torch.zeros(6, dtype=torch.long)
    held = from_dataset(MakesItsGenerator(), synthetic=made_up)
    known = torch.tensor(np.random.default_rng(0).random(6))
    found = held.take(torch.arange(6)).features.flatten()
    assert not torch.isin(found.double(), known.float().double()).any()


def test_hazard_a_row_that_sets_a_seed_decides_nothing_for_the_next():
    one, other = (examples(SeedsInOneRow()).take(torch.tensor([7, 8])) for _ in range(2))
    assert not (one.features[1] == other.features[1]).any()


def test_warnings_of_a_row_are_not_shown(recwarn):
    class Warns(Images):
        def __getitem__(self, row):
            if row == 3:
                warnings.warn("the date of this patient's image is odd", stacklevel=1)
            return super().__getitem__(row)

    assert not examples(Warns()).take(torch.arange(5)).absent.any()
    assert len(recwarn) == 0


def test_public_datasets_are_read_whole():
    dataset = Images()
    known = {"source": "made up", "public_because": "made up", "batch_size": 3}
    public, same = (
        adadps.public_examples(dataset, **known),
        adadps.public_examples(dataset.images, dataset.labels, **known),
    )
    assert public.provenance == same.provenance
    assert torch.equal(public.examples.features, dataset.images)
    with pytest.raises(DataError, match="cannot be read"):
        adadps.public_examples(Images(broken=[4]), **known)


def test_several_processes_read_the_same_rows():
    dataset = Images(broken=[7])
    rows = torch.tensor([9, 7, 3, 20, 21])
    one, other = (examples(dataset, workers=count).take(rows) for count in (0, 2))
    assert torch.equal(one.features, other.features)
    assert torch.equal(one.targets, other.targets)
    assert torch.equal(one.absent, other.absent)


def _reads_and_is_killed(path):
    with open(path, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        examples(Images(), workers=2).take(torch.arange(6))
        os.kill(os.getpid(), signal.SIGKILL)


def test_processes_that_read_end_with_a_run_that_was_killed(tmp_path):
    """They have its locked ledger open, too: while they live, no run could be resumed."""
    path = tmp_path / "ledger"
    run = multiprocessing.get_context("fork").Process(target=_reads_and_is_killed, args=(path,))
    run.start()
    run.join()
    assert run.exitcode == -signal.SIGKILL
    with path.open() as held:
        for _ in range(200):
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
        else:
            pytest.fail("the file stays locked")


def test_public_rows_are_absent_from_their_steps():
    dataset = Images()
    public = adadps.public_examples(
        dataset.images[:3], dataset.labels[:3], source="made up", public_because="made up",
        batch_size=3,
    )  # fmt: skip
    held = examples(dataset).leaving_out([public.rows])
    assert held.take(torch.arange(5)).absent.tolist() == [True] * 3 + [False] * 2


def test_users_of_a_dataset():
    held = examples(Images(), users=[row // 4 for row in range(ROWS)])
    assert held.take(torch.tensor([0, 3, 4])).users.unique().numel() == 2


def test_evaluation_reads_a_dataset_in_pieces(monkeypatch):
    monkeypatch.setattr("adadps.training.evaluation.ROWS_AT_ONCE", 7)
    dataset = Images()
    run = private_run(examples(dataset))
    held_out = adadps.on_held_out("rows", dataset, accuracy=adadps.accuracy)
    (found,) = run.evaluate(held_out)
    outputs = run.objective.outputs(run.params, dataset.images)
    assert found.value == adadps.accuracy(outputs, dataset.labels)
    with pytest.raises(DataError, match=r"row 9: OSError: broken file\. Leave them out"):
        run.evaluate(adadps.on_held_out("rows", Images(broken=[9]), accuracy=adadps.accuracy))


def test_the_number_of_rows_is_assumed_public():
    assumed = private_run(examples(Images())).result().privacy.assumed_public
    assert any(str(ROWS) in fact for fact in assumed)


def test_nothing_shows_the_content():
    assert "images" not in repr(examples(Images())).lower()


# --- what one row may do to others ---


class OneBuffer(Images):
    """Reads every row into the same memory."""

    def __init__(self):
        super().__init__()
        self.buffer = torch.zeros(1, 4, 4)

    def __getitem__(self, row):
        image, label = super().__getitem__(row)
        return self.buffer.copy_(image), label


@pytest.mark.parametrize("workers", [0, 2])
def test_hazard_rows_that_are_read_into_the_same_memory_stay_apart(workers):
    """Otherwise the last row of a batch would stand in the place of all others."""
    rows = torch.arange(6)
    held = examples(OneBuffer(), workers=workers)
    assert torch.equal(held.take(rows).features, Images().images[rows])


@pytest.mark.parametrize("workers", [0, 2])
def test_hazard_a_row_that_ends_the_process_is_a_row_that_cannot_be_read(workers):
    class Exits(Images):
        def __getitem__(self, row):
            if row == 3:
                raise SystemExit(3)
            return super().__getitem__(row)

    found = examples(Exits(), workers=workers).take(torch.arange(5))
    assert found.absent.tolist() == [False, False, False, True, False]
