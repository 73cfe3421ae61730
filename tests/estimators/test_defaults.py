"""The rule for default settings: free of scale, from public quantities, and what it promises."""

import math

import pytest
import torch
from torch import nn

from adadps import dp_sgd, examples, fit, privatize, side
from adadps.accounting.epsilon import Budget, epsilon_of_run
from adadps.errors import SettingError, SideInformationError
from adadps.estimators.planner.methods import Norms
from adadps.estimators.planner.plan import (
    RULE,
    DefaultRule,
    GivenSettings,
    choose_settings,
    first_gradient,
)
from adadps.methods import paper as methods
from adadps.types import Accountant

GIVEN = {"examples": 4000, "budget": Budget(2.0, 1e-5), "gradient_norm": 1.0}


def test_the_noise_that_an_output_has_at_the_end_is_the_rules():
    """Gradients are zero: all that is in the weights is noise. 8,000 weights, six deviations."""
    chosen = choose_settings(**GIVEN, given=GivenSettings(steps=20))
    model = nn.Linear(1, 8000, bias=False)
    nn.init.zeros_(model.weight)
    fit(
        model,
        lambda outputs, _targets: (outputs * 0).sum(1),
        examples(torch.ones(4000, 1), torch.zeros(4000)),
        method=dp_sgd(
            privatize(clip_norm=chosen.clip_norm, noise_multiplier=chosen.noise_multiplier),
            lr=chosen.lr,
        ),
        sampler=chosen.sampler,
        steps=20,
        delta=1e-5,
    )
    found = float(model.weight.detach().double().std())
    wanted = RULE.output_noise
    assert found == pytest.approx(wanted, rel=6 / math.sqrt(2 * 8000))


def test_the_chosen_run_costs_its_budget():
    chosen = choose_settings(**GIVEN)
    method = dp_sgd(
        privatize(clip_norm=chosen.clip_norm, noise_multiplier=chosen.noise_multiplier),
        lr=chosen.lr,
    )
    spent = epsilon_of_run(
        method, chosen.sampler, chosen.steps, delta=1e-5, accountant=Accountant.PLD
    )
    assert 1.99 < spent <= 2.0


def test_less_budget_or_fewer_examples_mean_shorter_steps():
    lr = choose_settings(**GIVEN).lr
    assert choose_settings(**{**GIVEN, "budget": Budget(0.5, 1e-5)}).lr < lr
    assert choose_settings(**{**GIVEN, "examples": 1000}).lr < lr


def test_what_is_given_is_taken():
    chosen = choose_settings(
        **GIVEN, given=GivenSettings(batch_size=100, epochs=2, clip_norm=0.125, lr=0.5)
    )
    assert chosen.sampler.expected_size == 100
    assert (chosen.steps, chosen.clip_norm, chosen.lr) == (80, 0.125, 0.5)
    assert chosen.epochs == pytest.approx(2)


def test_norms_of_scaled_rows_scale_clip_and_rate():
    plain = choose_settings(**GIVEN)
    scaled = choose_settings(**GIVEN, norms=Norms(clipped=5.0))
    assert scaled.clip_norm == pytest.approx(5 * plain.clip_norm)
    assert scaled.lr * scaled.clip_norm == pytest.approx(plain.lr * plain.clip_norm)
    both = choose_settings(**GIVEN, norms=Norms(5.0, 5.0))
    assert both.lr == pytest.approx(scaled.lr / 5)


def test_no_step_is_longer_than_the_rule_allows():
    rule = DefaultRule(longest=10.0)
    assert choose_settings(**GIVEN, rule=rule).lr == pytest.approx(10.0 / rule.steps)


def test_a_batch_is_never_larger_than_the_data():
    assert choose_settings(**{**GIVEN, "examples": 30}).sampler.expected_size == 30


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": -1.0}, {"lr": 0.0}, {"batch_size": 0}, {"epochs": 0}], ids=str
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(SettingError, match="Expected"):
        choose_settings(**GIVEN, given=GivenSettings(**wrong))


def test_no_examples_are_refused():
    with pytest.raises(SettingError, match="Expected examples >= 1"):
        choose_settings(**{**GIVEN, "examples": 0})


def test_a_first_gradient_has_the_norm_that_autograd_finds():
    for classes in (2, 3, 50):
        outputs = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
        nn.functional.cross_entropy(outputs, torch.tensor([0])).backward()
        assert first_gradient(classes) == pytest.approx(float(outputs.grad.norm()))


def test_idf_weights_are_those_of_the_formula():
    known = side.given_frequencies([0.01, 1e-4, 0.0], source="list", public_because="published")
    found = side.idf(known, words_per_text=50, power=2.0).named["weight"][0]
    shares = [1 - math.exp(-50 * f) for f in (0.01, 1e-4, 1e-4)]
    idf = [math.log(1 / share) for share in shares]
    assert found.tolist() == pytest.approx([(max(idf) / value) ** 2 for value in idf])


def test_words_that_every_text_has_keep_a_finite_weight():
    known = side.given_frequencies([0.9, 1e-6], source="list", public_because="published")
    found = side.idf(known, words_per_text=1000).named["weight"][0]
    assert bool(torch.isfinite(found).all())
    assert float(found[0]) == pytest.approx(1000.0)


@pytest.mark.parametrize("wrong", [{"words_per_text": 0}, {"words_per_text": 10, "power": -1}])
def test_idf_refuses_what_has_no_meaning(wrong):
    known = side.given_frequencies([0.1], source="list", public_because="published")
    with pytest.raises(SettingError, match="Expected"):
        side.idf(known, **wrong)


def test_idf_refuses_counts_and_takes_rates_of_features():
    told = {"source": "list", "public_because": "published"}
    with pytest.raises(SideInformationError, match=r"found 50000\. Divide counts by their total"):
        side.idf(side.given_frequencies([50_000, 300], **told), words_per_text=50)
    rates = side.given_frequencies([1.0, 0.9, 0.1], **told)
    assert len(side.idf(rates, words_per_text=1).named["weight"][0]) == 3


def test_weighted_features_by_idf_have_its_provenance():
    known = side.given_frequencies([0.1, 0.2], source="a list", public_because="published")
    method = methods.dp_sgd_weighted(
        side.idf(known, words_per_text=10), privatize(clip_norm=1.0, noise_multiplier=1.0), lr=0.1
    )
    assert "a list; A = IDF^-1 in texts of 10 words" in str(method)


def test_idf_of_words_that_all_texts_have_is_no_side_information():
    known = side.given_frequencies([0.9, 0.8], source="list", public_because="published")
    assert side.idf(known, words_per_text=1000).named["weight"][0].tolist() == [1.0, 1.0]
