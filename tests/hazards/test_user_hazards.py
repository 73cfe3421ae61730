"""What goes wrong where a user is to be protected, and examples are clipped (hazard 26)."""

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from torch import nn

from adadps import (
    Accountant,
    adadps,
    dp_sgd,
    examples,
    fit,
    poisson,
    privatize,
    public_examples,
    side,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import ContractError, DataError, SideInformationError
from adadps.methods import plain_sgd
from adadps.methods.stages import by_label
from adadps.types import Unit
from support import ground_truth
from support.problems import cross_entropy, squared
from support.user_tables import EVERYBODY, SOME, USERS, batches, method, model, privacy, table

SILENT = {"noise_multiplier": 0.0}


def moved(data, chosen, sampler=EVERYBODY, layer=None, **options):
    """By how much one step moves each parameter."""
    layer = layer or model()
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    fit(layer, squared, data, method=chosen, sampler=sampler, steps=1, **options)
    return {name: p.detach() - before[name] for name, p in layer.named_parameters()}


def length(leaves):
    return float(sum(leaf.double().square().sum() for leaf in leaves.values())) ** 0.5


def difference(one, other):
    return {name: one[name] - other[name] for name in one}


@pytest.mark.parametrize("most", [1, 10, 5000])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_user_hazard_a_heavy_user_cannot_dominate(most, as_sparse):
    """With a thousand rows or with one, a user moves the sum by at most C, and the update by C/b.

    All rows of the heavy user pull the same way, which clipping row by row would add up.
    """
    users = np.concatenate([np.arange(12), np.full(1000, 99)])
    rows = torch.cat([torch.arange(12), torch.full((1000,), 12)])
    alike = table(users, as_sparse=as_sparse).take(rows)
    heavy = examples(alike.features, alike.targets, users=users)
    light, nobody = heavy.take(torch.arange(13)), heavy.take(torch.arange(12))
    sampler, clip = poisson(users=13, expected_size=13), 0.05
    chosen = method(most, 1.0, clip_norm=clip, **SILENT)
    without = moved(nobody, chosen, sampler)
    of_heavy = difference(moved(heavy, chosen, sampler), without)
    of_light = difference(moved(light, chosen, sampler), without)
    bound = clip / 13
    assert length(of_heavy) <= bound * (1 + 1e-4)
    assert length(of_heavy) > 0.99 * bound, "the bound is met: the gradient was clipped"
    assert length(difference(of_heavy, of_light)) < 1e-4 * bound, "no more than with one row"


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_user_hazard_rows_of_one_user_never_fall_into_two_units(most):
    data = table()
    for rows, units in batches(data, most, 50):
        owners = data.users[rows].numpy()
        pairs = set(zip(owners.tolist(), units.tolist(), strict=True))
        assert len(pairs) == len(set(owners)) == len(set(units)) == 5
        assert np.bincount(owners).max() <= most
        assert len(set(rows.tolist())) == len(rows)


def test_user_hazard_rows_of_one_user_are_found_wherever_they_stand():
    shuffled = np.random.default_rng(0).permutation(USERS)
    data = table(shuffled)
    for rows, units in batches(data, 100, 3):
        assert sorted(rows.tolist()) == list(range(12))
        for unit in range(5):
            assert len(set(shuffled[rows[units == unit]])) == 1


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize("chunk", [None, 1, 4])
@pytest.mark.parametrize("informed", [False, True])
def test_user_hazard_what_is_clipped_is_the_mean_of_a_users_rows(
    hidden, as_sparse, chunk, informed
):
    """One whole step against autograd on one user at a time: clip(D ∘ mean), summed, over b."""
    data, layer, clip, lr = table(as_sparse=as_sparse), model(hidden=hidden), 0.3, 0.5
    name = "0.weight" if hidden else "weight"
    scale = torch.linspace(0.2, 3, 6)
    source = side.fixed({name: (scale, 1)}, source="a table", public_because="made up")
    params = {n: p.detach() for n, p in layer.named_parameters()}
    diagonal = source.init(params).scale
    diagonal = diagonal if informed else {n: torch.ones_like(p) for n, p in params.items()}
    zero = {n: torch.zeros_like(p) for n, p in params.items()}
    truth = ground_truth.gradients_of_users(layer, squared, data, data.users)
    truth = ground_truth.transformed(truth, 1.0, zero, diagonal)
    norms = ground_truth.norms(truth)
    assert (norms > clip).any()
    total = ground_truth.weighted_sum(truth, (clip / norms).clamp_max(1))
    silent = privacy(6, clip_norm=clip, **SILENT)
    chosen = adadps(source, silent, lr=lr) if informed else dp_sgd(silent, lr=lr)
    found = moved(data, chosen, layer=layer, physical_batch_size=chunk)
    for n, leaf in total.items():
        torch.testing.assert_close(found[n].double(), -lr / 5 * leaf, rtol=1e-4, atol=1e-6)


def test_user_hazard_the_objective_is_the_mean_over_users_whatever_most_is():
    """Without clip and noise: each user's mean loss counts once, not each row."""
    data, layer = table(), model()
    truth = ground_truth.gradients_of_users(layer, squared, data, data.users)
    expected = ground_truth.weighted_sum(truth, torch.full((5,), 1 / 5))
    found = moved(data, method(6, 1.0, clip_norm=1e6, **SILENT))
    for name, leaf in expected.items():
        torch.testing.assert_close(found[name].double(), -leaf, rtol=1e-4, atol=1e-6)
    steps = [moved(data, method(2, 1.0, clip_norm=1e6, **SILENT))["bias"] for _ in range(3)]
    assert not (torch.equal(steps[0], steps[1]) and torch.equal(steps[1], steps[2]))


def test_user_hazard_a_run_is_charged_for_users_and_says_so():
    class Spy(MemoryLedger):
        events = ()

        def authorise(self, event, **options):
            super().authorise(event, **options)
            self.events = (*self.events, event)

    ledger = Spy()
    result = fit(model(), squared, table(), method=method(), sampler=SOME, steps=3, ledger=ledger)
    assert ledger.events == (PoissonSampledDpEvent(0.4, GaussianDpEvent(1.0)),) * 3
    assert result.privacy.unit == "user"
    assert "add or remove one, per user)" in str(result.privacy)
    assert result.privacy.sampler["users"] == 5
    assert "examples" not in result.privacy.sampler
    assert result.privacy.assumed_public[0] == "the number of users, declared as 5"
    assert result.privacy.delta == 1 / 50, "1/(10 users), not 1/(10 rows)"


def test_user_hazard_a_user_moves_nothing_but_their_own_part():
    """Rate, normaliser and delta come from the declared number of users."""
    data = table()
    fewer = data.take(torch.nonzero(data.users != 0).squeeze(1))
    chosen = method(6, 1.0, clip_norm=1e6, **SILENT)
    layer = model()
    (first, *_) = ground_truth.gradients_of_users(layer, squared, data, data.users)
    gone = difference(moved(fewer, chosen), moved(data, chosen))
    for name, leaf in first.items():
        torch.testing.assert_close(gone[name].double(), leaf / 5, rtol=1e-4, atol=1e-6)


def test_user_hazard_one_poisonous_row_takes_its_user_out_and_nobody_else():
    data = table()
    poison = data.targets[2].clone()

    def loss(outputs, targets):
        return squared(outputs, targets) * torch.where((targets == poison).all(1), torch.nan, 1.0)

    layer, other = model(), model()
    chosen = method(6, clip_norm=0.5, **SILENT)
    fit(layer, loss, data, method=chosen, sampler=EVERYBODY, steps=1)
    kept = torch.nonzero(data.users != 0).squeeze(1)
    fit(other, squared, data.take(kept), method=chosen, sampler=EVERYBODY, steps=1)
    torch.testing.assert_close(layer.weight, other.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("most", [1, 3])
def test_hazard_08_a_batch_without_users_takes_a_noised_charged_step(most):
    ledger = MemoryLedger()
    nobody = poisson(users=10**6, expected_size=0.001)
    found = moved(table(), method(most, noise_multiplier=2.0), nobody, ledger=ledger)
    assert ledger.entries == 1
    assert (found["weight"] != 0).sum() > 6  # of 12; on its grid one of some thousand is zero


@pytest.mark.parametrize("most", [1, 2, 6])
def test_hazard_20_public_rows_are_left_out_row_by_row(most):
    """A user keeps the rows that are not public; one whose rows are all public brings nothing."""
    data = table()
    public_rows = torch.tensor([0, 1, 6, 7])  # some of user 0 and 2, all of user 1
    public = public_examples(
        data.features[public_rows],
        data.targets[public_rows],
        source="a survey",
        public_because="published",
        batch_size=2,
    )
    rule = side.RMSPropStatistics(decay=0.9, epsilon=1e-3)
    chosen = adadps(side.public(public, rule), privacy(most, **SILENT), lr=0.1)
    seen = set()
    for rows, _ in batches(data, most, 60, chosen=chosen):
        assert sorted(set(data.users[rows].tolist())) == [0, 2, 3, 4]
        assert np.bincount(data.users[rows].numpy()).max() <= most
        seen |= set(rows.tolist())
    assert seen == set(range(12)) - {0, 1, 6, 7}


def test_hazard_20_users_whose_rows_are_all_public_teach_nothing():
    data = table()
    public = public_examples(
        data.features, data.targets, source="a survey", public_because="published", batch_size=2
    )
    rule = side.RMSPropStatistics(decay=0.9, epsilon=1e-3)
    found = moved(data, adadps(side.public(public, rule), privacy(**SILENT), lr=0.1))
    assert all((leaf == 0).all() for leaf in found.values())


# --- nothing is priced by accident ---


def test_user_hazard_a_method_by_user_needs_users():
    data = table()
    anonymous = examples(data.features, data.targets)
    with pytest.raises(DataError, match=r"user of each example, found none\. Give `examples"):
        moved(anonymous, method())


@pytest.mark.parametrize("groups", [None, by_label(2)])
def test_user_hazard_users_in_the_data_are_not_ignored_in_silence(groups):
    single = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=1.0, groups=groups), lr=0.1)
    with pytest.raises(ContractError, match=r"protects users.*by_user"):
        moved(table(), single, poisson(examples=12, expected_size=3))


