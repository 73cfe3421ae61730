"""Do a method and its data fit together? Checked before anything is paid for or drawn."""

from __future__ import annotations

import torch

from adadps.accounting.events import exposes, is_free
from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.examples import Examples
from adadps.errors import ContractError, DataError, SideInformationError
from adadps.methods.stages.chain import Chain, Informed
from adadps.methods.stages.users import Users
from adadps.types import Unit


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
