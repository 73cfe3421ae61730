"""`adadps federate`: a federation simulated in this process, from a table with users."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adadps.cli.commands import table_options as options
from adadps.cli.commands.console import errors_as_messages, panel, whole_number
from adadps.cli.commands.table_options import MOST_EXAMPLES
from adadps.cli.commands.table_training import show_overlap, train_and_show
from adadps.estimators.planner.named_methods import Method
from adadps.estimators.tables.federation import DrawnBy, Federation, NoiseBy

_privacy = panel("Privacy")
_device = panel("On the devices and at the server (default: by rule)")
_side = panel("Method and side information (public words)")
METHODS = (
    "dp-sgd: DP-FedAvg; dp-adam: DP-FedAdam; adadps: side information at every local step; "
    "adadps-two-sided: and after the noise; dp-sgd-weighted: weighted features, in a simulation "
    "only; auto: adadps-two-sided for texts"
)


def federate(
    data: Annotated[
        Path, typer.Argument(help="Table of all users: .csv, .tsv, .jsonl (or .gz), or .parquet.")
    ],
    user: Annotated[str, typer.Option(metavar="NAME", help="Column that tells users apart.")],
    epsilon: Annotated[
        float, typer.Option(metavar="NUMBER", help="What this run may spend, per user.")
    ],
    out_folder: options.OutFolder,
    label: options.Label = None,
    classes: options.Classes = None,
    text: options.Texts = None,
    numeric: options.Numbers = None,
    categorical: options.Categories = None,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows of other users, for the accuracy.")
    ] = None,
    check_overlap: options.CheckOverlap = False,
    as_json: options.AsJson = False,
    label_separator: options.LabelSeparator = None,
    missing: options.EmptyCells = None,
    rare: options.RareNames = None,
    schema: options.SchemaFile = None,
    delta: Annotated[
        float | None, _privacy(metavar="NUMBER", help="Default: the ledger's, else 1/(10 users).")
    ] = None,
    users: Annotated[
        int | None,
        _privacy(
            metavar="COUNT",
            callback=whole_number(1, MOST_EXAMPLES),
            help="Declared number of users. Default: that of the file, then assumed public.",
        ),
    ] = None,
    noise: Annotated[
        NoiseBy, _privacy(help="Who adds it: the server, devices in shares, or each device alone.")
    ] = NoiseBy.SERVER,
    minimum: Annotated[
        int | None,
        _privacy(
            metavar="COUNT",
            callback=whole_number(1),
            help="With --noise shares: a round with fewer answers is discarded.",
        ),
    ] = None,
    sampling: Annotated[
        DrawnBy | None,
        _privacy(help="How cohorts are drawn. Default: poisson; with noise of devices shuffled."),
    ] = None,
    ledger: options.LedgerFile = None,
    ledger_budget: options.LedgerBudget = None,
    strict: options.Strict = False,
    trials: options.Trials = None,
    rounds: Annotated[
        int | None, _device(metavar="COUNT", callback=whole_number(1), help="Cohorts in all.")
    ] = None,
    cohort: Annotated[
        float | None, _device(metavar="COUNT", help="Users that are asked in a round, on average.")
    ] = None,
    local_epochs: Annotated[
        int, _device(metavar="COUNT", callback=whole_number(1), help="Passes over a user's rows.")
    ] = 1,
    local_batch_size: Annotated[
        int, _device(metavar="COUNT", callback=whole_number(1), help="Rows of a local mini-batch.")
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
            metavar="COUNT",
            callback=whole_number(1),
            help="Rows that a user trains on. Default: 1000.",
        ),
    ] = None,
    method: Annotated[Method, _side(metavar="NAME", help=METHODS)] = Method.AUTO,
    words: options.Words = 10_000,
    language: options.Language = "en",
    side: options.SideFile = None,
    side_source: options.SideSource = None,
    side_because: options.SideBecause = None,
    public: options.PublicFile = None,
    public_because: options.PublicBecause = None,
    checkpoint: options.CheckpointFolder = None,
    store: options.StoreFolder = None,
) -> None:
    r"""Federated training with user-level privacy, simulated in this process.

    Users train on their own rows; what they bring is clipped and noised, so that epsilon protects
    a user with all their rows. The same method runs on real devices with Flower.

    Examples:
    adadps federate mails.csv --user sender --text body --label kind \
      --classes ham,spam --epsilon 4 --out model
    adadps federate mails.csv --user sender --text body --label kind \
      --classes ham,spam --noise shares --minimum 50 \
      --cohort 60 --rounds 50 --epsilon 8 --out model
    """
    from adadps.estimators.tables.request import Request

    with errors_as_messages():
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
            rare=None if rare is None else rare.value,
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
            batch_size=cohort,
            clip_norm=clip_norm,
            words=words,
            language=language,
            ledger=ledger,
            ledger_budget=ledger_budget,
            checkpoint=checkpoint,
            store=store,
            strict=strict,
            trials=trials,
            test=test,
            federation=Federation(
                local_epochs=local_epochs,
                local_batch_size=local_batch_size,
                local_lr=local_lr,
                server_momentum=server_momentum,
                noise=noise,
                minimum=minimum,
                sampling=sampling,
                rounds=rounds,
            ),
        )
    if check_overlap:
        show_overlap(request)
    else:
        train_and_show(request, "Federated", as_json=as_json)
