"""Hazard 28: chance inside a model must come from secret generators."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from adadps import (
    accuracy,
    dp_sgd,
    examples,
    fit,
    losses,
    on_held_out,
    poisson,
    reproducible_not_private,
)
from adadps.data.datasets import from_dataset
from adadps.engine.noise.randomness import secure
from adadps.errors import ModelError
from support.habits import (
    MODELS,
    NOISY,
    SILENT,
    WIDTH,
    N,
    Plain,
    private_rows,
    run_on,
    trained,
)
from support.problems import cross_entropy

# --- 28: chance inside the model ---


def states():
    return torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()


PLAIN = {
    "no chance at all": lambda: nn.Linear(WIDTH, 2),
    "a perceptron": lambda: nn.Sequential(nn.Linear(WIDTH, 3), nn.ReLU(), nn.Linear(3, 2)),
}


@pytest.mark.parametrize("loss", [cross_entropy, losses.cross_entropy], ids=["own", "known"])
@pytest.mark.parametrize("build", [*MODELS.values(), *PLAIN.values()], ids=[*MODELS, *PLAIN])
def test_hazard_28_training_neither_reads_nor_moves_the_global_generators(build, loss):
    model, data = build(), private_rows()
    held_out = on_held_out("mine", data.features, data.targets, every=1, accuracy=accuracy)
    before = states()
    fit(
        model, loss, data, method=dp_sgd(NOISY, lr=0.1), steps=3, evaluate=[held_out],
        sampler=poisson(examples=N, expected_size=8), progress=False,
    )  # fmt: skip
    for one, other in zip(before, states(), strict=True):
        assert (
            np.array_equal(one, other)
            if isinstance(one, np.ndarray)
            else (torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other)
        )


def gradient_of(model, data, randomness):
    """The clipped sum over all rows, without noise, as the weights show it after one step."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    run = run_on(model, data, method=dp_sgd(SILENT, lr=1.0), steps=1, size=len(data),
                 randomness=randomness)  # fmt: skip
    trained(run)
    return torch.cat([(p.detach() - start[n]).flatten() for n, p in model.named_parameters()])


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
def test_hazard_28_who_knows_the_global_seed_knows_nothing_about_the_masks(build):
    found = []
    data = examples(torch.ones(N, WIDTH), torch.ones(N).long())  # in whatever order they come
    for _ in range(2):
        model = build()
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        found.append(gradient_of(model, data, secure()))
    assert not torch.allclose(*found), "masks are drawn afresh though all seeds are the same"


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
def test_hazard_28_a_seeded_run_has_seeded_chance_whatever_the_global_seed(build):
    found = []
    for seed in range(2):
        model = build()
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        found.append(gradient_of(model, private_rows(), reproducible_not_private(7)))
    assert torch.equal(*found)


def test_hazard_28_a_generator_of_the_models_own_is_refused():
    model = Plain(nn.Identity())
    model.draws = torch.Generator().manual_seed(0)
    with pytest.raises(ModelError, match="its own generator"):
        run_on(model)


GLOBAL_GENERATOR = torch.Generator().manual_seed(0)


def dropped(x, generator):
    return x * torch.bernoulli(torch.full_like(x, 0.5), generator=generator)


class Drawing(nn.Module):
    gen = torch.Generator()

    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(WIDTH, 2), draw

    def forward(self, x):
        return self.layer(self.draw(x))


def reseeded(x):
    torch.manual_seed(7)
    return functional.dropout(x, 0.5)


DRAWS = {
    "of the class": (Drawing, lambda x: dropped(x, Drawing.gen)),
    "global": (Plain, lambda x: dropped(x, GLOBAL_GENERATOR)),
    "default argument": (Plain, lambda x, gen=GLOBAL_GENERATOR: dropped(x, gen)),
    "seeded in the pass": (Plain, reseeded),
}


@pytest.mark.parametrize(("kind", "draw"), DRAWS.values(), ids=DRAWS.keys())
def test_hazard_28_chance_from_a_known_seed_is_refused_however_it_is_reached(kind, draw):
    with pytest.raises(ModelError, match=r"own generator|sets a seed"):
        run_on(kind(draw))


# --- generators that a row of a dataset makes ---

MADE = {}


def of_the_module():
    return MADE.setdefault("of the module", np.random.default_rng(0))


def in_a_closure(rng=None):
    def made():
        nonlocal rng
        rng = rng or np.random.default_rng(0)
        return rng

    return made


class OneNumber(Dataset):
    rng = None

    def __init__(self):
        vars(self).update({f"path {number}": str(number) for number in range(40)})
        self.by_name, self.several, self.made = {}, [None], in_a_closure()

    def __len__(self):
        return 6

    def __getitem__(self, row):
        return torch.tensor([self.generator().random()]), torch.tensor(0)

    def generator(self):
        return of_the_module()


class InItsClass(OneNumber):
    def generator(self):
        type(self).rng = self.rng or np.random.default_rng(0)
        return self.rng


class InAMapping(OneNumber):
    def generator(self):
        return self.by_name.setdefault("of this process", np.random.default_rng(0))


class InAList(OneNumber):
    def generator(self):
        self.several[0] = self.several[0] or np.random.default_rng(0)
        return self.several[0]


class InAClosure(OneNumber):
    def generator(self):
        return self.made()


@pytest.mark.parametrize("kind", [OneNumber, InItsClass, InAMapping, InAList, InAClosure])
def test_hazard_28_a_generator_that_a_row_makes_is_secret_wherever_it_is(kind):
    made_up = torch.rand(6, 1), torch.zeros(6, dtype=torch.long)
    held = from_dataset(kind(), synthetic=made_up)
    known = torch.tensor(np.random.default_rng(0).random(6)).float()
    assert not torch.isin(held.take(torch.arange(6)).features.flatten(), known).any()
