"""Advice that needs no simulation: what helped elsewhere where the public facts were like these.

The simulation compares places for one kind of side information in a linear model. Which *kind* is
worth having follows from what is declared: texts or numbers, how many examples for each class, and
whether further public texts were given. The margins are those of the page "Where to use what".
"""

from __future__ import annotations

from adadps.estimators.planner.methods import embedding_share
from adadps.estimators.short_texts import (
    FEW_WORDS,
    share_in_short_text,
    short_by_rule,
    worth_embedding,
)
from adadps.types import TextFeatures

WITH_EMBEDDINGS = "-0.4 to +14.4"
WITH_PUBLIC_TEXTS = "3.0 to 4.1"
"""Points of accuracy on that page: at epsilon 1 over words alone, and up to 1 over the defaults."""


def advice_for_texts(
    *, examples: int, classes: int, epsilon: float, features: TextFeatures, public_texts: bool
) -> tuple[str, ...]:
    """Return what else to consider for texts; all of it follows from public numbers.

    >>> advice_for_texts(examples=25_000, classes=2, epsilon=8, features=TextFeatures.AUTO,
    ...                  public_texts=True)
    ('Embeddings: too many examples per class for them to matter; words alone do.',)
    """
    found = [_about_embeddings(embedding_share(examples, classes, epsilon), features)]
    if not public_texts and features is not TextFeatures.EMBEDDINGS:
        found.append(
            "Public texts: if you have a thousand or more of the same kind, labelled or not, give "
            f"them with --public. On reviews that gained {WITH_PUBLIC_TEXTS} points."
        )
    return tuple(found)


def _about_embeddings(share: float, features: TextFeatures) -> str:
    if not worth_embedding(share):
        if features in (TextFeatures.AUTO, TextFeatures.WORDS):
            return "Embeddings: too many examples per class for them to matter; words alone do."
        return "Embeddings: too many examples per class for them to matter; leave --features out."
    gained = f"On five sets of texts they made {WITH_EMBEDDINGS} points, most on short texts"
    short = share_in_short_text(share) if short_by_rule(share) else share
    shares = f"{share:.0%} of every text"
    if short != share:
        shares = f"{share:.0%} of a long text, {short:.0%} of one of {FEW_WORDS} words"
    if features is TextFeatures.WORDS:
        return f"Embeddings: leave --features out, and they are {shares}. {gained}."
    if features is TextFeatures.EMBEDDINGS:
        return (
            "Words: leave --features out, and they stand beside the embeddings, with "
            f"{1 - share:.0%} of every long text."
        )
    return f"Embeddings: {shares}, by the rule. {gained}."


def advice_for_rows(*, dense: bool) -> tuple[str, ...]:
    """Return what else to consider for rows of features, whose meaning nobody told the doctor.

    >>> len(advice_for_rows(dense=True)), len(advice_for_rows(dense=False))
    (1, 1)
    """
    if dense:
        return (
            "Dense rows: in a model with hidden layers, whiten the inputs of every layer by these "
            "public examples (adadps.side.whiten). This simulation is of a linear model, where "
            "whitening gains little.",
        )
    return (
        "Sparse rows: where they count words, weight the features by public frequencies "
        "(into_the_features); if the features are given, put them on both sides of the noise.",
    )
