"""The command line: thin, one function a command, errors without tracebacks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adadps.audit.command import audit_app
from adadps.contract import Sampling
from adadps.errors import AdadpsError, SettingError
from adadps.planning import Plan, make_plan
from adadps.stages.groups import Groups, by_label, by_position, in_advance
from adadps.types import Accountant, Relation

app = typer.Typer(
    name="adadps",
    help="Train models with differential privacy, and stay adaptive under the noise.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
ledger_app = typer.Typer(help="Look at ledgers on disk.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")
app.add_typer(audit_app, name="audit")
out = Console()
err = Console(stderr=True)

_DEMO_COLUMNS = {
    "method": "method",
    "side information": "side",
    "accuracy (held out)": "accuracy",
    "ε": "epsilon",
    "seconds": "seconds",
}
_ROW_COLUMNS = {
    "method": "method",
    "side": "side",
    "mean": "mean",
    "std": "std",
    "seeds": "seeds",
    "ε (PLD)": "epsilon_pld",
    "ε (RDP)": "epsilon_rdp",
    "paper": "paper",
}
_GROUPINGS = {"label": by_label, "advance": in_advance, "position": by_position}
_RELATIONS = {
    "add-remove": Relation.ADD_OR_REMOVE_ONE,
    "zero-out": Relation.ZERO_OUT,
    "replace": Relation.REPLACE_ONE,
}


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"adadps {version('adadps')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train models with differential privacy, and stay adaptive under the noise."""


@app.command()
def plan(
    examples: Annotated[int, typer.Option(help="Declared number of training examples (public).")],
    batch_size: Annotated[float, typer.Option(help="Expected number of examples in a batch.")],
    epochs: Annotated[float | None, typer.Option(help="Length of the run in epochs.")] = None,
    steps: Annotated[int | None, typer.Option(help="Length of the run in steps.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget to fit.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise divided by the clip norm.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1/(10 examples).")] = None,
    accountant: Annotated[
        Accountant | None, typer.Option(help="Default: pld where it fits, else rdp.")
    ] = None,
    sampling: Annotated[Sampling, typer.Option(help="How batches are drawn.")] = Sampling.POISSON,
    relation: Annotated[
        str | None, typer.Option(help="add-remove, zero-out or replace; default by sampling.")
    ] = None,
    group_size: Annotated[int, typer.Option(help="Examples clipped as one group.")] = 1,
    group_by: Annotated[str, typer.Option(help="label or advance; position is refused.")] = "label",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute epsilon, the noise, or the number of steps, before any data is touched.

    Give two of: a length (--epochs or --steps), --epsilon, --noise-multiplier.

    Example: adadps plan --examples 25000 --batch-size 64 --epochs 32 --epsilon 1.5
    """
    with _told():
        with err.status("composing the steps; this takes some seconds"):
            made = make_plan(
                examples=examples,
                batch_size=batch_size,
                steps=steps,
                epochs=epochs,
                epsilon=epsilon,
                noise_multiplier=noise_multiplier,
                delta=delta,
                accountant=accountant,
                sampling=sampling,
                relation=None if relation is None else _choice(relation, _RELATIONS, "relation"),
                groups=_groups(group_size, group_by),
            )
        if as_json:
            _print_json(made.describe())
        else:
            _print_plan(made)


@app.command()
def demo(
    out_folder: Annotated[
        Path, typer.Option("--out", help="Where the report and the model go.")
    ] = Path("adadps-demo"),
    epsilon: Annotated[float, typer.Option(help="Privacy budget of every private method.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Train on data that comes with the package: DP-SGD, DP-Adam, AdaDPS at equal epsilon."""
    from adadps.demo import run_demo  # noqa: PLC0415  (torch and the data load only when needed)

    with _told():
        outcome = run_demo(out_folder, epsilon, say=err.print)
        if as_json:
            _print_json(outcome.rows)
        else:
            out.print(_table("Section of a Debian package", _DEMO_COLUMNS, outcome.rows))
            out.print(f"Report: {outcome.report}\nModel:  {outcome.model}")


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(help="toy (more experiments follow)")],
    seeds: Annotated[int, typer.Option(help="Number of runs of each method.")] = 5,
    quick: Annotated[bool, typer.Option(help="One seed, short runs: ordering only.")] = False,
    tune: Annotated[bool, typer.Option(help="Try the grids and record the winners.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write rows here.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write the figure here (png); default: beside the JSON.")
    ] = None,
) -> None:
    """Run an experiment of the paper and show its numbers beside ours.

    Example: adadps reproduce toy --json toy.json --plot toy.png
    """
    from adadps.reproduce import rows as files  # noqa: PLC0415
    from adadps.reproduce import toy_figure  # noqa: PLC0415

    with _told():
        if experiment != "toy":
            raise SettingError(f"Expected an experiment, found '{experiment}'. Known: toy.")
        if tune:
            trials = toy_figure.tune()
            path = json_file or Path("toy-tuning.json")
            files.write_json(path, trials)
            out.print(f"Trials and winners: {path}")
            return
        if seeds < 1:
            raise SettingError(f"Expected at least one seed, found {seeds}. Use --seeds 5.")
        rows, figure = toy_figure.reproduce(1 if quick else seeds, quick=quick)
        if json_file:
            files.write_json(json_file, rows)
        picture = plot or (json_file.with_suffix(".png") if json_file else None)
        if picture:
            files.write_file(picture, figure)
        out.print(_table("Toy problem: training loss, synthetic data", _ROW_COLUMNS, rows))


