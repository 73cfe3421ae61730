"""Privacy events: what can be read off them without an accountant, and their form as text.

The text of an event holds every number exactly, and nothing that could be executed.

The delta of a claim is judged here, too. Publishing the complete record of one of n people, chosen
at random, is (0, 1/n)-private: with probability delta the definition allows what it otherwise
forbids. So a claim at a delta above 1/n is refused, and one above 1/(2n) raises a warning. The
paper uses 1/n.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attr
import numpy as np
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
    dp_event,
)

from adadps.errors import ContractError, DataError, PrivacyWarning, require
from adadps.files import parse_json
from adadps.types import Unit


@attr.s(frozen=True, slots=True, auto_attribs=True)
class DeltaDpEvent(DpEvent):  # type: ignore[misc]
    """A mechanism that fails with probability at most ``delta``, and then protects nobody.

    dp-accounting has no event for this. It is neither amplified nor converted: all other events are
    priced at the delta that is left, δ - Σ delta (`delta_of`, `without_delta`).
    """

    delta: float


def delta_of(event: DpEvent) -> float:
    """Return Σ delta of everything composed in ``event``.

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
    """Return the event without its deltas, to be priced at the delta that is left.

    >>> without_delta(ComposedDpEvent([DeltaDpEvent(0.5), GaussianDpEvent(2.0)]))
    ComposedDpEvent(events=[NoOpDpEvent(), GaussianDpEvent(noise_multiplier=2.0)])
    """
    if isinstance(event, DeltaDpEvent):
        return NoOpDpEvent()
    if not delta_of(event):
        return event
    if isinstance(event, ComposedDpEvent):
        return ComposedDpEvent([without_delta(part) for part in event.events])
    assert isinstance(event, SelfComposedDpEvent)  # no other event contains a delta
    return SelfComposedDpEvent(without_delta(event.event), event.count)


def exposes(event: DpEvent) -> bool:
    """Return whether the event contains a release without privacy.

    >>> exposes(ComposedDpEvent([NoOpDpEvent(), NonPrivateDpEvent()]))
    True
    """
    if isinstance(event, ComposedDpEvent):
        return any(exposes(part) for part in event.events)
    inner = getattr(event, "event", None)
    return isinstance(event, NonPrivateDpEvent) or (inner is not None and exposes(inner))


def is_free(event: DpEvent) -> bool:
    """Return whether the event reveals nothing at all.

    >>> is_free(ComposedDpEvent([NoOpDpEvent()]))
    True
    """
    if isinstance(event, ComposedDpEvent):
        return all(is_free(part) for part in event.events)
    if isinstance(event, SelfComposedDpEvent):
        return event.count == 0 or is_free(event.event)
    return isinstance(event, NoOpDpEvent)


def composed(charges: Iterable[tuple[DpEvent, int]]) -> DpEvent:
    """Compose charges, each with its count, into one event.

    >>> composed([(GaussianDpEvent(5.0), 2)]).events[0].count
    2
    """
    return ComposedDpEvent([SelfComposedDpEvent(event, count) for event, count in charges])


