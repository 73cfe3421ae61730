"""One run of the comparison of default settings: a job as plain data, and its record.

A setting is a rule's constants (`adadps.estimators.planner.defaults.Rule`) and how word frequencies
enter: as weights of the features (IDF), before the clip, on both sides of the noise, or not at all.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from adadps.accounting.delta import default_delta
from adadps.accounting.epsilon import Budget, epsilon_of_run
from adadps.data.examples import Examples
from adadps.estimators.planner import defaults
from adadps.estimators.planner.named_methods import (
    FLOOR,
    POWER_ON_BOTH_SIDES,
    Method,
    chain_for,
    norms_for,
)
from adadps.estimators.planner.typical_texts import typical_norm
from adadps.methods import paper as methods
from adadps.methods.side import Frequencies, frequency, idf, word_frequencies
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain, average, chain, privatize, reparametrise, sgd
from adadps.tensors.feature_major import sparse_linear
from adadps.training.evaluation import on_held_out
from adadps.training.fit import fit
from adadps.types import Accountant
from adadps_experiments.reproduce.defaults.problems import DefaultsProblem, load_problem
from adadps_experiments.reproduce.records import Record

TRIAL_STEPS, STEPS = 200, 400
NO_DOOR, FEATURES, BEFORE, BOTH = "none", "features", "before the clip", "both sides"
METHODS = {
    NO_DOOR: Method.DP_SGD,
    FEATURES: Method.DP_SGD_WEIGHTED,
    BEFORE: Method.ADADPS,
    BOTH: Method.ADADPS_TWO_SIDED,
}
POWER = POWER_ON_BOTH_SIDES
"""Of A = max(f/f_max, floor)^power, by either door that scales gradients.

