"""The tables and figures of the paper by label: its numbers, and where ours are."""

from __future__ import annotations

from dataclasses import dataclass

from paper_rows import LABELS, ONE_PERCENT, Find, text, trained


@dataclass(frozen=True)
class Ours:
    """One line of ours: what it is trained on, and where its rows are."""

    name: str
    find: Find


@dataclass(frozen=True)
class Part:
    """One data set of a table: the published values, and our lines."""

    name: str
    published: tuple[str, ...]
    ours: tuple[Ours, ...]


@dataclass(frozen=True)
class Sheet:
    """A table of the paper: its methods with the headings of their columns, and its parts."""

    methods: dict[str, str]
    parts: tuple[Part, ...]
    digits: int = 3


def _imdb(experiment: str, epsilon: float | None = 1.5) -> tuple[Ours, ...]:
    return (
        Ours("the paper's features", text(experiment, "imdb", "paper", epsilon)),
        Ours("weighted features", text(experiment, "imdb", "best for DP-SGD", epsilon)),
    )


def _tags(epsilon: float = 0.84) -> tuple[Ours, ...]:
    features = (("plain features", "plain"), ("weighted", "best for DP-SGD"))
    return (
        Ours("titles, the paper's features", text("stackoverflow", "so-titles", "paper", 3.0)),
        *(
            Ours(f"{name}, {kind}", text("stackoverflow", dataset, known, epsilon))
            for name, dataset in (("titles", "so-titles"), ("packages", "debian-tags"))
            for kind, known in features
        ),
    )


AUTOENCODER = (Ours("whole data", trained("mnist", "mnist-ae", 1.6)),)
LSTM = (
    Ours("the paper's model", trained("lstm", "imdb-lstm", 2.8)),
    Ours("public vectors", trained("lstm", "imdb-lstm-vectors", 2.8)),
)
MNIST = (
    Ours("the paper's kind of model", trained("mnist", "mnist", 1.25)),
    Ours("wavelet features", trained("mnist", "mnist-wavelets", 1.25)),
)
SO, CONVEX, AE = "Stack Overflow", "IMDB (convex)", "MNIST (autoencoder), loss × 100"

