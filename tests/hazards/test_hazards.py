"""One test, or more, for each way in which private training goes wrong.

Hazards 2, 10, 18, 24 and 25 have further tests beside the code they concern
(`grep -rn test_hazard_ tests`).
"""

import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from torch import nn

from adadps import (
    Budget,
    BudgetError,
    PrivateRun,
    accuracy,
    adadps,
    dp_sgd,
    examples,
    fit,
    load_result,
    on_held_out,
    poisson,
    privatize,
    public_examples,
    reproducible_not_private,
    shuffled,
    side,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import (
    ContractError,
    ModelError,
    OrderError,
    SideInformationError,
)
from adadps.methods import plain_sgd
from adadps.methods.stages import by_label, by_position, in_advance
from adadps.report.result import Measurement
from adadps.training.debugging import DEBUG_MARK
from support.problems import squared
from support.regressions import SpyLedger, method, model, rows, trained


def test_hazard_01_the_sampler_that_draws_is_the_one_that_is_charged():
    ledger = SpyLedger()
    trained(sampler=shuffled(examples=40, expected_size=10), steps=6, ledger=ledger)
    charged = [event for event in ledger.events if isinstance(event, GaussianDpEvent)]
    assert len(charged) == 2  # two started epochs of four steps, never a Poisson event
    assert not any(isinstance(event, PoissonSampledDpEvent) for event in ledger.events)


def test_hazard_01_batches_from_elsewhere_are_refused():
    data, sampler = rows(), poisson(examples=40, expected_size=10)
    one, other = (
        PrivateRun(model(), squared, data, method=method(), sampler=sampler, steps=2)
        for _ in range(2)
    )
    batch = next(other.batches())
    with pytest.raises(OrderError, match="other batches would not be accounted"):
        one.step(batch)
    other.step(batch)
    with pytest.raises(OrderError):
        other.step(batch)


def test_hazard_03_groups_by_label_are_charged_twice_the_sensitivity():
    ledger = SpyLedger()
    trained(chosen=method(groups=by_label(4)), ledger=ledger, steps=3)
    assert ledger.events == [PoissonSampledDpEvent(0.25, GaussianDpEvent(0.5))] * 3


def test_hazard_03_groups_by_position_are_refused():
    with pytest.raises(ContractError, match="by_label"):
        by_position(4)


def test_hazard_03_groups_in_advance_need_replace_one():
    with pytest.raises(ContractError, match="replace one"):
        trained(chosen=method(groups=in_advance(4)))


def test_hazard_04_removing_one_example_changes_nothing_but_its_own_gradient():
    """Rate, normaliser, steps and delta come from the declared number, not from the data."""
    data = rows(40)
    fewer = data.take(torch.arange(39))
    sampler = poisson(examples=40, expected_size=40)  # rate 1: every example is drawn
    ones = method(clip_norm=1e6, noise_multiplier=0.0)
    full, full_result = trained(data, 1, sampler, ones)
    less, less_result = trained(fewer, 1, sampler, ones)
    start = model()
    error = start(data.features[39:]) - data.targets[39:]
    gradient = error * data.features[39:]
    torch.testing.assert_close(less.weight - full.weight, 0.1 / 40 * gradient)
    assert full_result.privacy.delta == less_result.privacy.delta
    assert full_result.privacy.sampler == less_result.privacy.sampler


def test_hazard_04_the_normaliser_is_the_expected_batch_size():
    data = rows(40)
    layer, _ = trained(
        data,
        1,
        poisson(examples=40, expected_size=40),
        method(clip_norm=1e6, noise_multiplier=0.0, lr=1.0),
    )
    start = model()
    expected = -((start(data.features) - data.targets) * data.features).sum(0) / 40
    torch.testing.assert_close(layer.weight.detach()[0], expected.detach())


def test_hazard_05_a_mean_loss_is_refused():
    with pytest.raises(ModelError, match="reduction='none'"):
        fit(
            model(),
            nn.MSELoss(),
            rows(),
            method=method(),
            sampler=poisson(examples=40, expected_size=10),
            steps=1,
        )


def test_hazard_06_one_poisonous_example_does_not_poison_the_weights():
    data = rows()
    poison = data.targets[3].clone()

    def loss(outputs, targets):
        factor = torch.where((targets == poison).all(1), float("nan"), 1.0)
        return squared(outputs, targets) * factor

    for layer in (model(), nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))):
        fit(
            layer,
            loss,
            data,
            method=method(),
            sampler=poisson(examples=40, expected_size=40),
            steps=2,
        )
        assert all(torch.isfinite(p).all() for p in layer.parameters())


