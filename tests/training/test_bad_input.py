"""Bad input gets an error of our own: what was expected, what was found, how to mend it."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from adadps import (
    AdadpsError,
    Budget,
    PrivateRun,
    accuracy,
    adadps,
    chain,
    dp_sgd,
    examples,
    fit,
    fixed_size,
    losses,
    on_held_out,
    poisson,
    privatize,
    public_examples,
    shuffled,
    side,
)
from adadps.accounting.groups import by_label, in_advance
from adadps.accounting.plan import make_plan
from adadps.errors import (
    ContractError,
    DataError,
    ModelError,
    OrderError,
    SettingError,
    SideInformationError,
)
from adadps.methods.stages import adam, average, mix, momentum, precondition, rmsprop, sgd
from support.problems import squared

PRIVACY = privatize(clip_norm=1.0, noise_multiplier=1.0)
PARAMS = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}


def given(values, name="weight"):
    return side.fixed({name: values}, source="a table", public_because="published")


def data(size=10, width=3):
    return examples(torch.randn(size, width), torch.randn(size, 1))


def train(model=None, loss=squared, held=None, method=None, sampler=None, **options):
    held = held or data()
    return fit(
        model or nn.Linear(3, 1),
        loss,
        held,
        method=method or dp_sgd(PRIVACY, lr=0.1),
        sampler=sampler or poisson(examples=len(held), expected_size=5),
        **({"steps": 1} | options),
    )


def full(**wrong):
    values = torch.ones(2, 3)
    values[0, 1] = wrong["entry"]
    return values


CASES = {
    "epsilon of zero": (SettingError, lambda: Budget(0.0, 1e-5)),
    "negative epsilon": (SettingError, lambda: Budget(-1.0, 1e-5)),
    "epsilon that is no number": (SettingError, lambda: Budget(float("nan"), 1e-5)),
    "infinite epsilon": (SettingError, lambda: Budget(float("inf"), 1e-5)),
    "delta of one": (SettingError, lambda: Budget(1.0, 1.0)),
    "delta of zero": (SettingError, lambda: Budget(1.0, 0.0)),
    "delta above one for a run": (SettingError, lambda: train(delta=2.0)),
    "negative noise": (SettingError, lambda: privatize(clip_norm=1.0, noise_multiplier=-1.0)),
    "noise that is no number": (
        SettingError,
        lambda: privatize(clip_norm=1.0, noise_multiplier=float("nan")),
    ),
    "vanishing noise": (SettingError, lambda: privatize(clip_norm=1.0, noise_multiplier=1e-300)),
    "clip norm of zero": (SettingError, lambda: privatize(clip_norm=0.0, noise_multiplier=1.0)),
    "negative clip norm": (SettingError, lambda: privatize(clip_norm=-1.0, noise_multiplier=1.0)),
    "noise without clipping": (
        SettingError,
        lambda: privatize(clip_norm=float("inf"), noise_multiplier=1.0),
    ),
    "groups of none": (SettingError, lambda: by_label(0)),
    "negative learning rate": (SettingError, lambda: sgd(-0.1)),
    "learning rate of zero": (SettingError, lambda: adam(0.0)),
    "momentum of one": (SettingError, lambda: momentum(1.0)),
    "decay of one": (SettingError, lambda: rmsprop(0.1, decay=1.0)),
    "batch larger than the data": (SettingError, lambda: poisson(examples=10, expected_size=11)),
    "empty batches only": (SettingError, lambda: poisson(examples=10, expected_size=0)),
    "no examples declared": (SettingError, lambda: poisson(examples=0, expected_size=1)),
    "fractional fixed batch": (SettingError, lambda: fixed_size(examples=10, expected_size=2.5)),
    "wrong number declared, fixed size": (
        DataError,
        lambda: train(sampler=fixed_size(examples=11, expected_size=5)),
    ),
    "wrong number declared, shuffled": (
        DataError,
        lambda: train(sampler=shuffled(examples=9, expected_size=5)),
    ),
    "groups in advance do not divide the data": (
        ContractError,
        lambda: make_plan(
            examples=10,
            batch_size=4,
            steps=1,
            noise_multiplier=1.0,
            groups=in_advance(4),
        ),
    ),
    "A with a zero": (SideInformationError, lambda: given(full(entry=0.0)).init(PARAMS)),
    "A with a negative entry": (SideInformationError, lambda: given(full(entry=-1.0)).init(PARAMS)),
    "A with a NaN": (SideInformationError, lambda: given(full(entry=np.nan)).init(PARAMS)),
    "A with an infinity": (SideInformationError, lambda: given(full(entry=np.inf)).init(PARAMS)),
    "A below float32": (
        SideInformationError,
        lambda: given(full(entry=1e-42)).init(PARAMS),
    ),
    "A of a wrong shape": (SideInformationError, lambda: given(torch.ones(3, 2)).init(PARAMS)),
    "A of a wrong length": (SideInformationError, lambda: given((torch.ones(2), 1)).init(PARAMS)),
    "A along no axis": (
        SideInformationError,
        lambda: given((torch.ones(3), 2)).init(PARAMS),
    ),
    "A for an unknown parameter": (
        SideInformationError,
        lambda: given(torch.ones(2), "head").init(PARAMS),
    ),
    "side information that does not fit the model": (
        SideInformationError,
        lambda: train(method=adadps(given((torch.ones(4), 1)), PRIVACY, lr=0.1)),
    ),
    "sgd before privatize": (OrderError, lambda: chain(sgd(0.1), PRIVACY)),
    "privatize twice": (OrderError, lambda: chain(PRIVACY, PRIVACY, sgd(0.1))),
    "privatize after average": (OrderError, lambda: chain(average(), PRIVACY, sgd(0.1))),
    "no release at all": (OrderError, lambda: chain(precondition(side.uniform()), sgd(0.1))),
    "no update at the end": (OrderError, lambda: chain(PRIVACY)),
    "an empty chain": (OrderError, chain),
    "batch norm": (
        ModelError,
        lambda: train(model=nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))),
    ),
    "running statistics": (
        ModelError,
        lambda: train(model=nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True))),
    ),
    "a loss that is one number": (ModelError, lambda: train(loss=nn.MSELoss())),
    "a loss of a wrong shape": (
        ModelError,
        lambda: train(loss=lambda outputs, targets: (outputs - targets.T).square()),
    ),
    "nothing to train": (ModelError, lambda: train(model=nn.Linear(3, 1).requires_grad_(False))),
    "a model that vmap cannot run": (
        ModelError,
        lambda: train(model=Branching()),
    ),
    "NaN features": (DataError, lambda: examples([[1.0, float("nan")]], [0])),
    "NaN in a sparse matrix": (
        DataError,
        lambda: examples(sparse.csr_matrix([[np.nan, 1.0]]), [0]),
    ),
    "NaN targets": (DataError, lambda: examples([[1.0]], [float("nan")])),
    "no examples": (DataError, lambda: examples(np.zeros((0, 3)), [])),
    "fewer targets than rows": (DataError, lambda: examples(np.zeros((2, 3)), [0])),
    "features of a wrong width": (DataError, lambda: train(held=data(width=4))),
    "a public batch larger than the public data": (
        DataError,
        lambda: public_examples([[1.0]], [0], source="a", public_because="b", batch_size=2),
    ),
    "public data without a reason": (
        SideInformationError,
        lambda: public_examples([[1.0]], [0], source="a", public_because="", batch_size=1),
    ),
    "an evaluation without a metric": (DataError, lambda: on_held_out("test", [[1.0]], [0])),
    "steps and epochs": (ContractError, lambda: train(steps=1, epochs=1.0)),
    "no length": (ContractError, lambda: train(steps=None)),
    "no steps": (SettingError, lambda: train(steps=0)),
    "no epochs": (SettingError, lambda: train(steps=None, epochs=0.0)),
    "physical batch of none": (SettingError, lambda: train(physical_batch_size=0)),
    "a plan with too much given": (
        SettingError,
        lambda: make_plan(examples=10, batch_size=1, steps=1, epsilon=1.0, noise_multiplier=1.0),
    ),
}


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, rows):
        return self.layer(rows) if rows.sum().item() > 0 else -self.layer(rows)


@pytest.mark.parametrize(("kind", "action"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_refused_with_expectation_and_cure(kind, action):
    with pytest.raises(kind) as caught:
        action()
    message = str(caught.value)
    assert isinstance(caught.value, AdadpsError)
    assert isinstance(caught.value, ValueError)
    assert message.startswith(("Expected", "Cannot place"))
    assert message.rstrip().endswith(".")
    assert len(message.split(". ")) >= 2, "says how to mend it"


def test_mix_before_privatize_is_refused_and_names_the_culprit():
    public = public_examples([[1.0]], [0], source="posts", public_because="open", batch_size=1)
    with pytest.raises(OrderError, match=r"Cannot place `mix\(posts\)` first.*privatize"):
        chain(mix(public, 0.5), PRIVACY, sgd(0.1))


def test_a_refused_run_leaves_the_model_as_it_was():
    model = nn.Linear(3, 1)
    before = model.weight.detach().clone()
    with pytest.raises(SideInformationError):
        train(model=model, method=adadps(given((torch.ones(4), 1)), PRIVACY, lr=0.1))
    assert torch.equal(model.weight, before)


def test_options_are_checked_by_name():
    with pytest.raises(TypeError):
        PrivateRun(nn.Linear(3, 1), squared, data(), steps=1, sigma=1.0)


def bags(token=0, *, mode="mean", forward=None):
    """Texts of three words from a table of five, one of them this token."""
    tokens = torch.zeros(8, 3, dtype=torch.int64)
    tokens[5, 1] = token
    model = nn.Sequential(nn.EmbeddingBag(5, 2, mode=mode), nn.Linear(2, 2))
    return (forward or (lambda held: held))(model), tokens


class Whole(nn.Module):
    """A model with a forward of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, tokens):
        return self.inner(tokens)


