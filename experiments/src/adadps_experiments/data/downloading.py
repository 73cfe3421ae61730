"""Download a file from its public home: into a part beside its place, resumed where it broke off.

The part keeps what has arrived. When all of it is there and its checksum is right it is given its
name; a wrong checksum costs the part, and one new start if the part had been resumed, for then the
file at its home may have changed in between.
"""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from adadps.errors import DataError
from adadps.files.processes import locked
from adadps.files.removing import remove_file, replace, require_no_ledger
from adadps.files.writing import sync
from adadps_experiments.data.digests import file_digest
from adadps_experiments.data.named_sets import Checksum

PIECE = 2**18
SECONDS_OF_SILENCE = 60
_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")

Arrived = Callable[[int, int | None], None]
"""Called with the bytes that are there and, if the home says so, with the bytes to come in all."""


def download(url: str, target: Path, published: Checksum | None, arrived: Arrived) -> None:
    """Bring what lies at ``url`` to ``target``; it is whole, and its checksum is right.

    An interruption leaves ``target`` with ``.part`` at the end of its name; the next call goes on
    from there. A target that is there with the right checksum is not downloaded again.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "home").write_bytes(b"words")
    >>> download((folder / "home").as_uri(), folder / "x", None, lambda held, total: None)
    >>> (folder / "x").read_bytes()
    b'words'
    """
    if published and target.is_file() and _is(target, published):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with _alone_with(part) as stream:
        resumed = _length(stream) > 0
        _receive(url, stream, arrived)
        if published and resumed and not _is(part, published):
            stream.truncate(0)  # the file at its home may be another one by now
            _receive(url, stream, arrived)
        if published and not _is(part, published):
            stream.truncate(0)
            raise DataError(
                f"Expected a file with {published.algorithm} {published.digest} at {url}, found "
                "another one. Nothing was kept; try again, or look whether its home has moved."
            )
        sync(part)
        replace(part, target)


def _is(path: Path, published: Checksum) -> bool:
    return file_digest(path, published.algorithm) == published.digest


def _length(stream: IO[bytes]) -> int:
    return os.fstat(stream.fileno()).st_size


def _receive(url: str, stream: IO[bytes], arrived: Arrived) -> None:
    """Add to the part what it lacks."""
    with _explained(url), _answer(url, _length(stream)) as (answer, begin):
        held = begin
        left = answer.headers.get("Content-Length")
        total = held + int(left) if left and left.isdigit() else None
        stream.truncate(held)
        arrived(held, total)
        while piece := answer.read(PIECE):
            stream.write(piece)
            held += len(piece)
            arrived(held, total)
        if total is not None and held != total:
            raise DataError(
                f"Expected {total} bytes from {url}, found {held} when the connection ended. "
                "Call again: it goes on from there."
            )


@contextmanager
def _answer(url: str, held: int) -> Iterator[tuple[http.client.HTTPResponse, int]]:
    """The answer, and the byte at which it begins: ``held``, or 0 if its home cannot resume."""
    headers = {"User-Agent": "adadps", "Accept-Encoding": "identity"}
    if held:
        headers["Range"] = f"bytes={held}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_OF_SILENCE) as answer:
            begin = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            goes_on = answer.status == http.HTTPStatus.PARTIAL_CONTENT and begin is not None
            if goes_on and begin is not None and int(begin[1]) != held:
                raise DataError(
                    f"Expected bytes from {held} on from {url}, found others. Call again."
                )
            yield answer, held if goes_on else 0
    except urllib.error.HTTPError as error:
        with error:
            if not (held and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
                raise
        with _answer(url, 0) as whole:  # the part is as long as the file, or longer: begin anew
            yield whole


@contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except urllib.error.HTTPError as error:
        raise DataError(
            f"Expected a file at {url}, found HTTP {error.code} ({error.reason}). Look whether "
            "its home has moved, or put the file in place by hand."
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"Expected to reach {url}, found: {reason}. Check the network and call again: it goes "
            "on from where it was."
        ) from error


@contextmanager
def _alone_with(part: Path) -> Iterator[IO[bytes]]:
    """The part, open for adding and locked as long as this process holds it; not left if empty."""
    require_no_ledger(part)
    with part.open("ab", buffering=0) as stream:
        _lock(stream, part)
        try:
            yield stream
        finally:
            if part.exists() and part.stat().st_size == 0:
                remove_file(part)


def _lock(stream: IO[bytes], part: Path) -> None:
    """Whoever had the lock may have ended just now, and the file be no part any more."""
    mine = locked(stream.fileno()) and part.exists()
    if not mine or not os.path.samestat(os.fstat(stream.fileno()), part.stat()):
        raise DataError(
            f"Expected to be alone with {part}, found another process that downloads it. Wait for "
            "it to end."
        )
