"""A private run, simulated on public rows with the noise that the private one will have.

What noise does to a step depends on σC/b relative to the gradient of a typical batch. So the
simulated run has the clip norm, learning rate, number of steps and σ/b of the planned run. Its
batches are drawn from n imaginary private examples, each of which is one of the m public rows; so
rows occur more than once where b > m. The clipped sum is, in expectation, that of n private
examples that look like the public ones.

The weights are discarded, the randomness is seeded, and a separate ledger in memory records a run
without privacy: nothing is spent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.model_selection import KFold

from adadps.accounting.ledger import MemoryLedger
from adadps.accounting.samplers import Poisson, Rows
from adadps.engine.losses import cross_entropy
from adadps.engine.noise.randomness import reproducible_not_private
from adadps.estimators.doctor.case import Array, Case
from adadps.estimators.doctor.plans import CandidatePlan
from adadps.estimators.planner.methods import linear_layer
from adadps.training.evaluation import accuracy, on_public
from adadps.training.fit import PrivateRun
from adadps.types import Accountant, Relation

MOST_ROWS_PER_BATCH = 1024
"""A larger batch is simulated by this many rows, with σ smaller in proportion: σ/b is the same."""
FOR_SIDE_INFORMATION = 0.25
"""Share of the rows that are not held out, for candidates that read public gradients."""


class StandIns(Poisson):
    """Poisson batches of n imaginary examples, each of which is a public row drawn at random."""

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Yield row numbers below ``size``, with repetitions."""
        while True:
            heads = rng.binomial(self.examples, self.rate)
            yield np.sort(rng.integers(size, size=heads))


@dataclass(frozen=True)
class Split:
    """Public rows for training, for side information, and held out."""

    trained: Array
    side: Array
    held_out: Array
    seed: int


def splits(rows: int, folds: int, seed: int) -> list[Split]:
    """Hold each row out once; a fixed share of the others is used only for side information."""
    found = []
    order = KFold(folds, shuffle=True, random_state=seed).split(np.arange(rows))
    for number, (others, held_out) in enumerate(order):
        mixed = np.random.default_rng([seed, number]).permutation(others)
        cut = max(1, round(FOR_SIDE_INFORMATION * len(mixed)))
        found.append(Split(mixed[cut:], mixed[:cut], held_out, seed=1000 * seed + number))
    return found


def simulated_size(plan: CandidatePlan) -> float:
    """Return the expected number of rows in a simulated batch."""
    return min(plan.settings.sampler.expected_size, float(MOST_ROWS_PER_BATCH))


def simulated_run(case: Case, plan: CandidatePlan, split: Split) -> PrivateRun:
    """Return the run before its first step."""
    size = simulated_size(plan)
    planned = plan.settings
    share = size / planned.sampler.expected_size
    sampler = StandIns(
        examples=planned.sampler.examples,
        expected_size=size,
        relation=Relation.ADD_OR_REMOVE_ONE,
    )
    side = case.public.take(torch.from_numpy(split.side))
    return PrivateRun(
        linear_layer(case.features, case.classes),
        cross_entropy,
        case.public.take(torch.from_numpy(split.trained)),
        method=plan.simulated(planned.noise_multiplier * share).chain(side),
        sampler=sampler,
        steps=planned.steps,
        randomness=reproducible_not_private(split.seed),
        ledger=MemoryLedger(),
        accountant=Accountant.RDP,
    )


def simulated_accuracy(case: Case, plan: CandidatePlan, split: Split) -> float:
    """Return the accuracy on held-out public rows after a simulated run."""
    run = simulated_run(case, plan, split)
    for batch in run.batches():
        run.step(batch)
    held_out = case.public.take(torch.from_numpy(split.held_out))
    shown = on_public("public", held_out.features, held_out.targets, accuracy=accuracy)
    return run.evaluate(shown)[0].value
