"""A ledger keeps the budget it began with; whoever names another one is told."""

from __future__ import annotations

from adadps.accounting.epsilon import Budget
from adadps.errors import ContractError


def require_same_budget(held: Budget | None, epsilon: float, *, where: str, cure: str) -> None:
    """Refuse ``epsilon`` as the whole budget where the ledger ``held`` has another, or none.

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
