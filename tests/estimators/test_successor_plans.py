"""The methods that came after the paper, planned by name from public numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from torch import nn

from adadps import AdaDPSClassifier, Budget, examples, fit, make_text_pipeline
from adadps.accounting.epsilon import epsilon_of_run
from adadps.errors import SettingError, SideInformationError
from adadps.estimators.planner.methods import PreparedMethod
from adadps.estimators.planner.plan import (
    RULE,
    FederatedSettings,
    GivenSettings,
    LossFacts,
    UserColumn,
    plan_training,
)
from adadps.estimators.planner.successors import FLOOR_SHARE, SUCCESSORS, rate_factor, successor
from adadps.methods.side import given_frequencies, public_texts
from adadps.methods.stages.clipping import AdaptiveClip, AutomaticClip
from adadps.methods.stages.updates import AdamBC
from adadps.types import Accountant, Method

BUDGET = Budget(1.0, 1e-5)
FIXED = (Method.DP_ADAM_BC, Method.DP_SGD_AUTO_CLIP, Method.DP2)
every_successor = pytest.mark.parametrize("method", SUCCESSORS)


def planned(method, loss=LossFacts(0.7), given=GivenSettings(), **more):  # noqa: B008
    return plan_training(
        PreparedMethod(method), examples=4000, budget=BUDGET, loss=loss, given=given, **more
    )


@every_successor
def test_a_plan_costs_its_budget_and_reads_no_side_information(method):
    plan = planned(method)
    settings = plan.settings
    spent = epsilon_of_run(
        plan.chain, settings.sampler, settings.steps, delta=1e-5, accountant=Accountant.PLD
    )
    assert 0.99 < spent <= 1.0
    assert plan.chain.public_rows == ()
    assert settings.noise_multiplier == planned(Method.DP_SGD).settings.noise_multiplier
    assert plan.describe()["method"] == method.value


@every_successor
def test_a_method_does_not_depend_on_the_units_of_the_loss(method):
    """What is in units of gradients follows the clip norm; automatic clipping has its own γ."""
    plain = planned(method).settings
    scaled = planned(method, LossFacts(7.0)).settings
    assert scaled.clip_norm == pytest.approx(10 * plain.clip_norm)
    normalised = method in (Method.DP_ADAM_BC, Method.SCALE_THEN_PRIVATIZE)
    assert scaled.lr == pytest.approx(plain.lr if normalised else plain.lr / 10)


def test_the_floor_follows_the_variance_of_the_noise():
    plan = planned(Method.DP_ADAM_BC)
    held, last = plan.settings, plan.chain.steps[-1]
    assert isinstance(last, AdamBC)
    noise = held.noise_multiplier * held.clip_norm / held.sampler.expected_size
    assert last.epsilon == pytest.approx(FLOOR_SHARE * noise**2)
    adam = planned(Method.DP_ADAM).settings.lr
    assert held.lr == pytest.approx(adam * math.sqrt(FLOOR_SHARE))


def test_the_rate_of_adaptive_clipping_is_that_of_a_larger_norm():
    adaptive, plain = planned(Method.DP_SGD_ADAPTIVE_CLIP), planned(Method.DP_SGD)
    assert isinstance(adaptive.chain.release, AdaptiveClip)
    assert adaptive.chain.release.noise_multiplier == plain.chain.release.noise_multiplier
    assert adaptive.settings.lr == pytest.approx(plain.settings.lr * math.sqrt(RULE.clip))
    assert rate_factor(Method.DP_SGD_ADAPTIVE_CLIP, 3.0) == 1.0


def test_automatic_clipping_has_the_steps_of_dp_sgd():
    automatic, plain = planned(Method.DP_SGD_AUTO_CLIP), planned(Method.DP_SGD)
    assert isinstance(automatic.chain.release, AutomaticClip)
    assert automatic.settings == plain.settings


@pytest.mark.parametrize(("steps", "delay"), [(400, 40), (25, 2), (3, 1)])
def test_dp2_takes_turns_by_the_length_of_the_run(steps, delay):
    plan = planned(Method.DP2, given=GivenSettings(steps=steps))
    assert f"s={delay}, reuse={delay}," in str(plan.chain)


def test_what_is_given_is_taken():
    given = GivenSettings(clip_norm=0.125, lr=0.5, steps=20)
    for method in SUCCESSORS:
        settings = planned(method, given=given).settings
        assert (settings.clip_norm, settings.lr, settings.steps) == (0.125, 0.5, 20)


@pytest.mark.parametrize("method", FIXED)
def test_noise_alone_moves_an_output_no_further_than_with_dp_sgd_or_adam(method):
    """Gradients are zero: all that is in the weights is noise."""
    plan = planned(method, given=GivenSettings(steps=20))
    model = nn.Linear(1, 2000, bias=False)
    nn.init.zeros_(model.weight)
    fit(
        model,
        lambda outputs, _targets: (outputs * 0).sum(1),
        examples(torch.ones(4000, 1), torch.zeros(4000)),
        method=plan.chain,
        sampler=plan.settings.sampler,
        steps=20,
        delta=1e-5,
    )
    found = float(model.weight.detach().double().std())
    assert 0.3 < found < 1.3  # the rule has 0.6, and 1.2 for Adam


@every_successor
def test_federations_refuse_it(method):
    with pytest.raises(SettingError, match=r"federations, found .* Use dp-sgd, dp-adam"):
        planned(method, users=UserColumn("author", 4), federation=FederatedSettings())


@every_successor
def test_users_are_protected_in_one_place(method):
    plan = planned(method, users=UserColumn("author", 4))
    assert "author" in str(plan.chain.release)


def test_a_method_that_is_none_of_them_is_refused():
    privacy = planned(Method.DP_SGD).chain.release
    with pytest.raises(SettingError, match="Expected one of dp-adam-bc"):
        successor(Method.ADADPS, privacy, 0.1, steps=1, size=1.0)


@every_successor
def test_estimators_train_it_by_name(method, tmp_path):
    apart = {"class_sep": 2.0, "n_clusters_per_class": 1}  # without privacy: 0.99
    X, y = make_classification(800, 5, n_informative=3, n_redundant=0, random_state=0, **apart)
    options = {"epsilon": 4.0, "classes": [0, 1], "examples": 800, "feature_bounds": (-8, 8)}
    model = AdaDPSClassifier(**options, method=method.value, accountant="rdp").fit(X, y)
    assert model.score(X, y) > 0.9  # of the rows that were trained on: does it learn at all?
    assert 3.9 < model.privacy_.epsilon <= 4.0
    told = json.loads(json.dumps(model.result_.describe(), allow_nan=False))
    assert told["settings"]["method"] == method.value
    assert np.isfinite(model.coef_).all()


@pytest.mark.parametrize("method", [*SUCCESSORS, Method.DP_SGD, Method.DP_ADAM])
def test_pipelines_of_words_train_methods_that_read_no_frequencies(method):
    texts, labels = (
        ["a free prize for you", "the meeting is on monday"] * 100,
        ["spam", "ham"] * 100,
    )
    options = {"classes": ["ham", "spam"], "examples": 200, "accountant": "rdp", "delta": 1e-3}
    model = make_text_pipeline(
        epsilon=8.0, words=200, features="words", method=method.value, **options
    ).fit(texts, labels)
    assert model["model"].result_.settings["method"] == method.value
    told = json.dumps(model["model"].result_.describe(), ensure_ascii=False)
    assert "precondition(wordfreq" not in told
    assert (
        "PublicVectorizer, which is fitted to nothing (400 public words, 200 of them negated)"
        in told
    )
    told = public_texts([*texts[:20], "another text"], source="posts", public_because="open")
    model = make_text_pipeline(
        epsilon=8.0, features="words", public_texts=told, method=method.value, **options
    )
    with pytest.raises(SideInformationError, match="would not notice private rows"):
        model.fit(texts, labels)


@every_successor
def test_side_information_is_refused(method):
    X, y = make_classification(100, 4, random_state=0)
    known = given_frequencies([0.5, 0.1, 0.2, 0.1], source="a list", public_because="published")
    options = {"epsilon": 1.0, "classes": [0, 1], "examples": 100, "feature_bounds": (-8, 8)}
    model = AdaDPSClassifier(**options, method=method.value, side=known)
    with pytest.raises(SideInformationError, match=f"no side information for {method.value}"):
        model.fit(X, y)