def classify(model, features, targets, **options):
    return fit(
        model,
        losses.cross_entropy,
        examples(features, targets),
        method=dp_sgd(PRIVACY, lr=0.1),
        sampler=poisson(examples=8, expected_size=4),
        steps=1,
        **options,
    )


@pytest.mark.parametrize("token", [5, -1, 300])
@pytest.mark.parametrize("forward", [None, Whole], ids=["sequence", "forward of its own"])
def test_a_word_outside_of_the_vocabulary_is_not_blamed_on_the_labels(token, forward):
    model, tokens = bags(token, forward=forward)
    with pytest.raises(DataError, match="features that fit the model"):
        classify(model, tokens, torch.arange(8) % 2)


def test_a_word_outside_of_the_vocabulary_in_held_out_data_names_that_data():
    model, tokens = bags()
    labels = torch.arange(8) % 2
    held_out = on_held_out("letters", bags(7)[1], labels, accuracy=accuracy)
    with pytest.raises(DataError, match="'letters' that fit the model"):
        classify(model, tokens, labels, evaluate=[held_out])


@pytest.mark.parametrize(
    "labels", [torch.zeros(8), torch.zeros(8, 1, dtype=torch.int64), torch.full((8,), 2)]
)
def test_labels_that_the_loss_refuses_are_refused_as_such(labels):
    model, tokens = bags()
    with pytest.raises(DataError, match="targets that the loss accepts"):
        classify(model, tokens, labels)


