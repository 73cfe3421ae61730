"""Default settings against tuned DP-SGD, the best of all trials, and training without privacy.

For each problem the constants of the rule are chosen on the *other* problems: those with the
smallest mean loss against the best trial there, over all epsilons. So no problem had a part in the
constants of its own line "defaults". The other lines are tuned on a fifth of the problem's own
training rows. No trial is part of an epsilon.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from adadps.estimators.planner.methods import EXAMPLES_AT_HALF, embedding_share
from adadps.estimators.planner.plan import RULE
from adadps.estimators.short_texts import SHORT
from adadps.estimators.text import NAME_SCALE
from adadps_experiments.plots import Curve, Panel, draw
from adadps_experiments.reproduce.defaults.jobs import (
    BEFORE,
    BOTH,
    FEATURES,
    MIXED,
    NO_DOOR,
    STEPS,
    DefaultsJob,
    Setting,
    run,
    without_short_texts,
)
from adadps_experiments.reproduce.records import Record, RecordFile
from adadps_experiments.reproduce.results import Row, summary
from adadps_experiments.reproduce.workers import run_missing

EPSILONS = (1.0, 3.0, 8.0)
"""Where settings are tuned. The defaults, which need no tuning, are also run at `SMALL`."""
SMALL = 0.5
FURTHER = {"imdb": (1.5,)}
"""Where only the defaults are run, too: the paper's epsilon."""
SHARES, SHARE_EPSILONS = (0.05, 0.2, 0.5, 0.8), (1.0, 3.0)
HALVES, NAMES = (125.0, 250.0, 500.0, 1000.0, 2000.0), (0.0, 4.0, 8.0, 16.0)
"""Candidates for the constants of the mix: of the share, and of the start at the classes' names."""
NOISES, CLIPS = (0.3, 0.6, 1.2), (0.25, 0.7)
OTHER_CLIPS = (0.1, 1.5)
"""More clip norms for DP-SGD without side information, which has no other doors to try."""
POWER = 1.0
"""The power of inverse document frequencies."""
RATES = tuple(4.0**power for power in range(1, 6))
TUNING_SEED = 1000

TEXTS = ("debian-sections", "debian-tags", "so-titles", "amazon", "imdb")
WITHOUT_SIDE = "mnist"
DATASETS, QUICK = (*TEXTS, WITHOUT_SIDE), ("amazon",)

DP_SGD, DEFAULTS = "dp-sgd-tuned", "defaults"
WORDS, PLAIN, ALIKE = "defaults-words", "defaults-plain", "defaults-alike"
BEST, NO_PRIVACY, PUBLIC = "best-tuned", "sgd", "public-only"
LINES = {
    PUBLIC: "public only: names of the classes (ε = 0)",
    DP_SGD: "DP-SGD, tuned, words, no side information",
    WORDS: "at first: words, nothing tuned",
    PLAIN: "before: words and embeddings, nothing tuned",
    ALIKE: "before: negated words, too, one share for all texts",
    DEFAULTS: "defaults: with more embedding in short texts, nothing tuned",
    BEST: "best of all trials on words",
    NO_PRIVACY: "SGD, no privacy, words, tuned",
}


def plain_settings() -> list[Setting]:
    """Return twelve settings of DP-SGD without side information."""
    return [
        {"door": NO_DOOR, "noise": noise, "clip": clip}
        for clip, noise in product((*CLIPS, *OTHER_CLIPS), NOISES)
    ]


def rules() -> list[Setting]:
    """Return the candidates among which the constants of the rule are chosen."""
    weighted = [
        {"door": FEATURES, "power": POWER, "noise": noise, "clip": clip}
        for clip, noise in product(CLIPS, NOISES)
    ]
    scaled = [
        {"door": door, "noise": noise, "clip": 0.7}
        for door, noise in product((BEFORE, BOTH), NOISES)
    ]
    plain = [setting for setting in plain_settings() if setting["clip"] in CLIPS]
    return [*plain, *weighted, *scaled]


