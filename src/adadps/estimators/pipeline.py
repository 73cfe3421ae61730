"""A pipeline from texts to classes."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from sklearn.pipeline import Pipeline

from adadps.estimators.classifier import AdaDPSClassifier
from adadps.estimators.planner.methods import embedding_share
from adadps.estimators.short_texts import SHORT, short_by_rule
from adadps.estimators.vectorizer import PublicVectorizer
from adadps.methods.side import PublicTexts


def make_text_pipeline(
    *,
    epsilon: float,
    words: int = 10_000,
    language: str = "en",
    vocabulary: Sequence[str] | None = None,
    features: str = "auto",
    embeddings: Any = None,
    public_texts: PublicTexts | None = None,
    negation: bool = True,
    **options: Any,
) -> Pipeline:
    """Return a pipeline of `PublicVectorizer` and `AdaDPSClassifier`, which knows its features.

    ``features`` are words, embeddings, or both, in shares by rule; with "choose" the shares are
    chosen on the private texts, as a part of epsilon. ``public_texts`` are what
    `adadps.side.public_texts` returns; with ``negation``, "not good" is a word beside "good".
    ``options`` are those of the classifier. Short texts lean on their embedding, unless ``classes``
    and ``examples`` are declared and the share by rule is large for all texts.

    >>> model = make_text_pipeline(epsilon=1, words=500)
    >>> [name for name, _ in model.steps], model["model"].side
    (['words', 'model'], PublicVectorizer(features='auto', negation=True, words=500))
    """
    short = _short_below(epsilon, options.get("examples"), options.get("classes"))
    vectorizer = PublicVectorizer(
        words, language, vocabulary, features, embeddings, public_texts, negation, short
    )
    side = options.pop("side", vectorizer)
    model = AdaDPSClassifier(epsilon=epsilon, side=side, **options)
    return Pipeline([("words", vectorizer), ("model", model)])


def _short_below(epsilon: Any, examples: Any, classes: Any) -> int | None:
    """Apply the rule for short texts where all of it is declared; `fit` refuses what is wrong."""
    known = isinstance(examples, Integral) and isinstance(epsilon, Real)
    if not known or classes is None or isinstance(classes, str) or min(examples, epsilon) <= 0:
        return SHORT
    return short_by_rule(embedding_share(int(examples), max(2, len(classes)), float(epsilon)))
