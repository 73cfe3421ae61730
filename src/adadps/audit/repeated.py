"""Audit by repeated runs: the same training with and without one worst-case example.

Relation and claim are those of the run itself. The data of the two worlds must be neighbours under
that relation; `adadps.audit.worst_case` makes such pairs.

Privacy is promised against anyone who sees the weights after every step. Any function of these is a
fair score; the better it tells the two worlds apart, the higher the lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn

from adadps.accounting.events import without_delta_warning
from adadps.accounting.samplers import Sampler
from adadps.audit.outcome import AuditResult, PrivacyClaim, require_confidence
from adadps.audit.repeated_bound import HitCounts, Numbers, bound
from adadps.data.examples import Examples
from adadps.engine.losses import Loss
from adadps.errors import ContractError, require
from adadps.methods.stages.chain import Chain
from adadps.tensors.sums import Params
from adadps.training.fit import PrivateRun, RunOptions
from adadps.training.processes import require_alone
from adadps.training.progress import progress_bar


@dataclass(frozen=True)
class Released:
    """Everything that one run released: its claim, and the weights before and after its steps."""

    claim: PrivacyClaim
    weights: Numbers

    @property
    def moves(self) -> Numbers:
        """The change of the weights at every step."""
        return np.diff(self.weights, axis=0)


Observer = Callable[[Released], float]


def flat_weights(params: Params) -> Numbers:
    """Return a copy of all weights of a model in one vector.

    >>> flat_weights({"weight": torch.ones(1, 2), "bias": torch.zeros(1)})
    array([1., 1., 0.])
    """
    return torch.cat([value.detach().double().flatten() for value in params.values()]).numpy()


def observers_along(direction: Numbers) -> Mapping[str, Observer]:
    """Return four observers that know in which direction the example pulls the weights.

    *movement*: how far the weights moved in this direction, which noise hides. *distance*: how far
    they moved in this direction or back, which reveals noise that is missing, too small or too
    large in one of the worlds. *difference*: how much the steps differ in this direction, where
    repeated noise cancels. *spread*: how far the weights moved in all other directions, which
    reveals noise whose size depends on the data.

    >>> seen = observers_along(np.array([1.0, 0.0]))
    >>> path = Released(PrivacyClaim(1.0, 0.1, ""), np.array([[0.0, 0.0], [1.0, 2.0], [4.0, 2.0]]))
    >>> {name: float(observe(path)) for name, observe in seen.items()}
    {'movement': 4.0, 'distance': 4.0, 'difference': 2.0, 'spread': 2.0}
    """
    unit = direction / np.linalg.norm(direction)

    def movement(released: Released) -> float:
        return float((released.moves @ unit).sum())

    def distance(released: Released) -> float:
        return abs(movement(released))

    def difference(released: Released) -> float:
        return float(np.ptp(released.moves @ unit))

    def spread(released: Released) -> float:
        moves = released.moves
        return float(np.linalg.norm(moves - np.outer(moves @ unit, unit)))

    return {
        "movement": movement,
        "distance": distance,
        "difference": difference,
        "spread": spread,
    }


Trainer = Callable[[Examples], Released]
"""Trains once, always from the same initial weights, and returns everything that was released."""


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
    """Bound the ε of ``trainer`` from below by ``runs`` runs, half of them in each world.

    ``observers`` score a run; the best of them and its threshold are chosen on a quarter of the
    runs, and ε ≥ log((p - δ) / q) is computed from the others. If the claim is true, the bound
    exceeds it with probability at most 1 - ``confidence``.
    """
    require_alone("an audit")
    require(runs >= 16, "at least 16 runs", runs, "Use some hundreds for a useful bound.")
    require_confidence(confidence)
    worlds: list[dict[str, list[float]]] = [{name: [] for name in observers} for _ in range(2)]
    claims: set[PrivacyClaim] = set()
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
        largest_bound=HitCounts(counted.runs, counted.runs, 0, counted.other_runs).epsilon(
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
    """Return a trainer that makes a `PrivateRun`: what the library does, and what it claims.

    Without ``every_step``, only the initial and final weights are read, so that noise can be late.
    """

    def train(data: Examples) -> Released:
        with without_delta_warning():  # audits protect nobody, and few examples make them quick
            run = PrivateRun(
                make_model(), loss, data, method=method, sampler=sampler, steps=steps, **options
            )
        path = [flat_weights(run.params)]
        for batch in run.batches():
            run.step(batch)
            if every_step or batch.index == steps:
                path.append(flat_weights(run.params))
        claim = PrivacyClaim(run.epsilon(), run.delta, sampler.relation.value)
        return Released(claim, np.stack(path))

    return train


def _one(claims: set[PrivacyClaim]) -> PrivacyClaim:
    if len(claims) != 1:
        raise ContractError(
            f"Expected the same claim from every run, found {len(claims)} different ones. Audit "
            "one setting at a time: a claim must not depend on the data."
        )
    return next(iter(claims))
