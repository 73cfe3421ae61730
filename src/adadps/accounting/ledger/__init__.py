"""The ledger: every step is charged before anything is drawn.

A ledger has one neighbouring relation, one accountant and one unit of privacy. PLD composes what
was fixed beforehand, so it serves a single run. Further runs that are chosen after looking at the
first one need a Rényi filter, i.e. a ledger with the RDP accountant.
"""

from adadps.accounting.ledger.disk import DiskLedger
from adadps.accounting.ledger.spending import MemoryLedger
from adadps.accounting.ledger.terms import Ledger, RunFacts, require_same_budget

__all__ = ["DiskLedger", "Ledger", "MemoryLedger", "RunFacts", "require_same_budget"]
