"""What is public about a run, before it begins and after it ends: for ledgers, results, reports.

All of it follows from settings, from the shapes of the model, and from side information that is
public or was paid for. Side information that was read off private data without noise is left out,
and so is a preconditioner that changes with the weights during training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch
from dp_accounting import DpEvent
from torch import Tensor, nn

from adadps.accounting.epsilon import grouping_of, unit_of, units_of
from adadps.accounting.events import exposes, in_words, is_free, text_of
from adadps.accounting.ledger import RunFacts
from adadps.accounting.samplers import Sampler
from adadps.data.provenance import Provenance, digest_of
from adadps.engine.waist import Schedule, at
from adadps.methods.side.source import Transform
from adadps.methods.stages.chain import Chain, Informed, Stage
from adadps.methods.stages.clipping import AdaptiveClip
from adadps.methods.stages.gradients import Precondition, Reparametrise
from adadps.methods.stages.torch_optimizers import UpdateWith
from adadps.methods.stages.updates import UpdateRule
from adadps.tensors.sums import Params
from adadps.types import Accountant

PLACES = 40
"""The sorted entries of A are recorded at about this many ranks, dense at the largest."""
MOST_SORTED = 2**20
BEFORE, AFTER, FEATURES = "before the clip", "after the noise", "in the features"


def side_information_of(
    method: Chain, feature_sources: Iterable[Provenance] = ()
) -> tuple[dict[str, str | None], ...]:
    """Where the side information of ``method`` comes from, and the price of what was not free.

    ``feature_sources`` are public knowledge that entered with the features.
    """
    informed = {(stage.provenance, price_of(stage)) for stage in method.informed}
    informed |= {(provenance, None) for provenance in feature_sources}
    return tuple(
        {**provenance.describe(), **({"price": price} if price else {})}
        for provenance, price in sorted(informed, key=lambda known: known[0].source)
    )


def price_of(stage: Informed) -> str | None:
    """What a stage's side information cost, in words; None if it is public."""
    return None if is_free(stage.event) else in_words(stage.event)


def sampling_of(method: Chain, sampler: Sampler) -> dict[str, object]:
    """How batches are drawn, and what is clipped."""
    return {**sampler.describe(), "grouping": grouping_of(method).value}


def plan_of(
    method: Chain,
    sampler: Sampler,
    steps: int,
    accountant: Accountant,
    besides: Iterable[DpEvent] = (),
) -> RunFacts:
    """Describe the plan for the ledger, in public words; ``besides`` was paid before the run."""
    side = method.side_events(sampler.relation, accountant)
    return RunFacts(
        unit=unit_of(method),
        sampler=sampling_of(method, sampler),
        chain=str(method),
        side_information=side_information_of(method),
        planned_steps=steps,
        prices=(
            *(text_of(event) for event in besides),
            *(text_of(event) for event in side),
            _price_of_a_step(method, sampler, accountant),
            _clip_of(method),
        ),
        paid_first=len(side),
    )


def _price_of_a_step(method: Chain, sampler: Sampler, accountant: Accountant) -> str:
    if method.exposures:
        return "not private"
    sigma, units = method.release.noise_multiplier, units_of(method, sampler)
    return text_of(units.step_event(sigma, 1, accountant, grouping_of(method)))


def _clip_of(method: Chain) -> str:
    clipping = getattr(method.release, "clipping", None)
    return f"clip norm {method.release.clip_norm!r}" + (f"; {clipping}" if clipping else "")


def number_read_off(sampler: Sampler) -> str:
    """Say that the number of examples or users was read off the data, not declared."""
    return f"the number of {sampler.unit.value}s, read off the data: {sampler.examples}"


def with_the_number(assumed_public: Iterable[str], sampler: Sampler) -> tuple[str, ...]:
    """What is assumed public, with the number that the sampler draws from, stated once.

    >>> from adadps.accounting.samplers import poisson
    >>> with_the_number(["two classes"], poisson(examples=100, expected_size=10))
    ('the number of examples, declared as 100', 'two classes')
    """
    facts = tuple(assumed_public)
    if number_read_off(sampler) in facts:
        return facts
    return (f"the number of {sampler.unit.value}s, declared as {sampler.examples}", *facts)


def frozen_part_of(model: nn.Module, assumed_public: Iterable[str] = ()) -> str:
    """A hash of what a run may not change: frozen parameters, buffers, and what is assumed public.

    >>> frozen_part_of(nn.Linear(2, 1)) == frozen_part_of(nn.Linear(2, 1))
    True
    """
    fixed = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    parts = [part for pair in (*fixed, *model.named_buffers()) for part in pair]
    return digest_of([*parts, *assumed_public])


