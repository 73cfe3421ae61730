"""The lines of each experiment: one for each method, features, epsilon and public data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from adadps.errors import SettingError
from adadps_experiments.data.finding import find
from adadps_experiments.data.named_sets import STACKOVERFLOW
from adadps_experiments.reproduce.text import published
from adadps_experiments.reproduce.text.problem import ONE_PERCENT, PublicSource

PAPER, TF_IDF, PLAIN, BEST = "paper", "tf-idf", "plain", "best for DP-SGD"
"""Kinds of features. The last two are found by tuning DP-SGD without and with public IDF."""
READ = (
    "stackoverflow_train.h5",
    "stackoverflow_test.h5",
    "stackoverflow.word_count",
    "stackoverflow.tag_count",
)
"""The files of Stack Overflow that its lines need; held-out users are not read."""


@dataclass(frozen=True)
class TableLine:
    """One row of a table before it is run."""

    dataset: str
    features: str
    method: str
    epsilon: float
    public: PublicSource = ONE_PERCENT
    paper: float | None = None
    table: str = ""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    title: str
    lines: tuple[TableLine, ...]
    quick: tuple[TableLine, ...]


WITHOUT_PUBLIC = (
    "dp-sgd",
    "dp-adam",
    "dp-rmsprop",
    "adadps",
    "adadps-two-sided",
    "dp-sgd-weighted",
)
WITH_PUBLIC = (
    "adadps-public",
    "adadps-public-adam",
    "dp-r-pub",
    "dp-adam-pub",
    "pda-dpmd",
    "warm-start",
    "adadps-warm-start",
)
DOORS = (
    "dp-sgd",
    "dp-adam",
    "adadps",
    "after-the-noise",
    "adadps-two-sided",
    "dp-sgd-weighted",
)
"""No side information, and side information through each of its doors."""
AT_OTHER_EPSILONS = ("dp-sgd", "dp-adam", "adadps", "adadps-two-sided", "dp-sgd-weighted")
BOUNDS = ("ideal", "adam", "public-only")
WITHOUT_PRIVACY = ("sgd", "adam", "public-only")
BY_NAME, NAMES = ("warm-start", "adadps-warm-start"), PublicSource(names=True)
"""Methods that start from the names of the tags, as texts with their own tag."""
QUICK, FEW = ("dp-sgd", "dp-adam", "adadps", "adadps-two-sided"), 4
IN_FIGURES = (
    "dp-sgd",
    "dp-adam",
    "adadps",
    "adadps-two-sided",
    "dp-sgd-weighted",
    "adadps-public",
    "dp-r-pub",
)


def _lines(
    dataset: str,
    features: str,
    methods: Iterable[str],
    epsilon: float,
    paper: dict[str, float] | None = None,
    tables: tuple[str, ...] = (),
    public: PublicSource = ONE_PERCENT,
) -> tuple[TableLine, ...]:
    """Return one line per method; ``tables`` are those of the paper at this epsilon."""
    known = paper or {}
    return tuple(
        TableLine(
            dataset, features, method, epsilon, public, known.get(method),
            published.label_of(method, tables),
        )
        for method in methods
    )  # fmt: skip


def _of(
    lines: Iterable[TableLine], dataset: str, features: str, epsilon: float, methods: Iterable[str]
) -> tuple[TableLine, ...]:
    """Return the lines of one kind with these methods, for ``--quick``."""
    kind, wanted = (dataset, features, epsilon), tuple(methods)
    mine = [line for line in lines if (line.dataset, line.features, line.epsilon) == kind]
    return tuple(line for line in mine if line.method in wanted)


def _imdb() -> Experiment:
    methods = (*WITHOUT_PUBLIC, "adadps-wordfreq", *WITH_PUBLIC, *BOUNDS, "sgd", "adas")
    known, tables = published.IMDB_ACCURACY, published.COMPARISONS
    lines: tuple[TableLine, ...] = ()
    for features in (PAPER, BEST):
        lines += _lines("imdb", features, methods, 1.5, known, tables)
    lines += _lines("imdb", PAPER, IN_FIGURES, 2.8, None, published.FIGURES)
    lines += _lines("imdb", PLAIN, (*DOORS, "adam", "sgd", "public-only"), 1.5, None, tables)
    lines += _lines("imdb-private-words", PAPER, ("dp-sgd", "adadps"), 1.5, known, tables)
    quick = (
        *_of(lines, "imdb", PAPER, 1.5, ("dp-sgd", "dp-adam", "adadps", "adadps-public")),
        *_of(lines, "imdb", BEST, 1.5, ("dp-sgd", "adadps", "adam")),
    )
    title = "IMDB reviews, logistic regression on bags of words: test accuracy"
    return Experiment("imdb", title, lines, quick)


def _imdb_tfidf() -> Experiment:
    methods = ("dp-sgd", "dp-adam", "adadps-tfidf", "adadps", "ideal", "adam", "public-only")
    tables = (published.TF_IDF_TABLE,)
    lines = (
        *_lines("imdb", PAPER, methods, 1.5, published.IMDB_BAG_OF_WORDS, tables),
        *_lines("imdb", TF_IDF, methods, 1.5, published.IMDB_TF_IDF, tables),
        *_lines("imdb", BEST, methods, 1.5, None, tables),
    )
    quick = _of(lines, "imdb", TF_IDF, 1.5, methods[:4])
    title = "IMDB reviews, bags of words and TF-IDF features: test accuracy"
    return Experiment("imdb-tfidf", title, lines, quick)


EVERYBODY = (*WITHOUT_PUBLIC, "after-the-noise", *WITH_PUBLIC, "ideal", *WITHOUT_PRIVACY)
MAIN = ("dp-sgd", "dp-adam", "adadps", "adadps-public", *WITHOUT_PRIVACY)


def _tags(dataset: str, on_paper: Iterable[str] = EVERYBODY) -> tuple[TableLine, ...]:
    """Return all methods on the features best for DP-SGD, and the doors on plain features.

    The published results are for Stack Overflow at ε = 0.84 and stand beside that epsilon.
    """
    known, tables = published.STACK_OVERFLOW_ACCURACY, published.COMPARISONS
    lines: list[TableLine] = []
    for features, methods in (
        (BEST, EVERYBODY),
        (PLAIN, (*DOORS, "adadps-public", *WITHOUT_PRIVACY)),
        (PAPER, on_paper),
    ):
        lines += _lines(dataset, features, methods, 3.0)
    for features in (BEST, PLAIN):
        lines += _lines(dataset, features, AT_OTHER_EPSILONS, 0.84, known, tables)
        lines += _lines(dataset, features, AT_OTHER_EPSILONS, 8.5)
    for epsilon in (3.0, 0.84, 8.5):
        lines += _lines(dataset, BEST, BY_NAME, epsilon, public=NAMES)
    lines += _lines(dataset, BEST, ("public-only",), 3.0, public=NAMES)
    others = [method for method in known if method not in AT_OTHER_EPSILONS]
    lines += _lines(dataset, BEST, others, 0.84, known, tables)
    return tuple(lines)


def _without_knowledge(dataset: str) -> tuple[TableLine, ...]:
    """Return lines on the same texts with words of general English: no side information."""
    name = f"{dataset}-general-words"
    lines = [
        *_lines(name, PLAIN, ("dp-sgd", "dp-adam", *WITHOUT_PRIVACY), 3.0),
        *_lines(name, BEST, ("dp-sgd", "dp-adam", "adadps", *WITHOUT_PRIVACY), 3.0),
    ]
    for epsilon in (0.84, 8.5):
        lines += _lines(name, PLAIN, ("dp-sgd", "dp-adam"), epsilon)
    return tuple(lines)


def _stackoverflow() -> Experiment:
    lines = (
        *_tags("so-titles"),
        *_without_knowledge("so-titles"),
        *_tags("debian-tags", MAIN),  # runs on packages take several times as long
    )
    quick = _of(lines, "so-titles", BEST, 3.0, QUICK)
    title = "Tag prediction: the top tag is one of the text's (accuracy), test texts"
    return Experiment("stackoverflow", title, lines, quick)


def _ood() -> Experiment:
    """Published results for Stack Overflow are at ε = 0.84, so lines at 3 have none."""
    paper, tables = {"dp-sgd": 0.63, "adadps-public": 0.79}, (published.OOD,)
    methods = (
        "adadps-public",
        "adadps-public-adam",
        "warm-start",
        "adadps-warm-start",
        "public-only",
    )
    few, all_of_it, users = (
        PublicSource(proxy=250),
        PublicSource(proxy=8000),
        PublicSource(users=True),
    )
    in_distribution = {"adadps-public": 0.80}
    lines: list[TableLine] = []
    for features in (PAPER, BEST):
        lines += _lines("imdb", features, methods, 1.5, paper, tables, few)
        lines += _lines("imdb", features, methods, 1.5, public=all_of_it)
        lines += _lines("imdb", features, ("dp-sgd", "adadps", "adam"), 1.5, paper, tables)
        lines += _lines("imdb", features, methods, 1.5, in_distribution, tables)
    for features in (PAPER, BEST):
        lines += _lines("debian-tags", features, ("dp-sgd", "adam"), 3.0)
        for public in (users, ONE_PERCENT):
            held = ("adadps-public", "warm-start", "public-only")
            lines += _lines("debian-tags", features, held, 3.0, public=public)
    shop = [line for line in lines if line.public == all_of_it]
    quick = _of(shop, "imdb", BEST, 1.5, ("adadps-public", "warm-start", "public-only"))
    title = "Public data from another distribution: test accuracy"
    return Experiment("ood", title, tuple(lines), quick)


def _public_size() -> Experiment:
    """Published results for Stack Overflow are at ε = 0.84, so lines at 3 have none."""
    sizes = {0.01: 0.80, 0.002: 0.80, 0.0004: 0.75}
    lines: list[TableLine] = []
    for dataset, epsilon in (("imdb", 1.5), ("so-titles", 3.0)):
        published_here = dataset == "imdb"
        tables = (published.SIZE,) if published_here else ()
        for features in (PAPER, BEST):
            upper = {"ideal": 0.82} if published_here else None
            lines += _lines(dataset, features, ("dp-sgd", "ideal", "adam"), epsilon, upper, tables)
            for share, reported in sizes.items():
                known = {"adadps-public": reported} if published_here else None
                lines += _lines(
                    dataset, features, ("adadps-public", "public-only"), epsilon, known, tables,
                    PublicSource(share=share),
                )  # fmt: skip
    quick = _of(lines, "imdb", PAPER, 1.5, ("adadps-public",))
    return Experiment("public-size", "Size of the public data: test accuracy", tuple(lines), quick)


def _non_private() -> Experiment:
    methods = ("sgd", "adam", "adas-public", "adas", "public-only")
    tables, stack_overflow = (published.NON_PRIVATE,), published.STACK_OVERFLOW_NON_PRIVATE
    lines = (
        *_lines("imdb", PAPER, methods, 0.0, published.IMDB_NON_PRIVATE, tables),
        *_lines("imdb", BEST, methods, 0.0, None, tables),
        *_lines("so-titles", PAPER, methods, 0.0, stack_overflow, tables),
        *_lines("so-titles", BEST, methods, 0.0, None, tables),
    )
    return Experiment("non-private", "Training without privacy: test accuracy", lines, lines[:4])


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        _imdb(),
        _imdb_tfidf(),
        _stackoverflow(),
        _ood(),
        _public_size(),
        _non_private(),
    )
}


def experiment_of(name: str, dataset: str | None = None) -> Experiment:
    """Return an experiment, with lines on Stack Overflow itself where its files are found.

    With ``dataset`` it has only the lines of that data set, and a few of them for ``--quick``.

    >>> {line.dataset for line in experiment_of("ood", "imdb").lines}
    {'imdb'}
    """
    known = EXPERIMENTS[name]
    if name == "stackoverflow" and all(find(STACKOVERFLOW.file(part)) for part in READ):
        known = replace(known, lines=(*_tags("stackoverflow"), *known.lines))
    if dataset is None:
        return known
    mine = tuple(line for line in known.lines if line.dataset == dataset)
    if not mine:
        there = ", ".join(dict.fromkeys(line.dataset for line in known.lines))
        raise SettingError(
            f"Expected a data set of '{name}', found '{dataset}'. It has: {there}. (Stack Overflow "
            "itself is included when `adadps data list` finds its files.)"
        )
    quick = tuple(line for line in known.quick if line.dataset == dataset)
    return replace(known, lines=mine, quick=quick or _a_few(mine))


def _a_few(lines: tuple[TableLine, ...]) -> tuple[TableLine, ...]:
    """Return the methods of `QUICK` at the epsilon of the first line, or else the first four lines.

    The features are those best for DP-SGD if a line has them.
    """
    first = next((line for line in lines if line.features == BEST), lines[0])
    few = _of(lines, first.dataset, first.features, first.epsilon, QUICK)
    return few if len(few) > 1 else lines[:FEW]
