"""PLD on a grid ten times as coarse as that of users, for tests that plan much."""

COARSE = 1e-3
_KNOWN = {}
"""Epsilons on this grid, for all tests of a process."""


def use_coarse_pld(setattr=setattr):
    """Within a fixture, or in a child process before anything is planned."""
    from adadps.accounting import epsilon

    setattr(epsilon, "DISCRETISATION", COARSE)
    setattr(epsilon, "_KNOWN", _KNOWN)