@app.command()
def bench(
    workload: Annotated[
        list[str] | None, typer.Option(help="Which to measure; may be repeated. Default: all.")
    ] = None,
    contender: Annotated[
        list[str] | None, typer.Option(help="Who takes part; may be repeated. Default: all.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Exact number of steps to time.")] = None,
    threads: Annotated[int | None, typer.Option(help="Default: all usable cores.")] = None,
    epoch: Annotated[
        bool, typer.Option(help="Time one whole epoch of logreg-10k instead of single steps.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write rows here, each as soon as it is there.")
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Keep the rows of the JSON file; measure what is missing.")
    ] = False,
    from_file: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: show the rows of this file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw bars of the times here (png).")] = None,
    markdown: Annotated[bool, typer.Option(help="Print tables in Markdown.")] = False,
) -> None:
    """Time a step beside plain torch, Opacus and a microbatch loop, and compare with targets.

    Each contender runs in its own process, one after the other. Opacus comes with the extra bench.

    Workloads: logreg-10k, logreg-10k-50, logreg-1m-50, autoencoder-64, autoencoder-256,
    embedding-bag, lstm. Contenders: adadps, adadps-feature, adadps-dp-sgd, torch, torch-sparse,
    opacus-hooks, opacus-ghost, microbatch-loop.

    Example: adadps bench --workload logreg-10k --json engine.json --plot engine.png
    """
    from adadps.bench import chart, command, table  # noqa: PLC0415
    from adadps.bench.sheets import sheets  # noqa: PLC0415
    from adadps.reproduce.rows import write_file  # noqa: PLC0415

    with _told():
        named = (workload or [], contender or [])
        if from_file:
            rows = command.stored(from_file, *named)
        else:
            timing = command.timing_of(steps, threads)
            jobs = [] if epoch else command.jobs_of(*named)
            file = command.RowFile(json_file, resume=resume)
            if epoch:
                rows = command.measure_an_epoch(timing, file, _say)
            else:
                rows = command.measure_all(jobs, timing, file, _say)
        if plot:
            write_file(plot, chart.draw(rows))
        if markdown:
            sys.stdout.write(table.as_markdown(sheets(rows)))
        else:
            for sheet in sheets(rows):
                out.print(table.as_rich(sheet))


@ledger_app.command("show")
def show_ledger(
    file: Annotated[Path, typer.Argument(help="The ledger; it is only read.")],
    delta: Annotated[
        float | None, typer.Option(help="Default: the budget's, else 1/(10 examples).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the runs on a ledger, what they have spent, and what is left.

    Example: adadps ledger show reviews.ledger
    """
    from adadps.ledger.summary import as_rich, summarise  # noqa: PLC0415

    with _told(exit_code=1):
        summary = summarise(file, delta)
        if as_json:
            _print_json(summary)
        else:
            out.print(as_rich(summary))


@contextmanager
def _told(exit_code: int = 2) -> Iterator[None]:
    """Show our own errors as one message and exit; let bugs through."""
    try:
        yield
    except AdadpsError as error:
        err.print(f"[bold red]{type(error).__name__}[/]: {escape(str(error))}", highlight=False)
        raise typer.Exit(exit_code) from None


def _say(text: str) -> None:
    err.print(text, markup=False, highlight=False)


def _choice(name: str, known: dict[str, Any], what: str) -> Any:
    if name not in known:
        raise SettingError(f"Expected a {what} among {', '.join(known)}, found '{name}'.")
    return known[name]


def _groups(size: int, by: str) -> Groups | None:
    make = _choice(by, _GROUPINGS, "way to group")
    if size == 1 and by != "position":
        return None
    groups: Groups = make(size)
    return groups


def _print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def _print_plan(made: Plan) -> None:
    table = Table(title="Privacy plan", show_header=False)
    for name, value in made.describe().items():
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        table.add_row(name.replace("_", " "), shown)
    out.print(table)


def _table(title: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> Table:
    """A table of some columns, given as heading and name in the rows."""
    table = Table(title=title)
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns.values()))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
