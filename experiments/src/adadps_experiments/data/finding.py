"""Where the files of named data sets are: in ``ADADPS_DATA`` first, then in the cache."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from functools import lru_cache
from pathlib import Path

from adadps.errors import DataError
from adadps_experiments.data.digests import content_digest, file_digest, table_digest
from adadps_experiments.data.named_sets import NamedSet, SetFile

DATA, CACHE = "ADADPS_DATA", "ADADPS_CACHE"
"""Environment variables: a folder with your own files, and the folder for fetched files."""


def cache_folder() -> Path:
    """Return ``ADADPS_CACHE``, or the cache folder of this platform.

    >>> cache_folder().name in ("adadps", Path(os.environ.get(CACHE, "")).name)
    True
    """
    if given := os.environ.get(CACHE):
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "adadps"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "adadps"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adadps"


def data_folders() -> tuple[Path, ...]:
    """Return the folders that are searched, in this order.

    >>> data_folders()[-1] == cache_folder()
    True
    """
    given = os.environ.get(DATA)
    return (*([Path(given)] if given else []), cache_folder())


def find(file: SetFile) -> Path | None:
    """Return the first file of that name in `data_folders`, whatever its content.

    Loaders use `find_genuine` instead.

    >>> find(SetFile("no such file")) is None
    True
    """
    places = (folder / file.name for folder in data_folders())
    return next((place for place in places if place.is_file()), None)


def find_genuine(file: SetFile) -> Path | None:
    """Return the first file of that name whose digest is right; others are skipped.

    The digest of a file is computed once per process, and again if the file has changed.

    >>> find_genuine(SetFile("no such file")) is None
    True
    """
    for place in (folder / file.name for folder in data_folders()):
        if place.is_file():
            state = place.stat()
            if _is_genuine(place, file, state.st_size, state.st_mtime_ns):
                return place
    return None


def require(known: NamedSet, file: SetFile) -> Path:
    """Return the path that `find_genuine` finds, or raise an error that says where to get it.

    >>> from adadps_experiments.data.named_sets import MNIST
    >>> require(MNIST, SetFile("no such file"))
    Traceback (most recent call last):
    adadps.errors.DataError: Expected the data set 'mnist' at ... adadps data fetch mnist
    """
    path = find_genuine(file)
    if path is not None:
        return path
    spoiled = find(file)
    if spoiled is None:
        raise DataError(_absent(known, file))
    raise DataError(
        f"Expected {file.name} of the data set '{known.name}' at {spoiled}, found a file with "
        f"other content. Get it from {known.home} with: adadps data fetch {known.name}"
    )


def _absent(known: NamedSet, file: SetFile) -> str:
    places = " or ".join(str(folder / file.name) for folder in data_folders())
    unset = "" if os.environ.get(DATA) else f" ({DATA}, for a folder of your own, is not set)"
    return (
        f"Expected the data set '{known.name}' at {places}{unset}, found nothing. Get it from its "
        f"public home, {known.home}, with: adadps data fetch {known.name}"
    )


@lru_cache(maxsize=64)
def _is_genuine(path: Path, file: SetFile, _size: int, _changed: int) -> bool:
    return is_genuine(path, file)


def is_genuine(path: Path, file: SetFile) -> bool:
    """Tell whether the file has one of its digests, quickest first; True if none is known.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "x"
    >>> place.touch()
    >>> is_genuine(place, SetFile("x")), is_genuine(place, SetFile("x", sha256=("0",)))
    (True, False)
    """
    if not file.has_digest:
        return True
    try:
        if file_digest(path) in file.sha256:
            return True
        if file.content is not None and content_digest(path) == file.content:
            return True
        known = file.rows
        return known is not None and (
            table_digest(path, known.columns, known.exact) == known.sha256
        )
    except (DataError, gzip.BadGzipFile, EOFError, zlib.error):  # not even the same format
        return False
    except OSError as error:
        raise DataError(
            f"Expected a file that can be read at {path}, found: {error}. Check its permissions."
        ) from error
