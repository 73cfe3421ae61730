"""What a model may claim whose ledger has paid for other runs as well."""

from __future__ import annotations

from dataclasses import replace

from adadps.report.result import Result

CLAIM = (
    "epsilon is the whole budget of the ledger: other runs were charged to it before this one; "
    "with 2 delta, if one was begun after looking at another"
)


def claiming_the_whole(result: Result, epsilon: float, *, steps_paid: int | None) -> Result:
    """The result with ``epsilon``, the budget of its ledger, and its own price beside it."""
    own = result.privacy
    if not own.private:
        return result
    # the charges of this run are not what such an epsilon is the price of
    privacy = replace(
        own,
        epsilon=max(epsilon, own.epsilon),
        steps_paid=steps_paid,
        charges=None,
        claim=CLAIM,
    )
    settings = {**result.settings, "claim": CLAIM, "epsilon_of_this_run": own.epsilon}
    return replace(result, privacy=privacy, settings=settings)
