"""`adadps federate`: a federation simulated in this process, from a table with users."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
from adadps.commands.train import MOST_EXAMPLES, MOST_WORDS, facts_of, this_command
from adadps.named_methods import Method
from adadps.table_model.federation import Cohorts, Federation, Noise

_column, _privacy = panel("More about columns"), panel("Privacy")
_device = panel("On the devices and at the server (default: by rule)")
_side, _place = panel("Method and side information (public words)"), panel("Places on disk")
METHODS = (
    "auto; dp-sgd: DP-FedAvg; dp-adam: DP-FedAdam; adadps: side information at every local step; "
    "adadps-two-sided; dp-sgd-weighted"
)


def federate(
    data: Annotated[
        Path, typer.Argument(help="Table of all users: .csv, .tsv, .jsonl (or .gz), or .parquet.")
    ],
    user: Annotated[str, typer.Option(metavar="NAME", help="Column that tells users apart.")],
    epsilon: Annotated[
        float, typer.Option(metavar="NUMBER", help="What this run may spend, per user.")
    ],
    out_folder: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="New folder for the model.")
    ],
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column that is to be predicted.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="All labels, declared.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Column of texts; may be repeated.")
    ] = None,
    numeric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LOW,HIGH", help="Column of numbers; may be repeated."),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=A,B,other", help="Column of categories; may be repeated."),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows of other users, for the accuracy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    label_separator: Annotated[
        str | None, _column(metavar="TEXT", help="What stands between several labels of a row.")
    ] = None,
    missing: Annotated[
        Missing | None, _column(help="Empty cells: refuse (default), or fill as declared.")
    ] = None,
    schema: Annotated[
        Path | None, _column(metavar="FILE", help="All of this in JSON, instead of options.")
    ] = None,
    delta: Annotated[
        float | None, _privacy(metavar="NUMBER", help="Default: the ledger's, else 1/(10 users).")
    ] = None,
    users: Annotated[
        int | None,
        _privacy(
            metavar="COUNT",
            callback=whole(1, MOST_EXAMPLES),
            help="Declared number of users. Default: that of the file, then assumed public.",
        ),
    ] = None,
    noise: Annotated[
        Noise, _privacy(help="Who adds it: the server, devices in shares, or each device alone.")
    ] = Noise.SERVER,
    minimum: Annotated[
        int | None,
        _privacy(
            metavar="COUNT",
            callback=whole(1),
            help="With --noise shares: a round with fewer answers is discarded.",
        ),
    ] = None,
    cohorts: Annotated[
        Cohorts,
        _privacy(help="How users are drawn. Shares need fixed or shuffled, devices shuffled."),
    ] = Cohorts.POISSON,
    ledger: Annotated[
        Path | None,
        _privacy(metavar="FILE", help="Ledger that the runs on this data share; made if new."),
    ] = None,
    ledger_budget: Annotated[
        float | None,
        _privacy(metavar="NUMBER", help="Epsilon of a new ledger. Default: that of this run."),
    ] = None,
    strict: Annotated[
        bool,
        _privacy("--strict", help="Refuse to read off the data anything that is not declared."),
    ] = False,
    rounds: Annotated[
        int | None, _device(metavar="COUNT", callback=whole(1), help="Cohorts in all.")
    ] = None,
    cohort: Annotated[
        float | None, _device(metavar="COUNT", help="Users that are asked in a round, on average.")
    ] = None,
    local_epochs: Annotated[
        int, _device(metavar="COUNT", callback=whole(1), help="Passes over a user's rows.")
    ] = 1,
    local_batch_size: Annotated[
        int, _device(metavar="COUNT", callback=whole(1), help="Rows of a local mini-batch.")
    ] = 100,
    local_lr: Annotated[
        float | None, _device(metavar="NUMBER", help="Learning rate on the devices.")
    ] = None,
    clip_norm: Annotated[
        float | None, _device(metavar="NUMBER", help="Longest update that counts in full.")
    ] = None,
    server_momentum: Annotated[
        float, _device(metavar="NUMBER", help="Of the updates that the server has released.")
    ] = 0.0,
    rows_per_user: Annotated[
        int | None,
        _device(
            metavar="COUNT", callback=whole(1), help="Rows that a user trains on. Default: 1000."
        ),
    ] = None,
    method: Annotated[Method, _side(metavar="NAME", help=METHODS)] = Method.AUTO,
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
    r"""Federated training with user-level privacy, simulated in this process.

    Users train on their own rows; what they bring is clipped and noised, so that epsilon protects
    a user with all their rows. The same method runs on real devices with Flower.

    Examples:
    adadps federate mails.csv --user sender --text body --label kind \
      --classes ham,spam --epsilon 4 --out model
    adadps federate mails.csv --user sender --text body --label kind \
      --classes ham,spam --noise shares --minimum 50 --cohorts fixed \
      --cohort 60 --rounds 50 --epsilon 8 --out model
    """
    from adadps.table_model.from_table import kept_run, train_from_table  # noqa: PLC0415
    from adadps.table_model.request import Request  # noqa: PLC0415

    with told():
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
            missing=None if missing is None else missing.value,
            user=user,
            users=users,
            rows_per_user=rows_per_user,
            method=method,
            side=side,
            side_source=side_source,
            side_because=side_because,
            delta=delta,
            batch_size=cohort,
            clip_norm=clip_norm,
            words=words,
            language=language,
            ledger=ledger,
            ledger_budget=ledger_budget,
            checkpoint=checkpoint,
            store=store,
            strict=strict,
            test=test,
            federation=Federation(
                local_epochs=local_epochs,
                local_batch_size=local_batch_size,
                local_lr=local_lr,
                server_momentum=server_momentum,
                noise=noise,
                minimum=minimum,
                cohorts=cohorts,
                rounds=rounds,
            ),
        )
    with told(interrupted=lambda: kept_run(request).in_words(this_command())):
        result = train_from_table(request, say_to_people)
        if as_json:
            print_json(result.describe())
        else:
            out.print(table_of_facts("Federated", facts_of(result, out_folder)))
