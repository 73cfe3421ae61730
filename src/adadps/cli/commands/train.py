"""`adadps train`: a private linear model from a table; and what `adadps federate` shares with it.

The parameters of both commands have the names of fields of `TrainingRequest`; those that only a
federation has are named like fields of `FederatedSettings`.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adadps.cli.main import (
    Missing,
    Rare,
    errors_as_messages,
    out,
    panel,
    print_json,
    say,
    say_on_terminal,
    table_of_facts,
    whole_number,
)
from adadps.errors import DataError
from adadps.types import Method, TextFeatures

if TYPE_CHECKING:
    from adadps.estimators.tables.request import TrainingRequest
    from adadps.report.result import Result


_user = panel("Users: epsilon then protects all rows of a user together")
_side = panel("Method and side information (public words and vectors)")
_setting = panel("Training settings (default: by rule)")


MOST_EXAMPLES, MOST_WORDS, MOST_PROCESSES = 10**12, 200_000, 1024
_column, _privacy = panel("More about columns"), panel("Privacy")
_place = panel("Places on disk")

OutFolder = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", help="New folder for the model.")
]
Label = Annotated[str | None, typer.Option(metavar="NAME", help="Column to predict.")]
Texts = Annotated[
    list[str] | None,
    typer.Option("--text", metavar="NAME", help="Column of texts; may be repeated."),
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
        help="Do not train; print how many rows of --test are training rows, or rows of training "
        "users, and how many are in --public. For your eyes only.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

Classes = Annotated[
    str | None,
    _column(metavar="A,B,C", help="Default: the labels in the file, which are assumed public."),
]
EmptyCells = Annotated[
    Missing | None, _column(help="Empty cells: refuse (default), or fill as declared.")
]
RareNames = Annotated[
    Rare | None,
    _column(
        help="other: what is not declared (levels, classes, bounds) is measured with noise, for "
        "part of epsilon, and rare levels and classes become 'other'. Default: rare ones are "
        "refused, and all others are read off the data and assumed public."
    ),
]
LabelSeparator = Annotated[
    str | None, _column(metavar="TEXT", help="Separator between several labels of a row.")
]
SchemaFile = Annotated[
    Path | None, _column(metavar="FILE", help="All columns declared in a JSON file.")
]

Strict = Annotated[
    bool, _privacy("--strict", help="Refuse to read anything off the data: all must be declared.")
]
Trials = Annotated[
    int | None,
    _privacy(
        metavar="COUNT",
        callback=whole_number(0),
        help="Number of earlier runs on this data used to choose settings; stated on the card.",
    ),
]
LedgerFile = Annotated[
    Path | None,
    _privacy(
        metavar="FILE",
        help="Ledger that all runs on this data share; created if new.",
    ),
]
LedgerBudget = Annotated[
    float | None,
    _privacy(metavar="NUMBER", help="Epsilon of a new ledger. Default: that of this run."),
]

Features = Annotated[
    TextFeatures,
    _side(
        metavar="NAME",
        help="Texts as words, embeddings or both. auto (default): both, in shares by rule; "
        "choose: in shares that are chosen on the private rows, for part of epsilon.",
    ),
]
Vectors = Annotated[
    str | None,
    _side(
        "--embeddings",
        metavar="SOURCE",
        help="Public vectors: a file, model2vec:NAME, sentence-transformers:NAME. "
        "Default: those of the package wordllama.",
    ),
]
VectorsBecause = Annotated[
    str | None,
    _side(
        "--embeddings-because",
        metavar="TEXT",
        help="Why these vectors are public; stated in the result.",
    ),
]
Words = Annotated[
    int,
    _side(
        metavar="COUNT", callback=whole_number(1, MOST_WORDS), help="Size of the public vocabulary."
    ),
]
Language = Annotated[str, _side(metavar="CODE", help="Language of the vocabulary.")]
Negated = Annotated[
    bool,
    _side(
        " /--without-negation",
        help="Count 'good' in 'not good' as good. Default: apart from it, in English.",
    ),
]
SideFile = Annotated[
    str | None, _side(metavar="FILE", help="Table of words and frequencies; or wordfreq, or none.")
]
SideSource = Annotated[
    str | None, _side(metavar="TEXT", help="Where the file comes from; stated in the result.")
]
SideBecause = Annotated[
    str | None, _side(metavar="TEXT", help="Why the file is public; stated in the result.")
]
PublicFile = Annotated[
    Path | None,
    _side(metavar="FILE", help="Public texts, the source of vocabulary and word frequencies."),
]
PublicBecause = Annotated[
    str | None, _side(metavar="TEXT", help="Why these texts are public; stated in the result.")
]

CheckpointFolder = Annotated[
    Path | None,
    _place(metavar="FOLDER", help="Checkpoints of the run. Default: OUT.checkpoint."),
]
StoreFolder = Annotated[
    Path | None,
    _place(metavar="FOLDER", help="Disk space for the rows. Default: beside the checkpoints."),
]


def train_on_table(options: dict[str, Any], title: str, *, federated: bool = False) -> None:
    """Do what the options of a command ask for: train and show the result, or check overlap."""
    with errors_as_messages():
        request = request_from(options, federated=federated)
    if options["check_overlap"]:
        _show_overlap(request)
    else:
        _train_and_show(request, title, as_json=options["as_json"])


def request_from(options: dict[str, Any], *, federated: bool = False) -> TrainingRequest:
    """Return the request that a command's options describe, by the names of its parameters."""
    from adadps.estimators.planner.plan import FederatedSettings
    from adadps.estimators.tables.request import TrainingRequest

    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options.items()
        if value is not None and name not in ("check_overlap", "as_json")
    }
    if federated:
        of_federation = {field.name for field in fields(FederatedSettings)} & given.keys()
        given["federation"] = FederatedSettings(**{name: given.pop(name) for name in of_federation})
    return TrainingRequest(**given)


