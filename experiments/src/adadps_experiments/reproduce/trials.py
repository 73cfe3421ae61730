"""Trials of settings: those that are tried for each method, and the one that wins.

Trials may be shorter than the runs of the table. Then the best setting is tried again at the length
of a run, and with shorter steps as long as that helps: more steps of noise want shorter ones.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from adadps.errors import DataError, SettingError
from adadps_experiments.reproduce.records import Record, RecordFile
from adadps_experiments.reproduce.results import Setting, Winners
from adadps_experiments.reproduce.workers import run_missing

TUNING_SEED = 1000
STEPS_OUTSIDE = 2
"""How often a grid is extended at an edge where the best setting lies."""
MOST_FINALS = 3
"""How many runs are tried at the most where runs are longer than trials."""
LENGTHS_OF_STEPS = ("length", "rate")
"""The names of settings that say how long a step is."""


@dataclass(frozen=True, kw_only=True)
class TunedJob(ABC):
    """One run of a method with a setting."""

    experiment: str
    method: str
    setting: Setting
    seed: int
    tuning: bool = False
    epochs: float | None = None
    """Other epochs than those of the experiment."""

    @abstractmethod
    def describe(self) -> Record:
        """Return the job as it is recorded."""


Job = TypeVar("Job", bound=TunedJob)


@dataclass(frozen=True)
class Search(Generic[Job]):
    """A search for the best setting of each method; trials that have a record are not repeated."""

    run: Callable[[Job], Record]
    record_file: RecordFile
    metric: str
    lower_is_better: bool = False
    workers: int | None = None

    def winner(self, trials: Sequence[Job], final_epochs: float | None = None) -> Record:
        """Try these and further ones beyond edges, and the best for ``final_epochs``."""
        method = f"{trials[0].method} on {trials[0].experiment}"
        tried = list(trials)
        for outside in range(STEPS_OUTSIDE + 1):
            run_missing(self.run, tried, self.record_file, f"trials of {method}", self.workers)
            if outside < STEPS_OUTSIDE:
                tried += beyond_edges(tried, self.cost)
        if final_epochs is None:
            return self._described(tried, [])
        finals = [replace(min(tried, key=self.cost), epochs=final_epochs)]
        while True:
            run_missing(self.run, finals, self.record_file, f"finals of {method}", self.workers)
            if len(finals) == MOST_FINALS or min(finals, key=self.cost) != finals[-1]:
                return self._described(tried, finals)
            finals.append(with_steps_halved(finals[-1]))

    def cost(self, job: Job) -> float:
        """Return the score, turned so that less is better; a run that diverged is the worst."""
        score = self.score(job)
        if score is None:
            return math.inf
        return score if self.lower_is_better else -score

    def score(self, job: Job) -> float | None:
        """Return the score of a trial; None is that of a run that diverged."""
        score = self.record_file.require(job.describe())["values"][self.metric]
        return None if score is None else float(score)

    def _described(self, trials: Sequence[Job], finals: Sequence[Job]) -> Record:
        def scores(jobs: Sequence[Job]) -> list[Any]:
            return [[dict(job.setting), self.score(job)] for job in jobs]

        short, best = (min(jobs, key=self.cost) for jobs in (trials, finals or trials))
        return {
            "winner": dict(best.setting),
            self.metric: self.score(best),
            "winner of trials": dict(short.setting),
            "trials": scores(trials),
            "finals": scores(finals),
        }


def beyond_edges(trials: Sequence[Job], cost: Callable[[Job], float]) -> list[Job]:
    """Return the best trial with each of its values that lies at an edge moved one step on."""
    best = min(trials, key=cost)
    further = []
    for name, value in best.setting.items():
        tried = sorted({job.setting[name] for job in trials})
        if value not in (tried[0], tried[-1]):
            continue
        end, beside = tried[:2] if value == tried[0] else tried[::-1][:2]
        moved = float(f"{end * end / beside:.3g}")
        further.append(replace(best, setting={**best.setting, name: moved}))
    return further


def with_steps_halved(job: Job) -> Job:
    """Return the job with steps half as long."""
    setting = {
        name: value / 2 if name in LENGTHS_OF_STEPS else value
        for name, value in job.setting.items()
    }
    return replace(job, setting=setting)


def chosen(experiment: str, asked: Sequence[str] | None, known: Collection[str]) -> list[str]:
    """Return those methods of an experiment that were asked for, in its order; None: all.

    >>> chosen("mnist", ["dp-adam", "dp-sgd"], ("dp-sgd", "whitened", "dp-adam"))
    ['dp-sgd', 'dp-adam']
    """
    for name in asked or ():
        if name not in known:
            raise SettingError(
                f"Expected --methods among those of '{experiment}', found '{name}'. It has: "
                f"{', '.join(known)}."
            )
    return [name for name in known if asked is None or name in asked]


def merged(
    held: Winners | None,
    found: Mapping[str, Mapping[str, Record]],
    protocol: str,
    order: Sequence[str],
) -> Winners:
    """Return the winners found on each problem, beside those ``held`` of other methods."""
    datasets = dict(held["datasets"]) if held else {}
    for part, winners in found.items():
        both = {**datasets.get(part, {}).get("methods", {}), **winners}
        datasets[part] = {"methods": {name: both[name] for name in order if name in both}}
    return {"protocol": protocol, "datasets": datasets}


def tuned_methods(experiment: str, winners: Winners) -> list[str]:
    """Return the methods of an experiment that have been tuned."""
    return list(winners["datasets"].get(experiment, {}).get("methods", {}))


def setting_of(
    experiment: str,
    method: str,
    winners: Winners,
    *,
    needs_finals: bool = False,
    of_trials: bool = False,
) -> Setting:
    """Return the recorded setting of a method, or the one that was best ``of_trials`` alone."""
    try:
        held = winners["datasets"][experiment]["methods"][method]
        if needs_finals and not held["finals"]:
            raise ValueError("no finals")
        found = held["winner of trials" if of_trials else "winner"]
        return {str(name): float(value) for name, value in found.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"Expected a recorded setting of {method} on {experiment}, found none. Run the "
            "experiment with --tune first, and give its file with --winners."
        ) from error
