"""What can be read off a privacy event without an accountant."""

from __future__ import annotations

from collections.abc import Iterable

import attr
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class DeltaDpEvent(DpEvent):  # type: ignore[misc]
    """Something that happens with probability at most ``delta``, and then protects nobody.

    dp-accounting has no event for it. Nothing of it is amplified or converted: what may be spent at
    δ is priced at what is left, δ - Σ delta (`delta_of`, `without_delta`).
    """

    delta: float


def delta_of(event: DpEvent) -> float:
    """Σ delta of everything composed in ``event``.

    >>> delta_of(ComposedDpEvent([SelfComposedDpEvent(DeltaDpEvent(0.5), 2), NoOpDpEvent()]))
    1.0
    """
    if isinstance(event, DeltaDpEvent):
        return float(event.delta)
    if isinstance(event, ComposedDpEvent):
        return sum(delta_of(part) for part in event.events)
    if isinstance(event, SelfComposedDpEvent):
        return int(event.count) * delta_of(event.event)
    return 0.0


def without_delta(event: DpEvent) -> DpEvent:
    """The same event for an accountant, to be priced at the delta that is left.

    >>> without_delta(ComposedDpEvent([DeltaDpEvent(0.5), GaussianDpEvent(2.0)]))
    ComposedDpEvent(events=[NoOpDpEvent(), GaussianDpEvent(noise_multiplier=2.0)])
    """
    if isinstance(event, DeltaDpEvent):
        return NoOpDpEvent()
    if not delta_of(event):
        return event
    if isinstance(event, ComposedDpEvent):
        return ComposedDpEvent([without_delta(part) for part in event.events])
    assert isinstance(event, SelfComposedDpEvent)  # nothing else has a delta inside
    return SelfComposedDpEvent(without_delta(event.event), event.count)


def exposes(event: DpEvent) -> bool:
    """Does the event contain a release without privacy?

    >>> exposes(ComposedDpEvent([NoOpDpEvent(), NonPrivateDpEvent()]))
    True
    """
    if isinstance(event, ComposedDpEvent):
        return any(exposes(part) for part in event.events)
    inner = getattr(event, "event", None)
    return isinstance(event, NonPrivateDpEvent) or (inner is not None and exposes(inner))


def is_free(event: DpEvent) -> bool:
    """Does the event reveal nothing at all?

    >>> is_free(ComposedDpEvent([NoOpDpEvent()]))
    True
    """
    if isinstance(event, ComposedDpEvent):
        return all(is_free(part) for part in event.events)
    if isinstance(event, SelfComposedDpEvent):
        return event.count == 0 or is_free(event.event)
    return isinstance(event, NoOpDpEvent)


def composed(charges: Iterable[tuple[DpEvent, int]]) -> DpEvent:
    """Charges, each with how often it was made, as one event.

    >>> composed([(GaussianDpEvent(5.0), 2)]).events[0].count
    2
    """
    return ComposedDpEvent([SelfComposedDpEvent(event, count) for event, count in charges])


def in_words(event: DpEvent) -> str:
    """What a mechanism did, for people to read.

    >>> in_words(GaussianDpEvent(5.0))
    'one Gaussian release with noise multiplier 5'
    """
    if exposes(event):
        return "infinite: private data was read without noise"
    if is_free(event):
        return "nothing"
    if isinstance(event, GaussianDpEvent):
        return f"one Gaussian release with noise multiplier {event.noise_multiplier:g}"
    if isinstance(event, DeltaDpEvent):
        return f"{event.delta:.3g} of delta"
    return str(event)
