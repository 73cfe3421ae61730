"""Tuning of the text experiments: sixteen trials per method, on texts held out from training.

No test text is used. For each problem DP-SGD first chooses its best features among the candidates;
then every method has sixteen settings on the same features, with the same batches and steps, at one
epsilon, in runs of half the length. If the best setting lies at the edge of its grid, the grid is
extended there, by the same rule for all methods. The choice is used unchanged at all other
epsilons, and a choice made with one percent of the texts as public data is used with other public
sets of about that size or less. As in the paper, the trials use private data and are not part of
the reported epsilons; `adadps.training.tuning` is the way to pay for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from adadps.errors import DataError
from adadps_experiments.reproduce.records import Record, RecordFile, valid_trial
from adadps_experiments.reproduce.results import Setting, Winners
from adadps_experiments.reproduce.text import recipes
from adadps_experiments.reproduce.text.experiments import (
    BEST,
    PAPER,
    PLAIN,
    TF_IDF,
    Experiment,
    TableLine,
)
from adadps_experiments.reproduce.text.jobs import SIZES, TextJob, run
from adadps_experiments.reproduce.text.methods import TEXT_METHODS
from adadps_experiments.reproduce.text.problem import ONE_PERCENT
from adadps_experiments.reproduce.text.recipes import Recipe
from adadps_experiments.reproduce.workers import run_missing

TUNING_SEED = 1000
STEPS_OUTSIDE = 2
"""How often a grid is extended at an edge where the best setting lies."""
PROTOCOL = (
    "Highest accuracy on a fifth of the training texts, held out from the trials; 16 settings for "
    "each method on each kind of features, and up to two steps beyond the edge of a grid at which "
    "the best one lies; runs of half the length, one each. The features called 'best for DP-SGD' "
    "are those on which DP-SGD did best, among 12 candidates with 3 settings."
)

SETTINGS_FROM = {"imdb-private-words": "imdb", "stackoverflow": "so-titles"}
"""Problems that use the settings found on another one; settings are scale-free."""


@dataclass(frozen=True)
class TunedSetting:
    """The features and the setting of a line."""

    recipe: Recipe
    setting: Setting


def tune(
    experiment: Experiment,
    record_file: RecordFile,
    held: Winners | None = None,
    workers: int | None = None,
) -> Winners:
    """Run the trials that have no record yet; return all winners, old and new."""
    found: Winners = {"protocol": PROTOCOL, "datasets": dict((held or {}).get("datasets", {}))}
    for dataset in dict.fromkeys(_tuned_on(line) for line in experiment.lines):
        mine = {"methods": {}, **found["datasets"].get(dataset, {})}
        found["datasets"][dataset] = mine
        lines = {_key(line): line for line in experiment.lines if _tuned_on(line) == dataset}
        if any(line.features in (BEST, PLAIN) for line in lines.values()):
            mine["features"] = _choose_features(dataset, record_file, workers)
        jobs = {
            key: _trials(dataset, line, recipe_of(line.features, mine))
            for key, line in lines.items()
        }
        first = [job for trials in jobs.values() for job in trials]
        run_missing(run, first, record_file, f"tuning {dataset}", workers)
        for _ in range(STEPS_OUTSIDE):
            further = {key: _further(trials, record_file) for key, trials in jobs.items()}
            outside = [job for trials in further.values() for job in trials]
            run_missing(run, outside, record_file, f"edges of {dataset}", workers)
            jobs = {key: trials + further[key] for key, trials in jobs.items()}
        for key, trials in jobs.items():
            best = _best(trials, record_file, lambda job: dict(job.setting))
            mine["methods"][key] = {"features": str(trials[0].recipe), **best}
    return found


def tuned_setting(line: TableLine, winners: Winners) -> TunedSetting:
    """Return the recorded features and setting of a line."""
    try:
        mine = winners["datasets"][_tuned_on(line)]
        recipe, found = recipe_of(line.features, mine), mine["methods"][_key(line)]
        if found["features"] != str(recipe):
            raise KeyError(f"found on other features: {found['features']}")
        setting = found["winner"]
        if not setting or not all(_is_setting(name, held) for name, held in setting.items()):
            raise KeyError("no setting of numbers")
        return TunedSetting(recipe, setting)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"Expected recorded settings for {_key(line)} on {line.dataset}, found none that fits "
            "these features. Run the experiment with --tune first, and give its file with "
            "--winners."
        ) from error


def _is_setting(name: str, value: object) -> bool:
    """Tell whether it is a number, and above zero unless it is a power."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (name == "power" or float(value) > 0)  # type: ignore[arg-type]


