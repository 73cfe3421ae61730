"""``choose``: the mix of words and embeddings, chosen on the private rows as a part of epsilon.

There are three candidates: the share of embeddings by the rule, and the shares with a quarter and
four times of its constant, i.e. of the examples per class from which words know as much as
embeddings. A trial has less epsilon than the run, so that words come off worse in it at any given
share. Therefore each candidate is tried with the share that its constant gives for a trial, and,
if it wins, trained with the share that its constant gives for the run.

Each is trained privately for a few steps on all rows; then the rows that it gets right are counted
with noise. Rows are scored that were trained on, too: a trial costs a fraction of epsilon, and so
can hardly know single rows. The largest count wins.

What wins changes the weights of the features alone: sampling, noise, steps, clip norm and learning
rate of the run are planned before the choice, and stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from adadps.accounting.epsilon import Budget
from adadps.accounting.ledger import Ledger
from adadps.accounting.noisy_counts.choice import ChoicePrice, price_of_choice
from adadps.accounting.noisy_counts.price import Paid
from adadps.accounting.samplers import poisson
from adadps.data.examples import Examples
from adadps.data.fields import one_input
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.sparse_rows import SparseRows
from adadps.engine.losses import Loss
from adadps.engine.noise.randomness import Randomness, secure
from adadps.errors import SettingError
from adadps.estimators.paid import pay_before
from adadps.estimators.planner.methods import (
    EXAMPLES_AT_HALF,
    PreparedMethod,
    along_features,
    embedding_share,
)
from adadps.estimators.planner.plan import (
    PlannedRun,
    PrepareByShare,
    Settings,
    default_batch_size,
)
from adadps.training.fit import PrivateRun
from adadps.training.progress import at_work
from adadps.types import Accountant, Method, Unit

FACTORS = (0.25, 1.0, 4.0)
"""By what the constant of the rule is multiplied."""
LARGEST = 0.95
"""The largest share of a candidate."""
ROWS_SCORED_AT_ONCE = 8192
HOW = "the mix of words and embeddings, chosen with noise"


@dataclass(frozen=True)
class CandidateMix:
    """One candidate: the share of embeddings in a text's squared norm, in the run and on trial."""

    share: float
    on_trial: float
    by_rule: bool = False

    @property
    def in_words(self) -> str:
        """Describe the mix for people.

        >>> CandidateMix(0.95, 0.95).in_words
        'embeddings have 95 % of a text'
        """
        told = f"embeddings have {100 * self.share:.3g} % of a text"
        return f"{told}, as by the rule" if self.by_rule else told


def candidates(price: ChoicePrice, outputs: int, epsilon: float) -> tuple[CandidateMix, ...]:
    """Return the mix by the rule between two others, by rising share."""
    examples, of_a_trial = price.sampler.examples, price.alone / math.sqrt(price.candidates)

    def share(factor: float, spent: float) -> float:
        per_output = examples * spent / outputs
        return min(LARGEST, 1 / (1 + per_output / (factor * EXAMPLES_AT_HALF)))

    by_rule = embedding_share(examples, outputs, epsilon)
    return tuple(
        CandidateMix(by_rule if factor == 1 else share(factor, epsilon), share(factor, of_a_trial),
            by_rule=factor == 1)
        for factor in FACTORS
    )  # fmt: skip


def price_of_mix(
    examples: int, budget: Budget, accountant: Accountant, unit: Unit = Unit.EXAMPLE
) -> ChoicePrice:
    """Return what the choice costs; ``examples`` is the declared number of units."""
    size = float(default_batch_size(examples))
    if unit is Unit.USER:
        sampler = poisson(users=examples, expected_size=size)
    else:
        sampler = poisson(examples=examples, expected_size=size)
    return price_of_choice(len(FACTORS), sampler, budget=budget, accountant=accountant)


def require_weighted(method: Method) -> None:
    """Refuse a method through which a mix cannot enter."""
    if method is not Method.DP_SGD_WEIGHTED:
        raise SettingError(
            "Expected a linear model with weighted features (dp-sgd-weighted, the default) for "
            f"features that are chosen, found {method.value}. The mix enters through these "
            "weights: use that method, or name the features yourself."
        )


def require_classes(classifies: bool) -> None:
    """Refuse numbers to predict, which cannot be counted as right or wrong."""
    if not classifies:
        raise SettingError(
            "Expected classes for features that are chosen, found a number to predict. Candidates "
            "are compared by how many rows they get right: leave the mix to the rule."
        )


def require_one_choice(*, one_by_one: bool, others: bool, classifies: bool) -> None:
    """Refuse estimators that cannot choose: in parts, with a module, or paying for more."""
    require_classes(classifies)
    if one_by_one:
        raise SettingError(
            "Expected `fit` for features='choose', found `partial_fit`: the mix is chosen once, "
            "on all rows. Use `fit`, or features='auto'."
        )
    if others:
        raise SettingError(
            "Expected a linear model with declared classes for features='choose', found a module, "
            "or something else that is 'paid' for. Declare it, or use features='auto'."
        )


