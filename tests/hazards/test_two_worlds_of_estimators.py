"""Estimators and tunings on D and on D plus one row.

Noise is off and chance is fixed: everything that leaves has to be the same in both worlds, but for
weights (`two_worlds.py` says how that is compared).
"""

import numpy as np
import pytest
from hypothesis import given
from torch import nn

from adadps import (
    Accountant,
    AdaDPSClassifier,
    AdaDPSRegressor,
    DiskLedger,
    dp_sgd,
    examples,
    on_public,
    poisson,
    privatize,
    tune,
)
from adadps.training.tuning import fixed_grid, highest, private_accuracy
from support.problems import cross_entropy
from support.two_worlds_problems import (
    CLASSES,
    CLIP,
    COUNTS,
    DENSE,
    KINDS,
    WIDTH,
    Kind,
    as_dense,
    as_sparse,
    both,
    data_for,
    perceptron,
    same,
    tried,
)

# --- estimators ---


def estimated(make, features):
    """Fit, fit on, and look at all that an estimator shows."""

    def pipeline(world, given):
        rows, labels = given
        model = make(world.folder / "paid")
        model.fit(features(rows), np.array(labels))
        model.partial_fit(features(rows), np.array(labels))
        world.tell(model, sorted(vars(model)), model.privacy_, model.epsilon_, model.delta_)
        world.tell(model.result_.describe(), model.n_features_in_, model.ledger_.entries)
        world.take_weights(model.result_.params)
        model.result_.save(world.folder / "result")

    return pipeline


SMALL = {"epsilon": 5, "epsilon_per_run": 2, "delta": 0.01, "batch_size": 3, "epochs": 1}


def classifier(**more):
    def make(ledger):
        return AdaDPSClassifier(
            **SMALL, classes=range(CLASSES), examples=6, strict=True, ledger=ledger, **more
        )

    return make


def regressor(ledger):
    return AdaDPSRegressor(
        **SMALL, bounds=(0, 2), feature_bounds=(-3, 3), examples=6, strict=True, ledger=ledger
    )


ESTIMATORS = {
    "classifier, dense": (classifier(feature_bounds=(-3, 3)), DENSE, as_dense),
    "classifier, sparse": (classifier(), COUNTS, as_sparse),
    "classifier, module": (
        classifier(module=lambda *_: perceptron(), clip_norm=1.0, lr=0.1), COUNTS, as_dense,
    ),
    "regressor": (regressor, DENSE, as_dense),
}  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_leaves_the_same_in_both_worlds(name):
    make, rows, features = ESTIMATORS[name]

    @tried(2)
    @given(data_for(Kind(nn.Identity, rows, features), least=6, most=6))
    def leaves_the_same(data):
        same(both(estimated(make, features), data))

    leaves_the_same()


# --- tune ---


def trials(setting):
    release = privatize(clip_norm=CLIP, noise_multiplier=4.0)
    return nn.Linear(WIDTH, CLASSES), dp_sgd(release, lr=setting["lr"])


def tuned_by_a_public_score(world, given):
    rows, labels = given
    merits = iter([0.2, 0.9])
    pilot = on_public("pilot", as_dense([[1.0] * WIDTH]), [0], merit=lambda *_: next(merits))
    world_of_trials(world, rows, labels, {"lr": [0.1, 0.2]}, highest(pilot, "merit"))


def tuned_by_a_private_score(world, given):
    rows, labels = given
    score = private_accuracy(
        "training rows", as_dense(rows), labels, examples=4, noise_multiplier=9.0
    )
    world_of_trials(world, rows, labels, {"lr": [0.1]}, score)


def world_of_trials(world, rows, labels, grid_of_rates, score):
    found = tune(
        trials,
        cross_entropy,
        examples(as_dense(rows), labels),
        grid=grid_of_rates,
        score=score,
        selection=fixed_grid(),
        sampler=poisson(examples=4, expected_size=4),
        steps=2,
        accountant=Accountant.RDP,
        ledger=DiskLedger(world.folder / "paid"),
    )
    told = found.result.describe()
    told["privacy"]["tuning"]["score"] = "from weights"
    for trial in told["privacy"]["tuning"]["table"]:
        trial["score"] = "from weights"
    world.tell(told)
    world.take_weights(found.result.params)


@pytest.mark.parametrize("pipeline", [tuned_by_a_public_score, tuned_by_a_private_score])
def test_a_tuning_leaves_the_same_in_both_worlds(pipeline):
    @tried(2)
    @given(data_for(KINDS["linear"], least=4, most=4))
    def leaves_the_same(data):
        same(both(pipeline, data))

    leaves_the_same()
