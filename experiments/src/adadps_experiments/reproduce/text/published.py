"""What the paper reports on text, and what its published settings cost.

Results are listed by the label of their table or figure. The published code clips means of several
examples but charges them as one, and shuffles but accounts for Poisson sampling. A mean of several
moves by up to 2C when one of them changes: had the batches been Poisson samples with random groups,
that alone would halve the noise multiplier. Shuffled batches have no amplification either. All
costs are computed by `adadps.accounting.plan`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from adadps.accounting.contract import Sampling
from adadps.accounting.events import without_delta_warning
from adadps.accounting.groups import Groups, by_label
from adadps.accounting.plan import make_plan
from adadps.types import Accountant

ALL_METHODS, PDA_DPMD = "table: all_methods", "table: compare_PDA-DPMD"
PRETRAIN, ADAM_PUB = "table: compare_public_pretrain", "table: compare_dp-adam-pub"
TF_IDF_TABLE, OOD = "table: imdb_tf-idf", "table: OOD-public-data"
SIZE, NON_PRIVATE = "table: public-data-size", "table: dp-side_non_private"
WITH_PUBLIC, WITHOUT_PUBLIC = "fig:with-public-private", "fig:without-public-private"

METHODS_IN = {
    ALL_METHODS: ("dp-sgd", "dp-adam", "dp-rmsprop", "adadps-public", "adadps-public-adam"),
    PDA_DPMD: ("pda-dpmd", "adadps-public", "adadps"),
    PRETRAIN: ("dp-sgd", "warm-start", "adadps-public"),
    ADAM_PUB: ("dp-sgd", "dp-adam-pub", "adadps-public"),
    TF_IDF_TABLE: ("dp-sgd", "dp-adam", "adadps-tfidf", "ideal"),
    OOD: ("dp-sgd", "adadps-public"),
    SIZE: ("ideal", "adadps-public"),
    NON_PRIVATE: ("sgd", "adam", "adas-public", "adas"),
    WITHOUT_PUBLIC: ("dp-sgd", "dp-adam", "adadps"),
    WITH_PUBLIC: ("dp-sgd", "dp-adam", "dp-r-pub", "adadps-public"),
}
"""The methods in each table or figure of the paper."""
COMPARISONS = (ALL_METHODS, PDA_DPMD, PRETRAIN, ADAM_PUB)
"""Tables of the same runs, at ε = 1.5 on IMDB and 0.84 on Stack Overflow."""
FIGURES = (WITHOUT_PUBLIC, WITH_PUBLIC)
"""Figures at ε = 2.8 on IMDB."""


def label_of(method: str, tables: Iterable[str]) -> str:
    """Return the first of these tables and figures that has the method, or "".

    >>> label_of("pda-dpmd", COMPARISONS), label_of("adadps-two-sided", COMPARISONS)
    ('table: compare_PDA-DPMD', '')
    """
    return next((table for table in tables if method in METHODS_IN[table]), "")


IMDB_ACCURACY = {
    "dp-sgd": 0.63,
    "dp-adam": 0.69,
    "dp-rmsprop": 0.67,
    "adadps": 0.75,
    "adadps-public": 0.80,
    "adadps-public-adam": 0.80,
    "pda-dpmd": 0.62,
    "warm-start": 0.73,
    "dp-adam-pub": 0.74,
}
STACK_OVERFLOW_ACCURACY = {
    "dp-sgd": 0.28,
    "dp-adam": 0.30,
    "dp-rmsprop": 0.31,
    "adadps": 0.41,
    "adadps-public": 0.40,
    "adadps-public-adam": 0.40,
    "pda-dpmd": 0.33,
    "warm-start": 0.33,
    "dp-adam-pub": 0.31,
}
IMDB_BAG_OF_WORDS = {"dp-sgd": 0.62, "dp-adam": 0.68, "adadps-tfidf": 0.75, "ideal": 0.82}
IMDB_TF_IDF = {"dp-sgd": 0.68, "dp-adam": 0.65, "adadps-tfidf": 0.80, "ideal": 0.83}
IMDB_NON_PRIVATE = {"sgd": 0.66, "adam": 0.88, "adas-public": 0.88, "adas": 0.88}
STACK_OVERFLOW_NON_PRIVATE = {"sgd": 0.38, "adam": 0.64, "adas-public": 0.64, "adas": 0.64}


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
        return _epsilon(self, accountant, sampling, by_label(self.group) if grouped else None)

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
STACK_OVERFLOW_RUN = PublishedRun("Stack Overflow", 246_092, 64, 42, 0.95, 2)

OF_DATASET = {
    "imdb": IMDB_RUN,
    "imdb-private-words": IMDB_RUN,
    "so-titles": STACK_OVERFLOW_RUN,
    "so-titles-general-words": STACK_OVERFLOW_RUN,
    "debian-tags": STACK_OVERFLOW_RUN,
    "stackoverflow": STACK_OVERFLOW_RUN,
}
"""The published run whose results stand beside those of each data set."""
