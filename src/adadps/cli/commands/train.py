"""`adadps train`: a private linear model from a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adadps.cli.commands import table_commands as options
from adadps.cli.commands.console import panel, whole_number
from adadps.cli.commands.table_commands import MOST_EXAMPLES, train_on_table
from adadps.estimators.planner.methods import Method

_column, _privacy = panel("More about columns"), panel("Privacy")
_user = panel("Users: epsilon then protects all rows of a user together")
_side = panel("Method and side information (public words)")
_setting = panel("Settings of training (default: by rule)")


def train(
    data: Annotated[
        Path, typer.Argument(help="Private table: .csv, .tsv, .jsonl (or .gz), or .parquet.")
    ],
    epsilon: Annotated[float, typer.Option(metavar="NUMBER", help="What this run may spend.")],
    out: options.OutFolder,
    label: options.Label = None,
    texts: options.Texts = None,
    numeric: options.Numbers = None,
    categorical: options.Categories = None,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Held-out rows, for the accuracy.")
    ] = None,
    check_overlap: options.CheckOverlap = False,
    as_json: options.AsJson = False,
    classes: options.Classes = None,
    missing: options.EmptyCells = None,
    rare: options.RareNames = None,
    regression: Annotated[bool, _column("--regression", help="The label is a number.")] = False,
    label_bounds: Annotated[
        str | None, _column(metavar="LOW,HIGH", help="Bounds of the label of a regression.")
    ] = None,
    label_separator: options.LabelSeparator = None,
    schema: options.SchemaFile = None,
    delta: Annotated[
        float | None,
        _privacy(metavar="NUMBER", help="Default: the ledger's, else 1/(10 examples or users)."),
    ] = None,
    examples: Annotated[
        int | None,
        _privacy(
            metavar="COUNT",
            callback=whole_number(1, MOST_EXAMPLES),
            help="Declared number of rows. Default: that of the file, then assumed public.",
        ),
    ] = None,
    strict: options.Strict = False,
    trials: options.Trials = None,
    ledger: options.LedgerFile = None,
    ledger_budget: options.LedgerBudget = None,
    user: Annotated[str | None, _user(metavar="NAME", help="Column of users.")] = None,
    users: Annotated[
        int | None,
        _user(
            metavar="COUNT",
            callback=whole_number(1, MOST_EXAMPLES),
            help="Declared number of users. Default: that of the file, then assumed public.",
        ),
    ] = None,
    rows_per_user: Annotated[
        int | None,
        _user(metavar="COUNT", callback=whole_number(1), help="Rows per step. Default: 16."),
    ] = None,
    method: Annotated[
        Method, _side(metavar="NAME", help=f"One of {', '.join(Method)}.")
    ] = Method.AUTO,
    words: options.Words = 10_000,
    language: options.Language = "en",
    side: options.SideFile = None,
    side_source: options.SideSource = None,
    side_because: options.SideBecause = None,
    public: options.PublicFile = None,
    public_because: options.PublicBecause = None,
    epochs: Annotated[
        float | None, _setting(metavar="NUMBER", help="Passes over the data.")
    ] = None,
    batch_size: Annotated[
        float | None, _setting(metavar="NUMBER", help="Expected examples (or users) in a batch.")
    ] = None,
    clip_norm: Annotated[
        float | None, _setting(metavar="NUMBER", help="Norm at which gradients are clipped.")
    ] = None,
    lr: Annotated[float | None, _setting(metavar="NUMBER", help="Learning rate.")] = None,
    checkpoint: options.CheckpointFolder = None,
    store: options.StoreFolder = None,
) -> None:
    r"""Train a private linear model on texts, numbers and categories at one epsilon.

    Of the private rows, only noised weights are shown or stored, and what is declared or stated as
    assumed public. Accuracy is measured only on --test, on all of its rows; epsilon does not cover
    them.

    Examples:
    adadps train reviews.csv --text review --label stars --epsilon 1 --out model
    adadps train visits.csv --numeric age=18,100 --categorical ward=a,b,other \
      --label outcome --classes well,ill --examples 20000 --strict \
      --epsilon 1 --out model
    adadps train mails.csv --text body --label kind --classes ham,spam \
      --user sender --users 900 --ledger mails.ledger --ledger-budget 3 \
      --epsilon 1 --out model
    """
    train_on_table(locals(), "Trained")
