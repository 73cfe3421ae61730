"""One problem as a method sees it: private and public examples, and public scales.

Settings are scale-free, so that one grid fits all features: a clip norm is given in typical norms
of preconditioned rows, a learning rate as the length of a step. Typical rows come from public word
frequencies, never from the private texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import sparse
from torch import nn

from adadps.data.examples import Examples, PublicExamples, public_examples
from adadps.data.sparse_rows import sparse_linear
from adadps_experiments.reproduce.text.corpus import Array, Corpus, LabelledTexts
from adadps_experiments.reproduce.text.recipes import Features, Recipe, typical_counts

STEPS_PER_LENGTH = 1000
A_FEW = 300
"""About as many public examples as one percent of the training texts."""


@dataclass(frozen=True)
class PublicSource:
    """Where public examples come from: a share of the training texts or users, or other texts.

    With ``names`` they are the names of the tags, each a text with its own tag.
    """

    share: float = 0.01
    users: bool = False
    proxy: int = 0
    names: bool = False

    @property
    def tuned_as(self) -> PublicSource:
        """Return the public texts for tuning; a few are tuned as one percent of the texts."""
        return self if self.proxy > A_FEW or self.names else ONE_PERCENT

    @property
    def reason(self) -> str:
        """Say why they may be used without privacy."""
        if self.names:
            return "the list of tags is part of the problem statement"
        return "treated as public in this experiment"

    def __str__(self) -> str:
        if self.names:
            return "names of the tags"
        if self.proxy:
            return f"{self.proxy:,} texts of another source"
        return f"{self.share:.2%} of the {'users' if self.users else 'training texts'}"


ONE_PERCENT = PublicSource()
"""The paper's public data: one percent of the training texts."""


@dataclass(frozen=True)
class TextProblem:
    """Features, targets and public knowledge for one run."""

    corpus: Corpus
    recipe: Recipe
    train: Examples
    test: Examples
    public: PublicExamples
    typical: sparse.csr_matrix = field(repr=False)

    def norm(self, scale: Array | None = None) -> float:
        """Return the median norm of D∘x over typical rows x.

        The rows come from public frequencies, so that the norm reveals nothing about the data.
        """
        rows = self.typical if scale is None else self.typical @ sparse.diags(scale)
        squares = np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
        return float(np.sqrt(np.median(squares)))

    def total(self) -> float:
        """Return the median feature sum of typical rows: how far unit steps move an output."""
        return float(np.median(np.asarray(self.typical.sum(axis=1)).ravel()))


def problem(corpus: Corpus, recipe: Recipe, public: PublicSource, seed: int) -> TextProblem:
    """Draw the public examples by ``seed``, remove them from the private ones, make features."""
    chosen, left = _split(corpus, public, seed)
    held = Features(corpus, recipe)
    return TextProblem(
        corpus=corpus,
        recipe=recipe,
        train=held.of(left),
        test=held.of(corpus.test),
        public=public_examples(
            held.rows(chosen.counts),
            chosen.targets,
            texts=chosen.texts,
            source=f"{corpus.name}: {public}",
            public_because=public.reason,
            batch_size=min(len(chosen), 256),
            seed=seed,
        ),
        typical=held.rows(typical_counts(corpus)),
    )


def _split(corpus: Corpus, public: PublicSource, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    if public.names:
        assert corpus.names is not None
        return corpus.names, _split(corpus, ONE_PERCENT, seed)[1]
    if public.proxy:
        assert corpus.proxy is not None
        others = corpus.proxy()
        rows = _drawn(len(others), public.proxy, seed)
        return others.take(np.flatnonzero(rows)), corpus.train
    if public.users:
        assert corpus.train.users is not None
        known = np.unique(corpus.train.users)
        mine = known[_drawn(len(known), max(1, round(public.share * len(known))), seed)]
        rows = np.isin(corpus.train.users, mine)
    else:
        size = max(2, round(public.share * len(corpus.train)))
        rows = _drawn(len(corpus.train), size, seed)
    return corpus.train.take(rows), corpus.train.take(~rows)


def _drawn(population: int, size: int, seed: int) -> Array:
    rows = np.zeros(population, dtype=bool)
    rows[np.random.default_rng([seed, population]).permutation(population)[:size]] = True
    return rows


def zero_model(problem: TextProblem) -> nn.Linear:
    """Return a linear model without bias whose weights are zero."""
    words = problem.corpus.train.counts.shape[1]
    model = sparse_linear(words, problem.corpus.classes, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model