@dataclass(frozen=True)
class MixTrials:
    """What is needed to try a mix. ``layer`` returns the untrained model of a planned run."""

    plan: PlannedRun
    prepare: PrepareByShare
    mixes: tuple[CandidateMix, ...]
    layer: Callable[[PlannedRun], nn.Module]
    loss: Loss
    data: Examples
    most_rows_at_once: int | None = None

    def choose(self, price: ChoicePrice, randomness: Randomness | None = None) -> CandidateMix:
        """Train, score and choose. Call this once, after the price is paid."""
        tried = []
        for place, mix in enumerate(self.mixes, 1):
            with at_work(f"trying mix {place} of {price.candidates}"):
                tried.append(self._tried(mix, price))
        counts = noisy_right(tried, self.data, price, randomness or secure())
        return winner(self.mixes, counts.tolist())

    def paid_choice(self, price: ChoicePrice, ledger: Ledger) -> tuple[PlannedRun, Paid]:
        """Pay, choose, and return the run with what was chosen."""
        run = pay_before(ledger, price, self.plan)
        mix = self.choose(price)
        return self.chosen(mix), Paid(run, price.events, facts_of(price, mix))

    def chosen(self, mix: CandidateMix) -> PlannedRun:
        """Return the run as it was planned, with another mix."""
        return replace(self.plan, prepared=self.prepare(mix.share))

    def _tried(self, mix: CandidateMix, price: ChoicePrice) -> Tensor:
        """Return weights of the features for each output, after a short private training.

        Its steps are part of the price, which is charged to the ledger of the run. The ledger that
        this short run has in memory holds them only for as long as it lasts.
        """
        prepared = self.prepare(mix.on_trial)
        plan = replace(self.plan, prepared=prepared, settings=trial_settings(self.plan, price))
        layer = self.layer(plan)
        run = PrivateRun(
            layer,
            self.loss,
            self.data,
            method=plan.chain,
            sampler=price.sampler,
            steps=price.steps,
            delta=plan.settings.budget.delta,
            accountant=price.accountant,
            physical_batch_size=self.most_rows_at_once,
        )
        for batch in run.batches():
            run.step(batch)
        return run.params["weight"].detach().double() * weights_of(prepared)


def facts_of(price: ChoicePrice, mix: CandidateMix) -> tuple[str, ...]:
    """Return what was paid and what was chosen, in words."""
    return price.in_words(), f"{HOW}: {mix.in_words}"


def trial_settings(plan: PlannedRun, price: ChoicePrice) -> Settings:
    """Return the settings of a trial: outputs have as much noise at its end as in the whole run."""
    whole = plan.settings
    noise = price.trial_noise * math.sqrt(price.steps) / price.sampler.expected_size
    of_whole = whole.noise_multiplier * math.sqrt(whole.steps) / whole.sampler.expected_size
    return replace(
        whole,
        sampler=price.sampler,
        steps=price.steps,
        noise_multiplier=price.trial_noise,
        lr=whole.lr * of_whole / noise,
    )


def weights_of(prepared: PreparedMethod) -> Tensor:
    """Return the weight 1/A of every feature."""
    assert prepared.side is not None  # `require_weighted` has seen the method
    found = along_features(prepared.side, prepared.at)
    assert found is not None  # of texts there is one value per feature
    return torch.from_numpy(1 / found)


@declared_read(DeclaredRead.PAID_MEASUREMENT)
def noisy_right(
    tried: list[Tensor], data: Examples, price: ChoicePrice, randomness: Randomness
) -> Tensor:
    """Return how many units each candidate gets right, with the noise of the price."""
    counts = torch.zeros(len(tried), dtype=torch.float64)
    for rows in _one_row_per_unit(data, randomness):
        taken = data.take(rows)
        features = _sparse(one_input(taken.features))
        for place, weights in enumerate(tried):
            counts[place] += is_right(features.times(weights.T.contiguous()), taken.targets).sum()
    return randomness.release(counts, standard_deviation=price.deviation)


def is_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each row whether its highest output is a class, or one of the labels, of it.

    >>> is_right(torch.tensor([[0.1, 0.2], [0.3, 0.2]]), torch.tensor([1, 1])).tolist()
    [True, False]
    >>> is_right(torch.tensor([[0.1, 0.2]]), torch.tensor([[0.5, 0.5]])).tolist()
    [True]
    """
    best = outputs.argmax(1)
    if targets.ndim == 1:
        return best == targets
    return targets.gather(1, best.unsqueeze(1)).squeeze(1) > 0


def winner(mixes: tuple[CandidateMix, ...], counts: list[float]) -> CandidateMix:
    """Return the mix with the largest noisy count.

    >>> few, many = CandidateMix(0.05, 0.1), CandidateMix(0.6, 0.8, by_rule=True)
    >>> winner((few, many), [900.0, 800.0]).share
    0.05
    """
    return mixes[max(range(len(mixes)), key=counts.__getitem__)]


def _one_row_per_unit(data: Examples, randomness: Randomness) -> Iterator[Tensor]:
    """Yield numbers of rows in pieces: all, or of each user one that is drawn at random."""
    rows = np.arange(len(data))
    if data.users is not None:
        mixed = randomness.generator.permutation(len(data))
        _, first = np.unique(data.users.numpy()[mixed], return_index=True)
        rows = np.sort(mixed[first])
    for start in range(0, len(rows), ROWS_SCORED_AT_ONCE):
        yield torch.from_numpy(rows[start : start + ROWS_SCORED_AT_ONCE])


def _sparse(features: Tensor | SparseRows) -> SparseRows:
    """Return sparse rows, whose products are computed row by row, whatever their neighbours."""
    if isinstance(features, SparseRows):
        return features
    return SparseRows.from_scipy(sparse.csr_matrix(features.numpy()))