TABLES = {
    "all_methods": Sheet(
        {name: LABELS[name] for name in (
            "dp-sgd", "dp-adam", "dp-rmsprop", "adadps-public", "adadps-public-adam",
        )},
        (
            Part(CONVEX, ("0.63", "0.69", "0.67", "0.80", "0.80"), _imdb("imdb")),
            Part("IMDB (LSTM)", ("0.70", "0.69", "0.69", "0.73", "0.73"), LSTM),
            Part(SO, ("0.28", "0.30", "0.31", "0.40", "0.40"), _tags()),
            Part(AE, ("5.013", "3.697", "3.636", "3.566", "3.443"), AUTOENCODER),
            Part("MNIST (classification)",
                 ("0.9273", "0.9333", "0.9314", "0.9377", "0.9541"), MNIST),
        ),
        digits=4,
    ),
    "mnist_ae": Sheet(
        {name: LABELS[name] for name in ("dp-sgd", "dp-adam", "adadps-public")},
        (
            Part("σ = 1, ε = 1.6", ("5.013", "3.697", "3.566"), AUTOENCODER),
            Part("σ = 0.75, ε = 3", ("3.792", "3.286", "3.158"),
                 (Ours("whole data", trained("mnist", "mnist-ae", 3.0)),)),
        ),
    ),
    "compare_PDA-DPMD": Sheet(
        {"pda-dpmd": "PDA-DPMD", "adadps-public": "AdaDPS, public data",
         "adadps": "AdaDPS, frequencies"},
        (
            Part("IMDB", ("0.62", "0.80", "0.75"), _imdb("imdb")),
            Part(SO, ("0.33", "0.40", "0.41"), _tags()),
            Part(AE, ("3.9", "3.6", "–"), AUTOENCODER),
        ),
    ),
    "compare_public_pretrain": Sheet(
        {"dp-sgd": "DP-SGD", "warm-start": "DP-SGD, warm start",
         "adadps-public": "AdaDPS, public data"},
        (
            Part(CONVEX, ("0.63", "0.73", "0.80"), _imdb("imdb")),
            Part(SO, ("0.28", "0.33", "0.40"), _tags()),
            Part(AE, ("5.0", "4.9", "3.6"), AUTOENCODER),
        ),
    ),
    "compare_dp-adam-pub": Sheet(
        {"dp-sgd": "DP-SGD", "dp-adam-pub": "DP-Adam-Pub", "adadps-public": "AdaDPS, public data"},
        (
            Part(CONVEX, ("0.63", "0.74", "0.80"), _imdb("imdb")),
            Part(SO, ("0.28", "0.31", "0.40"), _tags()),
            Part(AE, ("5.0", "6.4", "3.6"), AUTOENCODER),
        ),
    ),
    "imdb_tf-idf": Sheet(
        {"dp-sgd": "DP-SGD", "dp-adam": "DP-Adam", "adadps-tfidf": "AdaDPS", "ideal": "ideal"},
        (
            Part("BoW", ("0.62", "0.68", "0.75", "0.82"),
                 (Ours("the paper's features", text("imdb-tfidf", "imdb", "paper", 1.5)),)),
            Part("TF-IDF", ("0.68", "0.65", "0.80", "0.83"),
                 (Ours("TF-IDF", text("imdb-tfidf", "imdb", "tf-idf", 1.5)),)),
        ),
    ),
    "OOD-public-data": Sheet(
        {"dp-sgd": "DP-SGD", "adadps-public": "AdaDPS, public data"},
        (
            Part("IMDB, other texts", ("0.63", "0.79"), (
                Ours("250 Amazon reviews",
                     text("ood", "imdb", "paper", 1.5, "250 texts of another source")),
            )),
            Part("IMDB, same source", ("0.63", "0.80"), (
                Ours("1 % of the training texts",
                     text("ood", "imdb", "paper", 1.5, ONE_PERCENT)),
            )),
            Part(f"{SO}, other users", ("0.28", "0.40"), (
                Ours("packages, 1 % of the users",
                     text("ood", "debian-tags", "paper", 3.0, "1.00% of the users")),
            )),
            Part(f"{SO}, same source", ("0.28", "0.40"), (
                Ours("packages, 1 % of the texts",
                     text("ood", "debian-tags", "paper", 3.0, ONE_PERCENT)),
            )),
        ),
    ),
    "dp-side_non_private": Sheet(
        {"sgd": "SGD", "adam": "Adam", "adas-public": "AdaS, public data",
         "adas": "AdaS, frequencies"},
        (
            Part(CONVEX, ("0.66", "0.88", "0.88", "0.88"), _imdb("non-private", None)),
            Part("IMDB (LSTM)", ("0.88", "0.88", "0.88", "0.88"), LSTM),
            Part(SO, ("0.38", "0.64", "0.64", "0.64"), (
                Ours("titles, the paper's features",
                     text("non-private", "so-titles", "paper", None)),
                Ours("titles, weighted",
                     text("non-private", "so-titles", "best for DP-SGD", None)),
            )),
            Part(AE, ("5.013", "1.151", "1.805", "–"), AUTOENCODER),
        ),
    ),
    "motivation": Sheet(
        {"sgd": "SGD", "adam": "Adam", "adas": "AdaS", "dp-sgd": "DP-SGD", "dp-adam": "DP-Adam",
         "adadps": "AdaDPS"},
        (Part("IMDB", ("curve",) * 6, _imdb("imdb")),),
    ),
    "with-public-private": Sheet(
        {"dp-sgd": "DP-SGD", "dp-adam": "DP-Adam", "dp-r-pub": "DP-R-Pub",
         "adadps-public": "AdaDPS, public data"},
        (
            Part(SO, ("curve",) * 4, _tags()),
            Part("IMDB, ε = 2.8", ("curve",) * 4, _imdb("imdb", 2.8)[:1]),
        ),
    ),
    "without-public-private": Sheet(
        {"dp-sgd": "DP-SGD", "dp-adam": "DP-Adam", "adadps": "AdaDPS, frequencies"},
        (
            Part(SO, ("curve",) * 3, _tags()),
            Part("IMDB, ε = 2.8", ("curve",) * 3, _imdb("imdb", 2.8)[:1]),
        ),
    ),
}  # fmt: skip
"""The tables and figures of the paper by label, with its numbers."""
