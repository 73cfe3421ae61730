"""Runs of an experiment over seeds, and the rows made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adadps_experiments.reproduce.contenders import CONTENDERS
from adadps_experiments.reproduce.corpora import WORD_STATISTICS
from adadps_experiments.reproduce.experiments import Experiment, Line
from adadps_experiments.reproduce.jobs import SIZES, Job, run
from adadps_experiments.reproduce.keeping import Kept, Record
from adadps_experiments.reproduce.missing import run_missing
from adadps_experiments.reproduce.problem import ONE_PERCENT
from adadps_experiments.reproduce.published_cost import OF_DATASET
from adadps_experiments.reproduce.rows import Row, summary
from adadps_experiments.reproduce.sound_records import sound_run
from adadps_experiments.reproduce.trials import Choice, Winners, chosen

STAND_INS = (
    "so-titles",
    "so-titles-general-words",
    "debian-tags",
)
"""Data sets in the place of Stack Overflow: its published numbers are not theirs."""


def job_of(line: Line, choice: Choice, seed: int) -> Job:
    """The run of a line with one seed."""
    public = line.public if CONTENDERS[line.method].uses_public else ONE_PERCENT
    return Job(line.dataset, choice.recipe, line.method, choice.setting, line.epsilon, seed, public)


def run_lines(
    lines: Sequence[Line],
    seeds: int,
    winners: Winners,
    kept: Kept,
    label: str,
    workers: int | None = None,
) -> list[Record]:
    """Run what is not kept yet, one record after the other; the records of all lines."""
    jobs = [job_of(line, chosen(line, winners), seed) for line in lines for seed in range(seeds)]
    run_missing(run, jobs, kept, label, workers)
    return [sound_run(kept, job.describe()) for job in jobs]


def rows_of(
    experiment: Experiment, lines: Sequence[Line], seeds: int, winners: Winners, kept: Kept
) -> list[Row]:
    """One row for each line and metric."""
    rows = []
    for line in lines:
        choice = chosen(line, winners)
        jobs = [job_of(line, choice, seed).describe() for seed in range(seeds)]
        records = [sound_run(kept, job) for job in jobs]
        rows += [_row(experiment, line, choice, records, metric) for metric in records[0]["values"]]
    return rows


def _row(
    experiment: Experiment, line: Line, choice: Choice, records: list[Record], metric: str
) -> Row:
    contender, first, size = CONTENDERS[line.method], records[0], SIZES[line.dataset]
    costs: dict[str, Any] = {}
    if line.paper is not None and metric == "accuracy":
        if line.dataset in STAND_INS:
            costs["paper_on_stackoverflow"] = line.paper
        if contender.private:
            costs.update(OF_DATASET[line.dataset].cost())
    public_alone = {"epsilon_pld": 0.0, "epsilon_rdp": 0.0} if contender.only_public else {}
    facts: dict[str, Any] = {
        "experiment": experiment.name,
        "dataset": line.dataset,
        "method": line.method,
        "side": side_of(line),
        "metric": f"test {metric}",
        "epsilon_pld": _largest(records, "epsilon_pld"),
        "epsilon_rdp": _largest(records, "epsilon_rdp"),
        "delta": size.delta if contender.private else None,
        "paper": None if metric != "accuracy" or line.dataset in STAND_INS else line.paper,
        **public_alone,
    }
    return summary(
        values=[record["values"][metric] for record in records],
        settings={
            **choice.setting,
            "label": contender.label,
            "features": line.features,
            "recipe": str(choice.recipe),
            "table": line.table,
            "public": str(line.public) if contender.uses_public else None,
            "target_epsilon": line.epsilon if contender.private else None,
            "private_examples": 0 if contender.only_public else first["examples"],
            "expected_batch_size": min(size.batch, first["examples"]),
            "steps": first["job"]["steps"],
            "noise_multiplier": first["noise_multiplier"],
            "clip_norm": first["clip_norm"],
            "private": first["private"] or contender.only_public,
            "values": [record["values"][metric] for record in records],
            "seconds": [record["seconds"] for record in records],
            **costs,
        },
        **facts,
    )


def side_of(line: Line) -> str:
    """What the side information is, and whose: words can be read off the private texts.

    >>> from adadps_experiments.reproduce.experiments import PAPER
    >>> side_of(Line("imdb-private-words", PAPER, "adadps", 1.5))
    'PRIVATE word frequencies'
    """
    return CONTENDERS[line.method].side.format(words=WORD_STATISTICS[line.dataset])


def _largest(records: list[Record], name: str) -> float | None:
    values = [record[name] for record in records]
    return None if None in values else float(max(values))
