"""Tables and figures of the text experiments: test accuracy against epochs and against epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from adadps.accounting.epsilon import epsilon_of_run
from adadps.accounting.samplers import poisson
from adadps.methods.paper import dp_sgd
from adadps.methods.stages import privatize
from adadps.types import Accountant
from adadps_experiments.plots import Curve, Panel, curves_of, draw
from adadps_experiments.reproduce.contenders import CONTENDERS
from adadps_experiments.reproduce.experiments import IN_FIGURES, Experiment, Line
from adadps_experiments.reproduce.jobs import SIZES, Job
from adadps_experiments.reproduce.keeping import Kept, Record
from adadps_experiments.reproduce.published_cost import OF_DATASET, PublishedRun
from adadps_experiments.reproduce.rows import Row
from adadps_experiments.reproduce.tables import job_of, side_of
from adadps_experiments.reproduce.trials import Winners, chosen

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
    """Title, columns and rows of one table for each data set, features, epsilon and metric.

    What has no epsilon to be reached, such as training without privacy, stands in all of them.
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


def published_runs(lines: Sequence[Line]) -> list[PublishedRun]:
    """The published settings whose numbers stand beside these lines."""
    private = [line for line in lines if CONTENDERS[line.method].private and line.paper is not None]
    return list(dict.fromkeys(OF_DATASET[line.dataset] for line in private))


def figure_of(lines: Sequence[Line], seeds: int, winners: Winners, kept: Kept) -> bytes:
    """Curves of the lines, two panels for each data set, kind of features and epsilon.

    Of more than two epsilons the one is drawn at which settings were tuned. What else is not drawn
    is named above the legend.
    """
    panels: list[Panel] = []
    for dataset, features in dict.fromkeys((line.dataset, line.features) for line in lines):
        mine = [line for line in lines if (line.dataset, line.features) == (dataset, features)]
        private = [line.epsilon for line in mine if CONTENDERS[line.method].private]
        aims: list[float | None] = [*sorted(set(private))]
        if len(aims) > MOST_EPSILONS:
            aims = [SIZES[dataset].tuned_at]
        for epsilon in aims or [None]:
            shown = [
                line
                for line in mine
                if line.epsilon == epsilon or not CONTENDERS[line.method].private
            ]
            title = f"{dataset}, {features} features"
            panels += _panels(title, epsilon, shown, seeds, winners, kept)
    return draw(panels, "png", columns=2, legend_below=True)


def _panels(
    title: str,
    epsilon: float | None,
    lines: Sequence[Line],
    seeds: int,
    winners: Winners,
    kept: Kept,
) -> list[Panel]:
    drawn, labels = _most_telling(lines), _labels(lines)
    missing = [labels[line] for line in lines if line not in drawn]
    note = f"Not drawn: {'; '.join(missing)}" if missing else ""
    by_epoch, by_epsilon = [], []
    for line in drawn:
        choice = chosen(line, winners)
        jobs = [job_of(line, choice, seed) for seed in range(seeds)]
        records = [record for job in jobs if (record := kept.find(job.describe()))]
        by_epoch.append(_against_epochs(labels[line], jobs[0], records))
        if all(record["private"] for record in records):
            by_epsilon.append(_against_epsilon(by_epoch[-1], jobs[0], records[0]))
    if epsilon is not None:
        title += f", ε = {epsilon:g}" if by_epsilon else ", ε = ∞"  # whatever was aimed at
    panels = [Panel(title, "epochs", "test accuracy", by_epoch, note=note)]
    if by_epsilon:
        panels.append(Panel(title, "ε spent (PLD)", "test accuracy", by_epsilon, note=note))
    return panels


def _labels(lines: Sequence[Line]) -> dict[Line, str]:
    """The names of methods; their side information and public data where two would be alike."""
    uses = [line for line in lines if CONTENDERS[line.method].uses_public]
    several = len({line.public for line in uses}) > 1
    sides: dict[str, set[str]] = {}
    for line in lines:
        sides.setdefault(CONTENDERS[line.method].label, set()).add(side_of(line))
    labels = {}
    for line in lines:
        name = CONTENDERS[line.method].label
        side = f", {side_of(line)}" if len(sides[name]) > 1 else ""
        public = f" ({line.public})" if several and line in uses else ""
        labels[line] = f"{name}{side}{public}"
    return labels


def _most_telling(lines: Sequence[Line]) -> list[Line]:
    """At most ten lines, private ones first, those of the paper's figures before others.

    Three places are kept for training without privacy, and all that private lines leave over. What
    trains on public examples alone is no curve.
    """
    ordered = sorted(lines, key=lambda line: line.method not in IN_FIGURES)
    drawn = [line for line in ordered if not CONTENDERS[line.method].only_public]
    first = [line for line in drawn if CONTENDERS[line.method].private]
    others = [line for line in drawn if not CONTENDERS[line.method].private]
    others = others[: max(WITHOUT_PRIVACY, MOST_CURVES - len(first))]
    return [*first[: MOST_CURVES - len(others)], *others]


def _against_epochs(label: str, job: Job, records: Sequence[Record]) -> Curve:
    size = SIZES[job.dataset]
    steps = [step for step, _ in records[0]["curve"]]
    epochs = [step * size.batch / records[0]["examples"] for step in steps]
    values = [[value for _, value in record["curve"]] for record in records]
    return curves_of(label, epochs, values)


def _against_epsilon(curve: Curve, job: Job, record: Record) -> Curve:
    size = SIZES[job.dataset]
    spent = [
        _epsilon(record["examples"], size.batch, record["noise_multiplier"], step, size.delta)
        for step, _ in record["curve"]
    ]
    return Curve(curve.label, spent, curve.mean, curve.std)


@cache
def _epsilon(examples: int, batch: int, sigma: float, steps: int, delta: float) -> float:
    """What so many steps cost, whatever stands around the clip."""
    sampler = poisson(examples=examples, expected_size=batch)
    chain = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=sigma), lr=1.0)
    return epsilon_of_run(chain, sampler, steps, delta=delta, accountant=Accountant.PLD)
