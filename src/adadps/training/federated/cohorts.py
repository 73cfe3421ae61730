"""Who is asked in a round: places are drawn as declared, and connected nodes take places.

A run declares n users, and its sampler draws among n *places*, whoever is connected. A connected
node takes one place; a place that nobody has taken answers nothing. So each node is asked with the
probability that is accounted for, b/n, and nobody has to wait for nodes that are away:

- *Poisson*, *fixed size*: places are taken anew each round, which the draw does not depend on.
- *Shuffled*: places are taken when an epoch begins and kept through it, so that nobody is asked
  twice. Who comes later, or comes back as another node, takes part from the next epoch on.

More nodes than declared users are refused, before anybody is asked.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from adadps.accounting.samplers import Rows, Sampler, Shuffled
from adadps.errors import ContractError


class Cohorts:
    """Draws the cohort of one round after the other."""

    def __init__(self, sampler: Sampler, rng: np.random.Generator) -> None:
        self._declared = sampler.examples
        self._draws = sampler.batches(sampler.examples, rng)
        self._epoch = sampler.steps_per_epoch if isinstance(sampler, Shuffled) else 1
        self._drawn = 0
        self._places: tuple[int, ...] | None = None

    def next(self) -> Rows:
        """The places of the next round."""
        if self._drawn % self._epoch == 0:
            self._places = None
        self._drawn += 1
        return next(self._draws)

    def members(self, drawn: Rows, nodes: Iterable[int]) -> tuple[int, ...]:
        """The nodes at the drawn places, of those that are connected now."""
        connected = tuple(sorted(set(nodes)))
        if len(connected) > self._declared:
            raise ContractError(
                f"Expected at most the {self._declared} declared users, found {len(connected)} "
                "connected nodes. Begin a run that declares as many; nobody was asked."
            )
        if self._places is None:
            self._places = connected
        there = frozenset(connected)
        taken = (self._places[place] for place in drawn if place < len(self._places))
        return tuple(node for node in taken if node in there)
