"""Audit by repeated runs: the same training with and without one worst-case example.

Relation and claim are those of the run itself. The data of the two worlds must be neighbours under
that relation; `adadps.audit.worst_case` makes such pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from torch import nn

from adadps.accounting.delta import delta_is_meant
from adadps.accounting.samplers import Sampler
from adadps.audit.observers import Observer, Released, in_one_line
from adadps.audit.outcome import AuditResult, Claim, require_confidence
from adadps.audit.repeated_bound import Frequencies, Numbers, bound
from adadps.data.examples import Examples
from adadps.engine.losses import Loss
from adadps.errors import ContractError, require
from adadps.methods.stages.chain import Chain
from adadps.training.progress import progress_bar
from adadps.training.run import PrivateRun, RunOptions

Trainer = Callable[[Examples], Released]
"""Trains once, from the same start every time, and tells all that it released."""


@dataclass(frozen=True)
class Neighbours:
    """Two data sets that differ by one example."""

    with_example: Examples
    without: Examples


def audit_repeated(
    trainer: Trainer,
    neighbours: Neighbours,
    *,
    observers: Mapping[str, Observer],
    runs: int,
    confidence: float,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> AuditResult:
    """A lower bound on the ε of ``trainer`` from ``runs`` runs, half of them in either world.

    ``observers`` score a run; the best of them, and its threshold, is chosen on a quarter of the
    runs, and ε ≥ log((p - δ) / q) is computed from the others. If the claim is true, the bound
    exceeds it with probability at most 1 - ``confidence``.
    """
    require(runs >= 16, "at least 16 runs", runs, "Some hundreds say something.")
    require_confidence(confidence)
    worlds: list[dict[str, list[float]]] = [{name: [] for name in observers} for _ in range(2)]
    claims: set[Claim] = set()
    with progress_bar(runs, progress, label="auditing") as bar:
        for index in range(2 * (runs // 2)):
            world = index % 2
            released = trainer(neighbours.without if world else neighbours.with_example)
            claims.add(released.claim)
            for name, observe in observers.items():
                worlds[world][name].append(observe(released))
            bar.advance()
    claim = _one(claims)
    scores: list[dict[str, Numbers]] = [
        {name: np.nan_to_num(np.asarray(values)) for name, values in world.items()}
        for world in worlds
    ]
    epsilon, guess, counted = bound(*scores, delta=claim.delta, confidence=confidence)
    return AuditResult(
        audit="repeated runs",
        claim=claim,
        lower_bound=epsilon,
        largest_bound=Frequencies(counted.runs, counted.runs, 0, counted.other_runs).epsilon(
            delta=claim.delta, confidence=confidence
        ),
        confidence=confidence,
        runs=2 * (runs // 2),
        canaries=1,
        guesses=counted.runs + counted.other_runs,
        right_guesses=counted.hits + counted.other_runs - counted.false_hits,
        settings={**(settings or {}), "guess": str(guess)},
    )


def trainer_of(
    make_model: Callable[[], nn.Module],
    loss: Loss,
    *,
    method: Chain,
    sampler: Sampler,
    steps: int,
    every_step: bool = True,
    **options: Unpack[RunOptions],
) -> Trainer:
    """A trainer that is a `PrivateRun`: what the library does, and what it claims.

    Without ``every_step`` only the start and the end are looked at: noise that may wait then does.
    """

    def train(data: Examples) -> Released:
        with delta_is_meant():  # nobody is protected here, and few examples make quick audits
            run = PrivateRun(
                make_model(), loss, data, method=method, sampler=sampler, steps=steps, **options
            )
        path = [in_one_line(run.params)]
        for batch in run.batches():
            run.step(batch)
            if every_step or batch.index == steps:
                path.append(in_one_line(run.params))
        claim = Claim(run.epsilon(), run.delta, sampler.relation.value)
        return Released(claim, np.stack(path))

    return train


def _one(claims: set[Claim]) -> Claim:
    if len(claims) != 1:
        raise ContractError(
            f"Expected the same claim from every run, found {len(claims)} different ones. Audit "
            "one setting at a time: a claim must not depend on the data."
        )
    return next(iter(claims))
