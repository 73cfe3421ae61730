"""`adadps audit`: a lower bound on ε beside the claim, for the library's own methods."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from adadps.audit.built_in import CanarySettings, RepeatedSettings
from adadps.audit.engine_paths import usual_steps
from adadps.audit.outcome import AuditResult
from adadps.cli.commands.console import CLAIM_REFUTED, errors_as_messages, out, print_json
from adadps.cli.commands.help_text import command

app = typer.Typer(
    help="Try to refute a claimed epsilon: a lower bound from what training releases.",
    no_args_is_help=True,
)

_Method = Annotated[str, typer.Option(help="dp-sgd, dp-adam, adadps or adadps-public.")]
_Path = Annotated[str, typer.Option("--path", help="dense, general, sparse or late.")]
_Epsilon = Annotated[float, typer.Option(help="The epsilon that the run is to claim.")]
_Steps = Annotated[
    int | None,
    typer.Option(
        help="Few leave the most to see. Default: 1, and 8 on the path late, where noise waits.",
        show_default=False,
    ),
]
_Rate = Annotated[float, typer.Option(help="Probability that an example joins a batch.")]
_Confidence = Annotated[
    float, typer.Option(help="A true claim is refuted with probability at most 1 - this.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@command(app)
def repeated(
    method: _Method = "dp-sgd",
    path: _Path = "dense",
    runs: Annotated[
        int, typer.Option(help="Half with the worst-case example, half without.")
    ] = 2000,
    epsilon: _Epsilon = 1.0,
    delta: Annotated[
        float, typer.Option(help="Large: what is rare cannot be seen in some thousand runs.")
    ] = 0.1,
    steps: _Steps = None,
    rate: _Rate = 1.0,
    confidence: _Confidence = 0.95,
    as_json: _Json = False,
) -> None:
    """Train a tiny model many times, with and without one worst-case example, and tell them apart.

    Ends with 0 if the bound is below the claim, 3 if it is above, 1 if something stood against the
    audit itself, 2 if something was asked wrongly.

    Example: adadps audit repeated --method adadps --path late --runs 4000
    """
    with errors_as_messages():
        asked = RepeatedSettings(
            method=method,
            path=path,
            epsilon=epsilon,
            delta=delta,
            steps=usual_steps(path) if steps is None else steps,
            rate=rate,
        )
        found = asked.audit(runs=runs, confidence=confidence)
    _show(found, as_json)


@command(app)
def canaries(
    method: _Method = "dp-sgd",
    path: _Path = "sparse",
    count: Annotated[int, typer.Option("--canaries", help="Each in the data by a coin.")] = 2000,
    epsilon: _Epsilon = 4.0,
    delta: Annotated[float, typer.Option(help="Small against 1 / canaries.")] = 1e-6,
    steps: _Steps = None,
    rate: _Rate = 1.0,
    confidence: _Confidence = 0.95,
    as_json: _Json = False,
) -> None:
    """Train once with many canaries, each in the data by a coin, and guess the coins.

    For your own model, data and canaries: `adadps.audit.audit_one_run` in Python. Ends with 0 if
    the bound is below the claim, 3 if it is above, 1 if something stood against the audit itself, 2
    if something was asked wrongly.

    Example: adadps audit canaries --method adadps --canaries 5000
    """
    with errors_as_messages():
        asked = CanarySettings(
            method=method,
            path=path,
            epsilon=epsilon,
            delta=delta,
            steps=usual_steps(path) if steps is None else steps,
            rate=rate,
            canaries=count,
        )
        found = asked.audit(confidence=confidence)
    _show(found, as_json)


def _show(found: AuditResult, as_json: bool) -> None:
    if as_json:
        print_json(found.describe())
    else:
        out.print(as_rich(found))
    if found.broken:
        raise typer.Exit(CLAIM_REFUTED)


def as_rich(found: AuditResult) -> Table:
    """The result as a table of two columns."""
    table = Table(title=f"Audit by {found.audit}", show_header=False)
    facts = found.describe()
    settings = facts.pop("settings")
    for name, value in {**settings, **facts}.items():
        table.add_row(name.replace("_", " "), _cell(value))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "∞ (nothing is claimed)"
    return f"{value:.6g}" if isinstance(value, float) else escape(str(value))