def settings_of(dataset: str) -> list[Setting]:
    """Return the settings of all private trials; a problem without words has no doors."""
    if dataset == WITHOUT_SIDE:
        return plain_settings()
    return [*plain_settings(), *(one for one in rules() if one["door"] != NO_DOOR)]


def rates_of(dataset: str) -> list[Setting]:
    """Return the settings of the trials without privacy."""
    plain: list[Setting] = [{"door": NO_DOOR, "lr": lr} for lr in RATES]
    if dataset == WITHOUT_SIDE:
        return plain
    return [*plain, *({"door": FEATURES, "power": POWER, "lr": lr} for lr in RATES)]


def mix(**constants: float) -> Setting:
    """Return a setting of words and embeddings, with the other constants of the shipped rule."""
    rule = {"door": FEATURES, "power": POWER, "noise": RULE.output_noise, "clip": RULE.clip}
    return {**rule, "features": MIXED, "names": NAME_SCALE, **constants}


def share_trial(dataset: str, epsilon: float, share: float) -> DefaultsJob:
    """Return the trial of one share of the embeddings."""
    return DefaultsJob(dataset, epsilon, mix(share=share), TUNING_SEED, tuning=True)


def names_trial(dataset: str, scale: float) -> DefaultsJob:
    """Return the trial of one scale of the start, with shares by the shipped rule."""
    setting = mix(half=EXAMPLES_AT_HALF, names=scale)
    return DefaultsJob(dataset, SHARE_EPSILONS[0], setting, TUNING_SEED, tuning=True)


def mix_trials(dataset: str) -> list[DefaultsJob]:
    """Return the trials behind the constants of the mix."""
    shares = [share_trial(dataset, *one) for one in product(SHARE_EPSILONS, SHARES)]
    return [*shares, *(names_trial(dataset, scale) for scale in NAMES)]


def best_mix(datasets: Sequence[str], record_file: RecordFile) -> Record:
    """Return the constants of the mix with the smallest mean loss against the best trial.

    Between the shares that were tried, accuracy is interpolated.
    """
    halves = {half: fmean(_share_losses(half, datasets, record_file)) for half in HALVES}
    scales = {scale: fmean(_name_losses(scale, datasets, record_file)) for scale in NAMES}
    return {
        "half": min(halves, key=lambda half: halves[half]),
        "names": min(scales, key=lambda scale: scales[scale]),
        "chosen_on": list(datasets),
        "losses": {"half": list(halves.items()), "names": list(scales.items())},
    }


def _share_losses(half: float, datasets: Sequence[str], record_file: RecordFile) -> list[float]:
    found = []
    for dataset, epsilon in product(datasets, SHARE_EPSILONS):
        records = [record_file.require(share_trial(dataset, epsilon, share).describe())
                   for share in SHARES]  # fmt: skip
        scores = [record["values"]["accuracy"] for record in records]
        examples = records[0]["examples"]
        share = embedding_share(examples, records[0]["outputs"], epsilon, half=half)
        found.append(max(scores) - float(np.interp(share, SHARES, scores)))
    return found


def _name_losses(scale: float, datasets: Sequence[str], record_file: RecordFile) -> list[float]:
    found = []
    for dataset in datasets:
        scores = {
            one: record_file.require(names_trial(dataset, one).describe())["values"]["accuracy"]
            for one in NAMES
        }
        found.append(max(scores.values()) - scores[scale])
    return found


def trials_of(dataset: str) -> list[DefaultsJob]:
    """Return every trial of a problem on words alone."""
    private = [
        DefaultsJob(dataset, epsilon, setting, TUNING_SEED, tuning=True)
        for epsilon, setting in product(EPSILONS, settings_of(dataset))
    ]
    public = [
        DefaultsJob(dataset, None, setting, TUNING_SEED, tuning=True)
        for setting in rates_of(dataset)
    ]
    return [*private, *public]


