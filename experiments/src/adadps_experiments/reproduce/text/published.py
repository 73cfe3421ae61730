"""What the paper reports on text, by the label of its table or figure."""

from __future__ import annotations

from collections.abc import Iterable

from adadps_experiments.reproduce.published import IMDB_RUN, STACK_OVERFLOW_RUN

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


OF_DATASET = {
    "imdb": IMDB_RUN,
    "imdb-private-words": IMDB_RUN,
    "so-titles": STACK_OVERFLOW_RUN,
    "so-titles-general-words": STACK_OVERFLOW_RUN,
    "debian-tags": STACK_OVERFLOW_RUN,
    "stackoverflow": STACK_OVERFLOW_RUN,
}
"""The published run whose results stand beside those of each data set."""
