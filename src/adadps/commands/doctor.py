"""`adadps doctor`: which side information helps, judged on public data alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adadps.commands.console import out, print_json, say_to_people, table_of_rows, told
from adadps.commands.help_text import whole

if TYPE_CHECKING:
    from adadps.doctor import Findings

MOST_EXAMPLES, MOST_WORDS, MOST_FOLDS = 10**12, 200_000, 100
_COLUMNS = {
    "side information, door": "candidate",
    "simulated accuracy": "accuracy",
    "gain over DP-SGD": "gain",
    "needed": "needed",
    "R": "ratio",
    "noise": "noise",
    "bound": "bound",
    "sharper": "sharper",
}


def doctor(
    public: Annotated[Path, typer.Argument(help="Table of PUBLIC labelled texts, .csv or .tsv.")],
    text: Annotated[str, typer.Option(help="Column of the texts.")],
    label: Annotated[str, typer.Option(help="Column of the labels.")],
    examples: Annotated[
        int,
        typer.Option(callback=whole(1, MOST_EXAMPLES), help="Declared number of PRIVATE examples."),
    ],
    epsilon: Annotated[float, typer.Option(help="What the private run may spend, later.")],
    delta: Annotated[float | None, typer.Option(help="Default: 1/(10 examples).")] = None,
    side: Annotated[
        list[Path] | None,
        typer.Option(help="Public FILE with columns word and frequency; may be repeated."),
    ] = None,
    folds: Annotated[
        int,
        typer.Option(callback=whole(3, MOST_FOLDS), help="Simulated runs for each candidate."),
    ] = 8,
    steps: Annotated[
        int | None,
        typer.Option(callback=whole(1), help="Of the private run. Default: by the rule."),
    ] = None,
    batch_size: Annotated[
        float | None, typer.Option(help="Of the private run. Default: by the rule.")
    ] = None,
    words: Annotated[
        int,
        typer.Option(callback=whole(1, MOST_WORDS), help="Size of the public vocabulary."),
    ] = 10_000,
    language: Annotated[str, typer.Option(help="Language of the vocabulary.")] = "en",
    seed: Annotated[
        int, typer.Option(callback=whole(0), help="Of the folds and the simulated noise.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Weigh side information on public data, before any budget is spent.

    Private runs are simulated on the public texts with the noise that they will have. Nothing here
    may be private: give a public sample, or public texts like the private ones.

    Example: adadps doctor pilot.csv --text review --label stars --examples 25000 --epsilon 1
    """
    from adadps.doctor.from_table import Request, examine_table  # noqa: PLC0415

    with told():
        request = Request(
            public=public,
            text=text,
            label=label,
            examples=examples,
            epsilon=epsilon,
            delta=delta,
            side=tuple(side or ()),
            folds=folds,
            steps=steps,
            batch_size=batch_size,
            words=words,
            language=language,
            seed=seed,
        )
        found = examine_table(request, say_to_people)
        if as_json:
            print_json(found.describe())
        else:
            _show(found)


def _show(found: Findings) -> None:
    told_of = found.describe()
    title = (
        f"Simulated on {told_of['public_rows']} public rows, {told_of['folds']} folds; "
        f"nothing was spent"
    )
    out.print(table_of_rows(title, _COLUMNS, [_row(one) for one in told_of["findings"]]))
    out.print("R, noise and the bounds are those of the convex theorem, relative to DP-SGD's.")
    for reason in told_of["reasons"]:
        out.print(reason, markup=False, highlight=False)
    out.print(f"Advice: {told_of['advice']}", markup=False, highlight=False)


def _row(finding: dict[str, Any]) -> dict[str, Any]:
    plain = finding["door"] == "none"
    gain = f"{100 * finding['gain']:+.1f} ± {100 * finding['gain_standard_error']:.1f}"
    return {
        "candidate": finding["candidate"],
        "accuracy": f"{finding['accuracy']:.3f} ± {finding['standard_error']:.3f}",
        "gain": None if plain else gain,
        "needed": None if plain else f"{100 * finding['gain_needed']:.1f}",
        **{name: f"{value:.2g}" for name, value in finding["terms_relative_to_dp_sgd"].items()},
    }
