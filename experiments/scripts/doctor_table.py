"""Make docs/results/doctor.json row by row, and the tables of docs/results/doctor.md.

    python experiments/scripts/doctor_table.py               # measure the rows that are missing
    python experiments/scripts/doctor_table.py --markdown    # print the tables of measured rows
    python experiments/scripts/doctor_table.py --only mnist  # one data set

For each set the doctor sees only public examples; then every candidate is trained on the private
part as the doctor planned it. Runs are seeded, so that they can be repeated: σ is that of the
stated ε, but anyone who knows the seed knows the noise. Delete the JSON file, or lines of it, to
measure again. IMDB, Amazon and MNIST are looked for where `adadps data` finds them (ADADPS_DATA).
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import adadps
from adadps.data.debian import SECTIONS, debian_packages
from adadps.estimators import doctor
from adadps.estimators.doctor.case import case_of
from adadps.estimators.doctor.plans import plan_for
from adadps.estimators.doctor.verdict import Shown
from adadps.estimators.planner.methods import linear_layer
from adadps.estimators.text import BagOfWords, public_vocabulary
from adadps_experiments.data.amazon import amazon_reviews
from adadps_experiments.data.finding import require as find
from adadps_experiments.data.imdb import imdb
from adadps_experiments.data.named_sets import MNIST

JSON = Path(__file__).parents[2] / "docs" / "results" / "doctor.json"
STEPS, FOLDS, SEEDS, PRIVATE, WORDS = 200, 8, (1, 2, 3), 20_000, 10_000
LENGTHS = {"debian": 60, "imdb": 230}
"""Typical numbers of words per text, declared."""


@dataclass(frozen=True)
class DoctorProblem:
    """Public examples for the doctor; private and test examples to judge its advice."""

    public: tuple[Any, Any]
    private: tuple[Any, Any]
    test: tuple[Any, Any]
    classes: int
    candidates: list[doctor.Candidate]


@cache
def words():
    return public_vocabulary(WORDS)


def for_words(length):
    known = adadps.side.word_frequencies(words())
    return [
        *doctor.candidates_for_words(known, words_per_text=length, called="wordfreq"),
        doctor.public_gradients(),
    ]


def debian():
    bag = BagOfWords(words(), dampened=True)
    packages = debian_packages()
    train = [package for package in packages if not package.held_out]
    order = np.random.default_rng(0).permutation(len(train))

    def held(chosen):
        sections = [SECTIONS.index(package.section) for package in chosen]
        return bag([package.text for package in chosen]), sections

    return DoctorProblem(
        public=held([train[place] for place in order[:1000]]),
        private=held([train[place] for place in order[1000 : 1000 + PRIVATE]]),
        test=held([package for package in packages if package.held_out]),
        classes=len(SECTIONS),
        candidates=for_words(LENGTHS["debian"]),
    )


def reviews():
    bag = BagOfWords(words(), dampened=True)
    shop, films = amazon_reviews(), imdb()
    order = np.random.default_rng(0).permutation(len(films.train.texts))[:PRIVATE]
    return DoctorProblem(
        public=(bag(shop.texts), list(shop.labels)),
        private=(
            bag([films.train.texts[place] for place in order]),
            [films.train.labels[place] for place in order],
        ),
        test=(bag(films.test.texts), list(films.test.labels)),
        classes=2,
        candidates=for_words(LENGTHS["imdb"]),
    )


def digits():
    held = np.load(find(MNIST, MNIST.files[0]))
    pixels = held["x_train"].reshape(-1, 784).astype(np.float32) / 255
    labels = held["y_train"].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    public, private = order[:600], order[600 : 600 + PRIVATE]
    inked = adadps.side.corpus_frequencies(
        pixels[public], source="how often a pixel is inked", public_because="600 public digits"
    )
    shaped = adadps.side.frequency(inked, floor=0.01, power=0.5)
    return DoctorProblem(
        public=(pixels[public], labels[public]),
        private=(pixels[private], labels[private]),
        test=(held["x_test"].reshape(-1, 784).astype(np.float32) / 255, held["y_test"].astype(int)),
        classes=10,
        candidates=[
            doctor.before_the_clip("ink, before the clip", shaped),
            doctor.both_sides("ink, two-sided", shaped),
            doctor.into_the_features("ink, weighted features", shaped),
            doctor.public_gradients(),
        ],
    )


SETS: dict[str, Callable[[], DoctorProblem]] = {"debian": debian, "imdb": reviews, "mnist": digits}
EPSILONS = (1.0,)


def doctors_row(problem, epsilon):
    found = doctor.examine(
        *problem.public,
        candidates=problem.candidates,
        examples=len(problem.private[1]),
        epsilon=epsilon,
        classes=problem.classes,
        folds=FOLDS,
        steps=STEPS,
    )
    told = found.describe()
    del told["reasons"]  # the same numbers in words
    return told


def real_row(problem, epsilon, candidate, seed):
    """Train one candidate on the private part, as the doctor plans it, and test it."""
    count = len(problem.private[1])
    case = case_of(
        *problem.public,
        examples=count,
        budget=adadps.Budget(epsilon, 1 / (10 * count)),
        classes=problem.classes,
        steps=STEPS,
    )
    plan = plan_for(case, candidate)
    run = adadps.PrivateRun(
        linear_layer(case.features, problem.classes),
        adadps.losses.cross_entropy,
        adadps.examples(*problem.private),
        method=plan.chain(case.public),
        sampler=plan.settings.sampler,
        steps=STEPS,
        randomness=adadps.reproducible_not_private(seed),
        ledger=adadps.accounting.ledger.MemoryLedger(),
    )
    for batch in run.batches():
        run.step(batch)
    held_out = adadps.on_held_out("test", *problem.test, accuracy=adadps.accuracy)
    return {"accuracy": run.evaluate(held_out)[0].value}


def measure(rows, only):
    known = {tuple(row["row"]) for row in rows}

    def keep(name, make):
        if tuple(name) not in known:
            start = time.perf_counter()
            content = make()
            rows.append({"row": name, **content, "seconds": round(time.perf_counter() - start, 1)})
            write(rows)
            print(*name, content.get("accuracy", content.get("candidate")), flush=True)

    problems = {name: cache(load) for name, load in SETS.items() if only in (None, name)}
    for epsilon in EPSILONS:
        for name, problem in problems.items():
            keep(
                [name, epsilon, "doctor"],
                lambda epsilon=epsilon, problem=problem: doctors_row(problem(), epsilon),
            )
            found = next(row for row in rows if row["row"] == [name, epsilon, "doctor"])
            for finding in found["findings"]:
                chosen = finding["candidate"]
                for seed in SEEDS:
                    given = (epsilon, chosen, seed, problem)
                    keep([name, epsilon, chosen, seed], lambda given=given: trained(*given))


def trained(epsilon, chosen, seed, problem):
    return real_row(problem(), epsilon, named(problem(), chosen), seed)


def named(problem, name):
    return next(
        one for one in [doctor.no_side_information(), *problem.candidates] if one.name == name
    )


def write(rows):
    """Write the JSON file with one row per line."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    JSON.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def real(rows, name, epsilon, candidate):
    """Return the test accuracies of the real runs."""
    start = [name, epsilon, candidate]
    return [row["accuracy"] for row in rows if row["row"][:3] == start and len(row["row"]) == 4]


