"""Estimators and tables that the processes of a `support.team.Team` train together."""

import csv
import os
import warnings
from pathlib import Path

import numpy as np

from adadps.errors import PrivacyWarning
from adadps.estimators import AdaDPSClassifier, AdaDPSRegressor
from adadps.estimators.tables.request import TrainingRequest
from adadps.estimators.tables.training import train_from_table

RNG = np.random.default_rng(11)
ROWS = 800
X = RNG.normal(size=(ROWS, 4))
Y = np.where(X[:, 0] > 0, "high", "low")
OPTIONS = {"epsilon": 4.0, "accountant": "rdp", "feature_bounds": (-3, 3), "epochs": 3}


def rank():
    return int(os.environ.get("RANK", "0"))


def stated(model, ledger=None):
    """What a fitted classifier says of itself."""
    privacy = model.privacy_
    return {
        "weights": model.coef_.tolist(),
        "classes": model.classes_.tolist(),
        "claim": (privacy.epsilon, privacy.delta, privacy.steps_paid, privacy.claim),
        "noise": (privacy.noise_multiplier, privacy.sampler),
        "facts": (privacy.assumed_public, privacy.measured),
        "charges": privacy.charges,
        "ledger": (model.result_.settings["method"], model._ledger_identity),
        "score": float(model.score(X, Y)) if Y[0] in model.classes_ else None,
    }


def declared():
    return stated(AdaDPSClassifier(**OPTIONS, classes=["high", "low"], examples=ROWS).fit(X, Y))


def paid_classes():
    return stated(AdaDPSClassifier(**OPTIONS, classes="paid", examples=ROWS).fit(X, Y))


def several_runs(path):
    """A classifier and a regressor on one ledger; the second process names the same file."""
    options = {**OPTIONS, "epsilon_per_run": 1.0, "ledger": path, "examples": ROWS}
    model = AdaDPSClassifier(**options, classes=["high", "low"]).fit(X, Y)
    first = stated(model)
    model.partial_fit(X, Y)
    numbers = AdaDPSRegressor(**options, bounds=(-3, 3)).fit(X, X[:, 0])
    return first, stated(model), numbers.coef_.tolist()


def without_declarations():
    """How many warnings this process shows."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        AdaDPSClassifier(**OPTIONS).fit(X, Y)
    return sum(issubclass(one.category, PrivacyWarning) for one in seen)


def other_rows_in_the_second():
    AdaDPSClassifier(**OPTIONS, classes=["high", "low"]).fit(X + rank(), Y)


def write_table(path):
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["a", "b", "kind", "who"])
        for place, (row, label) in enumerate(zip(X, Y, strict=True)):
            lines.writerow([row[0], row[1], label, f"user {place % 200}"])


def table_trained(folder, options, *, lost_in_the_second=False):
    """Train from a table; return what is stated, and what was said."""
    folder = Path(folder)
    table = folder / ("lost.csv" if lost_in_the_second and rank() else "table.csv")
    request = TrainingRequest(
        data=table, out=folder / "model", epsilon=4.0, label="kind", epochs=4.0,
        numeric=("a=-3,3", "b=-3,3"), **options,
    )  # fmt: skip
    said = []
    result = train_from_table(request, said.append)
    params = {name: value.tolist() for name, value in result.params.items()}
    return params, result.describe(), said
