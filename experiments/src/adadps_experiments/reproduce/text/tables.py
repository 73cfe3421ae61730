"""Tables and figures of the text experiments: runs over seeds, rows, curves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from adadps.accounting.epsilon import epsilon_of_run
from adadps.accounting.samplers import poisson
from adadps.methods.paper import dp_sgd
from adadps.methods.stages import privatize
from adadps.types import Accountant
from adadps_experiments.plots import Curve, Panel, curves_of, draw
from adadps_experiments.reproduce.published import PublishedRun
from adadps_experiments.reproduce.records import Record, RecordFile, valid_run
from adadps_experiments.reproduce.results import Row, Winners, summary
from adadps_experiments.reproduce.text.corpora import WORD_STATISTICS
from adadps_experiments.reproduce.text.experiments import IN_FIGURES, Experiment, TableLine
from adadps_experiments.reproduce.text.jobs import SIZES, TextJob, run
from adadps_experiments.reproduce.text.methods import TEXT_METHODS
from adadps_experiments.reproduce.text.problem import ONE_PERCENT
from adadps_experiments.reproduce.text.published import OF_DATASET
from adadps_experiments.reproduce.text.tuning import TunedSetting, tuned_setting
from adadps_experiments.reproduce.workers import run_missing

STAND_INS = (
    "so-titles",
    "so-titles-general-words",
    "debian-tags",
)
"""Data sets that stand in for Stack Overflow, whose published results are not theirs."""


def job_of(line: TableLine, choice: TunedSetting, seed: int) -> TextJob:
    """Return the job of a line with one seed."""
    public = line.public if TEXT_METHODS[line.method].uses_public else ONE_PERCENT
    return TextJob(
        line.dataset, choice.recipe, line.method, choice.setting, line.epsilon, seed, public
    )


def run_lines(
    lines: Sequence[TableLine],
    seeds: int,
    winners: Winners,
    record_file: RecordFile,
    label: str,
    workers: int | None = None,
) -> list[Record]:
    """Run the jobs that have no record; return the records of all lines."""
    jobs = [
        job_of(line, tuned_setting(line, winners), seed) for line in lines for seed in range(seeds)
    ]
    run_missing(run, jobs, record_file, label, workers)
    return [valid_run(record_file, job.describe()) for job in jobs]


def rows_of(
    experiment: Experiment,
    lines: Sequence[TableLine],
    seeds: int,
    winners: Winners,
    record_file: RecordFile,
) -> list[Row]:
    """Return one row per line and metric."""
    rows = []
    for line in lines:
        choice = tuned_setting(line, winners)
        jobs = [job_of(line, choice, seed).describe() for seed in range(seeds)]
        records = [valid_run(record_file, job) for job in jobs]
        rows += [_row(experiment, line, choice, records, metric) for metric in records[0]["values"]]
    return rows


def _row(
    experiment: Experiment,
    line: TableLine,
    choice: TunedSetting,
    records: list[Record],
    metric: str,
) -> Row:
    method, first, size = TEXT_METHODS[line.method], records[0], SIZES[line.dataset]
    costs: dict[str, Any] = {}
    if line.paper is not None and metric == "accuracy":
        if line.dataset in STAND_INS:
            costs["paper_on_stackoverflow"] = line.paper
        if method.private:
            costs.update(OF_DATASET[line.dataset].cost())
    public_alone = {"epsilon_pld": 0.0, "epsilon_rdp": 0.0} if method.only_public else {}
    facts: dict[str, Any] = {
        "experiment": experiment.name,
        "dataset": line.dataset,
        "method": line.method,
        "side": side_of(line),
        "metric": f"test {metric}",
        "epsilon_pld": _largest(records, "epsilon_pld"),
        "epsilon_rdp": _largest(records, "epsilon_rdp"),
        "delta": size.delta if method.private else None,
        "paper": None if metric != "accuracy" or line.dataset in STAND_INS else line.paper,
        **public_alone,
    }
    return summary(
        values=[record["values"][metric] for record in records],
        settings={
            **choice.setting,
            "label": method.label,
            "features": line.features,
            "recipe": str(choice.recipe),
            "table": line.table,
            "public": str(line.public) if method.uses_public else None,
            "target_epsilon": line.epsilon if method.private else None,
            "private_examples": 0 if method.only_public else first["examples"],
            "expected_batch_size": min(size.batch, first["examples"]),
            "steps": first["job"]["steps"],
            "noise_multiplier": first["noise_multiplier"],
            "clip_norm": first["clip_norm"],
            "private": first["private"] or method.only_public,
            "values": [record["values"][metric] for record in records],
            "seconds": [record["seconds"] for record in records],
            **costs,
        },
        **facts,
    )


def side_of(line: TableLine) -> str:
    """Name the side information of a line; its words may come from the private texts.

    >>> from adadps_experiments.reproduce.text.experiments import PAPER
    >>> side_of(TableLine("imdb-private-words", PAPER, "adadps", 1.5))
    'PRIVATE word frequencies'
    """
    return TEXT_METHODS[line.method].side.format(words=WORD_STATISTICS[line.dataset])


def _largest(records: list[Record], name: str) -> float | None:
    values = [record[name] for record in records]
    return None if None in values else float(max(values))


COLUMNS = {
    "method": "label",
    "side information": "side",
    "mean": "mean",
    "std": "std",
    "ε (PLD)": "epsilon_pld",
    "ε (RDP)": "epsilon_rdp",
    "paper": "paper",
}
MOST_CURVES, WITHOUT_PRIVACY, MOST_EPSILONS = 10, 3, 2


def tables_of(
    experiment: Experiment, rows: Sequence[Row]
) -> list[tuple[str, dict[str, str], list[Row]]]:
    """Return title, columns and rows for each data set, features, epsilon and metric.

    Rows without a target epsilon, such as training without privacy, are in every table.
    """
    parts: dict[str, list[Row]] = {}
    for row in rows:
        settings = row["settings"]
        title = f"{row['dataset']}, {settings['features']} features ({settings['recipe']})"
        flat = {
            **row,
            "label": settings["label"],
            "public": settings["public"],
            "std": row["std"] if row["seeds"] > 1 else None,
            "epsilon_pld": "∞" if row["epsilon_pld"] is None else row["epsilon_pld"],
            "epsilon_rdp": "∞" if row["epsilon_rdp"] is None else row["epsilon_rdp"],
        }
        parts.setdefault(f"{title}, {row['metric']}", []).append(flat)
    several = len({row["settings"]["public"] for row in rows} - {None}) > 1
    columns = dict(COLUMNS, **({"public data": "public"} if several else {}))
    return [
        (f"{experiment.title}\n{name}{aim}", columns, mine)
        for name, part in parts.items()
        for aim, mine in _by_aim(part)
    ]


def _by_aim(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    aims = {row["settings"]["target_epsilon"]: row["delta"] for row in rows}
    free = [row for row in rows if row["settings"]["target_epsilon"] is None]
    if set(aims) == {None}:
        return [("", free)]
    return [
        (
            f", ε = {epsilon:g} at δ = {delta:.2g}",
            [row for row in rows if row["settings"]["target_epsilon"] in (epsilon, None)],
        )
        for epsilon, delta in aims.items()
        if epsilon is not None
    ]


def published_runs(lines: Sequence[TableLine]) -> list[PublishedRun]:
    """Return the published runs whose results stand beside these lines."""
    private = [
        line for line in lines if TEXT_METHODS[line.method].private and line.paper is not None
    ]
    return list(dict.fromkeys(OF_DATASET[line.dataset] for line in private))


def figure_of(
    lines: Sequence[TableLine], seeds: int, winners: Winners, record_file: RecordFile
) -> bytes:
    """Draw two panels per data set, features and epsilon: accuracy over epochs and over epsilon.

    If there are more than two epsilons, only the one of the tuning is drawn. The legend names the
    lines that are not drawn.
    """
    panels: list[Panel] = []
    for dataset, features in dict.fromkeys((line.dataset, line.features) for line in lines):
        mine = [line for line in lines if (line.dataset, line.features) == (dataset, features)]
        private = [line.epsilon for line in mine if TEXT_METHODS[line.method].private]
        aims: list[float | None] = [*sorted(set(private))]
        if len(aims) > MOST_EPSILONS:
            aims = [SIZES[dataset].tuned_at]
        for epsilon in aims or [None]:
            shown = [
                line
                for line in mine
                if line.epsilon == epsilon or not TEXT_METHODS[line.method].private
            ]
            title = f"{dataset}, {features} features"
            panels += _panels(title, epsilon, shown, seeds, winners, record_file)
    return draw(panels, "png", columns=2, legend_below=True)


def _panels(
    title: str,
    epsilon: float | None,
    lines: Sequence[TableLine],
    seeds: int,
    winners: Winners,
    record_file: RecordFile,
) -> list[Panel]:
    drawn, labels = _most_telling(lines), _labels(lines)
    missing = [labels[line] for line in lines if line not in drawn]
    note = f"Not drawn: {'; '.join(missing)}" if missing else ""
    by_epoch, by_epsilon = [], []
    for line in drawn:
        choice = tuned_setting(line, winners)
        jobs = [job_of(line, choice, seed) for seed in range(seeds)]
        records = [record for job in jobs if (record := record_file.find(job.describe()))]
        by_epoch.append(_against_epochs(labels[line], jobs[0], records))
        if all(record["private"] for record in records):
            by_epsilon.append(_against_epsilon(by_epoch[-1], jobs[0], records[0]))
    if epsilon is not None:
        title += f", ε = {epsilon:g}" if by_epsilon else ", ε = ∞"  # whatever the target was
    panels = [Panel(title, "epochs", "test accuracy", by_epoch, note=note)]
    if by_epsilon:
        panels.append(Panel(title, "ε spent (PLD)", "test accuracy", by_epsilon, note=note))
    return panels


def _labels(lines: Sequence[TableLine]) -> dict[TableLine, str]:
    """Label lines by method, with side information and public data where labels would be equal."""
    uses = [line for line in lines if TEXT_METHODS[line.method].uses_public]
    several = len({line.public for line in uses}) > 1
    sides: dict[str, set[str]] = {}
    for line in lines:
        sides.setdefault(TEXT_METHODS[line.method].label, set()).add(side_of(line))
    labels = {}
    for line in lines:
        name = TEXT_METHODS[line.method].label
        side = f", {side_of(line)}" if len(sides[name]) > 1 else ""
        public = f" ({line.public})" if several and line in uses else ""
        labels[line] = f"{name}{side}{public}"
    return labels


def _most_telling(lines: Sequence[TableLine]) -> list[TableLine]:
    """Choose at most ten lines: private ones first, those of the paper's figures before others.

    Three places, and those that private lines leave free, go to training without privacy. Methods
    that train on public examples alone have no curve.
    """
    ordered = sorted(lines, key=lambda line: line.method not in IN_FIGURES)
    drawn = [line for line in ordered if not TEXT_METHODS[line.method].only_public]
    first = [line for line in drawn if TEXT_METHODS[line.method].private]
    others = [line for line in drawn if not TEXT_METHODS[line.method].private]
    others = others[: max(WITHOUT_PRIVACY, MOST_CURVES - len(first))]
    return [*first[: MOST_CURVES - len(others)], *others]


def _against_epochs(label: str, job: TextJob, records: Sequence[Record]) -> Curve:
    size = SIZES[job.dataset]
    steps = [step for step, _ in records[0]["curve"]]
    epochs = [step * size.batch / records[0]["examples"] for step in steps]
    values = [[value for _, value in record["curve"]] for record in records]
    return curves_of(label, epochs, values)


def _against_epsilon(curve: Curve, job: TextJob, record: Record) -> Curve:
    size = SIZES[job.dataset]
    spent = [
        _epsilon(record["examples"], size.batch, record["noise_multiplier"], step, size.delta)
        for step, _ in record["curve"]
    ]
    return Curve(curve.label, spent, curve.mean, curve.std)


@cache
def _epsilon(examples: int, batch: int, sigma: float, steps: int, delta: float) -> float:
    """Return the epsilon of this many steps; stages around the clip do not change it."""
    sampler = poisson(examples=examples, expected_size=batch)
    chain = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=sigma), lr=1.0)
    return epsilon_of_run(chain, sampler, steps, delta=delta, accountant=Accountant.PLD)