def recipe_of(features: str, held: Winners) -> Recipe:
    """Return the recipe of a kind of features; two of them are chosen by tuning."""
    fixed = {PAPER: recipes.PAPER, TF_IDF: recipes.TF_IDF}
    if features in fixed:
        return fixed[features]
    return Recipe(**held["features"][{BEST: "winner", PLAIN: "plain"}[features]])


def _choose_features(dataset: str, record_file: RecordFile, workers: int | None) -> Record:
    """Run DP-SGD with three settings on each candidate, and return the best features."""
    size = SIZES[dataset]
    jobs = [
        TextJob(
            dataset, recipe, "dp-sgd", {"clip": 0.5, "length": length}, size.tuned_at, TUNING_SEED,
            tuning=True,
        )
        for recipe in recipes.CANDIDATES
        for length in size.lengths[:3]
    ]  # fmt: skip
    run_missing(run, jobs, record_file, f"features of {dataset}", workers)
    plain = [job for job in jobs if not job.recipe.power]
    return {
        **_best(jobs, record_file, lambda job: asdict(job.recipe)),
        "plain": _best(plain, record_file, lambda job: asdict(job.recipe))["winner"],
    }


def _trials(dataset: str, line: TableLine, recipe: Recipe) -> list[TextJob]:
    size, method = SIZES[dataset], TEXT_METHODS[line.method]
    public = line.public.tuned_as if method.uses_public else ONE_PERCENT
    return [
        TextJob(dataset, recipe, line.method, setting, size.tuned_at, TUNING_SEED, public, True)
        for setting in method.grid(size.lengths)
    ]


def _further(trials: list[TextJob], record_file: RecordFile) -> list[TextJob]:
    """Return the best trial with each of its values that lies at an edge moved one step on."""
    best = max(trials, key=lambda job: _accuracy(job, record_file))
    further = []
    for name in ("clip", "length", "public_length"):
        tried = sorted({job.setting[name] for job in trials if name in job.setting})
        if len(tried) == 1 or best.setting.get(name) not in tried[:1] + tried[-1:]:
            continue
        ends, next_to_it = tried[::-1][:2] if best.setting[name] == tried[-1] else tried[:2]
        value = float(f"{ends * ends / next_to_it:.3g}")
        further.append(replace(best, setting={**best.setting, name: value}))
    return further


def _best(
    jobs: Iterable[TextJob], record_file: RecordFile, named: Callable[[TextJob], Any]
) -> Record:
    trials = [(_accuracy(job, record_file), job) for job in jobs]
    accuracy, winner = max(trials, key=lambda trial: trial[0])
    return {
        "winner": named(winner),
        "accuracy": accuracy,
        "trials": [
            {"features": str(job.recipe), "setting": dict(job.setting), "accuracy": score}
            for score, job in trials
        ],
    }


def _accuracy(job: TextJob, record_file: RecordFile) -> float:
    return float(valid_trial(record_file, job.describe())["values"]["accuracy"])


def _tuned_on(line: TableLine) -> str:
    return SETTINGS_FROM.get(line.dataset, line.dataset)


def _key(line: TableLine) -> str:
    uses = TEXT_METHODS[line.method].uses_public
    return f"{line.features} | {line.method}" + (f" | {line.public.tuned_as}" if uses else "")
