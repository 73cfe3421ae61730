"""PLD on a grid ten times as coarse as that of users, and RDP at fewer orders.

Both round up: epsilon is an upper bound at any grid, and at any choice of orders. Most orders of
dp-accounting are fractions, which take most of its time.
"""

COARSE = 1e-3
ORDERS = (
    1.1, 1.25, 1.5, 1.75, 2.5, 3.5, *range(2, 21), *range(22, 41, 2), *range(44, 65, 4),
    128, 256, 512, 1024,
)  # fmt: skip
MANY = 100_000
_PLD, _CURVES = {}, {}
"""Epsilons on this grid, and curves at these orders, for all tests of a process."""
_REAL = {}


def use_coarse_accounting(setattr=setattr):
    """Within a fixture, or in a child process before anything is planned."""
    from dp_accounting import rdp

    from adadps.accounting import epsilon, renyi

    def accountant(relation):
        return rdp.RdpAccountant(sorted(ORDERS), renyi.NEIGHBOURS[relation])

    setattr(epsilon, "DISCRETISATION", COARSE)
    setattr(epsilon, "_KNOWN", _PLD)
    setattr(epsilon, "MOST_KNOWN", MANY)
    _REAL.setdefault("accountant", renyi._accountant)
    setattr(renyi, "_accountant", accountant)
    setattr(renyi, "_KNOWN", _CURVES)
    setattr(renyi, "MOST_KNOWN", MANY)


def use_real_accounting(setattr):
    """Within a fixture: the grid and the orders that users have."""
    from adadps.accounting import epsilon, renyi

    setattr(epsilon, "DISCRETISATION", 1e-4)
    setattr(epsilon, "_KNOWN", {})
    setattr(renyi, "_accountant", _REAL.get("accountant", renyi._accountant))
    setattr(renyi, "_KNOWN", {})
