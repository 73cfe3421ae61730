"""The demo: which section does a Debian package belong to? Several methods, one budget.

The package descriptions play the private data. What is public is declared: the vocabulary and its
frequencies (wordfreq), the sections, the number of examples. Each text's word counts are normalised
alone. The model has no bias, which would take half of every clipped gradient. Every contender has
the same features, batches, steps and number of tuning trials; the trials were made on a part of the
training data and are recorded in ``reproduce/recorded/demo.json``. Beside them stands what `adadps
train` makes of the same texts when nothing is tuned.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadps.accounting import Budget, calibrate_noise, default_delta
from adadps.data.assumed import AssumedPublic
from adadps.data.debian import SECTIONS, TEST_FOLD, Package, debian_packages
from adadps.data.examples import Examples, examples
from adadps.data.text import BagOfWords, public_vocabulary
from adadps.defaults import RULE, Choice, choose, first_gradient
from adadps.errors import DataError
from adadps.evaluation import accuracy, on_held_out
from adadps.methods import (
    adadps,
    adadps_two_sided,
    dp_adam,
    dp_sgd,
    dp_sgd_weighted,
    plain_adam,
)
from adadps.named_methods import Method, shaped
from adadps.report import report_of_comparison
from adadps.reproduce.rows import Setting, recorded, write_json
from adadps.result import Result
from adadps.sampling import Sampler, poisson
from adadps.side import Frequencies, frequency, word_frequencies
from adadps.side.fixed import Fixed
from adadps.stages import Chain, privatize
from adadps.training import fit
from adadps.types import Accountant

VOCABULARY, BATCH, STEPS = 10_000, 1024, 400
DEFAULT_STEPS = RULE.steps
VALIDATION_FOLD = 1
TUNING_TRIALS = 12
SHIPPED = "AdaDPS, two-sided"
DEFAULTS, DEFAULT_SIDE = "Defaults (no tuning): DP-SGD on IDF features", "word frequencies"
NOT_PRIVATE = "Adam, no privacy"
ASSUMED_PUBLIC = AssumedPublic(
    classes=SECTIONS,
    vocabulary=f"the {VOCABULARY} most frequent English words of wordfreq",
    others=["that the classes are all sections of the Debian archive"],
)


@dataclass(frozen=True)
class DemoData:
    """Training and held-out examples, with the public word frequencies."""

    train: Examples
    test: Examples
    frequencies: Frequencies


@dataclass(frozen=True)
class Contender:
    """One row of the table."""

    name: str
    side: str
    build: Callable[[Setting, float, Frequencies], Chain]


@dataclass(frozen=True)
class Outcome:
    """What the demo leaves behind."""

    rows: list[dict[str, Any]]
    report: Path
    model: Path


def _privacy(setting: Setting, sigma: float) -> Any:
    return privatize(clip_norm=setting["clip_norm"], noise_multiplier=sigma)


def _side(setting: Setting, frequencies: Frequencies) -> Fixed:
    return frequency(frequencies, floor=setting["floor"], power=setting["power"])


def _before_the_clip(setting: Setting, sigma: float, frequencies: Frequencies) -> Chain:
    return adadps(_side(setting, frequencies), _privacy(setting, sigma), setting["lr"])


def _on_both_sides(setting: Setting, sigma: float, frequencies: Frequencies) -> Chain:
    side = _side(setting, frequencies)
    return adadps_two_sided(side, side, _privacy(setting, sigma), setting["lr"])


def _into_the_features(setting: Setting, sigma: float, frequencies: Frequencies) -> Chain:
    return dp_sgd_weighted(_side(setting, frequencies), _privacy(setting, sigma), setting["lr"])


CONTENDERS = (
    Contender("DP-SGD", "none", lambda s, sigma, _: dp_sgd(_privacy(s, sigma), s["lr"])),
    Contender("DP-Adam", "none", lambda s, sigma, _: dp_adam(_privacy(s, sigma), s["lr"])),
    Contender("AdaDPS, before the clip", "word frequencies", _before_the_clip),
    Contender("AdaDPS, two-sided", "word frequencies", _on_both_sides),
    Contender("DP-SGD, weighted features", "word frequencies", _into_the_features),
    Contender(NOT_PRIVATE, "none", lambda s, *_: plain_adam(s["lr"])),
)


def load_data(*, dampened: bool = False, tuning: bool = False) -> DemoData:
    """Features and sections of the packages that come with adadps, split by source package.

    For ``tuning`` the test packages are left out, and another fold takes their place.
    """
    packages = [p for p in debian_packages() if not (tuning and p.fold == TEST_FOLD)]
    fold = VALIDATION_FOLD if tuning else TEST_FOLD
    words = public_vocabulary(VOCABULARY)
    bag = BagOfWords(words, dampened)

    def held(chosen: list[Package]) -> Examples:
        sections = [SECTIONS.index(package.section) for package in chosen]
        return examples(bag([package.text for package in chosen]), sections)

    return DemoData(
        train=held([package for package in packages if package.fold != fold]),
        test=held([package for package in packages if package.fold == fold]),
        frequencies=word_frequencies(words),
    )


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every example."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def sampler_for(data: DemoData) -> Sampler:
    """Poisson batches; the number of examples is declared public."""
    return poisson(examples=len(data.train), expected_size=BATCH)


def noise_for(data: DemoData, epsilon: float) -> float:
    """The noise multiplier with which the demo's steps cost ``epsilon``."""
    budget = Budget(epsilon, default_delta(len(data.train)))
    return calibrate_noise(sampler_for(data), STEPS, budget=budget, accountant=Accountant.PLD)


