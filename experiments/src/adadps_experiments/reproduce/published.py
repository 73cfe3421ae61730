"""What the published settings cost: the paper's claim, and what can be proved.

The published code clips means of several examples but charges them as one, and shuffles but
accounts for Poisson sampling. A mean of several moves by up to 2C when one of them changes: had the
batches been Poisson samples with random groups, that alone would halve the noise multiplier.
Shuffled batches have no amplification either. All costs are computed by `adadps.accounting.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from adadps.accounting.contract import Sampling
from adadps.accounting.events import without_delta_warning
from adadps.accounting.groups import Groups, by_label
from adadps.accounting.plan import make_plan
from adadps.types import Accountant


@dataclass(frozen=True)
class PublishedRun:
    """Settings of the paper, with δ = 1/n; means of ``group`` examples are clipped as one."""

    name: str
    examples: int
    batch: int
    epochs: float
    noise_multiplier: float
    group: int

    def describe(self) -> str:
        """Say in two sentences what was claimed and what can be proved."""
        found = self.cost()
        return (
            f"The published settings for {self.name} claim ε = "
            f"{found['published_epsilon_claimed']:.2f}. Means of {self.group} were clipped as one "
            "and batches were shuffled: the best provable ε is "
            f"{found['published_epsilon_if_poisson']:.1f} had batches been Poisson samples, and "
            f"{found['published_epsilon_as_is']:.0f} as they are."
        )

    def epsilon(
        self, accountant: Accountant, sampling: Sampling = Sampling.POISSON, *, grouped: bool
    ) -> float:
        """Return the epsilon of these settings under one reading of them."""
        return _epsilon(
            self, accountant, sampling, by_label(self.group) if grouped and self.group > 1 else None
        )

    def cost(self) -> dict[str, float]:
        """Return the claimed epsilon, the same by PLD, and the best provable ones."""
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


IMDB_RUN = PublishedRun("IMDB, logistic regression", 25_000, 64, 32, 1.0, 4)
LSTM_RUN = PublishedRun("IMDB, LSTM", 25_000, 64, 100, 1.0, 4)
STACK_OVERFLOW_RUN = PublishedRun("Stack Overflow", 246_092, 64, 42, 0.95, 2)
AUTOENCODER_RUNS = tuple(
    PublishedRun("MNIST, autoencoder", 60_000, 64, 80, sigma, 4) for sigma in (1.0, 0.75)
)
MNIST_RUN = PublishedRun("MNIST, classification", 60_000, 64, 50, 1.0, 4)
TOY_RUN = PublishedRun("toy regression", 1_000, 8, 18, 0.7, 1)
FEDERATED_RUN = PublishedRun("Stack Overflow, 400 users", 400, 20, 1.65, 0.3, 1)
RUNS = (
    TOY_RUN, IMDB_RUN, LSTM_RUN, STACK_OVERFLOW_RUN, *AUTOENCODER_RUNS, MNIST_RUN, FEDERATED_RUN,
)  # fmt: skip
"""All private experiments of the paper. In the last one, examples are users."""