@pytest.mark.parametrize("hidden", [False, True])
def test_hazard_06_a_norm_that_overflows_adds_nothing(hidden):
    """In float64 a finite gradient can have a norm that is infinite, or no number at all."""
    data = examples(
        torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64),
        torch.tensor([[1e200], [1.0]], dtype=torch.float64),
    )
    layer = nn.Linear(2, 1).double()
    layer = nn.Sequential(layer, nn.Identity()) if hidden else layer
    big = {name: torch.full_like(p, 1e-30).float() for name, p in layer.named_parameters()}
    huge = side.fixed(big, source="made up", public_because="made up")
    privacy = privatize(clip_norm=1.0, noise_multiplier=1.0)
    sampler = poisson(examples=2, expected_size=2)
    for chosen in (dp_sgd(privacy, lr=0.1), adadps(huge, privacy, lr=0.1)):
        fit(layer, squared, data, method=chosen, sampler=sampler, steps=1)
        assert all((p.abs() < 100).all() for p in layer.parameters())


@pytest.mark.parametrize("groups", [None, by_label(3)])
def test_hazard_08_an_empty_batch_takes_a_noised_charged_step(groups):
    ledger = SpyLedger()
    sampler = poisson(examples=10**6, expected_size=0.001)
    layer, result = trained(
        rows(), 3, sampler, method(noise_multiplier=2.0, groups=groups), ledger=ledger
    )
    assert ledger.entries == result.privacy.steps == 3
    assert (layer.weight != 0).sum() >= 3  # of four; one may fall on the grid's zero


def test_hazard_08_an_empty_batch_works_for_models_on_the_general_engine():
    layer = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    before = layer[0].weight.detach().clone()
    trained(rows(), 2, poisson(examples=10**6, expected_size=0.001), layer=layer)
    assert (layer[0].weight != before).sum() >= 11  # of twelve


@pytest.mark.parametrize("physical_batch_size", [None, 1, 7, 1000])
def test_hazard_09_steps_taken_are_ledger_entries(physical_batch_size):
    ledger = SpyLedger()
    _, result = trained(steps=7, ledger=ledger, physical_batch_size=physical_batch_size)
    assert result.privacy.steps == ledger.entries == 7


def test_hazard_09_the_physical_batch_size_does_not_change_the_weights():
    found = []
    for size in (None, 3):
        layer, _ = trained(
            steps=4, physical_batch_size=size, randomness=reproducible_not_private(3)
        )
        found.append(layer.weight.detach().clone())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)),
        nn.Sequential(nn.SyncBatchNorm(4), nn.Linear(4, 1)),
    ],
)
def test_hazard_10_batch_norm_is_refused_with_the_cure(layer):
    with pytest.raises(ModelError, match="GroupNorm"):
        trained(layer=layer)


def test_hazard_10_a_loss_across_examples_is_refused():
    def contrastive(outputs, targets):
        return (outputs - outputs.mean(0) - targets).square().sum(1)

    with pytest.raises(ModelError, match="neighbours"):
        fit(
            model(),
            contrastive,
            examples(rows().features, rows().targets),
            method=method(),
            sampler=poisson(examples=40, expected_size=10),
            steps=1,
        )


def test_hazard_10_a_loss_across_many_examples_cannot_mix_them():
    """What three rows do not show is harmless too: each row's loss is differentiated alone."""

    def trimmed(outputs, targets):
        losses = squared(outputs, targets)
        return torch.where(losses > 3 * losses.mean(), 0.0, losses)

    data = rows(40)
    far = examples(data.features, torch.cat([data.targets[:39], torch.full((1, 1), 1e3)]))
    found = []
    for held in (data, far):
        layer, _ = trained_with(trimmed, held)
        found.append(layer.weight.detach().clone())
    assert float((found[0] - found[1]).norm()) <= 2 * 0.1 / 40 * 1.001  # one replaced row: 2C


