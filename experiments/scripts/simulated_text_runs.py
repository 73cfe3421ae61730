"""Make docs/results/defaults/simulated.json: what changes to the rule would do on reviews.

    python experiments/scripts/simulated_text_runs.py               # make missing lines
    python experiments/scripts/simulated_text_runs.py --markdown    # print the table

Runs of the weighted method on words alone, in numpy: the same batches, clipping, noise and rate as
`adadps train --features words`, but with a generator that has a seed, on rows that are encoded
once. They are trained on four fifths of the training rows and measured on the fifth; test rows are
not read. All variants of a line see the same seeds. Three variants have embeddings, too.
"""

import argparse
import json
import math
import re
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize

from adadps.accounting.epsilon import Budget
from adadps.accounting.events import default_delta
from adadps.estimators.planner.methods import WORDS_PER_TEXT, PreparedMethod
from adadps.estimators.planner.plan import (
    RULE,
    DefaultRule,
    LossFacts,
    first_gradient,
    plan_training,
)
from adadps.estimators.text import TOKEN, directions_of
from adadps.methods.side import embeddings, given_frequencies, idf, word_frequencies
from adadps.types import Method
from adadps_experiments.reproduce.defaults.problems import VOCABULARY, _words, load_problem

JSON = Path(__file__).parents[2] / "docs" / "results" / "defaults" / "simulated.json"
CASES, SEEDS = (("amazon", 1.0), ("amazon", 8.0), ("imdb", 1.5)), 4
NEGATED, SPAN, SHARE_OF_NEGATED = 3000, 4, 0.08
"""The commonest words also have a feature each for standing within four words after a negation."""
NEGATIONS = frozenset(
    ["not", "no", "never", "nor", "neither", "cannot", "without", "hardly", "nothing", "nobody"]
)
GROUPS = 10


@dataclass(frozen=True)
class Variant:
    """A change to the rule, to the features, or to the weights after training."""

    rule: DefaultRule = field(default=RULE)
    words: int = VOCABULARY
    negated: bool = False
    share: float = 0.0
    after: str = "none"


VARIANTS = {
    "the rule": Variant(),
    "clip norm halved": Variant(replace(RULE, clip=RULE.clip / 2)),
    "clip norm doubled": Variant(replace(RULE, clip=RULE.clip * 2)),
    "rate halved": Variant(replace(RULE, output_noise=RULE.output_noise / 2)),
    "rate 1.5 times": Variant(replace(RULE, output_noise=RULE.output_noise * 1.5)),
    "batches of n/4": Variant(replace(RULE, rate=0.25)),
    "batches of n/4, 100 steps": Variant(replace(RULE, rate=0.25, steps=100)),
    "mean of the second half of the iterates": Variant(after="mean"),
    "shrunk by group of words (James-Stein)": Variant(after="james-stein"),
    "shrunk word by word (empirical Bayes)": Variant(after="bayes"),
    "5,000 words": Variant(words=5000),
    "20,000 words": Variant(words=20_000),
    "negated words are words of their own": Variant(negated=True),
    "embeddings have a twentieth": Variant(share=0.05),
    "embeddings have a sixth": Variant(share=1 / 6),
    "embeddings have a sixth, negated words": Variant(share=1 / 6, negated=True),
}


def analysed(text: str) -> list[str]:
    """Return the words of a text; those soon after a negation, in the same clause, are negated."""
    words, left = [], 0
    text = re.sub(r"\b(\w+)n['’]t\b", r"\1 not ", text.lower())
    for token in re.findall(rf"{TOKEN}|[.,;:!?()]", text):
        if not re.fullmatch(r"\w+", token):
            left = 0
            continue
        words.append(f"not {token}" if left > 0 else token)
        left = SPAN if token in NEGATIONS else left - 1
    return words


@cache
def embedded(name: str):
    """Return the embeddings of the texts to train on, and of those to measure on."""
    problem = load_problem(name).for_tuning()
    return [embeddings()(list(part.rows)) for part in (problem.train, problem.test)]


@cache
def rows_of(name: str, words: int, negated: bool, share: float):
    """Return weighted rows of norm 1 and targets for training and measuring, and frequencies."""
    problem = load_problem(name).for_tuning()
    known = list(_words(problem.classes, words))
    rates = word_frequencies(known).values.numpy()
    how = {"token_pattern": TOKEN}
    if negated:
        rates = np.concatenate([rates, rates[:NEGATED] * SHARE_OF_NEGATED])
        known, how = [*known, *(f"not {word}" for word in known[:NEGATED])], {"analyzer": analysed}
    held = given_frequencies(rates, source="wordfreq", public_because="published word lists")
    weights = 1 / idf(held, words_per_text=WORDS_PER_TEXT).named["weight"][0].numpy()
    parts = []
    for place, part in enumerate((problem.train, problem.test)):
        counts = CountVectorizer(vocabulary=known, **how).transform(part.rows).astype(np.float32)
        counts.data = np.log1p(counts.data)
        weighted = normalize(counts @ sparse.diags(weights.astype(np.float32)))
        if share:
            blocks = [weighted * math.sqrt(1 - share), embedded(name)[place] * math.sqrt(share)]
            weighted = normalize(sparse.hstack([sparse.csr_matrix(one) for one in blocks]))
        parts.append((sparse.csr_matrix(weighted, dtype=np.float32), np.asarray(part.targets)))
    return parts[0], parts[1], rates


