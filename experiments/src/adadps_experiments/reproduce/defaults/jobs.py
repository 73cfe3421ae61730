"""One run of the comparison of default settings: a job as plain data, and its record.

A setting is a rule's constants (`adadps.estimators.planner.plan.DefaultRule`) and how word
frequencies enter: as weights of the features (IDF), before the clip, on both sides of the noise,
or not at all. With words and embeddings it also has the share of the embeddings, or the constant of
the rule for it (``half``), and how far weights start towards the ``names`` of the classes. With
``negated``, negated words are words of their own. Below ``short`` known words, embeddings have more
of a text; earlier settings lack that, and all texts have the same share.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from adadps.accounting.epsilon import Budget, epsilon_of_run
from adadps.accounting.events import default_delta
from adadps.data.examples import Examples
from adadps.data.fields import one_input
from adadps.data.sparse_rows import sparse_linear
from adadps.engine.objective import predict
from adadps.estimators.planner.methods import (
    FLOOR,
    POWER_ON_BOTH_SIDES,
    WORDS_PER_TEXT,
    PreparedMethod,
    embedding_share,
    norms_for,
    typical_norm,
)
from adadps.estimators.planner.plan import (
    DefaultRule,
    LossFacts,
    PlannedRun,
    Settings,
    first_gradient,
    plan_training,
)
from adadps.estimators.short_texts import LEAST_SHARE, short_by_rule, worth_embedding
from adadps.estimators.tables.features import prepare_for_rows
from adadps.estimators.text import directions_of
from adadps.methods import paper as methods
from adadps.methods.side import Frequencies, embeddings, frequency, idf, word_frequencies
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain, average, chain, reparametrise, sgd
from adadps.training.evaluation import on_held_out
from adadps.training.fit import fit
from adadps.types import Accountant, Method
from adadps_experiments.reproduce.defaults.problems import DefaultsProblem, load_problem
from adadps_experiments.reproduce.records import Record

TRIAL_STEPS, STEPS = 200, 400
MIXED = "words and embeddings"
NO_DOOR, FEATURES, BEFORE, BOTH = "none", "features", "before the clip", "both sides"
METHODS = {
    NO_DOOR: Method.DP_SGD,
    FEATURES: Method.DP_SGD_WEIGHTED,
    BEFORE: Method.ADADPS,
    BOTH: Method.ADADPS_TWO_SIDED,
}
POWER = POWER_ON_BOTH_SIDES
"""The power of A = max(f/f_max, floor)^power, for both doors that scale gradients.

