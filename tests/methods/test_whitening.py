"""Whitening by public examples: its formula, its limits, and what it costs (nothing)."""

import copy
from dataclasses import fields

import pytest
import torch
from torch import nn

import adadps
from adadps.engine.passes.validation import objective
from adadps.errors import OrderError, SettingError, SideInformationError
from adadps.methods.side import fixed, whiten
from adadps.methods.side.whitening import Whitening
from adadps.methods.stages import chain, precondition, privatize, reparametrise, sgd
from support.ground_truth import gradients_one_by_one
from support.models import Custom

SILENT = privatize(clip_norm=0.5, noise_multiplier=0.0)
EVERY_ROW = adadps.poisson(examples=40, expected_size=40)
DAMPING = 0.1


def data(width=4, rows=40, seed=0):
    draws = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, width, generator=draws) * torch.arange(1.0, width + 1)
    return features, (features[:, 0] > 0).long()


def public(features, targets=None, **options):
    labels = torch.zeros(len(features), dtype=torch.int64) if targets is None else targets
    told = {"source": "a survey", "public_because": "published", "batch_size": len(features)}
    return adadps.public_examples(features, labels, **told | options)


def network(width=4, bias=True):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(width, 5, bias=bias), nn.Tanh(), nn.Linear(5, 2, bias=bias))


def trained(model, method, features, labels, steps=3):
    """Weights after a few steps on every row, without noise."""
    adadps.fit(
        model,
        adadps.losses.cross_entropy,
        adadps.examples(features, labels),
        method=method,
        sampler=EVERY_ROW,
        steps=steps,
        progress=False,
    )
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def power(matrix, exponent=0.5, damping=DAMPING):
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * (values / values.mean() + damping) ** -exponent) @ vectors.T