def train(
    contender: Contender, setting: Setting, sigma: float, data: DemoData
) -> tuple[Result, float]:
    """Train one contender; return its result and the seconds it took."""
    method = contender.build(setting, sigma, data.frequencies)
    return _timed(data, method, sampler_for(data), STEPS, setting, TUNING_TRIALS)


def default_choice(data: DemoData, epsilon: float) -> Choice:
    """Batches, steps, noise, clip norm and learning rate as `adadps train` has them."""
    return choose(
        examples=len(data.train),
        budget=Budget(epsilon, default_delta(len(data.train))),
        gradient_norm=first_gradient(len(SECTIONS)),
        steps=DEFAULT_STEPS,
    )


def default_method(data: DemoData, choice: Choice) -> Chain:
    """DP-SGD on features weighted by public IDF."""
    privacy = privatize(clip_norm=choice.clip_norm, noise_multiplier=choice.noise_multiplier)
    side = shaped(data.frequencies, Method.DP_SGD_WEIGHTED)
    return dp_sgd_weighted(side, privacy, choice.lr)


def train_defaults(data: DemoData, epsilon: float) -> tuple[Result, float]:
    """What `adadps train` does with texts when only epsilon is given; ``data`` is dampened."""
    choice = default_choice(data, epsilon)
    method = default_method(data, choice)
    setting = {"clip_norm": choice.clip_norm, "lr": choice.lr}
    return _timed(data, method, choice.sampler, choice.steps, setting, trials=0)


def _timed(
    data: DemoData, method: Chain, sampler: Sampler, steps: int, setting: Setting, trials: int
) -> tuple[Result, float]:
    model = nn.Linear(VOCABULARY, len(SECTIONS), bias=False)
    nn.init.zeros_(model.weight)
    shown = on_held_out(
        "held-out packages",
        data.test.features,
        data.test.targets,
        every=steps // 10,
        accuracy=accuracy,
    )
    start = time.perf_counter()
    result = fit(
        model,
        cross_entropy,
        data.train,
        method=method,
        sampler=sampler,
        steps=steps,
        evaluate=[shown],
        assumed_public=ASSUMED_PUBLIC,
        tuning_trials=trials,
        settings={
            **setting,
            "model": f"linear without bias, {VOCABULARY} words x {len(SECTIONS)} sections",
            "words": f"adadps.data.text.public_vocabulary({VOCABULARY})",
            "classes": list(SECTIONS),
        },
    )
    return result, time.perf_counter() - start


