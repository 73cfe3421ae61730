"""Local training against the obvious: autograd, one user after the other, dense copies."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from adadps import Checkpoints, PrivateRun, by_user, examples, fit, poisson, privatize, side
from adadps.data.sparse_rows import lay_out_by_feature, sparse_linear
from adadps.engine.choice import engine_for
from adadps.engine.local import LocalEngine, LocalSteps
from adadps.engine.waist import Units, reduce
from adadps.errors import SettingError, SideInformationError
from adadps.methods.stages import average, chain, momentum, sgd, train_locally
from adadps.tensors.sums import dense
from support.problems import cross_entropy

RNG = np.random.default_rng(7)
WIDTH, CLASSES = 12, 3
SIZES = [5, 1, 0, 7, 3]
OWNERS = np.repeat(np.arange(len(SIZES)), SIZES)
ROWS = len(OWNERS)
WORDS = sparse.random(ROWS, WIDTH, density=0.3, format="csr", random_state=RNG, dtype=np.float32)
LABELS = RNG.integers(CLASSES, size=ROWS)
UNITS = Units(torch.from_numpy(OWNERS), len(SIZES), None)
STEPS = LocalSteps(lr=0.7, batch_size=2, epochs=2)
MODELS = {
    "linear": lambda: sparse_linear(WIDTH, CLASSES, bias=True),
    "two layers": lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, CLASSES)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(20, CLASSES)
    ),
}


def scale_for(params):
    """A D of its own for every entry along the last axis."""
    return {
        name: torch.linspace(0.5, 2.0, value.shape[-1], dtype=torch.float64).expand(
            *[1] * (value.ndim - 1), -1
        )
        for name, value in params.items()
    }


def by_autograd(model, features, targets, scale, steps=STEPS):
    """w_0 - w_T, by nothing but autograd on a copy of the whole model."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    at = {name: value.clone().requires_grad_() for name, value in start.items()}
    for _ in range(steps.epochs):
        for begin in range(0, len(features), steps.batch_size):
            part = slice(begin, begin + steps.batch_size)
            outputs = torch.func.functional_call(model, at, (features[part],))
            loss = cross_entropy(outputs, targets[part]).mean()
            found = torch.autograd.grad(loss, list(at.values()))
            at = {
                name: (value - steps.lr * scale[name].float() * gradient).detach().requires_grad_()
                for (name, value), gradient in zip(at.items(), found, strict=True)
            }
    return {name: start[name] - value.detach() for name, value in at.items()}


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("name", MODELS)
def test_every_user_brings_what_autograd_brings(name, kind):
    torch.manual_seed(1)
    model = MODELS[name]()
    data = examples(WORDS if kind == "sparse" else WORDS.toarray(), LABELS)
    inner = engine_for(model, cross_entropy, data)
    if kind == "sparse" and name == "linear":
        lay_out_by_feature([model.weight])  # as a run lays it out
    params = {key: p.detach() for key, p in model.named_parameters()}
    scale = scale_for(params)
    found = LocalEngine(inner, STEPS, scale).per_unit(params, data, UNITS)
    rows, targets = torch.from_numpy(WORDS.toarray()), torch.from_numpy(LABELS)
    expected_norms = []
    for user in range(len(SIZES)):
        own = torch.from_numpy(np.flatnonzero(user == OWNERS))
        expected = by_autograd(model, rows[own], targets[own], scale)
        alone = found.weighted_sum(torch.eye(len(SIZES), dtype=torch.float64)[user])
        for key, value in expected.items():
            torch.testing.assert_close(dense(alone[key]).float(), value, rtol=1e-4, atol=1e-6)
        squares = sum(float(value.double().square().sum()) for value in expected.values())
        expected_norms.append(squares**0.5)
    assert found.norms().tolist() == pytest.approx(expected_norms, rel=1e-4, abs=1e-6)
    assert expected_norms[2] == 0, "a user without rows"