The experiment compares doors, so both have the same A. The product's `adadps` has a steeper one
before the clip, `adadps.estimators.planner.methods.POWER_BEFORE`, which was the best of those
in the demo.
"""
VERSION = 1
"""Increase it when the code behind a job changes, so that older records are not reused."""

Setting = dict[str, Any]


@dataclass(frozen=True)
class DefaultsJob:
    """One run of a setting on a problem; ``epsilon`` is None without privacy, 0 without data."""

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
    mixed = _is_mixed(job)
    given, train, test = _problem_of(job, mixed)
    model = sparse_linear(_width(train), len(given.classes), bias=False)
    torch.nn.init.zeros_(model.weight)
    if mixed:
        names = directions_of(given.classes, embeddings(), scale=job.setting["names"])
        with torch.no_grad():
            model.weight[:, len(given.words) :] = torch.from_numpy(names)
    if job.epsilon == 0:
        found = given.metric(predict(model, test.features, None), test.targets)
        return _of_public_knowledge(job, found, len(train))
    shown = on_held_out("held-out rows", test.features, test.targets, accuracy=given.metric)
    plan = _plan(job, given, len(train))
    chosen = plan.settings
    method = _without_privacy(job.setting, given) if job.epsilon is None else plan.chain
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
        "outputs": len(given.classes),
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


def _is_mixed(job: DefaultsJob) -> bool:
    """Return whether embeddings have a share that `adadps train` would not leave out."""
    if job.setting.get("features") != MIXED:
        return False
    if "half" not in job.setting:
        return True
    given, train, _ = _problem_of(job, mixed=False)
    share = _share(job.setting, given, len(train), job.epsilon)
    return worth_embedding(share) if "short" in job.setting else share >= LEAST_SHARE


def without_short_texts(job: DefaultsJob, record: Record | None) -> bool:
    """Return whether the rule for short texts changes nothing about a job.

    The ``record`` of the same job without that rule is then of the same plan.
    """
    if record is None or "short" not in job.setting or job.epsilon is None:
        return False
    outputs, half = record["outputs"], job.setting["half"]
    share = embedding_share(record["examples"], outputs, job.epsilon, half=half)
    return short_by_rule(share) is None or not worth_embedding(share)


def _share(setting: Setting, given: DefaultsProblem, examples: int, epsilon: float | None) -> float:
    if "share" in setting:
        return float(setting["share"])
    outputs, half = len(given.classes), setting["half"]
    return embedding_share(examples, outputs, epsilon or 1.0, half=half)


def _of_public_knowledge(job: DefaultsJob, found: float, examples: int) -> Record:
    """Return the record of a model that has seen no private row: nothing is trained or paid."""
    unused = ("delta", "batch_size", "noise_multiplier", "clip_norm", "lr", "epsilon_rdp")
    return {
        "job": job.describe(),
        "values": {"accuracy": found},
        "examples": examples,
        "private": True,
        "epsilon_pld": 0.0,
        "chain": "none",
        "seconds": 0.0,
        **dict.fromkeys(unused),
    }


def rule_of(setting: Setting, steps: int = STEPS) -> DefaultRule:
    """Return the rule with the constants of a setting; trials do not bound the step length."""
    return DefaultRule(
        steps=steps,
        clip=setting["clip"],
        output_noise=setting["noise"],
        longest=setting.get("longest", math.inf),
    )


def _plan(job: DefaultsJob, given: DefaultsProblem, examples: int) -> PlannedRun:
    """Apply the rule; without privacy only its batch size is of use."""
    setting = {"clip": 1.0, "noise": 1.0, "door": NO_DOOR, **job.setting}
    return plan_training(
        _prepared(setting, given, examples, job),
        examples=examples,
        budget=Budget(job.epsilon or 1.0, default_delta(examples)),
        loss=LossFacts(first_gradient(len(given.classes))),
        rule=rule_of(setting, job.steps),
    )


def _prepared(
    setting: Setting, given: DefaultsProblem, examples: int, job: DefaultsJob
) -> PreparedMethod:
    door, known = setting["door"], given.frequencies()
    if _is_mixed(job):
        share = _share(setting, given, examples, job.epsilon)
        return prepare_for_rows(METHODS[door], given.features(), known, share)
    if door == NO_DOOR or known is None:
        return PreparedMethod(Method.DP_SGD)
    method = METHODS[door]
    if door == FEATURES:
        return PreparedMethod(method, _idf(setting, known))
    norms = norms_for(method, scaled=_norm_of(given.words))
    return PreparedMethod(method, _by_power(known), norms)


def _without_privacy(setting: Setting, given: DefaultsProblem) -> Chain:
    known = given.frequencies()
    if setting["door"] == FEATURES and known is not None:
        return chain(reparametrise(_idf(setting, known)), average(), sgd(setting["lr"]))
    return methods.plain_sgd(setting["lr"])


def _by_power(known: Frequencies) -> Fixed:
    return frequency(known, floor=FLOOR, power=POWER)


def _idf(setting: Setting, known: Frequencies) -> Fixed:
    return idf(known, words_per_text=WORDS_PER_TEXT, power=setting["power"])


def _problem_of(job: DefaultsJob, mixed: bool) -> tuple[DefaultsProblem, Examples, Examples]:
    short = _short_below(job) if mixed and "short" in job.setting else None
    return _problem(job.dataset, job.tuning, mixed, bool(job.setting.get("negated")), short)


def _short_below(job: DefaultsJob) -> int | None:
    given, train, _ = _problem_of(job, mixed=False)
    by_rule = short_by_rule(_share(job.setting, given, len(train), job.epsilon))
    return None if by_rule is None else int(job.setting["short"])


@lru_cache(maxsize=4)
def _problem(
    dataset: str, tuning: bool, mixed: bool, negated: bool, short: int | None
) -> tuple[DefaultsProblem, Examples, Examples]:
    given = load_problem(dataset).for_tuning() if tuning else load_problem(dataset)
    given = given.with_negated_words() if negated else given
    train, test = (
        given.mixed(part, short) if mixed else given.examples(part)
        for part in (given.train, given.test)
    )
    return given, train, test


def _width(held: Examples) -> int:
    features = one_input(held.features)
    return int(features.shape[1]) if isinstance(features, torch.Tensor) else features.width


@lru_cache(maxsize=4)
def _norm_of(words: tuple[str, ...]) -> float:
    """Return the norm of x / A over texts drawn from public word frequencies."""
    known = word_frequencies(words)
    return typical_norm(_by_power(known), len(words), known)


def _by_rdp(method: Chain, chosen: Settings) -> float:
    return epsilon_of_run(
        method,
        chosen.sampler,
        chosen.steps,
        delta=chosen.budget.delta,
        accountant=Accountant.RDP,
    )
