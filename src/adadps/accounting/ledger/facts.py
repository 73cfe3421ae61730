"""The public facts of a run that stand beside its charges, and the terms all runs must share.

Nothing here depends on private data: no drawn batch, no hash of examples, no time of day.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from adadps.errors import ContractError, DataError
from adadps.types import Accountant, Relation


@cache
def code_version() -> str:
    """The version of adadps that is installed."""
    try:
        return version("adadps")
    except PackageNotFoundError:
        return "unknown"


def canonical(content: Any) -> str:
    """JSON that is the same for the same content; numbers of numpy become plain ones."""
    return json.dumps(content, sort_keys=True, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is planned, in words and numbers that are public.

    ``prices`` are the exact charges that the plan consists of, and the clip norm, as text.
    ``paid_first`` is how many charges come before the first step, for side information: none in a
    life that continues from a checkpoint.
    """

    unit: str = "example"
    sampler: Mapping[str, Any] = field(default_factory=dict)
    chain: str = ""
    side_information: tuple[Mapping[str, str | None], ...] = ()
    planned_steps: int | None = None
    prices: tuple[str, ...] = ()
    paid_first: int = 0
    code_version: str = field(default_factory=code_version)

    def plan_hash(self, relation: Relation, accountant: Accountant) -> str:
        """SHA-256 of the plan; the same plan has the same hash under every version of the code.

        >>> one, other = RunFacts(planned_steps=10), RunFacts(planned_steps=11)
        >>> terms = Relation.ZERO_OUT, Accountant.RDP
        >>> one.plan_hash(*terms) == other.plan_hash(*terms)
        False
        """
        plan = {
            "relation": relation.value,
            "accountant": accountant.value,
            "unit": self.unit,
            "sampler": dict(self.sampler),
            "chain": self.chain,
            "side_information": [dict(source) for source in self.side_information],
            "planned_steps": self.planned_steps,
            "prices": list(self.prices),
        }
        return hashlib.sha256(canonical(plan).encode()).hexdigest()


@dataclass(frozen=True)
class Terms:
    """What every run on one ledger has in common."""

    relation: Relation
    accountant: Accountant
    unit: str

    def __str__(self) -> str:
        return f"'{self.relation.value}' with {self.accountant.value}, per {self.unit}"

    def require_same(self, found: Terms) -> None:
        """Refuse a run under other terms."""
        if self != found:
            raise ContractError(
                f"Expected a run under {self}, as this ledger has begun, found {found}. "
                "Use those terms, or a new ledger for other data."
            )


def terms_of(relation: str, accountant: str, unit: str) -> Terms:
    """Terms as they were stored."""
    try:
        return Terms(Relation(relation), Accountant(accountant), unit)
    except ValueError as error:
        raise DataError(
            f"Expected terms that this version knows, found {error}. Use the version of adadps "
            "that wrote the ledger."
        ) from error


def require_same_plan(run: str, held: str, found: str) -> None:
    """Refuse to continue a run as another one."""
    if held != found:
        raise ContractError(
            f"Expected the plan with which run {run} began (hash {held[:12]}), found another "
            f"({found[:12]}). Continue with the same method, sampler, steps and side information, "
            "or begin a new run."
        )


def require_another_run(terms: Terms, runs: int) -> None:
    """Refuse a second run where only one can be accounted."""
    if runs and terms.accountant is Accountant.PLD:
        raise ContractError(
            "Expected one run on a PLD ledger, found another one: PLD composes only what was "
            "fixed beforehand. Run with accountant RDP to compose runs chosen one by one."
        )


def known_payer(run: str | None, latest: str | None, known: Container[str]) -> str:
    """The run that pays: the one that is named, else the one that was opened last."""
    payer = run if run is not None else latest
    if payer is None or payer not in known:
        raise ContractError("Expected `open` before anything is charged. Open a run first.")
    return payer
