"""Audit by one run with canaries, for any method and model.

Every canary is included in the data by its own fair coin; the coins come from the operating system
and stay in this module. Flipping one coin adds or removes one example (or replaces it by a blank
row, for samplers whose guarantee depends on the number of examples), which is the relation of the
claim.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from adadps.accounting.samplers import Sampler
from adadps.audit.canaries import Canaries, View, joined
from adadps.audit.one_run_bound import best_ranking, one_run_epsilon
from adadps.audit.outcome import AuditResult, PrivacyClaim, require_confidence
from adadps.data.examples import Examples
from adadps.engine.losses import Loss
from adadps.errors import ContractError, require
from adadps.methods.stages.chain import Chain
from adadps.training.fit import PrivateRun, RunOptions
from adadps.training.processes import current_group, told_by_first
from adadps.training.progress import progress_bar

SHARES = (1.0, 0.5, 0.25, 0.1)
"""The shares of the canaries whose coins are guessed, the surest guesses first."""


def audit_one_run(
    model: nn.Module,
    loss: Loss,
    data: Examples,
    *,
    canaries: Canaries,
    method: Chain,
    sampler: Sampler,
    steps: int,
    confidence: float,
    shares: Sequence[float] = SHARES,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    **options: Unpack[RunOptions],
) -> AuditResult:
    """Train once on ``data`` and a random half of the canaries; bound ε by guessing which half.

    The declared number of examples of ``sampler`` is that of the data with all canaries. The bound
    is theorem 5.2 of Steinke, Nasr and Jagielski (2023). It is computed for every score of the
    canaries, for both ends of the ranking and each end alone, and for several numbers of guesses;
    all of them share the allowed error. If the claim is true, the bound exceeds it with probability
    at most 1 - ``confidence``. Several processes (torchrun) train together on the same canaries,
    whose coins the first one tosses; all must be given the same data.

    >>> from adadps import dp_sgd, examples, poisson, privatize
    >>> from adadps.audit import own_feature_canaries
    >>> data, canaries = own_feature_canaries(examples(torch.rand(50, 2), torch.rand(50)),
    ...                                       count=200, target=100.0)
    >>> squared = lambda outputs, targets: (outputs.squeeze(1) - targets) ** 2
    >>> found = audit_one_run(torch.nn.Linear(202, 1, bias=False), squared, data, canaries=canaries,
    ...                       method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=8.0), lr=0.1),
    ...                       sampler=poisson(examples=250, expected_size=250), steps=1,
    ...                       delta=1e-12, confidence=1 - 1e-6)
    >>> found.verdict
    'consistent'
    """
    require(bool(shares), "at least one share of guesses", "none", "Use 1.0 to guess all.")
    require(all(0 < share <= 1 for share in shares), "shares in (0, 1]", shares, "1.0 guesses all.")
    require(bool(canaries.scores), "at least one score", "none", "Use `pull` or `loss_drop`.")
    require_confidence(confidence)
    group = current_group()
    with group.together():
        included = told_by_first(group, lambda: _coins(len(canaries)), Tensor.tolist, torch.tensor)
    run = PrivateRun(
        model,
        loss,
        joined(data, _in_the_data(canaries, included, sampler)),
        method=method,
        sampler=sampler,
        steps=steps,
        **options,
    )
    before = {name: value.clone() for name, value in run.params.items()}
    with progress_bar(steps, progress if group.is_first else False, label="auditing") as bar:
        for batch in run.batches():
            run.step(batch)
            bar.advance()
    after = {name: value.clone() for name, value in run.params.items()}
    view = View(run.objective, loss, before, after)
    rankings = {
        f"{name}, {side}": right
        for name, score in canaries.scores.items()
        for side, right in ranked(score(view, canaries.examples), included).items()
    }
    claim = PrivacyClaim(run.epsilon(), run.delta, sampler.relation.value)
    numbers = sorted({max(1, round(share * len(canaries))) for share in shares})
    epsilon, guesses, right, guess = best_ranking(
        rankings, numbers, delta=claim.delta, confidence=confidence
    )
    largest = one_run_epsilon(
        canaries=len(canaries),
        guesses=numbers[-1],
        right=numbers[-1],
        delta=claim.delta,
        confidence=1 - (1 - confidence) / (len(rankings) * len(numbers)),
    )
    return AuditResult(
        audit="one run",
        claim=claim,
        lower_bound=epsilon,
        largest_bound=largest,
        confidence=confidence,
        runs=1,
        canaries=len(canaries),
        guesses=guesses,
        right_guesses=right,
        settings={"method": str(method), "steps": steps, **(settings or {}), "guess": guess},
    )


def ranked(scores: Tensor, included: Tensor) -> dict[str, list[bool]]:
    """Return whether each guess is right, the surest first, by both ends of the scores and by one.

    >>> ranked(torch.tensor([9.0, 1.0, 5.0]), torch.tensor([True, False, False]))["highest in"]
    [True, False, False]
    """
    order = torch.argsort(scores, descending=True)
    return {
        "highest in and lowest out": guessed(scores, included),
        "highest in": included[order].tolist(),
        "lowest out": (~included[order.flip(0)]).tolist(),
    }


def guessed(scores: Tensor, included: Tensor) -> list[bool]:
    """Guess the upper half in and the lower half out; return whether each guess is right.

    >>> guessed(torch.tensor([9.0, 1.0, 5.0, 4.0]), torch.tensor([True, False, False, True]))
    [True, True, False, False]
    """
    order = torch.argsort(scores, descending=True)
    surest = torch.stack([order, order.flip(0)], 1).flatten()[: len(scores)]
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    says_in = places < (len(order) + 1) // 2
    return [bool(says_in[i] == included[i]) for i in surest]


def _coins(count: int) -> Tensor:
    tossed = secrets.randbits(count)
    return torch.tensor([bool(tossed >> place & 1) for place in range(count)])


def _in_the_data(canaries: Canaries, included: Tensor, sampler: Sampler) -> Examples:
    rows = torch.nonzero(included).squeeze(1)
    if not sampler.size_is_fixed:
        return canaries.examples.take(rows)
    if canaries.blank is None:
        raise ContractError(
            "Expected a blank row for excluded canaries, found none. The guarantee of this sampler "
            "depends on the number of examples: give `blank`, a row without gradient, or use "
            "Poisson sampling."
        )
    everything = joined(canaries.examples, canaries.blank)
    place = torch.where(included, torch.arange(len(canaries)), len(canaries))
    return everything.take(place)
