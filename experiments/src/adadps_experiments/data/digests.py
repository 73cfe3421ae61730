"""Digests of a file, of its uncompressed content, and of the rows of a table in any form.

The same rows can be compressed by another zlib, come in another order, or differ in white space. So
a table has three digests, each more tolerant than the one before.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from adadps.data.tables import read_table

PIECE = 2**20
_NEITHER_LETTER_NOR_DIGIT = re.compile(r"[^0-9A-Za-z]+")


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the digest of a file as it is on disk.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "empty"
    >>> file.touch()
    >>> file_digest(file, "md5")
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def content_digest(path: Path) -> str:
    """Return the SHA-256 of the uncompressed content of a gzip file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "empty.gz"
    >>> _ = file.write_bytes(gzip.compress(b""))
    >>> content_digest(file)[:8]
    'e3b0c442'
    """
    with gzip.open(path, "rb") as stream:
        return _streamed(stream)


def _streamed(stream: BinaryIO | gzip.GzipFile) -> str:
    found = hashlib.sha256()
    while piece := stream.read(PIECE):
        found.update(piece)
    return found.hexdigest()


def rows_digest(rows: Iterable[Sequence[str]], exact: Collection[int] = ()) -> str:
    """Return the SHA-256 of the ASCII letters and digits of all rows, in sorted order.

    It ignores the order of rows, white space, punctuation, HTML entities and everything that
    depends on the encoding. Columns in ``exact``, such as labels and tags, count literally: c, c#
    and c++ are different.

    >>> rows_digest([["1", "a &amp; b"], ["0", "c"]]) == rows_digest([["0", " c"], ["1", "a & b"]])
    True
    >>> rows_digest([["c#"]], exact=[0]) == rows_digest([["c"]], exact=[0])
    False
    """
    lines = sorted(
        "\t".join(
            value.strip() if place in exact else _reduced(value) for place, value in enumerate(row)
        )
        for row in rows
    )
    return hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()


def _reduced(value: str) -> str:
    return _NEITHER_LETTER_NOR_DIGIT.sub("", html.unescape(value))


def table_digest(path: Path, columns: Sequence[str], exact: Collection[str] = ()) -> str:
    """Return the `rows_digest` of some columns of a table in a file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "fruit.csv"
    >>> _ = file.write_text("colour,name\\ngreen,pear\\n", encoding="utf-8")
    >>> table_digest(file, ["name"]) == rows_digest([["pear"]])
    True
    """
    table = read_table(path)
    places = [place for place, name in enumerate(columns) if name in exact]
    return rows_digest(zip(*(table.column(name) for name in columns), strict=True), places)
