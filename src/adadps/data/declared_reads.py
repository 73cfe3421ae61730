"""All reads of private rows outside of paid steps, and why each is allowed.

Training reads private rows within steps that are paid for before they are drawn. Any other code
that reads a private row marks it with `declared_read`; the tests record every access and accept no
others. The list is short, and a new entry changes the privacy contract: it must be added to
docs/privacy-contract.md as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum


class DeclaredRead(Enum):
    """What is read, when, and why that is allowed."""

    FORM = (
        "The form of rows is checked when they come in (finite numbers, lengths, types, sound "
        "sparse rows, words and classes that the model has), and they are converted into the form "
        "that training reads. What is wrong is refused before anything is paid, and reported only "
        "to the person who runs the training."
    )
    NUMBER = (
        "Rows or users are counted, to be compared with the declared number where that is part of "
        "the guarantee, and to be drawn from. Rate, steps, noise and δ come from the declared one."
    )
    ENCODING = (
        "A row is parsed, scaled and encoded by what is declared or assumed public. What becomes "
        "of a row depends on that row alone."
    )
    USERS = (
        "The rows of each user are found by their keys, so that users can be drawn whole. The keys "
        "are not stored."
    )
    PUBLIC_TOO = (
        "A row that is public as well is left out of training. Whether it is depends on that row "
        "and on public data alone, and how many there are is not revealed."
    )
    ASSUMED_PUBLIC = (
        "Classes, levels or bounds that were not declared are read off the data and assumed to be "
        "public; the card says so. Epsilon does not cover it, and `strict` refuses it."
    )
    CHECK_OVERLAP = (
        "Held-out rows are looked for in the training table, if the operator asks for exactly that "
        "by `--check-overlap`. Nothing is trained or written then, and only they see the answer."
    )
    PAID_MEASUREMENT = (
        "A statistic is measured with noise, after its price was charged to the ledger. It is part "
        "of epsilon."
    )


_under_way: ContextVar[DeclaredRead | None] = ContextVar("declared read", default=None)


@contextmanager
def declared_read(what: DeclaredRead) -> Iterator[None]:
    """Mark a read of private rows outside of a paid step, as a block or on a whole function.

    >>> with declared_read(DeclaredRead.FORM):
    ...     read_under_way().name
    'FORM'
    """
    token = _under_way.set(what)
    try:
        yield
    finally:
        _under_way.reset(token)


def read_under_way() -> DeclaredRead | None:
    """Return the declared read that is under way, or None.

    >>> read_under_way() is None
    True
    """
    return _under_way.get()
