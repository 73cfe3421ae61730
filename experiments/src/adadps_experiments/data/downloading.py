"""Download a file from its public home, and resume an interrupted download.

Received bytes go to a part file beside the target, which is renamed once it is complete and its
checksum is right. If the checksum is wrong the part is discarded, and downloaded once more if it
had been resumed, because the file at its home may have changed in the meantime.
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
from adadps.files import locked, remove_file, replace, require_no_ledger, sync
from adadps_experiments.data.digests import file_digest
from adadps_experiments.data.named_sets import Checksum

PIECE = 2**18
SECONDS_OF_SILENCE = 60
_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")

Arrived = Callable[[int, int | None], None]
"""Called with the bytes received so far and, if the home states it, the total size."""


def download(url: str, target: Path, checksum: Checksum | None, arrived: Arrived) -> None:
    """Download ``url`` to ``target``, complete and with the right checksum.

    An interruption leaves ``target`` with ``.part`` appended to its name, from which the next call
    resumes. An existing target with the right checksum is not downloaded again.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "home").write_bytes(b"words")
    >>> download((folder / "home").as_uri(), folder / "x", None, lambda held, total: None)
    >>> (folder / "x").read_bytes()
    b'words'
    """
    if checksum and target.is_file() and _is(target, checksum):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with _locked_part(part) as stream:
        resumed = _length(stream) > 0
        _receive(url, stream, arrived)
        if checksum and resumed and not _is(part, checksum):
            stream.truncate(0)  # the file at its home may have changed
            _receive(url, stream, arrived)
        if checksum and not _is(part, checksum):
            stream.truncate(0)
            raise DataError(
                f"Expected a file with {checksum.algorithm} {checksum.digest} at {url}, found "
                "another one. Nothing was saved; try again, or check whether its home has moved."
            )
        sync(part)
        replace(part, target)


def _is(path: Path, checksum: Checksum) -> bool:
    return file_digest(path, checksum.algorithm) == checksum.digest


def _length(stream: IO[bytes]) -> int:
    return os.fstat(stream.fileno()).st_size


def _receive(url: str, stream: IO[bytes], arrived: Arrived) -> None:
    """Append the missing bytes to the part."""
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
                "Call again to resume."
            )


@contextmanager
def _answer(url: str, held: int) -> Iterator[tuple[http.client.HTTPResponse, int]]:
    """Yield the response and the byte at which it starts: ``held``, or 0 if not resumable."""
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
        with _answer(url, 0) as whole:  # the part is as long as the file, or longer: start over
            yield whole


@contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except urllib.error.HTTPError as error:
        raise DataError(
            f"Expected a file at {url}, found HTTP {error.code} ({error.reason}). Check "
            "whether its home has moved, or put the file in place yourself."
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"Expected to reach {url}, found: {reason}. Check the network and call again to resume."
        ) from error


@contextmanager
def _locked_part(part: Path) -> Iterator[IO[bytes]]:
    """Open the part for appending and lock it; it is removed in the end if it is empty."""
    require_no_ledger(part)
    with part.open("ab", buffering=0) as stream:
        _lock(stream, part)
        try:
            yield stream
        finally:
            if part.exists() and part.stat().st_size == 0:
                remove_file(part)


def _lock(stream: IO[bytes], part: Path) -> None:
    """Lock the part, unless a process that has just ended renamed or removed it."""
    mine = locked(stream.fileno()) and part.exists()
    if not mine or not os.path.samestat(os.fstat(stream.fileno()), part.stat()):
        raise DataError(
            f"Expected to be the only process that downloads {part}, found another process. Wait "
            "for it to end."
        )
