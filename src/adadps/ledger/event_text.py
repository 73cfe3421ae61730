"""Privacy events as text and back: every number exactly, and nothing that could be executed."""

from __future__ import annotations

import inspect
import json
from typing import Any

import attr
import numpy as np
from dp_accounting import DpEvent, dp_event

from adadps.errors import ContractError, DataError

_KINDS: dict[str, type[DpEvent]] = {
    name: kind
    for name, kind in vars(dp_event).items()  # the package itself does not name all of them
    if inspect.isclass(kind) and issubclass(kind, DpEvent)
}


def text_of(event: DpEvent) -> str:
    """The event as one line of JSON.

    >>> text_of(dp_event.GaussianDpEvent(2.0))
    '{"GaussianDpEvent":{"noise_multiplier":2.0}}'
    """
    return json.dumps(_plain(event), separators=(",", ":"))


def event_of(text: str) -> DpEvent:
    """The event that `text_of` wrote.

    >>> event_of('{"GaussianDpEvent":{"noise_multiplier":2.0}}')
    GaussianDpEvent(noise_multiplier=2.0)
    """
    try:
        event = _event(json.loads(text))
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
                f"Expected an event of dp-accounting, found {type(value).__qualname__}. Compose it "
                "of known events: a ledger on disk must be readable for others."
            )
        fields = (field.name for field in attr.fields(type(value)))
        return {name: {field: _plain(getattr(value, field)) for field in fields}}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int | float):
        return value
    raise ContractError(
        f"Expected numbers and events within an event, found {type(value).__qualname__}. Give "
        "plain numbers."
    )


def _event(value: Any) -> Any:
    if isinstance(value, dict):
        ((name, fields),) = value.items()
        return _KINDS[name](**{field: _event(inner) for field, inner in fields.items()})
    return [_event(inner) for inner in value] if isinstance(value, list) else value
