"""The reviews of IMDB as tokens of public words, for one epoch of the LSTM on real texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from adadps.estimators.text import TOKEN, public_vocabulary
from adadps_experiments.bench.workloads.base import Array, SyntheticData
from adadps_experiments.bench.workloads.texts import LstmClassifier, TextClassifier
from adadps_experiments.data.imdb import imdb

PADDING = 0


@dataclass(frozen=True)
class ImdbLstm(LstmClassifier):
    """The workload `lstm` on the training reviews; its data are read, not made."""

    vocabulary: int = 10_001
    """The commonest words of wordfreq, and the padding."""

    def data(self) -> SyntheticData:
        """Read the reviews, and cut or pad each to the same length."""
        reviews = imdb().train
        words = public_vocabulary(self.vocabulary - 1)
        tokens = padded_tokens(reviews.texts[: self.examples], words, self.length)
        labels = torch.tensor(reviews.labels[: self.examples])
        return SyntheticData(torch.from_numpy(tokens), labels)

    def tiny(self) -> TextClassifier:
        """Return a small workload of the same kind, which reads nothing."""
        sizes = {field.name: getattr(self, field.name) for field in fields(self)}
        return LstmClassifier(**sizes).tiny()


def padded_tokens(texts: Sequence[str], words: Sequence[str], length: int) -> Array:
    """Return the first ``length`` known words of each text as numbers from 1, with 0 before them.

    Padding comes first, so that the last output is that of a word.

    >>> padded_tokens(["To be, or not to be", "???"], ["to", "be"], 3).tolist()
    [[1, 2, 1], [0, 0, 0]]
    """
    number = {word: index for index, word in enumerate(words, start=1)}
    tokens = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, text in zip(tokens, texts, strict=True):
        found = [number[word] for word in re.findall(TOKEN, text.lower()) if word in number]
        if found:
            row[-min(length, len(found)) :] = found[:length]
    return tokens
