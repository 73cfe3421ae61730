"""Methods by name: which way side information goes into training, and what that does to norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adadps.defaults import WORDS_PER_TEXT
from adadps.errors import SettingError, SideInformationError
from adadps.methods import adadps, adadps_two_sided, dp_adam, dp_sgd, dp_sgd_weighted
from adadps.named_methods import Method, shaped
from adadps.side import Frequencies
from adadps.side.fixed import Fixed
from adadps.stages import Chain
from adadps.stages.privatize import Privatize


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
        plain = dp_sgd if chosen is Method.DP_SGD else dp_adam
        return Door(chosen.value, plain, adaptive=chosen is Method.DP_ADAM)
    held = _opened(side, chosen)
    if at is None:
        raise SideInformationError(
            f"Expected a layer of the module that reads the {width} features, found none. Give a "
            "source that names a parameter: `adadps.side.fixed({name: (vector, axis)}, ...)`."
        )
    _require_width(held, width)
    source = held if isinstance(held, Fixed) else shaped(held, chosen, at=at)
    if chosen is Method.DP_SGD_WEIGHTED:  # rows are normalised again
        return Door(chosen.value, lambda privacy, lr: dp_sgd_weighted(source, privacy, lr, at=at))
    norm = _typical_norm(source, held if isinstance(held, Frequencies) else None, at, width)
    if chosen is Method.ADADPS:
        return Door(chosen.value, lambda privacy, lr: adadps(source, privacy, lr), norm)
    return Door(
        chosen.value, lambda privacy, lr: adadps_two_sided(source, source, privacy, lr), norm, norm
    )


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


def _typical_norm(source: Fixed, known: Frequencies | None, at: str, width: int) -> float:
    """‖D ∘ x‖ of a row of norm 1 that has features as often as is publicly known.

    A feature's share of the row is that of the texts that have it; without frequencies, all are
    alike.
    """
    value = source.named.get(at)
    if not isinstance(value, tuple) or len(value[0]) != width:
        return 1.0
    share: Tensor = torch.ones(width, dtype=torch.float64)
    if known is not None:
        share = -torch.expm1(-WORDS_PER_TEXT * known.values.double())
    squared = value[0].double().pow(-2)
    return math.sqrt(float((share * squared).sum() / share.sum()))
