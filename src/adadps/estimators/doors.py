"""Methods by name: which way side information goes into training, and what that does to norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from adadps.errors import SettingError, SideInformationError
from adadps.estimators.planner.named_methods import Method, chain_for, norms_for, shaped
from adadps.estimators.planner.typical_texts import typical_norm
from adadps.methods.side import Frequencies
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain
from adadps.methods.stages.gradients import Privatize


@dataclass(frozen=True)
class Door:
    """A method that waits for its noise, and the norms of a typical row on its way."""

    name: str
    chain: Callable[[Privatize, float], Chain]
    clipped_norm: float = 1.0
    noised_norm: float = 1.0
    adaptive: bool = False
    """Does the update divide by the noise itself, so that its rate does not follow from it?"""


def door_for(method: str, side: Any, *, at: str | None, width: int, linear: bool) -> Door:
    """The method of this name with this side information for ``width`` features.

    ``auto`` is DP-SGD without side information. With it, a linear model gets weighted features,
    and any other one AdaDPS, which can be used on every layer.

    >>> door_for("auto", None, at="weight", width=2, linear=True).name
    'dp-sgd'
    """
    chosen = _chosen(method, side is not None, linear)
    if chosen in (Method.DP_SGD, Method.DP_ADAM):
        _require_none(side, chosen)
        plain = partial(chain_for, chosen, None)
        return Door(chosen.value, plain, adaptive=chosen is Method.DP_ADAM)
    held = _opened(side, chosen)
    if at is None:
        raise SideInformationError(
            f"Expected a layer of the module that reads the {width} features, found none. Give a "
            "source that names a parameter: `adadps.side.fixed({name: (vector, axis)}, ...)`."
        )
    _require_width(held, width)
    source = held if isinstance(held, Fixed) else shaped(held, chosen, at=at)
    chain = partial(chain_for, chosen, source, at=at)
    if chosen is Method.DP_SGD_WEIGHTED:  # rows are normalised again: their norm need not be known
        return Door(chosen.value, chain)
    known = held if isinstance(held, Frequencies) else None
    norm = typical_norm(source, width, known, at=at)
    return Door(chosen.value, chain, *norms_for(chosen, scaled=norm))


def _chosen(method: str, informed: bool, linear: bool) -> Method:
    try:
        wanted = Method(method)
    except ValueError:
        raise SettingError(
            f"Expected a method among {', '.join(Method)}, found {method!r}. Choose one of them."
        ) from None
    if wanted is not Method.AUTO:
        return wanted
    if not informed:
        return Method.DP_SGD
    return Method.DP_SGD_WEIGHTED if linear else Method.ADADPS


def _require_none(side: Any, method: Method) -> None:
    if side is not None:
        raise SideInformationError(
            f"Expected no side information for {method.value}, found some. Use method='auto', or "
            "leave `side` out."
        )


def _opened(side: Any, method: Method) -> Frequencies | Fixed:
    """Frequencies or a source; those of a vectorizer are asked for."""
    if side is None:
        raise SideInformationError(
            f"Expected side information for {method.value}, found none. Give `side`, or use "
            "method='dp-sgd'."
        )
    asked = getattr(side, "frequencies", None)
    held = asked() if callable(asked) else side
    if not isinstance(held, Frequencies | Fixed):
        raise SideInformationError(
            f"Expected side information, found {type(held).__name__}. Give a `PublicVectorizer`, "
            "frequencies such as `adadps.side.word_frequencies(words)`, or a fixed source such as "
            "`adadps.side.fixed(...)`: they say why they are public."
        )
    return held


def _require_width(held: Frequencies | Fixed, width: int) -> None:
    if isinstance(held, Frequencies) and len(held.values) != width:
        raise SideInformationError(
            f"Expected side information for the {width} features, found {len(held.values)} "
            "frequencies. Give the vectorizer that makes the features, or one frequency a feature."
        )
