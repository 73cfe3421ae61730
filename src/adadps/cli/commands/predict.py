"""`adadps predict`: predictions for the rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adadps.cli.main import Missing, errors_as_messages, print_json, say_on_terminal


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.")],
    data: Annotated[Path, typer.Argument(help="Table: .csv, .tsv, .jsonl (or .gz), or .parquet.")],
    out_file: Annotated[
        Path, typer.Option("--out", help="New table; the extension of its name sets the format.")
    ],
    text: Annotated[
        str | None, typer.Option(help="Column of the texts. Default: as in training.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add one column of probabilities per class.")
    ] = False,
    missing: Annotated[
        Missing | None,
        typer.Option(help="Empty cells: refuse or fill. Default: as the model was trained."),
    ] = None,
    embeddings: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE", help="Where the model's public vectors are now, if they have moved."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out if it exists.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print as JSON what was written.")
    ] = False,
) -> None:
    """Write the table with one more column, "prediction".

    The table needs the columns that the model reads; its other columns are copied.

    Example: adadps predict model new.csv --out labelled.csv
    """
    from adadps.estimators.tables.prediction import predict_table
    from adadps.estimators.tables.saved_model import load_model
    from adadps.files import new_file

    with errors_as_messages(), new_file(out_file, overwrite=force) as draft:
        trained = load_model(model, embeddings)
        if text is not None:
            trained = trained.reading(text)
        if missing is not None:
            trained = trained.treating_missing(fill=missing is Missing.FILL)
        say_on_terminal(f"Predicting the rows of {data} ...")
        with draft.open("wb") as stream:
            written = predict_table(trained, data, stream, out_file, probabilities=probabilities)
    if as_json:
        print_json({"out": str(out_file), **written})
    else:
        say_on_terminal(f"{written['rows']} predictions are in {out_file}.")