def trained_with(loss, data):
    layer = model()
    sampler = poisson(examples=len(data), expected_size=len(data))
    chosen = method(noise_multiplier=0.0)
    return layer, fit(layer, loss, data, method=chosen, sampler=sampler, steps=1)


def test_hazard_11_repeated_tokens_are_added_up():
    """An embedding row that is read three times gets three times the gradient."""
    layer = nn.Sequential(nn.EmbeddingBag(3, 1, mode="sum"))
    nn.init.zeros_(layer[0].weight)
    data = examples(torch.tensor([[1, 1, 1, 0]]), torch.tensor([[1.0]]))
    fit(
        layer,
        squared,
        data,
        method=method(clip_norm=1e6, noise_multiplier=0.0, lr=1.0),
        sampler=poisson(examples=1, expected_size=1),
        steps=1,
    )
    assert layer[0].weight.detach().flatten().tolist() == [1.0, 3.0, 0.0]


@pytest.mark.parametrize("hidden", [False, True])
def test_hazard_12_two_clip_norms_give_different_results(hidden):
    found = []
    for clip in (0.1, 0.5):
        torch.manual_seed(1)
        layer = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)) if hidden else model()
        trained(
            chosen=method(clip_norm=clip, noise_multiplier=0.0),
            sampler=poisson(examples=40, expected_size=40),
            layer=layer,
        )
        found.append(torch.cat([p.detach().flatten() for p in layer.parameters()]))
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize(("clip", "sigma"), [(0.5, 1.0), (2.0, 3.0)])
def test_hazard_13_the_noise_drawn_is_the_noise_charged(clip, sigma):
    """The standard deviation of the weights follows from the ledger's event.

    False alarm: 5,000 coordinates, 8 standard errors, below 1e-14.
    """
    ledger = SpyLedger()
    width = 5000
    data = examples(torch.zeros(10, width), torch.zeros(10, 1))
    layer = model(width)
    fit(
        layer,
        squared,
        data,
        method=method(clip_norm=clip, noise_multiplier=sigma, lr=1.0),
        sampler=poisson(examples=10, expected_size=5),
        steps=1,
        ledger=ledger,
    )
    charged = ledger.events[0].event.noise_multiplier
    expected = charged * clip / 5
    error = expected * (2 * width) ** -0.5
    assert abs(float(layer.weight.detach().std()) - expected) < 8 * error


def test_hazard_16_two_runs_never_share_noise_or_batches():
    weights = [trained(steps=1)[0].weight.detach().clone() for _ in range(2)]
    assert not torch.equal(weights[0], weights[1])


def test_hazard_19_a_statistic_of_zero_needs_a_floor():
    frequencies = side.given_frequencies([1.0, 0.0], source="a list", public_because="published")
    with pytest.raises(ValueError, match="floor"):
        side.frequency(frequencies, floor=0.0)
    with pytest.raises(SideInformationError, match="floor"):
        side.fixed(
            {"weight": (torch.tensor([1.0, 0.0]), 1)}, source="a list", public_because="published"
        ).init({"weight": torch.zeros(1, 2)})
    smallest = side.frequency(frequencies, floor=1e-6, power=1.0)
    assert torch.isfinite(smallest.init({"weight": torch.zeros(1, 2)}).scale["weight"]).all()


def test_hazard_20_side_information_needs_a_provenance():
    values = {"weight": (torch.ones(4), 1)}
    with pytest.raises(TypeError):
        side.fixed(values)
    with pytest.raises(SideInformationError, match="public"):
        side.fixed(values, source="somewhere", public_because=" ")
    source = side.fixed(values, source="a table", public_because="published")
    privacy = privatize(clip_norm=1.0, noise_multiplier=1.0)
    _, result = trained(chosen=adadps(source, privacy, lr=0.1))
    assert result.side_information[0]["source"] == "a table"


