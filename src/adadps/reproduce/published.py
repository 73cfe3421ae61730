"""What the paper reports on text, by the label of its table or figure."""

from __future__ import annotations

ALL_METHODS, PDA_DPMD = "table: all_methods", "table: compare_PDA-DPMD"
PRETRAIN, ADAM_PUB = "table: compare_public_pretrain", "table: compare_dp-adam-pub"
TF_IDF_TABLE, OOD = "table: imdb_tf-idf", "table: OOD-public-data"
SIZE, NON_PRIVATE = "table: public-data-size", "table: dp-side_non_private"
WITHOUT_PUBLIC = "fig: without-public-private"

BESIDE_ALL_METHODS = {
    "adadps": PDA_DPMD,
    "pda-dpmd": PDA_DPMD,
    "warm-start": PRETRAIN,
    "dp-adam-pub": ADAM_PUB,
}
"""Methods whose numbers stand in other tables than `ALL_METHODS`."""

IMDB = {
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
STACK_OVERFLOW = {
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
