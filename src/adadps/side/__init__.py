"""Side information: where a preconditioner comes from, why it is not sensitive, what it cost."""

from adadps.side.fixed import fixed, uniform
from adadps.side.frequency import (
    Frequencies,
    corpus_frequencies,
    frequency,
    given_frequencies,
    word_frequencies,
)
from adadps.side.public import (
    AdaGradStatistics,
    AdamStatistics,
    RMSPropStatistics,
    Statistics,
    oracle,
    public,
)
from adadps.side.source import SideSource, Transform
from adadps.side.tfidf import tfidf

__all__ = [
    "AdaGradStatistics",
    "AdamStatistics",
    "Frequencies",
    "RMSPropStatistics",
    "SideSource",
    "Statistics",
    "Transform",
    "corpus_frequencies",
    "fixed",
    "frequency",
    "given_frequencies",
    "oracle",
    "public",
    "tfidf",
    "uniform",
    "word_frequencies",
]