def test_hazard_20_statistics_of_private_data_make_epsilon_infinite():
    data = rows()
    rule = side.RMSPropStatistics(decay=0.9, epsilon=1e-3)
    privacy = privatize(clip_norm=1.0, noise_multiplier=1.0)
    chosen = adadps(side.oracle(data, rule, batch_size=10), privacy, lr=0.1)
    _, result = trained(data, chosen=chosen)
    assert not result.privacy.private
    assert "private data" in result.privacy.not_private_because[0]
    with pytest.raises(BudgetError):
        trained(data, chosen=chosen, budget=Budget(100.0, 1e-5))


@pytest.mark.parametrize("groups", [None, by_label(4)])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_hazard_20_public_rows_are_left_out_of_the_private_data(groups, as_sparse):
    data = rows()
    if as_sparse:
        data = examples(data.features.to_sparse(), data.targets)
    public = public_examples(
        data.take(torch.arange(40)).features,
        data.targets,
        source="a survey",
        public_because="published",
        batch_size=5,
    )
    rule = side.RMSPropStatistics(decay=0.9, epsilon=1e-3)
    exposed = privatize(clip_norm=1e6, noise_multiplier=0.0, groups=groups)
    layer, _ = trained(data, chosen=adadps(side.public(public, rule), exposed, lr=0.1))
    assert (layer.weight == 0).all(), "every private row is public, so nothing private is learned"


def test_hazard_20_what_is_assumed_public_stands_in_the_result():
    _, result = trained(assumed_public=["the label set"])
    assert any("declared as 40" in fact for fact in result.privacy.assumed_public)
    assert "the label set" in result.privacy.assumed_public


def test_hazard_21_the_number_of_trials_stands_in_the_result(tmp_path):
    _, result = trained(tuning_trials=12)
    assert load_result(result.save(tmp_path / "run")).privacy.tuning_trials == 12


def test_hazard_22_nothing_unnoised_is_stored_or_shown(capsys):
    data = rows()
    evaluation = on_held_out(
        "test", data.features, torch.zeros(40).long(), accuracy=accuracy, every=2
    )
    _, result = trained(data, steps=4, evaluate=[evaluation], progress=True)
    assert {type(entry) for entry in result.history} == {Measurement}
    assert {(entry.data, entry.declared) for entry in result.history} == {("test", "held out")}
    assert result.debug == ()
    shown = capsys.readouterr()
    assert not any(word in shown.out + shown.err for word in ("loss", "norm", "clip", "batch"))
    text = str(result.describe())
    assert not any(word in text for word in ("training_loss", "largest_norm", "batch_size': 1"))


def test_hazard_22_debugging_shows_it_and_marks_the_run():
    _, result = trained(debug=True)
    assert {"training_loss", "batch_size", "clipped_fraction"} <= result.debug[0].keys()
    assert not result.privacy.private
    ledger = MemoryLedger()
    trained(debug=True, ledger=ledger)
    assert ledger.epsilon(1e-5) == float("inf")
    with pytest.raises(BudgetError, match="not private"):
        trained(debug=True, budget=Budget(10.0, 1e-5))
    assert DEBUG_MARK in result.privacy.not_private_because
    assert "NOT PRIVATE" in str(result.privacy)


def test_hazard_24_no_epsilon_for_a_chain_that_is_not_private():
    _, result = trained(chosen=plain_sgd(0.1))
    assert result.privacy.epsilon == float("inf")
    assert result.privacy.mechanism_epsilon is None
    assert "ε = ∞" in str(result.privacy)
    for broken in (
        method(noise_multiplier=0.0),
        method(clip_norm=float("inf"), noise_multiplier=0.0),
    ):
        assert not trained(chosen=broken)[1].privacy.private


def test_hazard_24_a_seeded_run_is_marked_everywhere(tmp_path):
    _, result = trained(randomness=reproducible_not_private(1))
    assert not result.privacy.private
    assert "reproducible, not private" in str(result.privacy)
    ledger = MemoryLedger()
    trained(randomness=reproducible_not_private(1), ledger=ledger)
    assert ledger.epsilon(1e-5) == float("inf")
    saved = result.save(tmp_path / "run") / "result.json"
    assert "reproducible, not private" in saved.read_text(encoding="utf-8")
