"""Fetch a named data set: download the originals, convert them, verify, put in place.

Files get their names in the cache at the very end, each whole; what an interruption leaves is a
download, or a part of one, from which the next call goes on, and nothing else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from adadps.data.downloading import Arrived, download
from adadps.data.finding import cache_folder, find, is_genuine, require
from adadps.data.named_sets import NamedSet, Original, SetFile
from adadps.errors import DataError
from adadps.writing import DRAFT, new_file

DOWNLOADS = "downloads"

Say = Callable[[str], None]


def fetch(
    known: NamedSet,
    *,
    arrived: Arrived = lambda _held, _total: None,
    say: Say = lambda _text: None,
    force: bool = False,
    url: Callable[[Original], str] = lambda original: original.url,
) -> list[Path]:
    """The paths of all files of a set, after fetching those that are not there.

    With ``force`` all are fetched anew, to the cache. ``url`` says where an original is downloaded
    from, for mirrors. What has a published checksum is compared with it; what is made of an
    original is compared with its own digests, if they are known.

    >>> from adadps.data.named_sets import DEBIAN
    >>> fetch(DEBIAN)  # comes with the package
    []
    """
    if known.embedded:
        return []
    for original in known.originals:
        files = [known.file(name) for name in original.makes]
        if force or not all(_present(known, file) for file in files):
            _fetch(known, original, files, url(original), arrived, say)
    found = {file.name: find(file) for file in known.files}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise DataError(
            f"Expected {', '.join(missing)} of the data set '{known.name}', found no public home "
            f"for it. Put it into {cache_folder()}."
        )
    return [require(known, file) for file in known.files]


def _present(known: NamedSet, file: SetFile) -> bool:
    try:
        require(known, file)
    except DataError:
        return False
    return True


def _fetch(
    known: NamedSet,
    original: Original,
    files: list[SetFile],
    url: str,
    arrived: Arrived,
    say: Say,
) -> None:
    downloads = cache_folder() / DOWNLOADS
    made = [downloads] + [folder for folder in (cache_folder(),) if not folder.exists()]
    archive = downloads / original.name
    try:
        say(f"downloading {url}")
        download(url, archive, original.published, arrived)
        say(f"converting {original.name}")
        _convert(known, original, archive, files)
        archive.unlink()
    except DataError:
        archive.unlink(missing_ok=True)
        raise
    except OSError as error:
        raise DataError(
            f"Expected to write to {cache_folder()}, found: {error}. Make room, or name another "
            "folder with ADADPS_CACHE."
        ) from error
    finally:
        for folder in made:
            with suppress(OSError):  # parts of downloads, or data, are in it
                folder.rmdir()


def _convert(known: NamedSet, original: Original, archive: Path, files: list[SetFile]) -> None:
    with tempfile.TemporaryDirectory(prefix=DRAFT, dir=archive.parent) as name:
        folder = Path(name)
        original.convert(archive, folder)
        for file in files:
            _require_genuine(known, original, folder / file.name, file)
        for file in files:
            with new_file(cache_folder() / file.name, overwrite=True) as draft:
                os.replace(folder / file.name, draft)


def _require_genuine(known: NamedSet, original: Original, made: Path, file: SetFile) -> None:
    if not is_genuine(made, file):
        raise DataError(
            f"Expected {original.name} to become {file.name} of the data set '{known.name}' with "
            "the content that is known of it, found other content. Nothing was kept; its home may "
            "have published something else."
        )
