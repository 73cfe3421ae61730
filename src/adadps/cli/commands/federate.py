"""`adadps federate`: a federation simulated in this process, from a table with users."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adadps.cli.commands import train as options
from adadps.cli.commands.train import MOST_EXAMPLES, train_on_table
from adadps.cli.main import panel, whole_number
from adadps.types import DrawnBy, Method, NoiseBy, TextFeatures

_privacy = panel("Privacy")
_device = panel("On the devices and at the server (default: by rule)")
_side = panel("Method and side information (public words and vectors)")
METHODS = (
    "dp-sgd: DP-FedAvg; dp-adam: DP-FedAdam; adadps: side information at every local step; "
    "adadps-two-sided: also after the noise; dp-sgd-weighted: weighted features, only in a "
    "simulation; auto: adadps-two-sided for texts"
)


def federate(
    data: Annotated[
        Path, typer.Argument(help="Table of all users: .csv, .tsv, .jsonl (or .gz), or .parquet.")
    ],
    user: Annotated[str, typer.Option(metavar="NAME", help="Column of users.")],
    epsilon: Annotated[
        float, typer.Option(metavar="NUMBER", help="What this run may spend, per user.")
    ],
    out: options.OutFolder,
    label: options.Label = None,
    classes: options.Classes = None,
    texts: options.Texts = None,
    numeric: options.Numbers = None,
    categorical: options.Categories = None,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows of other users, to measure accuracy.")
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
            help="Declared number of users. Default: that in the file, then assumed public.",
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
        _privacy(help="How cohorts are drawn. Default: poisson, or shuffled if devices add noise."),
    ] = None,
    ledger: options.LedgerFile = None,
    ledger_budget: options.LedgerBudget = None,
    strict: options.Strict = False,
    trials: options.Trials = None,
    rounds: Annotated[
        int | None, _device(metavar="COUNT", callback=whole_number(1), help="Number of rounds.")
    ] = None,
    batch_size: Annotated[
        float | None,
        _device("--cohort", metavar="COUNT", help="Average number of users in a round."),
    ] = None,
    local_epochs: Annotated[
        int, _device(metavar="COUNT", callback=whole_number(1), help="Passes over a user's rows.")
    ] = 1,
    local_batch_size: Annotated[
        int, _device(metavar="COUNT", callback=whole_number(1), help="Rows in a local mini-batch.")
    ] = 100,
    local_lr: Annotated[
        float | None, _device(metavar="NUMBER", help="Learning rate on the devices.")
    ] = None,
    clip_norm: Annotated[
        float | None, _device(metavar="NUMBER", help="Norm at which updates are clipped.")
    ] = None,
    server_momentum: Annotated[
        float, _device(metavar="NUMBER", help="Momentum of the released updates at the server.")
    ] = 0.0,
    rows_per_user: Annotated[
        int | None,
        _device(
            metavar="COUNT",
            callback=whole_number(1),
            help="At most this many per user. Default: 1000.",
        ),
    ] = None,
    method: Annotated[Method, _side(metavar="NAME", help=METHODS)] = Method.AUTO,
    features: options.Features = TextFeatures.AUTO,
    embeddings: options.Vectors = None,
    embeddings_because: options.VectorsBecause = None,
    words: options.Words = 10_000,
    language: options.Language = "en",
    negation: options.Negated = True,
    side: options.SideFile = None,
    side_source: options.SideSource = None,
    side_because: options.SideBecause = None,
    public: options.PublicFile = None,
    public_because: options.PublicBecause = None,
    checkpoint: options.CheckpointFolder = None,
    store: options.StoreFolder = None,
) -> None:
    r"""Federated training with user-level privacy, simulated in this process.

    Users train on their own rows; their updates are clipped and noised, so that epsilon protects a
    user with all their rows. The same method runs on real devices with Flower.

    Examples:
    adadps federate mails.csv --user sender --text body --label kind \
      --classes ham,spam --epsilon 4 --out model
    adadps federate mails.csv --user sender --text body --label kind \
      --classes ham,spam --noise shares --minimum 50 \
      --cohort 60 --rounds 50 --epsilon 8 --out model
    """
    train_on_table(locals(), "Federated", federated=True)