@pytest.mark.parametrize(
    ("shape", "expected"), [((5, 2), (5, 1)), ((2, 5), (1, 5)), ((5, 5), (1, 5))]
)
def test_frequencies_find_the_axis_they_fit(shape, expected):
    given = side.given_frequencies(np.arange(1, 6), source="a list", public_because="made up")
    held = side.frequency(given, floor=0.1).init({"weight": torch.zeros(shape)})
    assert held.scale["weight"].shape == expected


def test_noise_that_floating_point_would_lose_is_refused():
    with pytest.raises(SettingError, match="standard deviation"):
        privatize(clip_norm=1e-310, noise_multiplier=1.0)
    with pytest.raises(SettingError, match="standard deviation"):
        side.noisy_frequencies(
            [[1, 0]], clip_norm=5e-324, noise_multiplier=0.4, floor=0.1, source="words"
        )


def test_other_things_than_examples_and_chains_are_refused():
    options = {"sampler": poisson(examples=4, expected_size=2), "steps": 1}
    with pytest.raises(DataError, match=r"adadps\.examples"):
        fit(
            nn.Linear(2, 1), losses.squared_error, (1, 2), method=dp_sgd(PRIVACY, lr=0.1), **options
        )
    with pytest.raises(OrderError, match="chain"):
        fit(nn.Linear(2, 1), losses.squared_error, (1, 2), method=torch.optim.SGD, **options)


def test_counts_of_other_documents_than_the_examples_are_refused():
    counts = side.noisy_frequencies(
        np.ones((10, 2)), clip_norm=1.0, noise_multiplier=5.0, floor=0.1, source="words"
    )
    data = examples(torch.zeros(4, 2), torch.zeros(4, 1))
    method = adadps(counts, privatize(clip_norm=1.0, noise_multiplier=5.0), lr=0.1)
    options = {"sampler": poisson(examples=4, expected_size=2), "steps": 1}
    with pytest.raises(SideInformationError, match="one row of counts"):
        fit(nn.Linear(2, 1), losses.squared_error, data, method=method, **options)