def test_user_hazard_a_method_without_privacy_may_look_at_rows():
    moved(table(), plain_sgd(0.1), poisson(examples=12, expected_size=3))


@pytest.mark.parametrize("accountant", [None, "given"])
def test_user_hazard_drawing_examples_and_clipping_users_is_refused(accountant):
    options = {"accountant": Accountant.RDP} if accountant else {}
    ledger = MemoryLedger()
    for chosen, sampler in (
        (method(), poisson(examples=5, expected_size=2)),
        (dp_sgd(privatize(clip_norm=1.0, noise_multiplier=1.0), lr=0.1), SOME),
        (plain_sgd(0.1), SOME),
    ):
        with pytest.raises(ContractError, match="users"):
            moved(table(), chosen, sampler, ledger=ledger, **options)
    assert ledger.entries == 0


def test_user_hazard_counts_of_rows_are_no_measurement_of_users():
    """One user with many rows would move them by many C."""
    data, terms = table(), {"clip_norm": 1.0, "noise_multiplier": 5.0, "floor": 0.1}
    by_row = side.noisy_frequencies(data.features.abs(), source="words", **terms)
    with pytest.raises(SideInformationError, match=r"each of the 5 users, found 12 rows"):
        moved(data, adadps(by_row, privacy(), lr=0.1))
    of_users = torch.zeros(5, 6).index_add_(0, data.users, data.features.abs())
    by_user = side.noisy_frequencies(of_users, source="words", **terms)
    ledger = MemoryLedger()
    moved(data, adadps(by_user, privacy(), lr=0.1), ledger=ledger)
    assert ledger.entries == 2


