"""Two models of reviews: the paper's, and a smaller one on public vectors of words.

250 of the training reviews, one percent, are drawn once and taken as public with their labels, as
in the paper; they are never trained on as private ones. For tuning, a sixth of the private reviews
replaces the test reviews, which then play no part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from adadps.data.examples import examples
from adadps.engine.losses import cross_entropy
from adadps.errors import SettingError
from adadps.training.evaluation import accuracy
from adadps_experiments.reproduce.fitting import DeepProblem
from adadps_experiments.reproduce.lstm.reviews import (
    PADDING,
    ROWS_OF_TABLE,
    WIDTH,
    EncodedReviews,
    reviews,
)

PUBLIC = 250
DELTA = 1 / 25_000
PAPER, VECTORS = "imdb-lstm", "imdb-lstm-vectors"
HIDDEN = 32
"""Of our model; the paper's has 64."""

WORD_DEVIATION, HEAD_DEVIATION, INPUT_GAIN = 0.05, 0.3, 2.0
"""How the paper's model starts, which the paper does not say."""


@dataclass(frozen=True)
class LstmSize:
    """How long a model is trained, on how many words of each review."""

    batch: int
    epochs: float
    trial_epochs: float
    words: int
    batch_without_noise: int = 128
    epochs_without_noise: float = 3
    epsilon: float = 2.8


SIZES = {
    PAPER: LstmSize(512, 6, 2, words=100),
    VECTORS: LstmSize(512, 4, 1, words=200),
}
PARTS = (PAPER, VECTORS)


def parts_of(part: str | None = None) -> tuple[str, ...]:
    """Return both problems, or the one that was asked for.

    >>> parts_of("imdb-lstm-vectors")
    ('imdb-lstm-vectors',)
    """
    if part is not None and part not in PARTS:
        raise SettingError(
            f"Expected --dataset among those of 'imdb-lstm', found '{part}'. It has: "
            f"{', '.join(PARTS)}."
        )
    return PARTS if part is None else (part,)


class MeanOfOutputs(nn.Module):
    """An embedding, an LSTM, and a linear layer on the mean of its outputs over the words.

    The mean can be centred and scaled by fixed numbers, ``centre`` and ``scale``.
    """

    def __init__(self, embedding: nn.Embedding, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.recurrent = nn.LSTM(embedding.embedding_dim, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, 2)
        self.register_buffer("centre", torch.zeros(hidden))
        self.register_buffer("scale", torch.ones(hidden))

    def read_out(self, words: Tensor) -> Tensor:
        """Return the mean of the outputs at words; padding is not counted."""
        outputs, _ = self.recurrent(self.embedding(words))
        counted = (words != PADDING).unsqueeze(-1).to(outputs.dtype)
        total: Tensor = (outputs * counted).sum(1)
        return total / counted.sum(1).clamp_min(1.0)

    def forward(self, words: Tensor) -> Tensor:
        """Return the score of each class."""
        scores: Tensor = self.linear((self.read_out(words) - self.centre) / self.scale)
        return scores

    def normalise(self, public: Tensor) -> None:
        """Centre and scale the mean by public reviews, once."""
        with torch.no_grad():
            found = self.read_out(public)
        self.centre, self.scale = found.mean(0), found.std(0).clamp_min(1e-6)


def of_the_paper(_held: EncodedReviews, seed: int) -> MeanOfOutputs:
    """Return the paper's model: 706,690 weights, all trained.

    That is the number in the paper's appendix, and that of an embedding of 10,000 words in 64
    numbers, two LSTM layers of 64 and a linear layer. The paper does not say how outputs are read.

    Words start near 0 and layers pass on what enters them, so that gradients reach the embedding:
    with torch's own start they are a hundredth of those of the linear layer.
    """
    torch.manual_seed(seed)
    model = MeanOfOutputs(nn.Embedding(ROWS_OF_TABLE, WIDTH), hidden=WIDTH, layers=2)
    nn.init.normal_(model.embedding.weight, std=WORD_DEVIATION)
    nn.init.normal_(model.linear.weight, std=HEAD_DEVIATION)
    for name, value in model.recurrent.named_parameters():
        gates = value.detach().chunk(4)
        for gate in gates:
            if name.startswith("weight_ih"):
                nn.init.xavier_uniform_(gate, gain=INPUT_GAIN)
            elif name.startswith("weight_hh"):
                nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(gate)
        if name.startswith("bias_ih"):
            nn.init.ones_(gates[1])  # of the gate that keeps what was there
    return model


def on_public_vectors(held: EncodedReviews, seed: int) -> MeanOfOutputs:
    """Return one LSTM layer on frozen vectors, read through statistics of unlabelled reviews."""
    torch.manual_seed(seed)
    table = nn.Embedding(ROWS_OF_TABLE, WIDTH, _weight=held.vectors.clone(), _freeze=True)
    model = MeanOfOutputs(table, hidden=HIDDEN, layers=1)
    model.normalise(held.unlabelled)
    return model


def problem(experiment: str, *, tuning: bool) -> DeepProblem:
    """Return a problem with the test reviews, or with those held out for tuning."""
    held = reviews()
    order = np.random.default_rng(250).permutation(len(held.train))
    public, private = order[:PUBLIC], order[PUBLIC:]
    test = examples(_last(held.test, experiment), held.test_labels)
    if tuning:
        held_out, private = np.split(private, [len(private) // 6])
        test = examples(_last(held.train[held_out], experiment), held.labels[held_out])
    build = of_the_paper if experiment == PAPER else on_public_vectors

    def model(seed: int) -> nn.Module:
        return build(_shortened(held, experiment), seed)

    return DeepProblem(
        train=examples(_last(held.train[private], experiment), held.labels[private]),
        test=test,
        public=examples(_last(held.train[public], experiment), held.labels[public]),
        model=model,
        loss=cross_entropy,
        metric=accuracy,
        kind="reviews",
    )


def unlabelled_shares(*, words: int) -> Tensor:
    """Return the share of unlabelled reviews with each word, relative to the commonest word's."""
    found = torch.zeros(ROWS_OF_TABLE, dtype=torch.float64)
    for row in reviews().unlabelled[:, -words:]:
        found[row.unique()] += 1
    return found / found.max()


def _last(words: Tensor, experiment: str) -> Tensor:
    return words[:, -SIZES[experiment].words :]


def _shortened(held: EncodedReviews, experiment: str) -> EncodedReviews:
    return replace(held, unlabelled=_last(held.unlabelled, experiment))