def test_one_step_follows_the_formula():
    features, labels = data()
    others, _ = data(seed=5)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_(), model.bias.zero_()
    method = chain(precondition(whiten(public(others), damping=DAMPING)), SILENT, sgd(1.0))
    after = trained(model, method, features, labels, steps=1)

    extended = torch.cat([others, torch.ones(40, 1)], 1).double()
    p = power(extended.T @ extended / 40)
    rows = torch.cat([features, torch.ones(40, 1)], 1).double() @ p
    slopes = 0.5 - nn.functional.one_hot(labels, 2).double()
    gradients = torch.einsum("io,ik->iok", slopes, rows)
    lengths = gradients.flatten(1).norm(dim=1)
    mean = (gradients * (0.5 / lengths).clamp_max(1).view(-1, 1, 1)).sum(0) / 40
    torch.testing.assert_close(after["weight"], -mean[:, :4].float(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(after["bias"], -mean[:, 4].float(), rtol=1e-5, atol=1e-7)


def test_inputs_that_are_white_already_make_it_dp_sgd():
    features, labels = data()
    white = torch.eye(4).repeat(2, 1) * 2.0
    factor = (1 + DAMPING) ** -0.5
    model = nn.Linear(4, 2, bias=False)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    method = chain(precondition(whiten(public(white), damping=DAMPING)), SILENT, sgd(0.3))
    found = trained(model, method, features, labels)
    model.load_state_dict(start)
    plain = privatize(clip_norm=0.5 / factor, noise_multiplier=0.0)
    wanted = trained(model, adadps.dp_sgd(plain, lr=0.3 * factor), features, labels)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_uncorrelated_inputs_make_it_adadps_by_feature():
    features, labels = data()
    sizes = torch.tensor([0.5, 1.0, 2.0, 4.0])
    rows = torch.diag(sizes)
    moments = sizes.square() / 4
    a = (moments / moments.mean() + DAMPING).sqrt()
    model = nn.Linear(4, 2, bias=False)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    method = chain(precondition(whiten(public(rows), damping=DAMPING)), SILENT, sgd(0.3))
    found = trained(model, method, features, labels)
    model.load_state_dict(start)
    told = {"source": "the same", "public_because": "published"}
    side = fixed({"weight": (a, 1)}, **told)
    wanted = trained(model, adadps.adadps(side, SILENT, lr=0.3), features, labels)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_words_get_a_diagonal():
    tokens = torch.tensor([[0, 1], [0, 2], [0, 0], [0, 1]])
    model = nn.Sequential(nn.EmbeddingBag(4, 3, mode="sum"), nn.Linear(3, 2))
    source = whiten(public(tokens), damping=DAMPING)
    transform = first_transform(source, model, tokens)
    moments = torch.tensor([1 + 1 + 4 + 1, 1 + 1, 1, 0]).double() / 4
    wanted = (moments / moments.mean() + DAMPING) ** -0.5
    torch.testing.assert_close(transform.scale["0.weight"].flatten(), wanted)
    assert set(transform.inputs) == {"1.weight"}


def first_transform(source, model, features):
    """The transform of the first step, as a run asks for it."""
    seen = []

    class Watched(Whitening):
        def observe(self, state, step):
            found = super().observe(state, step)
            seen.append(found[0])
            return found

    watched = Watched(**{field.name: getattr(source, field.name) for field in fields(source)})
    labels = torch.zeros(len(features), dtype=torch.int64)
    adadps.fit(
        model,
        adadps.losses.cross_entropy,
        adadps.examples(features, labels),
        method=chain(precondition(watched), SILENT, sgd(0.5)),
        sampler=adadps.poisson(examples=len(features), expected_size=len(features)),
        steps=4,
        progress=False,
    )
    first_transform.seen = seen
    return seen[0]


@pytest.mark.parametrize("outputs", [False, True], ids=["inputs", "inputs and outputs"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_norms_are_those_of_autograd_on_one_example_at_a_time(bias, outputs):
    """Each layer's gradient [G, g of the bias] from its own backward pass, times the matrices."""
    features, labels = data(rows=12)
    others, _ = data(seed=5)
    model = network(bias=bias)
    source = whiten(public(others), damping=DAMPING, outputs=outputs)
    transform = first_transform(source, copy.deepcopy(model), features)
    batch = adadps.examples(features, labels)
    held = objective(model, adadps.losses.cross_entropy, batch)
    found = held.per_unit(held.params(), batch, None)
    found = found.whiten(transform.inputs, transform.outputs).scale(transform.scale).norms()
    wanted = []
    for each in gradients_one_by_one(model, adadps.losses.cross_entropy, batch):
        squares = 0.0
        for layer in ("0", "2"):
            gradient = each[f"{layer}.weight"]
            if bias:
                gradient = torch.cat([gradient, each[f"{layer}.bias"].unsqueeze(1)], 1)
            turned = gradient @ transform.inputs[f"{layer}.weight"].double()
            if outputs:
                turned = transform.outputs[f"{layer}.weight"].double() @ turned
            squares += float(turned.square().sum())
        wanted.append(squares**0.5)
    assert set(transform.inputs) == {"0.weight", "2.weight"}
    torch.testing.assert_close(found, torch.tensor(wanted).double(), rtol=1e-4, atol=1e-6)


def test_matrices_are_refreshed_at_the_current_weights():
    features, _ = data()
    source = whiten(public(features + 1), refresh_every=2)
    first_transform(source, network(), features[:1].repeat(40, 1))
    first, second, third, _ = (found.inputs["2.weight"] for found in first_transform.seen)
    assert torch.equal(first, second)
    assert not torch.allclose(first, third)
    same = first_transform.seen[0].inputs["0.weight"], first_transform.seen[2].inputs["0.weight"]
    torch.testing.assert_close(*same)


def test_the_median_norm_of_public_examples_is_as_asked_for():
    features, labels = data(seed=3)
    model = network()
    transform = first_transform(whiten(public(features, labels), median_norm=2.0), model, features)
    fresh = network()
    whitened = [transform.inputs[name].double() for name in ("0.weight", "2.weight")]
    norms = []
    for row, label in zip(features, labels, strict=True):
        fresh.zero_grad()
        adadps.losses.cross_entropy(fresh(row.unsqueeze(0)), label.unsqueeze(0)).sum().backward()
        squares = 0.0
        for layer, p in zip((fresh[0], fresh[2]), whitened, strict=True):
            g = torch.cat([layer.weight.grad, layer.bias.grad.unsqueeze(1)], 1).double()
            squares += float((g @ p).square().sum())
        norms.append(squares**0.5 * float(transform.scale["0.bias"]))
    assert torch.tensor(norms).median() == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("outputs", [False, True])
def test_after_the_noise_it_multiplies_what_was_released(outputs):
    features, labels = data()
    model = network()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    source = whiten(public(*data(seed=3)), outputs=outputs)
    after = trained(model, chain(SILENT, precondition(source), sgd(1.0)), features, labels, 1)
    model.load_state_dict(start)
    plain = trained(model, chain(SILENT, sgd(1.0)), features, labels, 1)
    model.load_state_dict(start)
    transform = first_transform(source, model, features)
    for layer in ("0", "2"):
        names = f"{layer}.weight", f"{layer}.bias"
        change = torch.cat([plain[n].view(len(plain[n]), -1) - start[n].view(len(start[n]), -1)
                            for n in names], 1)  # fmt: skip
        wanted = change @ transform.inputs[names[0]]
        if outputs:
            wanted = transform.outputs[names[0]] @ wanted
        found = torch.cat([after[n].view(len(after[n]), -1) - start[n].view(len(start[n]), -1)
                           for n in names], 1)  # fmt: skip
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


def test_epsilon_does_not_change_and_the_source_is_stated():
    features, labels = data(rows=400)
    others, _ = data(seed=7)
    found = []
    for method in (adadps.methods.whitened(public(others), lr=0.1), adadps.dp_sgd(lr=0.1)):
        result = adadps.fit(
            network(),
            adadps.losses.cross_entropy,
            adadps.examples(features, labels),
            method=method,
            clip_norm=1.0,
            batch_size=40,
            epochs=1,
            budget=adadps.Budget(epsilon=1.0, delta=1e-4),
            progress=False,
        )
        found.append(result.privacy)
    assert found[0].epsilon == found[1].epsilon
    assert found[0].noise_multiplier == found[1].noise_multiplier


def test_public_rows_are_left_out_of_the_private_ones():
    features, labels = data()
    method = chain(precondition(whiten(public(features))), SILENT, sgd(1.0))
    model = network()
    start = {name: value.clone() for name, value in model.named_parameters()}
    assert all(
        torch.equal(start[n], v) for n, v in trained(model, method, features, labels).items()
    )


def test_a_model_without_layers_that_have_a_rule_is_refused():
    model = Custom(lambda m, x: x * m.scale, scale=nn.Parameter(torch.ones(2)))
    features, labels = data(width=2)
    method = chain(precondition(whiten(public(features[:10] + 1))), SILENT, sgd(1.0))
    with pytest.raises(SideInformationError, match="at least one layer with a rule"):
        trained(model, method, features, labels)


def test_it_comes_before_other_preconditioners_of_the_same_weights():
    features, labels = data()
    side = precondition(fixed({"0.weight": (torch.ones(4), 1)}, source="a table",
                                     public_because="published"))  # fmt: skip
    whitening = precondition(whiten(public(features + 1)))
    with pytest.raises(OrderError, match="first"):
        trained(network(), chain(side, whitening, SILENT, sgd(0.1)), features, labels)
    trained(network(), chain(whitening, side, SILENT, sgd(0.1)), features, labels)


@pytest.mark.parametrize(
    "wrong",
    [{"refresh_every": 0}, {"damping": 0.0}, {"exponent": 0.0}, {"exponent": 2.0},
     {"median_norm": 0.0}],
)  # fmt: skip
def test_settings_outside_their_range_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        whiten(public(torch.ones(2, 2)), **wrong)


def test_public_examples_with_infinite_moments_are_refused():
    features, labels = data()
    wrong = torch.full((3, 4), 1e200, dtype=torch.float64)
    method = chain(precondition(whiten(public(wrong))), SILENT, sgd(0.1))
    with pytest.raises(SideInformationError, match="finite"):
        trained(network().double(), method, features.double(), labels)


class SharedBias(nn.Module):
    """Two layers with one bias."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.bias = self.first.bias

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def test_a_bias_with_two_uses_is_not_whitened_with_either_layer():
    features, labels = data()
    others, _ = data(seed=5)
    model = SharedBias()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    adadps.losses.cross_entropy(model(features), labels).mean().backward()
    gradient = {name: value.grad.clone() for name, value in model.named_parameters()}
    read = {"first": others, "second": torch.tanh(model.first(others)).detach()}
    expected = {"first.bias": before["first.bias"] - gradient["first.bias"]}
    for layer, inputs in read.items():
        name = f"{layer}.weight"
        expected[name] = before[name] - gradient[name] @ power(inputs.T @ inputs)
    loose = privatize(clip_norm=1e6, noise_multiplier=0.0)
    method = chain(precondition(whiten(public(others))), loose, sgd(1.0))
    found = trained(model, method, features, labels, steps=1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_matrices_cannot_reparametrise():
    features, labels = data()
    method = chain(reparametrise(whiten(public(features)), at="weight"), SILENT, sgd(1.0))
    with pytest.raises(SideInformationError, match="found matrices"):
        trained(nn.Linear(4, 2), method, features, labels)


@pytest.mark.parametrize(
    "options",
    [{"damping": 1e-30}, {"damping": float("inf")}, {"damping": float("nan")},
     {"median_norm": float("nan")}, {"median_norm": float("inf")}, {"median_norm": 0}],
)  # fmt: skip
def test_numbers_that_would_leave_nothing_finite_are_refused(options):
    with pytest.raises(SettingError):
        whiten(public(data()[0]), **options)
