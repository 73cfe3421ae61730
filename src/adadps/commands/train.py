"""`adadps train`: a private text classifier from a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adadps.commands.console import out, print_json, say_to_people, table_of_facts, told
from adadps.text_classifier.settings import Method

if TYPE_CHECKING:
    from adadps.result import Result

MOST_EXAMPLES, MOST_WORDS = 10**12, 200_000
_INTERRUPTED = "no model was written; on a ledger, steps that were begun stay paid for"
_GOES_ON = "no model was written; the same command goes on from the last checkpoint"


def train(
    data: Annotated[Path, typer.Argument(help="Table of private texts: .csv or .tsv, or gzip.")],
    text: Annotated[str, typer.Option(help="Column of the texts.")],
    label: Annotated[str, typer.Option(help="Column of the labels.")],
    epsilon: Annotated[float, typer.Option(help="What this run may spend.")],
    out_folder: Annotated[Path, typer.Option("--out", help="New folder for the model.")],
    method: Annotated[Method, typer.Option(help="How to train.")] = Method.ADADPS,
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
    delta: Annotated[
        float | None, typer.Option(help="Default: the ledger's, else 1/(10 examples).")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_EXAMPLES,
            help="Declared number of examples. Default: that of the file, then assumed public.",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="a,b,c. Default: the labels in the file, then assumed public."),
    ] = None,
    batch_size: Annotated[
        float | None,
        typer.Option(help="Expected examples in a batch. Default: 4.3 %, at least 64."),
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Default: 17.27.")] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Default: what was best in the demo.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Default: the demo's, less if there is more noise.")
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
        typer.Option(help="Folder to keep the run in: the same command goes on after a crash."),
    ] = None,
    strict: Annotated[
        bool, typer.Option(help="Refuse to read classes or the number of examples off the data.")
    ] = False,
    test: Annotated[
        Path | None, typer.Option(help="Table of held-out texts, for the accuracy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a private text classifier: public words, a linear model, one epsilon.

    Nothing about the private texts is shown or stored but the noised weights, and what is
    declared or said to be assumed public. Accuracy is measured only on --test.

    Example: adadps train reviews.csv --text review --label stars --epsilon 1 --out model
    """
    from adadps.text_classifier.from_table import Request, train_from_table  # noqa: PLC0415

    with told(interrupted=_GOES_ON if checkpoint else _INTERRUPTED):
        request = Request(
            data=data,
            text=text,
            label=label,
            epsilon=epsilon,
            out=out_folder,
            method=method,
            side=side,
            side_source=side_source,
            side_because=side_because,
            delta=delta,
            examples=examples,
            classes=classes,
            batch_size=batch_size,
            epochs=epochs,
            clip_norm=clip_norm,
            lr=lr,
            words=words,
            language=language,
            ledger=ledger,
            ledger_budget=ledger_budget,
            checkpoint=checkpoint,
            strict=strict,
            test=test,
        )
        result = train_from_table(request, say_to_people)
        if as_json:
            print_json(result.describe())
        else:
            out.print(table_of_facts("Trained", _facts(result, out_folder)))


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
