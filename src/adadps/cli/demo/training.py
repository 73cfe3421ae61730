"""One row of the table: a contender with its setting, or `adadps train` without any."""

from __future__ import annotations

import time
from typing import Any

from torch import nn

from adadps.accounting.calibration import calibrate_noise
from adadps.accounting.delta import default_delta
from adadps.accounting.epsilon import Budget
from adadps.accounting.samplers import Sampler, poisson
from adadps.cli.demo.contenders import Contender
from adadps.cli.demo.data import VOCABULARY, DemoData
from adadps.cli.demo.settings import Setting
from adadps.data.debian import SECTIONS
from adadps.engine.losses import cross_entropy
from adadps.estimators.planner.named_methods import Method
from adadps.estimators.tables.features import RowFeatures
from adadps.estimators.tables.methods import Plan, Wishes, chosen_for, plan_training
from adadps.estimators.tables.schema import Label, Schema
from adadps.estimators.tables.targets import Targets
from adadps.methods.stages import Chain
from adadps.report.result import Result
from adadps.training.evaluation import accuracy, on_held_out
from adadps.training.fit import fit
from adadps.types import Accountant

BATCH, STEPS, TUNING_TRIALS = 1024, 400, 12
DEFAULTS = "Defaults (no tuning): DP-SGD on IDF features"
WISHES = Wishes()
"""None: what `adadps train` does when only epsilon is given."""


def sampler_for(data: DemoData) -> Sampler:
    """Poisson batches; the number of examples is declared public."""
    return poisson(examples=len(data.train), expected_size=BATCH)


def noise_for(data: DemoData, epsilon: float) -> float:
    """The noise multiplier with which the demo's steps cost ``epsilon``."""
    budget = Budget(epsilon, default_delta(len(data.train)))
    return calibrate_noise(sampler_for(data), STEPS, budget=budget, accountant=Accountant.PLD)


def train(
    contender: Contender, setting: Setting, sigma: float, data: DemoData
) -> tuple[Result, float]:
    """Train one contender; return its result and the seconds it took."""
    method = contender.build(setting, sigma, data.frequencies)
    return _timed(data, method, sampler_for(data), STEPS, setting, TUNING_TRIALS)


def default_plan(data: DemoData, epsilon: float) -> Plan:
    """Method and settings of `adadps train` for a column of texts and declared sections."""
    schema = Schema(("description",), (), (), Label("section", SECTIONS))
    return plan_training(
        chosen_for(Method.AUTO, has_text=True),
        RowFeatures(schema, data.words),
        Targets(schema.label),
        examples=len(data.train),
        budget=Budget(epsilon, default_delta(len(data.train))),
        accountant=Accountant.PLD,
        wishes=WISHES,
        frequencies=data.frequencies,
    )


def train_defaults(data: DemoData, epsilon: float) -> tuple[Result, float]:
    """What `adadps train` does when nothing is tuned; ``data`` is that of `load_default_data`."""
    plan = default_plan(data, epsilon)
    choice = plan.choice
    return _timed(data, plan.chain, choice.sampler, choice.steps, plan.settings, trials=0)


def _timed(
    data: DemoData,
    method: Chain,
    sampler: Sampler,
    steps: int,
    setting: dict[str, Any],
    trials: int,
) -> tuple[Result, float]:
    more = " and the words of the classes" if len(data.words) > VOCABULARY else ""
    model = nn.Linear(len(data.words), len(SECTIONS), bias=False)
    nn.init.zeros_(model.weight)
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
            "model": f"linear without bias, {len(data.words)} words x {len(SECTIONS)} sections",
            "words": f"adadps.data.text.public_vocabulary({VOCABULARY}){more}",
            "classes": list(SECTIONS),
        },
    )
    return result, time.perf_counter() - start
