"""Side information: where a preconditioner comes from, why it is not sensitive, what it cost.

A new source is a class with the methods of `SideSource`: an event (its price), a provenance, `init`
and `observe`. Where A is known before training, return a `fixed(...)` source instead of a new
class, as `frequency` and `tfidf` do. tests/contract/test_side_sources.py runs the shared checks.
"""

from adadps.methods.side.embeddings import Embeddings, embeddings, embeddings_described
from adadps.methods.side.fitted import PublicTexts, embeddings_from_texts, public_texts
from adadps.methods.side.frequency import (
    Frequencies,
    corpus_frequencies,
    frequencies_of_private_data,
    frequency,
    given_frequencies,
    idf,
    tfidf,
    word_frequencies,
)
from adadps.methods.side.noisy import noisy_frequencies
from adadps.methods.side.probes import image_probes, token_probes
from adadps.methods.side.public import (
    AdaGradStatistics,
    AdamStatistics,
    RMSPropStatistics,
    Statistics,
    oracle,
    public,
)
from adadps.methods.side.releases import delayed_releases, release_moments
from adadps.methods.side.source import SideSource, Transform, fixed, from_private_data, uniform
from adadps.methods.side.whitening import whiten

__all__ = [
    "AdaGradStatistics",
    "AdamStatistics",
    "Embeddings",
    "Frequencies",
    "PublicTexts",
    "RMSPropStatistics",
    "SideSource",
    "Statistics",
    "Transform",
    "corpus_frequencies",
    "delayed_releases",
    "embeddings",
    "embeddings_described",
    "embeddings_from_texts",
    "fixed",
    "frequencies_of_private_data",
    "frequency",
    "from_private_data",
    "given_frequencies",
    "idf",
    "image_probes",
    "noisy_frequencies",
    "oracle",
    "public",
    "public_texts",
    "release_moments",
    "tfidf",
    "token_probes",
    "uniform",
    "whiten",
    "word_frequencies",
]
