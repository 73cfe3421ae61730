"""Fetch a named data set: download the originals, convert them, verify, put in place.

Files get their names in the cache at the very end, each whole; what an interruption leaves is a
download, or a part of one, from which the next call goes on, and nothing else. A process that is
killed leaves its empty lock file too, which keeps nobody away and goes with the next call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adadps.errors import DataError
from adadps.files.processes import locked
from adadps.files.removing import draft_folder, remove_file, remove_if_empty, replace
from adadps.files.writing import new_file
from adadps_experiments.data.downloading import Arrived, download
from adadps_experiments.data.finding import cache_folder, find, find_genuine, is_genuine, require
from adadps_experiments.data.named_sets import Archive, NamedSet, SetFile

DOWNLOADS = "downloads"
ATTEMPTS = 100
"""So often is a lock tried that others take away, ending at just that moment."""

Say = Callable[[str], None]


def fetch(
    known: NamedSet,
    *,
    arrived: Arrived = lambda _held, _total: None,
    say: Say = lambda _text: None,
    force: bool = False,
    url: Callable[[Archive], str] = lambda original: original.url,
) -> list[Path]:
    """The paths of all files of a set, after fetching those that are not there.

    With ``force`` all are fetched anew, to the cache. ``url`` says where an original is downloaded
    from, for mirrors. One process at a time fetches a set; others are refused. What has a published
    checksum is compared with it; what is made of an original is compared with its own digests, if
    they are known.

    >>> from adadps_experiments.data.named_sets import DEBIAN
    >>> fetch(DEBIAN)  # comes with the package
    []
    """
    if known.embedded:
        return []
    if force or _absent(known):
        with _alone_with(known):  # and another one may have brought it before that
            for original in known.originals if force else _absent(known):
                _fetch(known, original, url(original), arrived, say)
    found = {file.name: find(file) for file in known.files}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise DataError(
            f"Expected {', '.join(missing)} of the data set '{known.name}', found no public home "
            f"for it. Put it into {cache_folder()}."
        )
    return [require(known, file) for file in known.files]


def _absent(known: NamedSet) -> list[Archive]:
    """The originals of which something is not there."""
    return [
        original
        for original in known.originals
        if not all(_present(known.file(name)) for name in original.makes)
    ]


def _present(file: SetFile) -> bool:
    try:
        return find_genuine(file) is not None
    except DataError:  # it cannot be read; one in the cache is replaced
        return False


@contextmanager
def _alone_with(known: NamedSet) -> Iterator[None]:
    """Keep other processes away from a set; folders that are empty in the end are not left."""
    downloads = cache_folder() / DOWNLOADS
    made = [downloads] + [folder for folder in (cache_folder(),) if not folder.exists()]
    lock = downloads / f"{known.name}.lock"
    try:
        descriptor = _locked(known, lock)
        try:
            yield
        finally:
            with suppress(OSError):  # some systems keep files that are open
                remove_file(lock)
            os.close(descriptor)
    finally:
        for folder in made:
            remove_if_empty(folder)  # or parts of downloads, or data, are in it


def _locked(known: NamedSet, lock: Path) -> int:
    """The descriptor of the lock; one that its last holder has taken away is made anew."""
    for attempt in range(ATTEMPTS):
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            removed = isinstance(error, FileNotFoundError)  # the empty folder, by another process
            if removed and attempt < ATTEMPTS - 1:
                continue
            raise DataError(_not_written(error)) from error
        if not locked(descriptor):
            os.close(descriptor)
            break
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        os.close(descriptor)
    raise DataError(
        f"Expected to be alone in fetching the data set '{known.name}' to {cache_folder()}, found "
        "another process that fetches it. Wait for it to end, and call again."
    )


def _not_written(error: OSError) -> str:
    return (
        f"Expected to write to {cache_folder()}, found: {error}. Make room, or name another "
        "folder with ADADPS_CACHE."
    )


def _fetch(known: NamedSet, original: Archive, url: str, arrived: Arrived, say: Say) -> None:
    archive = cache_folder() / DOWNLOADS / original.name
    try:
        say(f"downloading {url}")
        download(url, archive, original.published, arrived)
        say(f"converting {original.name}")
        _convert(known, original, archive)
        remove_file(archive)
    except DataError:
        remove_file(archive)
        raise
    except OSError as error:
        raise DataError(_not_written(error)) from error


def _convert(known: NamedSet, original: Archive, archive: Path) -> None:
    files = [known.file(name) for name in original.makes]
    with draft_folder(archive.parent) as folder:
        original.convert(archive, folder)
        for file in files:
            _require_genuine(known, original, folder / file.name, file)
        for file in files:
            with new_file(cache_folder() / file.name, overwrite=True) as draft:
                replace(folder / file.name, draft)


def _require_genuine(known: NamedSet, original: Archive, made: Path, file: SetFile) -> None:
    if not is_genuine(made, file):
        raise DataError(
            f"Expected {original.name} to become {file.name} of the data set '{known.name}' with "
            "the content that is known of it, found other content. Nothing was kept; its home may "
            "have published something else."
        )
