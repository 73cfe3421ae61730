"""`adadps predict`: classes for the texts of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adadps.commands.console import say_to_people, told

COLUMN = "prediction"


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.")],
    data: Annotated[Path, typer.Argument(help="Table with the texts: .csv or .tsv, or gzip.")],
    out_file: Annotated[
        Path, typer.Option("--out", help="New table; .tsv and .gz are understood.")
    ],
    text: Annotated[
        str | None, typer.Option(help="Column of the texts. Default: as in training.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out if it exists.")] = False,
) -> None:
    """Write the table with one more column, "prediction".

    Example: adadps predict model new.csv --out labelled.csv
    """
    from adadps.data.tables import read_table, write_table  # noqa: PLC0415
    from adadps.errors import DataError  # noqa: PLC0415
    from adadps.text_classifier.saved import load_classifier  # noqa: PLC0415
    from adadps.writing import new_file  # noqa: PLC0415

    with told(), new_file(out_file, overwrite=force) as draft:
        classifier = load_classifier(model)
        table = read_table(data)
        if COLUMN in table.header:
            raise DataError(
                f"Expected a table without a column '{COLUMN}' in {data}, found one. Rename it."
            )
        texts = table.column(classifier.model.text_column if text is None else text)
        say_to_people(f"Predicting {len(texts)} rows ...")
        predicted = classifier.predict(texts)
        rows = [[*row, label] for row, label in zip(table.rows, predicted, strict=True)]
        with draft.open("wb") as stream:
            write_table(stream, out_file, [[*table.header, COLUMN], *rows])