The experiment compares doors, so both have the same A. The product's `adadps` has a steeper one
before the clip, `adadps.estimators.planner.named_methods.POWER_BEFORE`, which was the best of those
in the demo.
"""
VERSION = 1
"""Increase it when the code behind a job changes, so that older records are not reused."""

Setting = dict[str, Any]


@dataclass(frozen=True)
class DefaultsJob:
    """One run of a setting on a problem; ``epsilon`` is None without privacy."""

    dataset: str
    epsilon: float | None
    setting: Setting
    seed: int
    tuning: bool

    @property
    def steps(self) -> int:
        """Return the number of steps; trials have half as many."""
        return TRIAL_STEPS if self.tuning else STEPS

    def describe(self) -> Record:
        """Return the job as it is recorded."""
        return {
            "experiment": "defaults",
            "version": VERSION,
            "dataset": self.dataset,
            "epsilon": self.epsilon,
            "setting": self.setting,
            "steps": self.steps,
            "split": "validation" if self.tuning else "test",
            "seed": self.seed,
        }


def run(job: DefaultsJob) -> Record:
    """Train, and evaluate on the test rows, or on those held out for tuning."""
    start = time.perf_counter()
    given, train, test = _problem(job.dataset, job.tuning)
    model = sparse_linear(_width(train), len(given.classes), bias=False)
    torch.nn.init.zeros_(model.weight)
    shown = on_held_out("held-out rows", test.features, test.targets, accuracy=given.metric)
    chosen = _chosen(job, given, len(train))
    if job.epsilon is None:
        method = _without_privacy(job.setting, given)
    else:
        method = _private(job.setting, given, chosen)
    result = fit(
        model,
        given.loss,
        train,
        method=method,
        sampler=chosen.sampler,
        steps=job.steps,
        delta=chosen.budget.delta,
        evaluate=[shown],
        progress=False,
    )
    private = job.epsilon is not None
    return {
        "job": job.describe(),
        "values": {"accuracy": result.last("accuracy")},
        "examples": len(train),
        "delta": chosen.budget.delta,
        "batch_size": chosen.sampler.expected_size,
        "noise_multiplier": chosen.noise_multiplier if private else None,
        "clip_norm": chosen.clip_norm if private else None,
        "lr": chosen.lr if private else job.setting["lr"],
        "private": result.privacy.private,
        "epsilon_pld": result.privacy.epsilon if private else None,
        "epsilon_rdp": _by_rdp(method, chosen) if private else None,
        "chain": result.method,
        "seconds": round(time.perf_counter() - start, 1),
    }


def rule_of(setting: Setting, steps: int = STEPS) -> defaults.Rule:
    """The rule with the constants of a setting; trials have no bound on the length of steps."""
    return defaults.Rule(
        steps=steps,
        clip=setting["clip"],
        output_noise=setting["noise"],
        longest=setting.get("longest", math.inf),
    )


def _chosen(job: DefaultsJob, given: DefaultsProblem, examples: int) -> defaults.Choice:
    """The rule, applied; without privacy its batches alone are of use."""
    setting = {"clip": 1.0, "noise": 1.0, "door": NO_DOOR, **job.setting}
    method = METHODS[setting["door"]]
    scaled = _typical_norm(given) if setting["door"] in (BEFORE, BOTH) else 1.0
    clipped, noised = norms_for(method, scaled=scaled)
    budget = Budget(job.epsilon or 1.0, default_delta(examples))
    return defaults.choose(
        examples=examples,
        budget=budget,
        gradient_norm=defaults.first_gradient(len(given.classes)),
        clipped_norm=clipped,
        noised_norm=noised,
        rule=rule_of(setting, job.steps),
        noise_multiplier=_sigma(examples, job.steps, budget),
    )


def _private(setting: Setting, given: DefaultsProblem, chosen: defaults.Choice) -> Chain:
    privacy = privatize(clip_norm=chosen.clip_norm, noise_multiplier=chosen.noise_multiplier)
    door, known = setting["door"], given.frequencies()
    if door == NO_DOOR or known is None:
        return chain_for(Method.DP_SGD, None, privacy, chosen.lr)
    side = _idf(setting, known) if door == FEATURES else _by_power(known)
    return chain_for(METHODS[door], side, privacy, chosen.lr)


def _without_privacy(setting: Setting, given: DefaultsProblem) -> Chain:
    known = given.frequencies()
    if setting["door"] == FEATURES and known is not None:
        return chain(reparametrise(_idf(setting, known)), average(), sgd(setting["lr"]))
    return methods.plain_sgd(setting["lr"])


def _by_power(known: Frequencies) -> Fixed:
    return frequency(known, floor=FLOOR, power=POWER)


def _idf(setting: Setting, known: Frequencies) -> Fixed:
    return idf(known, words_per_text=defaults.WORDS_PER_TEXT, power=setting["power"])


@lru_cache(maxsize=4)
def _problem(dataset: str, tuning: bool) -> tuple[DefaultsProblem, Examples, Examples]:
    given = load_problem(dataset).for_tuning() if tuning else load_problem(dataset)
    return given, given.examples(given.train), given.examples(given.test)


def _width(held: Examples) -> int:
    features = held.features
    return int(features.shape[1]) if isinstance(features, torch.Tensor) else features.width


def _typical_norm(given: DefaultsProblem) -> float:
    """Of x / A over texts drawn from public word frequencies."""
    return _norm_of(given.words) if given.words else 1.0


@lru_cache(maxsize=4)
def _norm_of(words: tuple[str, ...]) -> float:
    known = word_frequencies(words)
    return typical_norm(_by_power(known), len(words), known)


@lru_cache
def _sigma(examples: int, steps: int, budget: Budget) -> float:
    """Found once a process for all settings of a problem."""
    return defaults.choose(
        examples=examples, budget=budget, gradient_norm=1.0, steps=steps
    ).noise_multiplier


def _by_rdp(method: Chain, chosen: defaults.Choice) -> float:
    return epsilon_of_run(
        method,
        chosen.sampler,
        chosen.steps,
        delta=chosen.budget.delta,
        accountant=Accountant.RDP,
    )