def tune(datasets: Iterable[str], record_file: RecordFile, workers: int | None = None) -> Record:
    """Run the trials that have no record; return winners and constants for each problem."""
    names = tuple(datasets)
    for dataset in names:
        trials = [*trials_of(dataset), *(mix_trials(dataset) if dataset in TEXTS else ())]
        run_missing(run, trials, record_file, f"trials of {dataset}", workers)
    texts = [dataset for dataset in names if dataset in TEXTS]
    return {
        "datasets": {dataset: _winners(dataset, record_file) for dataset in names},
        "rules": {
            dataset: best_rule([other for other in texts if other != dataset], record_file)
            for dataset in names
        },
        "shipped": best_rule(texts, record_file),
        "mixes": {
            dataset: best_mix([other for other in texts if other != dataset], record_file)
            for dataset in texts
        },
        "shipped_mix": best_mix(texts, record_file),
    }


def best_rule(datasets: Sequence[str], record_file: RecordFile) -> Record:
    """Return the constants with the smallest mean loss against the best trial."""
    losses = {json.dumps(rule): _mean_loss(rule, datasets, record_file) for rule in rules()}
    winner = min(losses, key=lambda rule: losses[rule])
    return {
        "winner": json.loads(winner),
        "mean_loss": losses[winner],
        "chosen_on": list(datasets),
        "losses": [[json.loads(rule), loss] for rule, loss in losses.items()],
    }


def _mean_loss(rule: Setting, datasets: Sequence[str], record_file: RecordFile) -> float:
    found = []
    for dataset, epsilon in product(datasets, EPSILONS):
        best = max(_score(dataset, epsilon, one, record_file) for one in settings_of(dataset))
        found.append(best - _score(dataset, epsilon, rule, record_file))
    return fmean(found)


def _score(dataset: str, epsilon: float | None, setting: Setting, record_file: RecordFile) -> float:
    job = DefaultsJob(dataset, epsilon, setting, TUNING_SEED, tuning=True)
    return float(record_file.require(job.describe())["values"]["accuracy"])


def _winners(dataset: str, record_file: RecordFile) -> Record:
    def best(epsilon: float | None, settings: Iterable[Setting]) -> Record:
        trials = [(setting, _score(dataset, epsilon, setting, record_file)) for setting in settings]
        setting, score = max(trials, key=lambda trial: trial[1])
        return {"winner": setting, "accuracy": score, "trials": [list(trial) for trial in trials]}

    return {
        NO_PRIVACY: best(None, rates_of(dataset)),
        **{
            f"{epsilon:g}": {
                DP_SGD: best(epsilon, plain_settings()),
                BEST: best(epsilon, settings_of(dataset)),
            }
            for epsilon in EPSILONS
        },
    }


def jobs_of(
    dataset: str, winners: Record, seeds: int
) -> dict[tuple[str, float], list[DefaultsJob]]:
    """Return the jobs behind each row of a problem, by line and epsilon."""
    held, rule = winners["datasets"][dataset], winners["rules"][dataset]["winner"]
    if dataset == WITHOUT_SIDE:
        rule = {**rule, "door": NO_DOOR}
    found: dict[tuple[str, float], list[DefaultsJob]] = {}
    default = {**rule, "longest": RULE.longest}
    for epsilon in sorted((SMALL, *EPSILONS, *FURTHER.get(dataset, ()))):
        chosen: dict[str, tuple[float | None, Setting]] = {
            NO_PRIVACY: (None, held[NO_PRIVACY]["winner"])
        }
        if epsilon in EPSILONS:
            mine = held[f"{epsilon:g}"]
            chosen[DP_SGD] = (epsilon, mine[DP_SGD]["winner"])
            chosen[BEST] = (epsilon, mine[BEST]["winner"])
        if dataset == WITHOUT_SIDE:
            chosen[DEFAULTS] = (epsilon, default)
        else:
            constants = winners["mixes"][dataset]
            mixed = mix(half=constants["half"], names=constants["names"])
            if epsilon in (SMALL, *EPSILONS):
                chosen[WORDS], chosen[PLAIN] = (epsilon, default), (epsilon, {**mixed, **default})
            chosen[ALIKE] = (epsilon, {**mixed, **default, "negated": True})
            chosen[DEFAULTS] = (epsilon, {**chosen[ALIKE][1], "short": SHORT})
            chosen[PUBLIC] = (
                0.0,
                {"door": NO_DOOR, "features": MIXED, "names": constants["names"]},
            )
        for line in (line for line in LINES if line in chosen):
            target, setting = chosen[line]
            found[line, epsilon] = [
                DefaultsJob(dataset, target, setting, seed, tuning=False)
                for seed in range(seeds if target != 0 else 1)
            ]
    return found


