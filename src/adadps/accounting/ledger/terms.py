"""What runs tell a ledger (`RunFacts`), what they ask of it (`Ledger`), and the terms they share.

The facts of a run are public. Nothing in them depends on private data: no drawn batch, no hash of
examples, no time of day.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, Life
from adadps.errors import ContractError, DataError
from adadps.types import Accountant, Relation


@cache
def code_version() -> str:
    """Return the installed version of adadps."""
    try:
        return version("adadps")
    except PackageNotFoundError:
        return "unknown"


def canonical(content: Any) -> str:
    """Encode content as canonical JSON; numpy numbers become plain ones."""
    return json.dumps(content, sort_keys=True, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The plan of a run, in public words and numbers.

    ``prices`` are the exact charges of the plan, and the clip norm, as text. ``paid_first`` is the
    number of charges before the first step, for side information: none in a life that continues
    from a checkpoint.
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
        """Return the SHA-256 of the plan, which is the same under every version of the code.

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
class LedgerTerms:
    """What all runs on one ledger have in common."""

    relation: Relation
    accountant: Accountant
    unit: str

    def __str__(self) -> str:
        return f"'{self.relation.value}' with {self.accountant.value}, per {self.unit}"

    def require_same(self, found: LedgerTerms) -> None:
        """Refuse a run under other terms."""
        if self != found:
            raise ContractError(
                f"Expected a run under {self}, the terms of this ledger, found {found}. "
                "Use those terms, or a new ledger for other data."
            )


def terms_of(relation: str, accountant: str, unit: str) -> LedgerTerms:
    """Decode stored terms."""
    try:
        return LedgerTerms(Relation(relation), Accountant(accountant), unit)
    except ValueError as error:
        raise DataError(
            f"Expected terms that this version knows, found {error}. Use the version of adadps "
            "that wrote the ledger."
        ) from error


def require_same_plan(run: str, held: str, found: str) -> None:
    """Refuse to continue a run under another plan."""
    if held != found:
        raise ContractError(
            f"Expected the plan with which run {run} began (hash {held[:12]}), found another "
            f"({found[:12]}). Continue with the same method, sampler, steps and side information, "
            "or begin a new run."
        )


def require_another_run(terms: LedgerTerms, runs: int) -> None:
    """Refuse a second run under an accountant that can compose only one."""
    if runs and terms.accountant is Accountant.PLD:
        raise ContractError(
            "Expected one run on a PLD ledger, found another one: PLD composes only what was "
            "fixed beforehand. Run with accountant RDP to compose runs chosen one by one."
        )


class Ledger(Protocol):
    """What a run asks of a ledger, which charges it and refuses what exceeds the budget."""

    @property
    def identity(self) -> str:
        """A unique random name; a run can be resumed only on the ledger that it began on."""

    @property
    def budget(self) -> Budget | None:
        """The budget of all runs together; None if charges are only counted."""

    @property
    def entries(self) -> int:
        """The number of charges."""

    def choose_accountant(self, fitting: Sequence[Accountant]) -> Accountant:
        """Return the accountant of a run that names none; the first of ``fitting`` is preferred."""

    def open(
        self,
        run: str,
        relation: Relation,
        accountant: Accountant,
        facts: RunFacts = ...,
    ) -> None:
        """Begin a run, or a further life of one; refuse terms that differ from the ledger's.

        A known name continues that run, under the same plan.
        """

    def authorise(
        self, event: DpEvent, *, run: str | None = None, ahead: int = 1, at_once: int = 1
    ) -> None:
        """Charge ``event``, or raise `BudgetError`; called before anything is drawn.

        ``run`` pays (default: the run that was opened last). ``ahead`` is the number of such events
        that are planned from here on; it saves computation, and the event that the first run plans
        most often sets the order of the Rényi filter. A ledger may charge up to ``at_once`` events
        now, and serve the next calls from these.
        """

    def charged(self, run: str) -> tuple[tuple[DpEvent, int], ...]:
        """Return all charges of a run in all its lives, each with its count."""

    def lives(self, run: str) -> tuple[Life, ...]:
        """Return what each life of a run has been charged for; empty if the run is unknown."""

    def room(self, event: DpEvent, wanted: int) -> int:
        """Return how many of ``wanted`` such events fit now, without charging any."""

    def epsilon(self, delta: float) -> float:
        """Return epsilon of all charged events together."""


def require_same_budget(held: Budget | None, epsilon: float, *, where: str, cure: str) -> None:
    """Refuse an ``epsilon`` that is not the whole budget ``held`` by the ledger.

    >>> require_same_budget(Budget(3.0, 1e-5), 2.0, where="the ledger a", cure="Leave it out.")
    Traceback (most recent call last):
        ...
    adadps.errors.ContractError: Expected epsilon = 2 as the budget of the ledger a, found \
epsilon = 3. Leave it out.
    """
    if held is None or held.epsilon != epsilon:
        found = "no budget at all" if held is None else f"epsilon = {held.epsilon:g}"
        raise ContractError(
            f"Expected epsilon = {epsilon:g} as the budget of {where}, found {found}. {cure}"
        )
