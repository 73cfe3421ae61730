"""What can be read off a privacy event without an accountant."""

from __future__ import annotations

from collections.abc import Iterable

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
)


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
    return str(event)
