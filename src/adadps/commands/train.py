"""`adadps train`: a private linear model from a table."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adadps.commands.console import (
    Missing,
    out,
    print_json,
    say_to_people,
    table_of_facts,
    told,
)
from adadps.commands.help_text import panel, whole
from adadps.named_methods import Method

if TYPE_CHECKING:
    from adadps.result import Result

MOST_EXAMPLES, MOST_WORDS = 10**12, 200_000
_column, _privacy = panel("More about columns"), panel("Privacy")
_user = panel("Users: epsilon then protects all rows of a user together")
_side = panel("Method and side information (public words)")
_setting, _place = panel("Settings of training (default: by rule)"), panel("Places on disk")


def train(
    data: Annotated[
        Path, typer.Argument(help="Private table: .csv, .tsv, .jsonl (or .gz), or .parquet.")
    ],
    epsilon: Annotated[float, typer.Option(metavar="NUMBER", help="What this run may spend.")],
    out_folder: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="New folder for the model.")
    ],
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column that is to be predicted.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Column of texts; may be repeated.")
    ] = None,
    numeric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOW,HIGH",
            help="Column of numbers; may be repeated. Without bounds: read off the data.",
        ),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B,other",
            help="Column of categories; may be repeated. Without levels: read off the data.",
        ),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Held-out rows, for the accuracy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    classes: Annotated[
        str | None,
        _column(metavar="A,B,C", help="Default: the labels in the file, then assumed public."),
    ] = None,
    missing: Annotated[
        Missing | None, _column(help="Empty cells: refuse (default), or fill as declared.")
    ] = None,
    regression: Annotated[bool, _column("--regression", help="The label is a number.")] = False,
    label_bounds: Annotated[
        str | None, _column(metavar="LOW,HIGH", help="Bounds of the label of a regression.")
    ] = None,
    label_separator: Annotated[
        str | None, _column(metavar="TEXT", help="What stands between several labels of a row.")
    ] = None,
    schema: Annotated[
        Path | None, _column(metavar="FILE", help="All of this in JSON, instead of options.")
    ] = None,
    delta: Annotated[
        float | None,
        _privacy(metavar="NUMBER", help="Default: the ledger's, else 1/(10 examples or users)."),
    ] = None,
    examples: Annotated[
        int | None,
        _privacy(
            metavar="COUNT",
            callback=whole(1, MOST_EXAMPLES),
            help="Declared number of rows. Default: that of the file, then assumed public.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        _privacy("--strict", help="Refuse to read off the data anything that is not declared."),
    ] = False,
    trials: Annotated[
        int | None,
        _privacy(
            metavar="COUNT",
            callback=whole(0),
            help="Runs on this data by which settings were chosen; stands on the card.",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        _privacy(metavar="FILE", help="Ledger that the runs on this data share; made if new."),
    ] = None,
    ledger_budget: Annotated[
        float | None,
        _privacy(metavar="NUMBER", help="Epsilon of a new ledger. Default: that of this run."),
    ] = None,
    user: Annotated[str | None, _user(metavar="NAME", help="Column that tells them apart.")] = None,
    users: Annotated[
        int | None,
        _user(
            metavar="COUNT",
            callback=whole(1, MOST_EXAMPLES),
            help="Declared number of users. Default: that of the file, then assumed public.",
        ),
    ] = None,
    rows_per_user: Annotated[
        int | None,
        _user(metavar="COUNT", callback=whole(1), help="Rows that count at once. Default: 16."),
    ] = None,
    method: Annotated[
        Method, _side(metavar="NAME", help=f"One of {', '.join(Method)}.")
    ] = Method.AUTO,
    words: Annotated[
        int,
        _side(
            metavar="COUNT", callback=whole(1, MOST_WORDS), help="Size of the public vocabulary."
        ),
    ] = 10_000,
    language: Annotated[str, _side(metavar="CODE", help="Language of the vocabulary.")] = "en",
    side: Annotated[
        str | None,
        _side(metavar="FILE", help="Table of word and frequency; or wordfreq, or none."),
    ] = None,
    side_source: Annotated[
        str | None, _side(metavar="TEXT", help="Where it comes from; stands in the result.")
    ] = None,
    side_because: Annotated[
        str | None, _side(metavar="TEXT", help="Why it is public; stands in the result.")
    ] = None,
    public: Annotated[
        Path | None,
        _side(metavar="FILE", help="Public texts: vocabulary and word frequencies are theirs."),
    ] = None,
    public_because: Annotated[
        str | None, _side(metavar="TEXT", help="Why they are public; stands in the result.")
    ] = None,
    epochs: Annotated[
        float | None, _setting(metavar="NUMBER", help="Passes over the data.")
    ] = None,
    batch_size: Annotated[
        float | None, _setting(metavar="NUMBER", help="Expected examples (or users) in a batch.")
    ] = None,
    clip_norm: Annotated[
        float | None, _setting(metavar="NUMBER", help="Longest gradient that counts in full.")
    ] = None,
    lr: Annotated[float | None, _setting(metavar="NUMBER", help="Learning rate.")] = None,
    checkpoint: Annotated[
        Path | None,
        _place(
            metavar="FOLDER", help="Where the run is kept while it lasts. Default: OUT.checkpoint."
        ),
    ] = None,
    store: Annotated[
        Path | None,
        _place(metavar="FOLDER", help="Room for the rows. Default: beside the checkpoint."),
    ] = None,
) -> None:
    r"""Train a private linear model on texts, numbers and categories at one epsilon.

    Nothing about the private rows is shown or stored but the noised weights, and what is declared
    or said to be assumed public. Accuracy is measured only on --test.

    Examples:
    adadps train reviews.csv --text review --label stars --epsilon 1 --out model
    adadps train visits.csv --numeric age=18,100 --categorical ward=a,b,other \
      --label outcome --classes well,ill --examples 20000 --strict \
      --epsilon 1 --out model
    adadps train mails.csv --text body --label kind --classes ham,spam \
      --user sender --users 900 --ledger mails.ledger --ledger-budget 3 \
      --epsilon 1 --out model
    """
    from adadps.table_model.from_table import kept_run, train_from_table  # noqa: PLC0415
    from adadps.table_model.request import Request  # noqa: PLC0415

    request = Request(
        data=data,
        epsilon=epsilon,
        out=out_folder,
        schema=schema,
        texts=tuple(text or ()),
        numeric=tuple(numeric or ()),
        categorical=tuple(categorical or ()),
        label=label,
        classes=classes,
        label_separator=label_separator,
        regression=regression,
        label_bounds=label_bounds,
        missing=None if missing is None else missing.value,
        examples=examples,
        user=user,
        users=users,
        rows_per_user=rows_per_user,
        method=method,
        side=side,
        side_source=side_source,
        side_because=side_because,
        public=public,
        public_because=public_because,
        delta=delta,
        batch_size=batch_size,
        epochs=epochs,
        clip_norm=clip_norm,
        lr=lr,
        words=words,
        language=language,
        ledger=ledger,
        ledger_budget=ledger_budget,
        checkpoint=checkpoint,
        store=store,
        strict=strict,
        trials=trials,
        test=test,
    )
    with told(interrupted=lambda: kept_run(request).in_words(this_command())):
        result = train_from_table(request, say_to_people)
        if as_json:
            print_json(result.describe())
        else:
            out.print(table_of_facts("Trained", facts_of(result, out_folder)))


def this_command() -> str:
    """The command line that was given, for a shell."""
    return shlex.join(["adadps", *sys.argv[1:]])


def facts_of(result: Result, folder: Path) -> dict[str, Any]:
    """What may be shown: nothing here was computed from private data without noise."""
    from adadps.card.sections import measured_on  # noqa: PLC0415

    privacy = result.privacy
    measured = {
        f"{m.metric}, on {measured_on(m.data, m.declared)}": m.value for m in result.history
    }
    return {
        "model": str(folder),
        "guarantee": str(privacy),
        "method": result.method,
        "steps": privacy.steps,
        "steps paid": privacy.steps_paid,
        "noise multiplier": privacy.noise_multiplier,
        **measured,
        **{f"assumed public ({n})": fact for n, fact in enumerate(privacy.assumed_public, 1)},
    }