def test_one_local_step_is_the_gradient_of_a_user():
    """With all rows in one mini-batch and one epoch, the update is lr times the mean gradient."""
    model = MODELS["linear"]()
    data = examples(WORDS, LABELS)
    inner = engine_for(model, cross_entropy, data)
    params = {key: p.detach() for key, p in model.named_parameters()}
    ones = {key: torch.ones([1] * p.ndim, dtype=torch.float64) for key, p in params.items()}
    local = LocalEngine(inner, LocalSteps(lr=0.5, batch_size=100), ones)
    updates = local.per_unit(params, data, UNITS)
    gradients = inner.per_unit(params, data, UNITS)
    assert (2 * updates.norms()).tolist() == pytest.approx(gradients.norms().tolist(), rel=1e-5)
    weights = torch.rand(len(SIZES), dtype=torch.float64)
    ours, theirs = updates.weighted_sum(weights), gradients.weighted_sum(weights)
    for key in params:
        torch.testing.assert_close(2 * dense(ours[key]), dense(theirs[key]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_scales_and_shifts_after_training(kind):
    """Preconditioning of what users bring, on the way to the clip."""
    model = MODELS["linear"]()
    data = examples(WORDS if kind == "sparse" else WORDS.toarray(), LABELS)
    params = {key: p.detach() for key, p in model.named_parameters()}
    scale = scale_for(params)
    local = LocalEngine(engine_for(model, cross_entropy, data), STEPS, scale)
    plain = local.per_unit(params, data, UNITS)
    diagonal = {key: torch.rand_like(p, dtype=torch.float64) + 0.5 for key, p in params.items()}
    mean = {key: torch.randn_like(p, dtype=torch.float64) for key, p in params.items()}
    changed = plain.shift(0.7, mean).scale(diagonal)
    for user in (0, 1, 3, 4):
        only = torch.eye(len(SIZES), dtype=torch.float64)[user]
        wanted = {
            key: diagonal[key] * (0.7 * dense(value) + 0.3 * mean[key])
            for key, value in plain.weighted_sum(only).items()
        }
        for key, value in changed.weighted_sum(only).items():
            torch.testing.assert_close(dense(value), wanted[key])
        square = sum(float(value.square().sum()) for value in wanted.values())
        assert float(changed.norms()[user]) == pytest.approx(square**0.5, rel=1e-6)
    assert float(changed.norms()[2]) == 0, "a user without rows brings no shift"


def test_hazard_nan_a_user_who_diverges_is_absent():
    model = MODELS["linear"]()
    rows = WORDS.toarray()
    rows[OWNERS == 3] *= 1e30
    data = examples(sparse.csr_matrix(rows), LABELS)
    params = {key: p.detach() for key, p in model.named_parameters()}
    ones = {key: torch.ones([1] * p.ndim, dtype=torch.float64) for key, p in params.items()}
    wild = LocalSteps(lr=1e30, batch_size=2, epochs=2)
    found = LocalEngine(engine_for(model, cross_entropy, data), wild, ones).per_unit(
        params, data, UNITS
    )
    assert float(found.norms()[3]) == 0
    total = reduce(found, lambda norms: (norms < 1e20).double())
    assert all(bool(torch.isfinite(dense(value)).all()) for value in total.values())


def poisonous(outputs, targets):
    """Has no finite gradient for rows of label 9."""
    known = cross_entropy(outputs, targets.clamp(max=CLASSES - 1))
    return known / (targets != 9)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_hazard_nan_a_row_that_has_no_gradient_counts_for_nothing(kind):
    """As in every engine: the user's other rows are trained on, and the mean is over all."""
    model = MODELS["two layers"]()
    rows, labels = WORDS.toarray()[OWNERS == 3], LABELS[OWNERS == 3].copy()
    labels[4] = 9
    data = examples(sparse.csr_matrix(rows) if kind == "sparse" else rows, labels)
    params = {key: p.detach() for key, p in model.named_parameters()}
    ones = {key: torch.ones([1] * p.ndim, dtype=torch.float64) for key, p in params.items()}
    engine = LocalEngine(engine_for(model, poisonous, data), LocalSteps(0.7, 7), ones)
    found = engine.update(params, data)
    others = np.arange(7) != 4
    outputs = model(torch.from_numpy(rows[others]))
    loss = cross_entropy(outputs, torch.from_numpy(labels[others])).sum() / 7
    for name, gradient in zip(params, torch.autograd.grad(loss, model.parameters()), strict=True):
        torch.testing.assert_close(dense(found[name]).float(), 0.7 * gradient)


@pytest.mark.parametrize(("products", "threads"), [(2**24, 1), (0, 2)])
def test_small_steps_have_one_thread_and_large_ones_theirs(monkeypatch, products, threads):
    """And it is given back."""
    monkeypatch.setattr("adadps.engine.local.WORTH_THREADS", products)
    usual, seen = torch.get_num_threads(), set()

    def watched(outputs, targets):
        seen.add(torch.get_num_threads())
        return cross_entropy(outputs, targets)

    torch.set_num_threads(2)
    try:
        engine, params, data = local_engine(MODELS["two layers"](), watched)
        seen.clear()
        engine.update(params, data)
        assert (seen, torch.get_num_threads()) == ({threads}, 2)
    finally:
        torch.set_num_threads(usual)


def local_engine(model, loss=cross_entropy):
    data = examples(WORDS.toarray(), LABELS)
    params = {key: p.detach() for key, p in model.named_parameters()}
    ones = {key: torch.ones([1] * p.ndim, dtype=torch.float64) for key, p in params.items()}
    return LocalEngine(engine_for(model, loss, data), STEPS, ones), params, data


class Notes(nn.Module):
    """Keeps an average of what it has seen, which would be released with it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, features):
        if self.training and features.shape[0] > 1:
            self.seen.add_(features.detach().mean(0))
        return self.layer(features)


def test_hazard_22_what_a_model_notes_about_rows_does_not_stay():
    """Nor what spectral norm notes about local weights, which nobody has noised."""
    spectral = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, CLASSES)))
    for model in (Notes(), spectral):
        engine, params, data = local_engine(model.train())
        before = [buffer.clone() for buffer in model.buffers()]
        engine.update(params, data)
        assert all(map(torch.equal, before, model.buffers()))


@pytest.mark.parametrize("layers", ["dropout", "frozen", "tokens", "sparse tokens", "normed"])
def test_one_pass_is_what_rows_bring(layers):
    """Without dropping anything, with a frozen layer, with tokens, with layer norm."""
    width = 4
    model = {
        "dropout": lambda: nn.Sequential(nn.Linear(WIDTH, width), nn.Dropout(0.0),
                                         nn.Linear(width, CLASSES)),
        "frozen": lambda: nn.Sequential(nn.Linear(WIDTH, width), nn.Linear(width, CLASSES)),
        "tokens": lambda: nn.Sequential(nn.EmbeddingBag(9, width), nn.Linear(width, CLASSES)),
        "sparse tokens": lambda: nn.Sequential(nn.EmbeddingBag(9, width, sparse=True),
                                               nn.Linear(width, CLASSES)),
        "normed": lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)),
    }[layers]()  # fmt: skip
    if layers == "frozen":
        model[0].requires_grad_(False)
    rows = RNG.integers(9, size=(ROWS, 5)) if "tokens" in layers else WORDS.toarray()
    data = examples(rows, LABELS)
    params = {key: p.detach() for key, p in model.named_parameters() if p.requires_grad}
    ones = {key: torch.ones([1] * p.ndim, dtype=torch.float64) for key, p in params.items()}
    engine = LocalEngine(engine_for(model, cross_entropy, data), STEPS, ones)
    assert engine._by_one_pass(params, data) is not None
    found = engine.update(params, data)
    engine._rows_alone = False
    for name, part in engine.update(params, data).items():
        torch.testing.assert_close(dense(found[name]), dense(part), rtol=1e-4, atol=1e-6)


def data_of_users():
    return examples(WORDS, LABELS, users=OWNERS)


def run(method, folder=None, **more):
    torch.manual_seed(3)
    return PrivateRun(
        sparse_linear(WIDTH, CLASSES, bias=False),
        cross_entropy,
        data_of_users(),
        method=method,
        sampler=poisson(users=4, expected_size=4),
        steps=6,
        checkpoints=Checkpoints(folder, every=2) if folder else None,
        **more,
    )


def trained(held, until=6):
    for batch in held.batches():
        held.step(batch)
        if held.taken == until:
            break
    return held


EVERYONE = average(groups=by_user(most=100))
LOCAL = train_locally(lr=0.7, batch_size=2, epochs=2)


def test_federated_averaging_is_the_mean_of_all_users():
    torch.manual_seed(3)
    model = sparse_linear(WIDTH, CLASSES, bias=False)
    ones = {"weight": torch.ones(1, 1, dtype=torch.float64)}
    rows, targets = torch.from_numpy(WORDS.toarray()), torch.from_numpy(LABELS)
    for _ in range(6):
        moves = [
            by_autograd(model, rows[user == OWNERS], targets[user == OWNERS], ones)["weight"]
            for user in (0, 1, 3, 4)
        ]
        with torch.no_grad():
            model.weight -= 0.9 * torch.stack(moves).mean(0)
    found = trained(run(chain(LOCAL, EVERYONE, sgd(0.9))))
    torch.testing.assert_close(found.params["weight"], model.weight.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("last", [(sgd(0.9),), (momentum(0.9), sgd(0.5))], ids=["sgd", "momentum"])
def test_a_resumed_run_trains_locally_again(tmp_path, last):
    method = chain(LOCAL, EVERYONE, *last)
    whole = trained(run(method)).params["weight"]
    trained(run(method, tmp_path), until=4)
    again = trained(run(method, tmp_path))
    torch.testing.assert_close(again.params["weight"], whole)


def test_side_information_stands_in_the_result():
    known = side.given_frequencies(np.arange(1, WIDTH + 1) / WIDTH, source="a list",
                                   public_because="published")  # fmt: skip
    frequent = side.frequency(known, floor=0.1, power=1.0)
    private = privatize(clip_norm=1.0, noise_multiplier=2.0, groups=by_user(most=4))
    method = chain(train_locally(lr=0.1, batch_size=4, side=frequent), private, sgd(1.0))
    result = fit(
        sparse_linear(WIDTH, CLASSES, bias=False),
        cross_entropy,
        data_of_users(),
        method=method,
        sampler=poisson(users=100, expected_size=10),
        steps=5,
        progress=False,
    )
    assert result.privacy.private
    assert result.privacy.unit == "user"
    assert result.side_information[0]["source"].startswith("a list")
    assert "train_locally(lr=0.1, batches of 4, 1 epoch, a list" in result.method


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"lr": 0.0}, SettingError),
        ({"batch_size": 0}, SettingError),
        ({"epochs": 1.5}, SettingError),
        ({"side": "words"}, SideInformationError),
    ],
)
def test_wrong_settings_are_refused(wrong, error):
    with pytest.raises(error, match="Expected"):
        train_locally(**{"lr": 0.1, "batch_size": 2, **wrong})
