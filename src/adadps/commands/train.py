"""`adadps train`: a private linear model from a table."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adadps.commands.console import out, print_json, say_to_people, table_of_facts, told
from adadps.named_methods import Method

if TYPE_CHECKING:
    from adadps.result import Result

MOST_EXAMPLES, MOST_WORDS = 10**12, 200_000


class Missing(StrEnum):
    """What happens to empty cells."""

    REFUSE = "refuse"
    FILL = "fill"


def train(
    data: Annotated[
        Path, typer.Argument(help="Private table: .csv, .tsv, .jsonl (or .gz), or .parquet.")
    ],
    epsilon: Annotated[float, typer.Option(help="What this run may spend.")],
    out_folder: Annotated[Path, typer.Option("--out", help="New folder for the model.")],
    text: Annotated[
        list[str] | None, typer.Option(help="Column of texts; may be given several times.")
    ] = None,
    numeric: Annotated[
        list[str] | None,
        typer.Option(help="NAME=LOW,HIGH: column of numbers. Without bounds: read off the data."),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=a,b,other: column of categories. Without levels: read off the data."
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column of the labels.")] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="a,b,c. Default: the labels in the file, then assumed public."),
    ] = None,
    label_separator: Annotated[
        str | None, typer.Option(help="What stands between several labels of one row.")
    ] = None,
    regression: Annotated[bool, typer.Option(help="The label is a number.")] = False,
    label_bounds: Annotated[
        str | None, typer.Option(help="LOW,HIGH of the label of a regression.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="JSON file with columns, bounds, levels and classes.")
    ] = None,
    missing: Annotated[
        Missing | None, typer.Option(help="Empty cells: refuse (default), or fill as declared.")
    ] = None,
    method: Annotated[Method, typer.Option(help="How to train.")] = Method.AUTO,
    side: Annotated[
        str | None,
        typer.Option(help="wordfreq, none, or a FILE with columns word and frequency."),
    ] = None,
    side_source: Annotated[
        str | None, typer.Option(help="Where FILE comes from; stands in the result.")
    ] = None,
    side_because: Annotated[
        str | None, typer.Option(help="Why FILE is public; stands in the result.")
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(help="Table of public texts: vocabulary and word frequencies are theirs."),
    ] = None,
    public_because: Annotated[
        str | None, typer.Option(help="Why --public is public; stands in the result.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Default: the ledger's, else 1/(10 examples or users).")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_EXAMPLES,
            help="Declared number of examples. Default: that of the file, then assumed public.",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(help="Column that tells users apart: epsilon then protects users."),
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_EXAMPLES,
            help="Declared number of users. Default: that of the file, then assumed public.",
        ),
    ] = None,
    rows_per_user: Annotated[
        int | None,
        typer.Option(min=1, help="So many rows of a user count at once. Default: 16."),
    ] = None,
    batch_size: Annotated[
        float | None,
        typer.Option(help="Expected examples (or users) in a batch. Default: by rule."),
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Default: by rule.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Default: by rule.")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate. Default: by rule, less with more noise.")
    ] = None,
    words: Annotated[
        int, typer.Option(min=1, max=MOST_WORDS, help="Size of the public vocabulary.")
    ] = 10_000,
    language: Annotated[str, typer.Option(help="Language of the vocabulary.")] = "en",
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger that the runs on this data share; made if new.")
    ] = None,
    ledger_budget: Annotated[
        float | None,
        typer.Option(help="Epsilon of a new ledger, for all runs. Default: that of this run."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder to keep the run in. Default: OUT.checkpoint, until it is done."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="Folder with room for the rows. Default: beside the checkpoint."),
    ] = None,
    strict: Annotated[
        bool, typer.Option(help="Refuse to read anything off the data that is not declared.")
    ] = False,
    test: Annotated[
        Path | None, typer.Option(help="Table of held-out rows, for the accuracy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a private linear model on texts, numbers and categories at one epsilon.

    Nothing about the private rows is shown or stored but the noised weights, and what is
    declared or said to be assumed public. Accuracy is measured only on --test.

    Example: adadps train reviews.csv --text review --label stars --epsilon 1 --out model
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
        test=test,
    )
    with told(interrupted=lambda: kept_run(request).in_words(this_command())):
        result = train_from_table(request, say_to_people)
        if as_json:
            print_json(result.describe())
        else:
            out.print(table_of_facts("Trained", _facts(result, out_folder)))


def this_command() -> str:
    """The command line that was given, for a shell."""
    return shlex.join(["adadps", *sys.argv[1:]])


def _facts(result: Result, folder: Path) -> dict[str, Any]:
    """What may be shown: nothing here was computed from private data without noise."""
    privacy = result.privacy
    measured = {f"{m.metric} on {m.data} ({m.declared})": m.value for m in result.history}
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
