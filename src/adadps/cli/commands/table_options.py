"""Options that `adadps train` and `adadps federate` share: a table, its columns, a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adadps.cli.commands.console import Missing, Rare, panel, whole_number

MOST_EXAMPLES, MOST_WORDS = 10**12, 200_000
_column, _privacy = panel("More about columns"), panel("Privacy")
_side = panel("Method and side information (public words)")
_place = panel("Places on disk")

OutFolder = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", help="New folder for the model.")
]
Label = Annotated[str | None, typer.Option(metavar="NAME", help="Column that is to be predicted.")]
Texts = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Column of texts; may be repeated.")
]
Numbers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=LOW,HIGH",
        help="Column of numbers; may be repeated. Without bounds: read off the data.",
    ),
]
Categories = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=A,B,other",
        help="Column of categories; may be repeated. Without levels: read off the data.",
    ),
]
CheckOverlap = Annotated[
    bool,
    typer.Option(
        "--check-overlap",
        help="Train nothing; tell you alone how many rows of --test are training rows, or of "
        "training users.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

Classes = Annotated[
    str | None,
    _column(metavar="A,B,C", help="Default: the labels in the file, then assumed public."),
]
EmptyCells = Annotated[
    Missing | None, _column(help="Empty cells: refuse (default), or fill as declared.")
]
RareNames = Annotated[
    Rare | None,
    _column(
        help="other: what is not declared (levels, classes, bounds) is measured with noise, for a "
        "part of epsilon, and rare levels and classes become 'other'. Default: rare ones are "
        "refused, the rest is read off the data and assumed public."
    ),
]
LabelSeparator = Annotated[
    str | None, _column(metavar="TEXT", help="What stands between several labels of a row.")
]
SchemaFile = Annotated[
    Path | None, _column(metavar="FILE", help="All of this in JSON, instead of options.")
]

Strict = Annotated[
    bool, _privacy("--strict", help="Refuse to read off the data anything that is not declared.")
]
Trials = Annotated[
    int | None,
    _privacy(
        metavar="COUNT",
        callback=whole_number(0),
        help="Runs on this data by which settings were chosen; stands on the card.",
    ),
]
LedgerFile = Annotated[
    Path | None,
    _privacy(metavar="FILE", help="Ledger that the runs on this data share; made if new."),
]
LedgerBudget = Annotated[
    float | None,
    _privacy(metavar="NUMBER", help="Epsilon of a new ledger. Default: that of this run."),
]

Words = Annotated[
    int,
    _side(
        metavar="COUNT", callback=whole_number(1, MOST_WORDS), help="Size of the public vocabulary."
    ),
]
Language = Annotated[str, _side(metavar="CODE", help="Language of the vocabulary.")]
SideFile = Annotated[
    str | None, _side(metavar="FILE", help="Table of word and frequency; or wordfreq, or none.")
]
SideSource = Annotated[
    str | None, _side(metavar="TEXT", help="Where it comes from; stands in the result.")
]
SideBecause = Annotated[
    str | None, _side(metavar="TEXT", help="Why it is public; stands in the result.")
]
PublicFile = Annotated[
    Path | None,
    _side(metavar="FILE", help="Public texts: vocabulary and word frequencies are theirs."),
]
PublicBecause = Annotated[
    str | None, _side(metavar="TEXT", help="Why they are public; stands in the result.")
]

CheckpointFolder = Annotated[
    Path | None,
    _place(metavar="FOLDER", help="Where the run is kept while it lasts. Default: OUT.checkpoint."),
]
StoreFolder = Annotated[
    Path | None,
    _place(metavar="FOLDER", help="Room for the rows. Default: beside the checkpoint."),
]