def _train_and_show(request: TrainingRequest, title: str, *, as_json: bool) -> None:
    from adadps.estimators.tables.interruption import left_in_words
    from adadps.estimators.tables.run_folder import TableRunFolder
    from adadps.estimators.tables.survey import RareError
    from adadps.estimators.tables.training import train_from_table

    with errors_as_messages(
        interrupted=lambda: left_in_words(TableRunFolder.of(request), _this_command())
    ):
        try:
            result = train_from_table(request, say_on_terminal)
        except RareError as error:
            paying = f"{_this_command()} --rare other"
            raise DataError(
                f"{error} Each column whose bounds, levels or classes you declare (--numeric "
                "NAME=LOW,HIGH, --categorical, --classes) need not be paid for, and then rarer "
                f"levels of the others are kept. To pay:\n{paying}"
            ) from error
        if as_json:
            print_json(result.describe())
        else:
            out.print(table_of_facts(title, _facts_of(result, request.out)))


def _show_overlap(request: TrainingRequest) -> None:
    """Print the overlap on standard error, and nowhere else."""
    from adadps.estimators.tables.overlap import overlap_in_words

    with errors_as_messages():
        say(overlap_in_words(request))


def _this_command() -> str:
    """Return the command line, quoted for a shell; torchrun belongs to it."""
    said = ["adadps", *sys.argv[1:]]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        here = os.environ.get("LOCAL_WORLD_SIZE", "2")
        said = ["torchrun", "--nproc-per-node", here, "--no-python", *said]
    return shlex.join(said)


def _facts_of(result: Result, folder: Path) -> dict[str, Any]:
    """Return what may be shown: nothing here was computed from private data without noise."""
    from adadps.report.card.meaning import about_held_out
    from adadps.report.card.rendering import measured_on

    privacy = result.privacy
    measured = {
        f"{m.metric}, on {measured_on(m.data, m.declared)}": m.value for m in result.history
    }
    outside = about_held_out(m.declared for m in result.history)
    return {
        "model": str(folder),
        "guarantee": str(privacy),
        "method": result.method,
        "reads": result.settings["model"],
        "steps": privacy.steps,
        "steps paid": privacy.steps_paid,
        "noise multiplier": privacy.noise_multiplier,
        **measured,
        **({"not covered": outside[0]} if outside else {}),
        **{f"measured and paid for ({n})": fact for n, fact in enumerate(privacy.measured, 1)},
        **{f"assumed public ({n})": fact for n, fact in enumerate(privacy.assumed_public, 1)},
    }


def train(
    data: Annotated[
        Path, typer.Argument(help="Private table: .csv, .tsv, .jsonl (or .gz), or .parquet.")
    ],
    epsilon: Annotated[float, typer.Option(metavar="NUMBER", help="What this run may spend.")],
    out: OutFolder,
    label: Label = None,
    texts: Texts = None,
    numeric: Numbers = None,
    categorical: Categories = None,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Held-out rows, to measure accuracy.")
    ] = None,
    check_overlap: CheckOverlap = False,
    as_json: AsJson = False,
    classes: Classes = None,
    missing: EmptyCells = None,
    rare: RareNames = None,
    regression: Annotated[bool, _column("--regression", help="The label is a number.")] = False,
    label_bounds: Annotated[
        str | None, _column(metavar="LOW,HIGH", help="Bounds of the label of a regression.")
    ] = None,
    label_separator: LabelSeparator = None,
    schema: SchemaFile = None,
    delta: Annotated[
        float | None,
        _privacy(metavar="NUMBER", help="Default: the ledger's, else 1/(10 examples or users)."),
    ] = None,
    examples: Annotated[
        int | None,
        _privacy(
            metavar="COUNT",
            callback=whole_number(1, MOST_EXAMPLES),
            help="Declared number of rows. Default: that in the file, then assumed public.",
        ),
    ] = None,
    strict: Strict = False,
    trials: Trials = None,
    ledger: LedgerFile = None,
    ledger_budget: LedgerBudget = None,
    user: Annotated[str | None, _user(metavar="NAME", help="Column of users.")] = None,
    users: Annotated[
        int | None,
        _user(
            metavar="COUNT",
            callback=whole_number(1, MOST_EXAMPLES),
            help="Declared number of users. Default: that in the file, then assumed public.",
        ),
    ] = None,
    rows_per_user: Annotated[
        int | None,
        _user(
            metavar="COUNT",
            callback=whole_number(1),
            help="At most this many per step. Default: 16.",
        ),
    ] = None,
    method: Annotated[
        Method, _side(metavar="NAME", help=f"One of {', '.join(Method)}.")
    ] = Method.AUTO,
    features: Features = TextFeatures.AUTO,
    embeddings: Vectors = None,
    embeddings_because: VectorsBecause = None,
    words: Words = 10_000,
    language: Language = "en",
    negation: Negated = True,
    side: SideFile = None,
    side_source: SideSource = None,
    side_because: SideBecause = None,
    public: PublicFile = None,
    public_because: PublicBecause = None,
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
    processes: Annotated[
        int,
        _setting(
            metavar="COUNT",
            callback=whole_number(1, MOST_PROCESSES),
            help="Processes on this machine that train together.",
        ),
    ] = 1,
    checkpoint: CheckpointFolder = None,
    store: StoreFolder = None,
) -> None:
    r"""Train a private linear model on texts, numbers and categories at one epsilon.

    The only things shown or stored about the private rows are noised weights, and what is declared
    or stated as assumed public. Accuracy is measured only on --test, on all of its rows; epsilon
    does not cover them.

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
