"""What is refused, and when: before a step is paid for. What a plan says about whitening."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import adadps
from adadps.accounting.ledger import MemoryLedger
from adadps.engine.losses import cross_entropy
from adadps.errors import DataError, OrderError, SettingError, SideInformationError
from adadps.methods import whitened
from adadps.methods.side import fixed, image_probes, uniform, whiten
from adadps.methods.side.whitening import WhiteningState
from adadps.methods.stages import (
    by_user,
    chain,
    mix,
    precondition,
    privatize,
    sgd,
    train_locally,
    unscale,
)

PRIVACY = privatize(clip_norm=1.0, noise_multiplier=4.0)


def public(features, targets=None, **options):
    labels = torch.zeros(len(features), dtype=torch.int64) if targets is None else targets
    told = {"source": "a survey", "public_because": "published", "batch_size": len(features)}
    return adadps.public_examples(features, labels, **told | options)


def rows(width=4, count=20, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def charged(method, features=None, model=None):
    """Try to train, and return what was charged before the error."""
    ledger = MemoryLedger()
    features = rows(seed=3, count=40) if features is None else features
    with pytest.raises((DataError, SideInformationError)) as caught:
        adadps.fit(
            model or network(),
            cross_entropy,
            adadps.examples(features, torch.arange(40) % 2),
            method=method,
            sampler=adadps.poisson(examples=40, expected_size=8),
            steps=2,
            ledger=ledger,
            delta=1e-3,
            progress=False,
        )
    return ledger.entries, str(caught.value)


@pytest.mark.parametrize(
    ("features", "targets"),
    [
        (rows(5), None),
        (rows(), torch.full((20,), 7)),
        (rows(), torch.rand(20)),
    ],
    ids=["width", "classes", "type of targets"],
)
@pytest.mark.parametrize("reader", ["whitened", "mixed"])
def test_public_examples_that_do_not_fit_are_found_before_payment(features, targets, reader):
    data = public(features, targets)
    method = (
        whitened(data, PRIVACY, lr=0.1)
        if reader == "whitened"
        else chain(PRIVACY, mix(data, 0.5), sgd(0.1))
    )
    spent, message = charged(method)
    assert spent == 0
    assert "public examples that model and loss take" in message


def test_a_model_without_layers_to_whiten_is_found_before_payment():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(4, 2))

        def forward(self, x):
            return x @ self.table

    spent, message = charged(whitened(public(rows()), PRIVACY, lr=0.1), model=Own())
    assert spent == 0
    assert "at least one layer with a rule" in message


def test_dense_public_rows_beside_sparse_private_ones_are_found_before_payment():
    from scipy import sparse

    private = sparse.random(40, 4, density=0.5, format="csr", random_state=0, dtype="float32")
    method = whitened(public(rows()), PRIVACY, lr=0.1)
    spent, message = charged(method, private, adadps.sparse_linear(4, 2))
    assert spent == 0
    assert "in the form of the private ones" in message


def test_wrong_orders_cannot_be_built():
    side = whiten(public(rows()))
    given = fixed({"0.weight": (torch.ones(4), 1)}, source="a table", public_because="published")
    for first in (uniform(), given, whiten(public(rows(seed=2)))):
        with pytest.raises(OrderError, match="come first"):
            chain(precondition(first), precondition(side), PRIVACY, sgd(0.1))
    chain(precondition(side), precondition(given), PRIVACY, sgd(0.1))
    chain(precondition(given), PRIVACY, precondition(side), sgd(0.1))
    with pytest.raises(OrderError, match="not taken back"):
        chain(precondition(side), PRIVACY, unscale(side), sgd(0.1))
    users = privatize(clip_norm=1.0, noise_multiplier=4.0, groups=by_user(most=3))
    local = train_locally(lr=0.1, batch_size=2)
    for stages in ((precondition(side), users), (users, precondition(side))):
        with pytest.raises(OrderError, match="local training"):
            chain(local, *stages, sgd(0.1))


def test_examples_are_public_examples():
    with pytest.raises(DataError, match="public examples to whiten with, found Tensor"):
        whiten(rows())
    with pytest.raises(SettingError, match="whole number of probes"):
        image_probes(4.5, (8, 8))
    with pytest.raises(SettingError, match="floor"):
        whiten(public(rows()), floor=0.0)


def test_runs_with_other_settings_have_other_plans():
    data = public(rows())
    changes = (
        {},
        {"refresh_every": 3},
        {"damping": 0.2},
        {"exponent": 1.0},
        {"outputs": True},
        {"median_norm": 2.0},
        {"median_norm": 2.0, "floor": 0.1},
    )
    methods = [chain(precondition(whiten(data, **other)), PRIVACY, sgd(0.1)) for other in changes]
    assert len({str(method) for method in methods}) == len(changes)
    said = str(methods[-1])
    assert "a survey, whitens inputs every 25 steps, damping 0.1, exponent 0.5" in said


class Lengths:
    """Gradients of one layer, whose norms are given."""

    def __init__(self, norms):
        self.of_rows = norms

    def parts(self):
        yield self

    def whiten(self, *_matrices):
        return self

    def scale(self, diagonal):
        return Lengths(self.of_rows * float(diagonal["w"]))

    def norms(self):
        return self.of_rows

    def moments(self):
        from adadps.engine.moments import Moments

        return Moments(inputs={"w": torch.eye(2).double()})


def test_a_model_that_fits_all_public_examples_is_not_scaled_without_end():
    source = whiten(public(rows()), median_norm=2.0, floor=0.01)
    state, scales = WhiteningState({"w": torch.ones(1, 1).double()}), []
    for norm in (5.0, 1.0, 1e-3, 0.0):
        state = source._refreshed(state, Lengths(torch.full((9,), norm).double()))
        scales.append(float(state.transform.scale["w"]))
    assert state.first_median == 5.0
    assert scales == pytest.approx([2 / 5, 2 / 1, 2 / 0.05, 2 / 0.05])
