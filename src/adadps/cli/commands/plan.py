"""`adadps plan`: find epsilon, the noise or the number of steps before any data is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from adadps.accounting.contract import Sampling
from adadps.cli.main import (
    choice,
    err,
    errors_as_messages,
    out,
    panel,
    print_json,
    table_of_facts,
)
from adadps.types import Accountant, Relation

if TYPE_CHECKING:
    from adadps.accounting.groups import Groups

_RELATIONS = {
    "add-remove": Relation.ADD_OR_REMOVE_ONE,
    "zero-out": Relation.ZERO_OUT,
    "replace": Relation.REPLACE_ONE,
}
_asked = panel("Give two of these: a length, epsilon, the noise")
_terms = panel("Terms of the guarantee")


def plan(
    batch_size: Annotated[
        float,
        typer.Option(metavar="NUMBER", help="Expected number of examples, or users, in a batch."),
    ],
    examples: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="Declared number of training examples (public)."),
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="Declared number of users, if epsilon protects users."),
    ] = None,
    epochs: Annotated[
        float | None, _asked(metavar="NUMBER", help="Length of the run in epochs.")
    ] = None,
    steps: Annotated[
        int | None, _asked(metavar="COUNT", help="Length of the run in steps.")
    ] = None,
    epsilon: Annotated[float | None, _asked(metavar="NUMBER", help="Privacy budget.")] = None,
    noise_multiplier: Annotated[
        float | None,
        _asked(metavar="NUMBER", help="Standard deviation of the noise, divided by the clip norm."),
    ] = None,
    delta: Annotated[
        float | None, _terms(metavar="NUMBER", help="Default: 1/(10 examples or users).")
    ] = None,
    accountant: Annotated[
        Accountant | None, _terms(help="Default: pld where it applies, else rdp.")
    ] = None,
    sampling: Annotated[
        Sampling, _terms(metavar="NAME", help="How batches are drawn: poisson, fixed or shuffled.")
    ] = Sampling.POISSON,
    relation: Annotated[
        str | None,
        _terms(metavar="NAME", help="add-remove, zero-out or replace. Default: by --sampling."),
    ] = None,
    group_size: Annotated[
        int, _terms(metavar="COUNT", help="Examples that are clipped together.")
    ] = 1,
    group_by: Annotated[
        str, _terms(metavar="NAME", help="label or advance; position is refused.")
    ] = "label",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute epsilon, the noise, or the number of steps, before any data is touched.

    Give two of: a length (--epochs or --steps), --epsilon, --noise-multiplier. With --users,
    epsilon protects a user instead of an example, and batches and epochs are counted in users.

    Example: adadps plan --examples 25000 --batch-size 64 --epochs 32 --epsilon 1.5
    """
    from adadps.accounting.plan import make_plan

    with errors_as_messages():
        with err.status("composing the steps; this takes a few seconds"):
            made = make_plan(
                examples=examples,
                users=users,
                batch_size=batch_size,
                steps=steps,
                epochs=epochs,
                epsilon=epsilon,
                noise_multiplier=noise_multiplier,
                delta=delta,
                accountant=accountant,
                sampling=sampling,
                relation=None if relation is None else choice(relation, _RELATIONS, "relation"),
                groups=_groups(group_size, group_by),
            )
        if as_json:
            print_json(made.describe())
        else:
            out.print(table_of_facts("Privacy plan", made.describe()))


def _groups(size: int, by: str) -> Groups | None:
    from adadps.accounting.groups import by_label, by_position, in_advance

    known = {"label": by_label, "advance": in_advance, "position": by_position}
    make = choice(by, known, "way to group")
    if size == 1 and by != "position":
        return None
    groups: Groups = make(size)
    return groups
