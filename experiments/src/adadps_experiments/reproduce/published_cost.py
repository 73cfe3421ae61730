"""What the published settings cost: as claimed, and the best epsilon that can be proved for them.

The published code clips means of several examples but charges them as one, and shuffles but
accounts for Poisson sampling. A mean of several moves by up to 2C when one of them changes. Were
the batches Poisson samples with random groups, that alone would halve the noise multiplier; as they
are, shuffled, there is no amplification either. Everything here is computed by
`adadps.accounting.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from adadps.accounting.contract import Sampling
from adadps.accounting.delta import without_delta_warning
from adadps.accounting.groups import Groups, by_label
from adadps.accounting.plan import make_plan
from adadps.types import Accountant


@dataclass(frozen=True)
class PublishedRun:
    """Settings of the paper; delta is 1/n."""

    name: str
    examples: int
    batch: int
    epochs: float
    noise_multiplier: float
    group: int

    def told(self) -> str:
        """The same in a sentence."""
        found = self.cost()
        return (
            f"The published settings for {self.name} claim ε = "
            f"{found['published_epsilon_claimed']:.2f}. Means of {self.group} were clipped as one "
            "and batches shuffled: the best ε that can be proved is "
            f"{found['published_epsilon_if_poisson']:.1f} had batches been Poisson samples, and "
            f"{found['published_epsilon_as_is']:.0f} as it is."
        )

    def epsilon(
        self, accountant: Accountant, sampling: Sampling = Sampling.POISSON, *, grouped: bool
    ) -> float:
        """Epsilon of these settings under one reading of them."""
        return _epsilon(self, accountant, sampling, by_label(self.group) if grouped else None)

    def cost(self) -> dict[str, float]:
        """Claimed, the same by PLD, and the best provable epsilon of what was run."""
        return {
            "published_epsilon_claimed": self.epsilon(Accountant.RDP, grouped=False),
            "published_epsilon_claimed_by_pld": self.epsilon(Accountant.PLD, grouped=False),
            "published_epsilon_if_poisson": self.epsilon(Accountant.PLD, grouped=True),
            "published_epsilon_if_poisson_by_rdp": self.epsilon(Accountant.RDP, grouped=True),
            "published_epsilon_as_is": self.epsilon(
                Accountant.PLD, Sampling.SHUFFLED, grouped=True
            ),
        }


@cache
def _epsilon(
    run: PublishedRun, accountant: Accountant, sampling: Sampling, groups: Groups | None
) -> float:
    with without_delta_warning():
        plan = make_plan(
            examples=run.examples,
            batch_size=run.batch,
            epochs=run.epochs,
            noise_multiplier=run.noise_multiplier,
            delta=1 / run.examples,
            accountant=accountant,
            sampling=sampling,
            groups=groups,
        )
    return plan.epsilon


IMDB = PublishedRun("IMDB, logistic regression", 25_000, 64, 32, 1.0, 4)
STACK_OVERFLOW = PublishedRun("Stack Overflow", 246_092, 64, 42, 0.95, 2)

OF_DATASET = {
    "imdb": IMDB,
    "imdb-private-words": IMDB,
    "so-titles": STACK_OVERFLOW,
    "so-titles-general-words": STACK_OVERFLOW,
    "debian-tags": STACK_OVERFLOW,
    "stackoverflow": STACK_OVERFLOW,
}
"""Whose published numbers stand beside ours."""