def run_demo(folder: Path, epsilon: float, say: Callable[[str], None]) -> Outcome:
    """Train all contenders, write the report, the rows and the AdaDPS model into ``folder``."""
    Budget(epsilon, 0.5)  # refuse a bad epsilon before the data is read
    _require_room(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one step is small: several threads wait for each other
    try:
        return _run_demo(folder, epsilon, say)
    finally:
        torch.set_num_threads(threads)


def _run_demo(folder: Path, epsilon: float, say: Callable[[str], None]) -> Outcome:
    say("Reading 30,300 package descriptions that come with adadps ...")
    data = load_data()
    say(f"Planning {STEPS} steps for epsilon = {epsilon:g} ...")
    sigma, winners = noise_for(data, epsilon), recorded("demo")
    results: dict[str, Result] = {}
    rows = []

    def keep(name: str, side: str, trained: tuple[Result, float]) -> None:
        result, seconds = trained
        results[name] = result
        rows.append(_row(name, side, result, seconds))
        say(f"{name}: accuracy {result.last('accuracy'):.3f} in {seconds:.0f} s")

    for contender in CONTENDERS:
        if contender.name == NOT_PRIVATE:  # all that is private stands above it
            keep(DEFAULTS, DEFAULT_SIDE, train_defaults(load_data(dampened=True), epsilon))
        trained = train(contender, winners[contender.name], sigma, data)
        keep(contender.name, contender.side, trained)
    write_json(folder / "demo.json", rows)
    report = _report(folder, rows, results)
    shutil.rmtree(folder / "model", ignore_errors=True)
    return Outcome(rows, report, results[SHIPPED].save(folder / "model"))


def _require_room(folder: Path) -> None:
    """An earlier demo may be replaced, but nothing else."""
    other = folder.is_dir() and any(folder.iterdir()) and not (folder / "demo.json").exists()
    if other or (folder.exists() and not folder.is_dir()):
        raise DataError(
            f"Expected a new folder or an earlier demo, found something else at {folder}. Choose "
            "another one with --out; nothing was changed."
        )


def _row(name: str, side: str, result: Result, seconds: float) -> dict[str, Any]:
    privacy = result.privacy
    return {
        "method": name,
        "side": side,
        "accuracy": result.last("accuracy"),
        "epsilon": privacy.epsilon if privacy.private else None,
        "delta": privacy.delta if privacy.private else None,
        "tuning_trials": privacy.tuning_trials,
        "seconds": round(seconds, 1),
    }


def _report(folder: Path, rows: list[dict[str, Any]], results: dict[str, Result]) -> Path:
    best = max((row for row in rows if row["epsilon"] is not None), key=lambda row: row["accuracy"])
    return report_of_comparison(
        results,
        folder / "report.html",
        title="adadps demo: several private methods, one budget",
        lead="A linear classifier tells the section of a Debian package from its description. The "
        "descriptions are treated as private; accuracy is measured on packages held out from "
        "training.",
        columns={
            "side information": {row["method"]: row["side"] for row in rows},
            "tuning trials": {row["method"]: str(row["tuning_trials"]) for row in rows},
            "seconds": {row["method"]: f"{row['seconds']:.0f}" for row in rows},
        },
        highlight=best["method"],
        notes=[
            "All private methods have the same epsilon. Those that were tuned have the same "
            "features, batches, steps and number of trials, which were made beforehand on a part "
            "of the training data; their cost is not part of this epsilon.",
            "The defaults had no trials on this data. They are what adadps train does with texts "
            "when only epsilon is given: log counts of the same words, weighted by public inverse "
            "document frequencies; batch size, clip norm and learning rate by rule.",
            "Side information can enter before the clip (the paper's AdaDPS), before the clip and "
            "after the noise (two-sided), or in the features; which is best depends on the data.",
            "Noise is fresh in every run: repeat the demo and accuracies move by half a point, at "
            "times by two.",
        ],
    )
