"""Rows of the private data that are public as well: they are left out, and not counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.identity import Identities, identities_of_rows, identities_of_texts
from adadps.errors import DataError

if TYPE_CHECKING:
    from adadps.data.examples import Examples


@dataclass(frozen=True, repr=False, eq=False)
class PublicRows:
    """Public rows of features, texts, or both, by their keyed hashes alone."""

    rows: Identities | None
    texts: Identities | None


def public_rows(features: Any, texts: Sequence[str] | None) -> PublicRows:
    """Return the rows, and the texts if they are given, behind a public statistic."""
    return PublicRows(identities_of_rows(features), text_identities(texts, len(features)))


@declared_read(DeclaredRead.PUBLIC_TOO)
def text_identities(texts: Sequence[str] | None, rows: int) -> Identities | None:
    """Return the hashes of the texts, one per row."""
    if texts is None:
        return None
    hashes = identities_of_texts(texts)
    if len(hashes) != rows:
        raise DataError(
            f"Expected one text per row, found {len(hashes)} texts for {rows} rows. Check that "
            "both come from the same table."
        )
    return hashes


def private_rows(data: Examples, public: Sequence[PublicRows]) -> Tensor:
    """Mark the rows of ``data`` that are in none of the public sets, by features or by text.

    Texts are compared when `normalised`, so that a text is recognised though its features were
    computed in another way. Whether a row is left out depends on that row and on public data alone,
    so that the filter costs no privacy. How many were left out is not reported.

    >>> from adadps.data.examples import examples
    >>> data = examples([[1.0], [2.0], [3.0]], [0, 1, 0], texts=["Yes!", "no", "maybe"])
    >>> corpus = public_rows(torch.tensor([[9.0], [3.0]]), ["YES", "never"])
    >>> private_rows(data, [corpus]).tolist()
    [False, True, False]
    """
    private = torch.ones(len(data), dtype=torch.bool)
    rows = [held.rows for held in public if held.rows is not None]
    texts = [held.texts for held in public if held.texts is not None]
    if texts and data.texts is None:
        raise DataError(
            "Expected the texts of the private examples too, found texts of the public data "
            "alone, so that equal texts would not be found. Give `examples(..., texts=...)`."
        )
    with declared_read(DeclaredRead.PUBLIC_TOO):
        if rows:
            hashes = identities_of_rows(data.features) if data.before is None else data.before
            private &= ~torch.from_numpy(hashes.within(rows))
        if texts and data.texts is not None:
            private &= ~torch.from_numpy(data.texts.within(texts))
    return private
