"""Keyed hashes by which rows and texts are recognised again, within this process alone.

Whether a private row is public as well is decided by comparing hashes: 128 bits of BLAKE2b under a
key that is drawn when the process begins and stored nowhere. Without the key a hash says nothing,
but with it texts could be guessed; so hashes cannot be pickled, and are neither stored nor shown.
(Worker processes that train for this one get both from it: `adadps.training.workers`.)

Texts are compared by their letters and digits alone (`normalised`): a review that was public
already is still that review with other line breaks, quotation marks or capitals.

Rows of the private data that are public as well are left out, and not counted
(`adadps.data.examples.private_rows`).
"""

from __future__ import annotations

import hashlib
import html
import re
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadps.data.fields import Features, Fields
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.sparse_rows import SparseRows
from adadps.errors import DataError

_KEY = secrets.token_bytes(32)
_BYTES = 16
ROWS_AT_ONCE = 4096


@dataclass(frozen=True, repr=False, eq=False)
class Identities:
    """One hash per row, in order. Make it with `identities_of_texts` or `identities_of_rows`."""

    _hashes: npt.NDArray[np.void]

    def __len__(self) -> int:
        return len(self._hashes)

    def __repr__(self) -> str:
        return "Identities(...)"

    def take(self, rows: Tensor) -> Identities:
        """Return the hashes of the given rows, in the given order."""
        return Identities(self._hashes[rows.cpu().numpy()])

    def within(self, others: Iterable[Identities]) -> npt.NDArray[np.bool_]:
        """Mark the rows whose hash is among the others.

        >>> ours, theirs = (identities_of_texts(t) for t in (["A b.", "c"], ["c", "a B"]))
        >>> ours.within([theirs]).tolist()
        [True, True]
        """
        hashes = {one for some in others for one in some._hashes.tolist()}
        starts = range(0, len(self), ROWS_AT_ONCE)
        parts = (self._hashes[start : start + ROWS_AT_ONCE].tolist() for start in starts)
        found = (one in hashes for part in parts for one in part)
        return np.fromiter(found, np.bool_, len(self))

    def __copy__(self) -> Identities:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Identities:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Expected the hashes of texts to stay in the process that made them, found an attempt "
            "to copy them elsewhere. Build the examples with their texts where they are used."
        )


def key_for_workers() -> bytes:
    """Return the key, for processes that this one starts, gives its own rows, and ends."""
    return _KEY


def take_over_key(key: bytes) -> None:
    """Make the same hashes as the process that has started this one; call it before any is made."""
    global _KEY  # noqa: PLW0603  (a fact about this process)
    _KEY = key


def identities_of_texts(texts: Sequence[str]) -> Identities:
    """Return one hash per text; texts that are equal when `normalised` have the same hash."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise DataError(
            "Expected a list of texts and nothing else, found one text or a missing value. Give "
            "one text per example, and '' where there is none."
        )
    return _hashed(normalised(text).encode("utf-8", "surrogatepass") for text in texts)


def identities_of_cells(rows: Sequence[Sequence[str]]) -> Identities:
    """Return one hash per row of cells, exactly as they are but for blanks around them.

    >>> ours = identities_of_cells([["-1.5", "x"], ["1", "23"]])
    >>> ours.within([identities_of_cells([[" -1.5", "x"], ["12", "3"]])]).tolist()
    [True, False]
    """
    return _hashed(
        "\x1f".join(cell.strip() for cell in row).encode("utf-8", "surrogatepass") for row in rows
    )


def joined(parts: Sequence[Identities]) -> Identities:
    """Return the hashes of several pieces of one data set, in order."""
    return Identities(np.concatenate([part._hashes for part in parts]))


def identities_of_rows(features: Features) -> Identities:
    """Return one hash per row of features, of its entries that are not zero, in float32.

    So dense and sparse rows of any type compare, whatever the order of their columns and whether
    zeros are stored or have a sign.

    >>> dense = identities_of_rows(torch.tensor([[0.0, 2.0], [-0.0, 0.0]]))
    >>> dense.within([identities_of_rows(torch.tensor([[0, 2]]))]).tolist()
    [True, False]
    """
    return _hashed(_entries(features))


def _hashed(contents: Iterable[bytes]) -> Identities:
    digests = b"".join(
        hashlib.blake2b(content, digest_size=_BYTES, key=_KEY).digest() for content in contents
    )
    return Identities(np.frombuffer(digests, dtype=f"V{_BYTES}"))


def _entries(features: Features) -> Iterator[bytes]:
    if isinstance(features, Fields):
        each = (_entries(tensor) for tensor in features.tensors)
        for parts in zip(*each, strict=True):
            yield b"".join(len(part).to_bytes(8) + part for part in parts)
        return
    if isinstance(features, SparseRows):
        for numbers in torch.split(torch.arange(len(features)), ROWS_AT_ONCE):
            yield from _sparse_entries(features.take(numbers.to(features.offsets.device)))
        return
    for part in torch.split(features, ROWS_AT_ONCE):
        flat = part.detach().cpu().reshape(len(part), -1)
        matrix = _as_single(flat.double().numpy() if flat.is_floating_point() else flat.numpy())
        rows, columns = np.nonzero(matrix)
        yield from _joined(rows, columns, matrix[rows, columns], len(part))


def _sparse_entries(features: SparseRows) -> Iterator[bytes]:
    held = features.to(torch.device("cpu"))
    rows, columns = held.rows.numpy(), held.columns.numpy()
    values = held.values.detach().double().numpy()
    places = rows * held.width + columns
    if np.any(np.diff(places) < 0):
        order = np.argsort(places)
        rows, columns, values = rows[order], columns[order], values[order]
    yield from _joined(rows, columns, values, len(features))


def _joined(rows: Any, columns: Any, values: Any, count: int) -> Iterator[bytes]:
    """The entries of each row that are not zero, as bytes; ``rows`` are in order."""
    single = _as_single(values)
    kept = single != 0
    rows, columns, single = rows[kept], columns[kept].astype(np.int64), single[kept]
    offsets = np.searchsorted(rows, np.arange(count + 1)).tolist()
    for start, end in pairwise(offsets):
        yield columns[start:end].tobytes() + single[start:end].tobytes()


def _as_single(values: Any) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        single: npt.NDArray[np.float32] = np.asarray(values).astype(np.float32)
    return single


_TAG = re.compile(r"<[\s/!?]*+[a-zA-Z][^<>]*+>")
"""An HTML tag such as ``<br />``."""


class _LettersAndDigits(dict[int, int | None]):
    """A table for `str.translate` that keeps letters and numbers, filled on demand."""

    def __missing__(self, code: int) -> int | None:
        kept = code if unicodedata.category(chr(code))[0] in "LN" else None
        self[code] = kept
        return kept


_KEPT = _LettersAndDigits()


def normalised(text: str) -> str:
    """Return the letters and digits of ``text``, in NFKD without case or accents.

    HTML entities are resolved and tags dropped; white space, punctuation, symbols, accents and
    invisible characters are ignored. A text without a letter or digit is compared by its symbols.

    >>> normalised("It's  GREAT!<br /><br />Ｒｅａｌｌｙ &amp; truly.")
    'itsgreatreallytruly'
    >>> normalised(" :-) ")
    ':-)'
    """
    plain = _TAG.sub(" ", html.unescape(text))
    folded = unicodedata.normalize("NFD", plain).casefold()
    folded = unicodedata.normalize("NFKD", folded).casefold()
    folded = unicodedata.normalize("NFKD", folded)
    return folded.translate(_KEPT) or "".join(folded.split())


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