def tables(rows):
    doctors = [row for row in rows if row["row"][2] == "doctor"]
    head = "| set | ε | advice | its regret | of always DP-SGD | of the least bound | best |"
    summary = [head, "|---|---|---|---|---|---|---|"]
    parts = []
    for row in doctors:
        name, epsilon, _ = row["row"]
        means = {
            one["candidate"]: np.mean(real(rows, name, epsilon, one["candidate"]))
            for one in row["findings"]
        }
        best = max(means, key=means.get)
        bounds = {
            one["candidate"]: one["terms_relative_to_dp_sgd"]["bound"] for one in row["findings"]
        }
        followed = (row["candidate"], "DP-SGD", min(bounds, key=bounds.get))
        regrets = " | ".join(f"{100 * (means[best] - means[one]):.1f}" for one in followed)
        summary.append(
            f"| {name} | {epsilon:g} | {advice(row)} | {regrets} | {best} ({means[best]:.3f}) |"
        )
        parts.append(details(row, rows))
    return ["\n".join(summary), *parts]


def advice(row):
    """Name the advised candidate, with what was shown if that is DP-SGD."""
    if row["candidate"] != "DP-SGD":
        return row["candidate"]
    lost = all(one["gain"] < -one["gain_needed"] for one in row["findings"][1:])
    return f"DP-SGD: {(Shown.LOSS if lost else Shown.NEITHER).in_words}"


def details(row, rows):
    name, epsilon, _ = row["row"]
    head = "candidate | simulated | gain (needed) | bound | sharper | private run, test | its gain"
    lines = [f"{name}, ε = {epsilon:g}:", "", f"| {head} |", "|---|---|---|---|---|---|---|"]
    plain = np.mean(real(rows, name, epsilon, "DP-SGD"))
    for one in row["findings"]:
        scores = real(rows, name, epsilon, one["candidate"])
        relative = one["terms_relative_to_dp_sgd"]
        label = one["candidate"]
        if label == row["candidate"]:
            label = f"**{label}**"
        gain, needed = 100 * one["gain"], 100 * one["gain_needed"]
        span = f"{np.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})"
        lines.append(
            f"| {label} | {one['accuracy']:.3f} ± {one['standard_error']:.3f} | {gain:+.1f} "
            f"({needed:.1f}) | {relative['bound']:.2f} | {relative['sharper']:.2f} | {span} | "
            f"{100 * (np.mean(scores) - plain):+.1f} |"
        )
    return "\n".join(lines)


def main():
    torch.set_num_threads(1)  # steps are small: several threads would wait for each other
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--markdown", action="store_true", help="print the tables, measure nothing")
    asked.add_argument("--only", choices=SETS, help="only this data set")
    given = asked.parse_args()
    rows = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else []
    if given.markdown:
        print("\n\n".join(tables(rows)))
    else:
        measure(rows, given.only)


if __name__ == "__main__":
    main()