def public_facts_of(
    method: Chain,
    states: Sequence[Any],
    params: Params,
    *,
    steps: int,
    expected_size: float,
    feature_weights: Tensor | None,
) -> dict[str, Any]:
    """The public facts of a run after ``steps`` steps, ready for JSON."""
    groups = method.release.groups
    update = method.update
    scales = _fixed_scales(method, states)
    known = [_spread(stage, place, scale) for stage, place, scale in scales]
    if feature_weights is not None:
        known += [
            _spread(stage, FEATURES, {"features": feature_weights})
            for stage in method.preparations
            if isinstance(stage, Reparametrise) and not exposes(stage.event)
        ]
    return {
        "made_with": f"adadps {version('adadps')}",
        "parameters": sum(value.numel() for value in params.values()),
        "expected_units": groups.expected_units(expected_size) if groups else expected_size,
        "update": type(update).__name__.lower(),
        "learning_rates": _rates(update.lr, steps)
        if isinstance(update, UpdateRule | UpdateWith)
        else None,
        "preconditioners": known,
        "noise_scale": _noise_scale(method, params, scales),
        **_clip_at_end(method, states),
    }


def _clip_at_end(method: Chain, states: Sequence[Any]) -> dict[str, float]:
    """Where a clip norm that moves has ended: it follows from noisy counts that were paid for."""
    if not isinstance(method.release, AdaptiveClip):
        return {}
    _, clip_norm = states[method.steps.index(_as_stage(method.release))]
    return {"clip_norm_at_end": float(clip_norm)}


def _fixed_scales(method: Chain, states: Sequence[Any]) -> list[tuple[Precondition, str, Params]]:
    """D of every preconditioner that stays the same during training, and may be shown."""
    release = method.steps.index(_as_stage(method.release))
    return [
        (stage, BEFORE if place < release else AFTER, state.scale)
        for place, (stage, state) in enumerate(zip(method.steps, states, strict=True))
        if isinstance(stage, Precondition)
        and isinstance(state, Transform)
        and not exposes(stage.event)
    ]


def _as_stage(release: Any) -> Stage:
    assert isinstance(release, Stage)
    return release


def _spread(stage: Informed, place: str, scale: Params) -> dict[str, Any]:
    """A = 1/D relative to its largest entry, sorted: over what was given, not over its copies."""
    given = [value for value in scale.values() if value.numel() > 1] or list(scale.values())
    every = torch.cat([value.detach().flatten().cpu().double() for value in given])
    some = every
    if len(every) > MOST_SORTED:
        # A generator of its own: the default one stays as it is.
        draws = torch.Generator().manual_seed(0)
        some = every[torch.randint(len(every), (MOST_SORTED,), generator=draws)]
    ordered = (1 / some).sort(descending=True).values
    ranks = sorted({round(len(some) ** (place / (PLACES - 1))) for place in range(PLACES)})
    shown = [float(ordered[rank - 1] / ordered[0]) for rank in ranks]
    return {
        "place": place,
        "source": stage.provenance.source,
        "price": price_of(stage),
        "entries": len(every),
        "ranks": [math.ceil(rank * len(every) / len(some)) for rank in ranks],
        "relative": [float(f"{value:.6g}") for value in shown],
    }


def _noise_scale(
    method: Chain, params: Params, scales: list[tuple[Precondition, str, Params]]
) -> dict[str, float] | None:
    """By what the noise is multiplied before it reaches the weights; None if that is not fixed.

    Stages between the noise and the update multiply it by E: its root mean square over all weights
    is what the noise as a whole grows by, its largest entry what a step can grow by.
    """
    steps = method.steps
    after = steps[steps.index(_as_stage(method.release)) + 1 : steps.index(method.update)]
    fixed = [scale for stage, place, scale in scales if place == AFTER]
    if len(fixed) != len(after) or isinstance(method.release, AdaptiveClip):
        return None
    if not fixed:
        return {"typical": 1.0, "largest": 1.0}
    total, largest = 0.0, 0.0
    for name, value in params.items():
        product = torch.ones((), dtype=torch.float64, device=value.device)
        for scale in fixed:
            product = product * scale[name]
        total += float(product.square().mean()) * value.numel()
        largest = max(largest, float(product.max()))
    count = sum(value.numel() for value in params.values())
    return {"typical": math.sqrt(total / count), "largest": largest}


def _rates(lr: Schedule, steps: int) -> dict[str, float]:
    """First and last learning rate, their sum and the root of the sum of their squares."""
    if not callable(lr):
        return {
            "first": float(lr),
            "last": float(lr),
            "total": lr * steps,
            "root_of_squares": lr * math.sqrt(steps),
        }
    rates = [at(lr, index) for index in range(1, steps + 1)]
    return {
        "first": at(lr, 1),
        "last": at(lr, max(1, steps)),
        "total": math.fsum(rates),
        "root_of_squares": math.sqrt(math.fsum(rate * rate for rate in rates)),
    }