def run_rows(
    datasets: Sequence[str],
    winners: Record,
    seeds: int,
    record_file: RecordFile,
    workers: int | None = None,
    *,
    recorded: bool = False,
) -> list[Row]:
    """Run the jobs that have no record; return one row per problem, epsilon and line.

    With ``recorded`` nothing is run, and rows whose runs are not all finished are left out.
    """
    lines = {
        dataset: {
            place: [_of_same_plan(job, record_file) for job in jobs]
            for place, jobs in jobs_of(dataset, winners, seeds).items()
        }
        for dataset in datasets
    }
    jobs = [job for mine in lines.values() for held in mine.values() for job in held]
    if not recorded:
        run_missing(run, jobs, record_file, "defaults", workers)
    rows = []
    for dataset, mine in lines.items():
        for (line, epsilon), jobs in mine.items():
            found = [record_file.find(job.describe()) for job in jobs]
            if all(found):
                rows.append(_row(dataset, line, epsilon, [one for one in found if one]))
    return rows


def _of_same_plan(job: DefaultsJob, record_file: RecordFile) -> DefaultsJob:
    """Return a job that was run, where it differs by a rule that changes nothing there."""
    setting = {name: value for name, value in job.setting.items() if name != "short"}
    alike = replace(job, setting=setting)
    return alike if without_short_texts(job, record_file.find(alike.describe())) else job


def _row(dataset: str, line: str, epsilon: float, records: list[Record]) -> Row:
    first = records[0]
    setting = first["job"]["setting"]
    facts: dict[str, Any] = {
        "experiment": "defaults",
        "dataset": dataset,
        "method": line,
        "side": _side_of(setting),
        "metric": "test accuracy",
        "epsilon_pld": first["epsilon_pld"],
        "epsilon_rdp": first["epsilon_rdp"],
        "delta": first["delta"] if first["private"] else None,
        "paper": None,
    }
    return summary(
        values=[record["values"]["accuracy"] for record in records],
        settings={
            **setting,
            "label": LINES[line],
            "target_epsilon": epsilon,
            "steps": STEPS,
            "private_examples": first["examples"],
            **{name: first[name] for name in ("batch_size", "noise_multiplier", "clip_norm", "lr")},
            "values": [record["values"]["accuracy"] for record in records],
        },
        **facts,
    )


def _side_of(setting: Setting) -> str:
    words = [] if setting["door"] == NO_DOOR else ["word list of general English"]
    return " and ".join([*words, *(["wordllama"] if "features" in setting else [])]) or "none"


TITLE = "Default settings against tuned ones: test accuracy"
COLUMNS = {"problem": "dataset", "ε": "epsilon", **{label: line for line, label in LINES.items()}}


def wide(rows: Sequence[Row]) -> list[Row]:
    """Return one row per problem and epsilon, with one column per line."""
    found: dict[tuple[str, float], Row] = {}
    for row in rows:
        epsilon = row["settings"]["target_epsilon"]
        empty = {"dataset": row["dataset"], "epsilon": epsilon, **dict.fromkeys(LINES)}
        mine = found.setdefault((row["dataset"], epsilon), empty)
        mine[row["method"]] = f"{row['mean']:.3f} ± {row['std']:.3f}"
    return list(found.values())


def figure_of(rows: Sequence[Row]) -> bytes:
    """Draw accuracy over epsilon, one panel per problem, as PNG."""
    panels = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        curves = []
        for line, label in LINES.items():
            mine = [row for row in rows if (row["dataset"], row["method"]) == (dataset, line)]
            curves.append(
                Curve(
                    label,
                    [row["settings"]["target_epsilon"] for row in mine],
                    [row["mean"] for row in mine],
                    [row["std"] for row in mine],
                )
            )
        panels.append(Panel(dataset, "ε", "test accuracy", curves))
    return draw(panels, "png", columns=3, legend_below=True)
