"""Which rows a step sees: drawn by the sampler, put into groups, without those that are public.

Where users are drawn, each contributes rows that are not public; otherwise public rows are left out
after the draw. Before the first draw, `require_parts` checks that method and data fit together, and
`ModelLock` that one run at a time changes a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from adadps.accounting.events import exposes, is_free
from adadps.accounting.groups import Groups
from adadps.accounting.samplers import Rows, Sampler
from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.examples import Examples
from adadps.data.overlap import private_rows
from adadps.data.users import UserRows
from adadps.engine.noise.late_parameter import LateParameter, make_plain
from adadps.engine.noise.randomness import Randomness
from adadps.engine.waist import Units
from adadps.errors import ContractError, DataError, SideInformationError
from adadps.methods.stages.chain import Chain, Informed
from adadps.methods.stages.users import Users
from adadps.types import Unit


@dataclass(frozen=True)
class Batch:
    """A drawn batch. Its content stays inside the run that drew it."""

    run: str
    index: int
    life: str = ""
    """Identifies the process that drew it: a resumed run draws another batch of the same index."""


@dataclass(frozen=True)
class DrawnRows:
    """The rows of a batch, and the groups or users that are clipped as one, if any."""

    batch: Batch
    rows: Tensor
    units: Units | None


class Batches:
    """Draws one batch after another."""

    def __init__(
        self,
        data: Examples,
        *,
        method: Chain,
        sampler: Sampler,
        units: Sampler,
        randomness: Randomness,
    ) -> None:
        self._groups = method.release.groups
        self._sampler, self._randomness = sampler, randomness
        self._is_private = private_rows(data, method.public_rows)
        self._all_private = bool(self._is_private.all())
        self._users: UserRows | None = None
        if isinstance(self._groups, Users) and data.users is not None:
            self._users = UserRows(data.users, self._is_private)
        self._batches = self._begin(len(data), units)

    def next(self, batch: Batch) -> DrawnRows:
        """Draw the rows of a batch; there may be none."""
        drawn: Rows = next(self._batches)
        units, rng = None, self._randomness.generator
        if isinstance(self._groups, Users):
            assert self._users is not None  # a method by user has asked for them
            drawn, units = self._groups.expand(drawn, self._users, rng)
            return DrawnRows(batch, torch.from_numpy(drawn), units)
        if self._groups:
            size = self._sampler.expected_size
            drawn, labels, count = self._groups.labels(drawn, size, rng)
            units = Units(torch.from_numpy(labels), count, 1 / self._groups.size)
        rows = torch.from_numpy(drawn)
        if self._all_private:
            return DrawnRows(batch, rows, units)
        kept = self._is_private[rows]
        return DrawnRows(batch, rows[kept], units.take(kept) if units else None)

    def _begin(self, size: int, units: Sampler) -> Iterator[Rows]:
        """Check the number of units against the declared one, and start the sampler."""
        if self._users is not None:
            size = self._users.count
        elif isinstance(self._groups, Groups) and units is not self._sampler:
            if size != self._sampler.examples:
                raise DataError(
                    f"Expected the {self._sampler.examples} declared examples for groups fixed in "
                    f"advance, found {size}. Declare the true number."
                )
            size //= self._groups.size
        units.require_declared(size)
        return units.batches(size, self._randomness.generator)


_LATEST: WeakKeyDictionary[nn.Module, ModelLock] = WeakKeyDictionary()


class ModelLock:
    """The right to change a model, until another run takes it.

    >>> layer = nn.Linear(2, 1)
    >>> first = ModelLock(layer)
    >>> first.require_valid()
    >>> second = ModelLock(layer)
    >>> first.require_valid()
    Traceback (most recent call last):
    adadps.errors.ContractError: Expected one run at a time on a model, ...
    """

    def __init__(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            if isinstance(parameter, LateParameter):
                make_plain(parameter)  # left over from an abandoned run
        self._model = model
        _LATEST[model] = self

    def require_valid(self) -> None:
        """Refuse to continue if another run has begun on the model."""
        if _LATEST.get(self._model) is not self:
            raise ContractError(
                "Expected one run at a time on a model, found that another run has begun on it. "
                "Finish one before the next, or train a copy of the model."
            )


def require_parts(method: Chain, data: Examples) -> None:
    """Refuse data that lacks what the method needs, or that the method would not protect."""
    if not isinstance(data, Examples):
        raise DataError(
            f"Expected `adadps.examples(features, targets)` as data, found {type(data).__name__}. "
            "Wrap features and targets by it."
        )
    by_user = isinstance(method.release.groups, Users)
    if by_user and data.users is None:
        raise DataError(
            "Expected the user of each example, found none. Give `examples(..., users=...)`."
        )
    if data.users is not None and not by_user and not method.exposures:
        raise ContractError(
            "Expected a method that protects users, since the data has users, found one that "
            "protects single examples. Give `privatize(..., groups=by_user(most=...))`, or leave "
            "`users` out of the examples."
        )
    _require_side_information(method, data, Unit.USER if by_user else Unit.EXAMPLE)


def _require_side_information(method: Chain, data: Examples, unit: Unit) -> None:
    """What was measured on private data must have been measured and priced for the same unit."""
    count = len(data)
    if unit is Unit.USER and data.users is not None:
        with declared_read(DeclaredRead.NUMBER):
            count = len(torch.unique(data.users))
    for stage in method.informed:
        source = getattr(stage, "side", None)
        require_rows = getattr(source, "require_rows", None)
        if require_rows is not None:
            require_rows(count, unit)
        else:
            require_price_for(unit, stage)


def require_price_for(unit: Unit, stage: Informed) -> None:
    """Refuse side information whose price is for another unit than the method protects."""
    if is_free(stage.event) or exposes(stage.event):
        return
    found = getattr(getattr(stage, "side", None), "unit", Unit.EXAMPLE)
    if found is not unit:
        raise SideInformationError(
            f"Expected side information whose price is for one {unit.value}, found one for "
            f"one {found.value}. Measure it so that one {unit.value} is bounded, and say "
            "so: `side.fixed(..., event=..., unit=...)`."
        )