def accuracy(name: str, epsilon: float, variant: Variant, seed: int) -> float:
    """Train once, and return the accuracy on the rows that were held out."""
    (rows, targets), (held, answers), rates = rows_of(
        name, variant.words, variant.negated, variant.share
    )
    settings = planned(len(targets), epsilon, variant.rule)
    size, steps, clip = settings.sampler.expected_size, settings.steps, settings.clip_norm
    noise = np.float32(settings.noise_multiplier * clip)
    rng, wanted = np.random.default_rng(seed), np.eye(2, dtype=np.float32)[targets]
    weights, total = np.zeros((rows.shape[1], 2), np.float32), np.zeros((rows.shape[1], 2))
    if variant.share:
        weights[len(rates) :] = directions_of(load_problem(name).classes, embeddings()).T
    for step in range(steps):
        drawn = np.flatnonzero(rng.random(len(targets)) < size / len(targets))
        batch = rows[drawn]
        errors = softmax(batch @ weights) - wanted[drawn]
        norms = np.linalg.norm(errors, axis=1, keepdims=True)  # rows have norm 1
        summed = batch.T @ (errors * np.minimum(1, clip / np.maximum(norms, 1e-12)))
        summed += noise * rng.standard_normal(weights.shape, dtype=np.float32)
        weights -= np.float32(settings.lr / size) * summed
        if 2 * step >= steps:
            total += weights
    if variant.after == "mean":
        weights = total
    elif variant.after != "none":
        deviation = settings.lr * noise / size * math.sqrt(steps)
        weights = shrunk(weights, deviation, rates, by_word=variant.after == "bayes")
    return float(((held @ weights).argmax(1) == answers).mean())


@cache
def planned(examples: int, epsilon: float, rule: DefaultRule):
    """Return the settings of the rule."""
    budget, loss = Budget(epsilon, default_delta(examples)), LossFacts(first_gradient(2))
    prepared = PreparedMethod(Method.DP_SGD)
    return plan_training(prepared, examples=examples, budget=budget, loss=loss, rule=rule).settings


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the probabilities of the classes."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def shrunk(weights: np.ndarray, deviation: float, rates: np.ndarray, *, by_word: bool):
    """Return weights times the share of their variance that is not noise, by frequency.

    The variance of each group of words, or the mixture of variances that each word's weight is
    drawn from, is estimated on the noisy weights: that is post-processing.
    """
    half = (weights[:, 1] - weights[:, 0]) / math.sqrt(2)  # two classes have one direction
    groups = np.argsort(np.argsort(-rates, kind="stable")) * GROUPS // len(rates)
    found = np.empty_like(half)
    for group in range(GROUPS):
        mine = groups == group
        squares = (half[mine].astype(np.float64) / deviation) ** 2
        if not by_word:
            found[mine] = half[mine] * max(0.0, 1 - 1 / squares.mean())
            continue
        variances = np.concatenate([[0], np.geomspace(0.01, 100, 17)])
        density = np.exp(-squares[:, None] / (2 * (1 + variances))) / np.sqrt(1 + variances)
        prior = np.full(len(variances), 1 / len(variances))
        for _ in range(60):  # expectation maximisation
            posterior = density * prior
            posterior /= posterior.sum(1, keepdims=True)
            prior = posterior.mean(0)
        found[mine] = half[mine] * (posterior * (variances / (1 + variances))).sum(1)
    return np.stack([-found, found], 1)


def table(held: list[dict]) -> str:
    """Return the table in Markdown: mean and standard error."""
    cases = [f"{name}, ε = {epsilon:g}" for name, epsilon in CASES]
    lines = [f"| | {' | '.join(cases)} |", "|---|" + "---|" * len(CASES)]
    for label in VARIANTS:
        cells = []
        for case in CASES:
            key = (*case, label)
            mine = [row for row in held if (row["problem"], row["epsilon"], row["variant"]) == key]
            if mine:
                values = mine[0]["accuracies"]
                error = stdev(values) / math.sqrt(len(values))
                cells.append(f"{fmean(values):.4f} ± {error:.4f}")
            else:
                cells.append("–")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Make missing lines, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true")
    held = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else []
    if parser.parse_args().markdown:
        print(table(held))
        return
    done = {(row["problem"], row["epsilon"], row["variant"]) for row in held}
    for name, epsilon in CASES:
        for label, variant in VARIANTS.items():
            if (name, epsilon, label) in done:
                continue
            found = [round(accuracy(name, epsilon, variant, seed), 4) for seed in range(SEEDS)]
            facts = {"problem": name, "epsilon": epsilon, "variant": label}
            held.append({**facts, "accuracies": found})
            JSON.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