def in_words(event: DpEvent) -> str:
    """Describe what a mechanism did, for people.

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


DEEPEST = 32
LARGEST = 1e300
"""Accountants cannot compute with larger numbers."""
_PROBABILITIES = ("sampling_probability", "sampling_probs", "delta")
_INFINITY = "infinity"
_SIGNED = ("shape", "sensitivities")
_KINDS: dict[str, type[DpEvent]] = {
    name: kind
    for name, kind in vars(dp_event).items()  # the package itself does not export all of them
    if inspect.isclass(kind) and issubclass(kind, DpEvent)
} | {DeltaDpEvent.__name__: DeltaDpEvent}


def text_of(event: DpEvent) -> str:
    """Encode the event as one line of JSON.

    >>> text_of(dp_event.GaussianDpEvent(2.0))
    '{"GaussianDpEvent":{"noise_multiplier":2.0}}'
    """
    return json.dumps(_plain(event), separators=(",", ":"))


def event_of(text: str) -> DpEvent:
    """Decode the event that `text_of` wrote.

    >>> event_of('{"GaussianDpEvent":{"noise_multiplier":2.0}}')
    GaussianDpEvent(noise_multiplier=2.0)
    """
    try:
        event = _event(parse_json(text))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unknown(text) from error
    if not isinstance(event, DpEvent):
        raise _unknown(text)
    return event


def _unknown(text: str) -> DataError:
    return DataError(
        f"Expected a privacy event that this version knows, found {text[:200]!r}. Use the version "
        "of adadps that wrote it."
    )


def _plain(value: Any) -> Any:
    if isinstance(value, DpEvent):
        name = type(value).__name__
        if _KINDS.get(name) is not type(value):
            raise ContractError(
                "Expected an event of dp-accounting or of adadps, found "
                f"{type(value).__qualname__}. Compose it from known events: others must be able to "
                "read a ledger on disk."
            )
        fields = (field.name for field in attr.fields(type(value)))
        return {name: {field: _plain(getattr(value, field)) for field in fields}}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value == math.inf:
        return _INFINITY  # JSON has no number for it
    if isinstance(value, int | float):
        return value
    raise ContractError(
        f"Expected numbers and events within an event, found {type(value).__qualname__}. Give "
        "plain numbers."
    )


def _event(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_event(inner, depth + 1) for inner in value]
    if not isinstance(value, dict):
        return value
    ((name, given),) = value.items()
    made = {
        field: math.inf if inner == _INFINITY else _event(inner, depth + 1)
        for field, inner in given.items()
    }
    kind = _KINDS[name]
    for field in attr.fields(kind):
        if field.name in made and not _fits(made[field.name], field):
            raise ValueError(f"{field.name} of {name} has another type")
    return kind(**made)


def _fits(value: Any, field: Any) -> bool:
    """Return whether the value has the type of the field, which accountants do not check."""
    if isinstance(value, DpEvent):
        return field.type is DpEvent
    if isinstance(value, list):
        of_events = field.name == "events"
        return field.type not in (int, float, DpEvent) and all(
            isinstance(one, DpEvent) if of_events else _is_number(one, field.name) for one in value
        )
    if field.type is int and not isinstance(value, int):
        return False
    return field.type is not DpEvent and field.name != "events" and _is_number(value, field.name)


def _is_number(value: Any, name: str) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if value == math.inf:
        return name == "shape"  # a Poisson number of trials
    low = -LARGEST if name in _SIGNED else 0
    high = 1 if name in _PROBABILITIES else LARGEST
    return low <= value <= high


_ROUNDING = 1 + 1e-9
_expected: ContextVar[bool] = ContextVar("a delta of 1/n is intended", default=False)


def require_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    require(0 < delta < 1, "0 < delta < 1", delta, "Choose it well below 1/n.")


def default_delta(examples: int) -> float:
    """Return 1/(10 n) for a declared number n of examples."""
    return 1 / (10 * examples)


def require_small_delta(delta: float, units: int, unit: Unit, *, warn: bool = False) -> None:
    """Refuse a delta above 1/n for a declared number n of units, and ``warn`` above 1/(2n).

    >>> require_small_delta(1 / 300, 300, Unit.EXAMPLE)
    >>> require_small_delta(0.2, 300, Unit.USER)
    Traceback (most recent call last):
        ...
    adadps.errors.SettingError: Expected delta <= 1/n = 0.00333333 for the declared number of \
users, n = 300, found 0.2. At such a delta, publishing one random user in full would count as \
private. Choose 1/(10 n) = 0.000333 or less.
    """
    named = unit.value
    require(
        delta * units <= _ROUNDING,
        f"delta <= 1/n = {1 / units:g} for the declared number of {named}s, n = {units}",
        delta,
        f"At such a delta, publishing one random {named} in full would count as private. Choose "
        f"1/(10 n) = {1 / (10 * units):.3g} or less.",
    )
    if warn and delta * units > _ROUNDING / 2 and not _expected.get():
        warnings.warn(
            f"delta = {delta:g} is more than 1/(2n) for the declared number of {named}s, n = "
            f"{units}. At 1/n, publishing one random {named} in full would count as private: "
            f"choose 1/(10 n) = {1 / (10 * units):.3g} or less.",
            PrivacyWarning,
            stacklevel=_frames_of_ours(),
        )


@contextmanager
def without_delta_warning() -> Iterator[None]:
    """Suppress the warning where a delta of 1/n is intended, as in published experiments."""
    token = _expected.set(True)
    try:
        yield
    finally:
        _expected.reset(token)


def _frames_of_ours() -> int:
    """Return how many stack frames up the caller of adadps is."""
    depth = 1
    while (frame := _frame(depth)) and frame.startswith("adadps."):
        depth += 1
    return depth


def _frame(depth: int) -> str | None:
    try:
        return str(sys._getframe(depth + 1).f_globals.get("__name__", ""))
    except ValueError:
        return None