def test_user_hazard_a_price_for_an_example_is_none_for_a_user():
    data, named = table(), {"weight": (torch.ones(6), 1)}
    told = {"source": "counts", "public_because": "noised", "event": GaussianDpEvent(9.0)}
    with pytest.raises(SideInformationError, match=r"for one user, found one for one example"):
        moved(data, adadps(side.fixed(named, **told), privacy(), lr=0.1))
    moved(data, adadps(side.fixed(named, **told, unit=Unit.USER), privacy(), lr=0.1))
    alone = examples(data.features, data.targets)
    single = privatize(clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(SideInformationError, match=r"for one example, found one for one user"):
        moved(
            alone,
            adadps(side.fixed(named, **told, unit=Unit.USER), single, lr=0.1),
            poisson(examples=12, expected_size=3),
        )


def test_user_hazard_embeddings_with_late_noise_train_by_user():
    """A table of words, a preconditioner before the clip, noise that waits: still one unit."""
    tokens = torch.tensor([[1, 1, 2], [1, 2, 2], [3, 1, 0], [0, 0, 2], [4, 4, 4], [2, 1, 3]])
    users = [5, 5, 6, 5, 6, 7]
    data = examples(tokens, torch.tensor([0, 1, 2, 0, 1, 2]), users=users)
    torch.manual_seed(0)
    layer = nn.Sequential(nn.EmbeddingBag(6, 3, mode="sum"))
    source = side.fixed(
        {"0.weight": (torch.linspace(0.5, 2, 6), 0)}, source="a table", public_because="made up"
    )
    params = {n: p.detach().clone() for n, p in layer.named_parameters()}
    truth = ground_truth.gradients_of_users(layer, cross_entropy, data, data.users)
    zero = {n: torch.zeros_like(p) for n, p in params.items()}
    truth = ground_truth.transformed(truth, 1.0, zero, source.init(params).scale)
    total = ground_truth.weighted_sum(truth, (0.2 / ground_truth.norms(truth)).clamp_max(1))
    chosen = adadps(source, privacy(3, clip_norm=0.2, **SILENT), lr=1.0)
    sampler = poisson(users=3, expected_size=3)
    fit(layer, cross_entropy, data, method=chosen, sampler=sampler, steps=1)
    found = layer[0].weight.detach() - params["0.weight"]
    torch.testing.assert_close(found.double(), -total["0.weight"] / 3, rtol=1e-4, atol=1e-6)
