"""One row of the demo's table: a tuned method, or `adadps train` with its defaults."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from torch import nn

from adadps.accounting.epsilon import Budget, calibrate_noise
from adadps.accounting.events import default_delta
from adadps.accounting.samplers import Sampler, poisson
from adadps.cli.demo.contenders import DemoMethod, TunedSetting
from adadps.cli.demo.data import VOCABULARY, DemoData
from adadps.data.debian import SECTIONS
from adadps.engine.losses import cross_entropy
from adadps.engine.objective import predict
from adadps.estimators.planner.methods import linear_layer, resolved
from adadps.estimators.planner.plan import GivenSettings, PlannedRun, plan_training
from adadps.estimators.tables.features import prepare_for_rows
from adadps.estimators.tables.saved_model import TableModel
from adadps.estimators.tables.schema import Label, Schema
from adadps.methods.stages import Chain
from adadps.report.result import Result
from adadps.training.evaluation import accuracy, on_held_out
from adadps.training.fit import fit
from adadps.types import Accountant, Method

BATCH, STEPS, TUNING_TRIALS = 1024, 400, 12
DEFAULTS = "Defaults of `adadps train`, no tuning"
PUBLIC_ONLY = "Names of the classes alone, no private data"
GIVEN = GivenSettings()
"""No setting is given: this is what `adadps train` does when only epsilon is."""


def sampler_for(data: DemoData) -> Sampler:
    """Return Poisson sampling; the number of examples is declared public."""
    return poisson(examples=len(data.train), expected_size=BATCH)


def noise_for(data: DemoData, epsilon: float) -> float:
    """Return the noise multiplier with which the demo's steps cost ``epsilon``."""
    budget = Budget(epsilon, default_delta(len(data.train)))
    return calibrate_noise(sampler_for(data), STEPS, budget=budget, accountant=Accountant.PLD)


def train(
    contender: DemoMethod, setting: TunedSetting, sigma: float, data: DemoData
) -> tuple[Result, float]:
    """Train one method with a setting; return its result and the seconds it took."""
    method = contender.chain(setting, sigma, data.frequencies)
    return _timed(data, method, sampler_for(data), STEPS, setting, TUNING_TRIALS)


def default_plan(data: DemoData, epsilon: float) -> PlannedRun:
    """Return the plan of `adadps train` for a column of texts and declared sections."""
    model, examples = _default_model(data), len(data.train)
    method = resolved(Method.AUTO, informed=True)
    return plan_training(
        partial(prepare_for_rows, method, model.features, data.frequencies),
        examples=examples,
        budget=Budget(epsilon, default_delta(examples)),
        loss=model.targets.loss_facts,
        given=GIVEN,
    )


def public_accuracy(data: DemoData) -> float:
    """Return the accuracy before training: every text gets the class with the nearest name."""
    outputs = predict(_default_model(data).layer(), data.test.features, None)
    return accuracy(outputs, data.test.targets)


def _default_model(data: DemoData) -> TableModel:
    schema = Schema(("description",), (), (), Label("section", SECTIONS))
    return TableModel(schema, data.words, data.embeddings, None, data.negation, data.short_below)


def train_defaults(data: DemoData, epsilon: float) -> tuple[Result, float]:
    """Train as `adadps train` does untuned; ``data`` is that of `load_default_data`."""
    plan = default_plan(data, epsilon)
    settings = plan.settings
    return _timed(data, plan.chain, settings.sampler, settings.steps, plan.describe(), trials=0)


def _timed(
    data: DemoData,
    method: Chain,
    sampler: Sampler,
    steps: int,
    setting: dict[str, Any],
    trials: int,
) -> tuple[Result, float]:
    words = f"adadps.estimators.text.public_vocabulary({VOCABULARY})"
    model: nn.Module = linear_layer(len(data.words), len(SECTIONS), sparse_rows=False)
    in_words = f"linear without bias, {len(data.words)} words x {len(SECTIONS)} sections"
    if data.embeddings is not None:
        words += ", the words of the classes, and the negated form of each"
        model, in_words = _default_model(data).layer(), _default_model(data).in_words
    shown = on_held_out(
        "held-out packages",
        data.test.features,
        data.test.targets,
        every=steps // 10,
        accuracy=accuracy,
    )
    start = time.perf_counter()
    result = fit(
        model,
        cross_entropy,
        data.train,
        method=method,
        sampler=sampler,
        steps=steps,
        evaluate=[shown],
        assumed_public=data.assumed_public,
        tuning_trials=trials,
        settings={
            **setting,
            "model": in_words,
            "words": words,
            "classes": list(SECTIONS),
        },
        feature_sources=(data.embeddings.provenance,) if data.embeddings else (),
    )
    return result, time.perf_counter() - start
