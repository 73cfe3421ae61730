"""`adadps audit`: a lower bound on epsilon, compared with the claim, for the library's methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from adadps.cli.main import (
    CLAIM_REFUTED,
    command,
    errors_as_messages,
    out,
    print_json,
    table_of_facts,
)

if TYPE_CHECKING:
    from adadps.audit.outcome import AuditResult

app = typer.Typer(
    help="Try to refute a claimed epsilon by a lower bound from what training releases.",
    no_args_is_help=True,
    suggest_commands=False,
)

_Method = Annotated[
    str,
    typer.Option(
        help="dp-sgd, dp-adam, adadps, adadps-public, whitened, dp-adam-bc, dp-sgd-auto-clip, "
        "dp-sgd-adaptive-clip, dp2 or scale-then-privatize."
    ),
]
_Path = Annotated[str, typer.Option("--path", help="dense, general, sparse or late.")]
_Epsilon = Annotated[float, typer.Option(help="Epsilon that the run claims.")]
_Steps = Annotated[
    int | None,
    typer.Option(
        help="Few steps show the most. Default: 1; 4 where later steps follow earlier releases; 8 "
        "on the path late, where noise is deferred.",
        show_default=False,
    ),
]
_Rate = Annotated[float, typer.Option(help="Probability that an example is in a batch.")]
_Confidence = Annotated[
    float, typer.Option(help="A true claim is refuted with probability at most 1 minus this.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@command(app)
def repeated(
    method: _Method = "dp-sgd",
    path: _Path = "dense",
    runs: Annotated[
        int, typer.Option(help="Number of runs: half with the worst-case example, half without.")
    ] = 2000,
    epsilon: _Epsilon = 1.0,
    delta: Annotated[
        float, typer.Option(help="Large, because a few thousand runs do not show rare events.")
    ] = 0.1,
    steps: _Steps = None,
    rate: _Rate = 1.0,
    confidence: _Confidence = 0.95,
    as_json: _Json = False,
) -> None:
    """Train a tiny model many times, with and without one worst-case example, and tell them apart.

    The exit code is 0 if the bound is below the claim and 3 if it is above; 1 if the audit could
    not be run, and 2 if an option is invalid.

    Example: adadps audit repeated --method adadps --path late --runs 4000
    """
    with errors_as_messages():
        from adadps.audit.built_in import RepeatedSettings, usual_steps

        settings = RepeatedSettings(
            method=method,
            path=path,
            epsilon=epsilon,
            delta=delta,
            steps=usual_steps(path, method) if steps is None else steps,
            rate=rate,
        )
        found = settings.audit(runs=runs, confidence=confidence)
    _show(found, as_json)


@command(app)
def canaries(
    method: _Method = "dp-sgd",
    path: _Path = "sparse",
    count: Annotated[
        int, typer.Option("--canaries", help="Number of canaries; a fair coin includes each.")
    ] = 2000,
    epsilon: _Epsilon = 4.0,
    delta: Annotated[float, typer.Option(help="Much smaller than 1 / canaries.")] = 1e-6,
    steps: _Steps = None,
    rate: _Rate = 1.0,
    confidence: _Confidence = 0.95,
    as_json: _Json = False,
) -> None:
    """Train once with many canaries, each included by the toss of a coin, and guess the coins.

    To audit your own model, data and canaries, call `adadps.audit.audit_one_run` in Python. The
    exit code is 0 if the bound is below the claim and 3 if it is above; 1 if the audit could not be
    run, and 2 if an option is invalid.

    Example: adadps audit canaries --method adadps --canaries 5000
    """
    with errors_as_messages():
        from adadps.audit.built_in import CanarySettings, usual_steps

        settings = CanarySettings(
            method=method,
            path=path,
            epsilon=epsilon,
            delta=delta,
            steps=usual_steps(path, method) if steps is None else steps,
            rate=rate,
            canaries=count,
        )
        found = settings.audit(confidence=confidence)
    _show(found, as_json)


def _show(found: AuditResult, as_json: bool) -> None:
    described = found.describe()
    if as_json:
        print_json(described)
    else:
        facts = {**described.pop("settings"), **described}
        unclaimed = {name: "∞ (nothing is claimed)" for name in facts if facts[name] is None}
        out.print(table_of_facts(f"Audit by {found.audit}", facts | unclaimed))
    if found.broken:
        raise typer.Exit(CLAIM_REFUTED)
