"""Fetch a named data set: download its archives, convert and verify them, put files in place.

Files get their names in the cache at the very end, each complete. An interruption leaves only a
download, or a part of one, from which the next call resumes. A killed process also leaves its empty
lock file, which blocks nobody and is removed by the next call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adadps.errors import DataError
from adadps.files import draft_folder, locked, new_file, remove_file, remove_if_empty, replace
from adadps_experiments.data.downloading import Arrived, download
from adadps_experiments.data.finding import cache_folder, find, find_genuine, is_genuine, require
from adadps_experiments.data.named_sets import Archive, NamedSet, SetFile

DOWNLOADS = "downloads"
ATTEMPTS = 100
"""How often a lock is tried while other processes remove it as they end."""

Say = Callable[[str], None]


def fetch(
    known: NamedSet,
    *,
    arrived: Arrived = lambda _held, _total: None,
    say: Say = lambda _text: None,
    force: bool = False,
    url: Callable[[Archive], str] = lambda archive: archive.url,
) -> list[Path]:
    """Return the paths of all files of a data set, after fetching those that are absent.

    With ``force`` all are fetched again, to the cache. ``url`` says where to download an archive
    from, for mirrors. One process at a time fetches a data set; others are refused. An archive is
    compared with its published checksum, if there is one, and the files made from it with their own
    digests, if they are known.

    >>> from adadps_experiments.data.named_sets import DEBIAN
    >>> fetch(DEBIAN)  # part of the package
    []
    """
    if known.embedded:
        return []
    if force or _absent(known):
        with _locked_set(known):  # another process may have fetched it just before
            for archive in known.archives if force else _absent(known):
                _fetch(known, archive, url(archive), arrived, say)
    found = {file.name: find(file) for file in known.files}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise DataError(
            f"Expected {', '.join(missing)} of the data set '{known.name}', found no public home "
            f"for it. Put it into {cache_folder()}."
        )
    return [require(known, file) for file in known.files]


def _absent(known: NamedSet) -> list[Archive]:
    """Return the archives of which a file is absent."""
    return [
        archive
        for archive in known.archives
        if not all(_present(known.file(name)) for name in archive.makes)
    ]


def _present(file: SetFile) -> bool:
    try:
        return find_genuine(file) is not None
    except DataError:  # unreadable; a file in the cache is replaced
        return False


@contextmanager
def _locked_set(known: NamedSet) -> Iterator[None]:
    """Lock a data set against other processes; folders that end up empty are removed."""
    downloads = cache_folder() / DOWNLOADS
    made = [downloads] + [folder for folder in (cache_folder(),) if not folder.exists()]
    lock = downloads / f"{known.name}.lock"
    try:
        descriptor = _locked(known, lock)
        try:
            yield
        finally:
            with suppress(OSError):  # some systems do not remove open files
                remove_file(lock)
            os.close(descriptor)
    finally:
        for folder in made:
            remove_if_empty(folder)  # it may hold partial downloads or data


def _locked(known: NamedSet, lock: Path) -> int:
    """Return the descriptor of the lock file, which is created again if its holder removed it."""
    for attempt in range(ATTEMPTS):
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            removed = isinstance(error, FileNotFoundError)  # the folder, by another process
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
        f"Expected to be the only process that fetches the data set '{known.name}' to "
        f"{cache_folder()}, found another process. Wait for it to end, and call again."
    )


def _not_written(error: OSError) -> str:
    return (
        f"Expected to write to {cache_folder()}, found: {error}. Make room, or name another "
        "folder with ADADPS_CACHE."
    )


def _fetch(known: NamedSet, archive: Archive, url: str, arrived: Arrived, say: Say) -> None:
    downloaded = cache_folder() / DOWNLOADS / archive.name
    try:
        say(f"downloading {url}")
        download(url, downloaded, archive.checksum, arrived)
        say(f"converting {archive.name}")
        _convert(known, archive, downloaded)
        remove_file(downloaded)
    except DataError:
        remove_file(downloaded)
        raise
    except OSError as error:
        raise DataError(_not_written(error)) from error


def _convert(known: NamedSet, archive: Archive, downloaded: Path) -> None:
    files = [known.file(name) for name in archive.makes]
    with draft_folder(downloaded.parent) as folder:
        archive.convert(downloaded, folder)
        for file in files:
            _require_genuine(known, archive, folder / file.name, file)
        for file in files:
            with new_file(cache_folder() / file.name, overwrite=True) as draft:
                replace(folder / file.name, draft)


def _require_genuine(known: NamedSet, archive: Archive, made: Path, file: SetFile) -> None:
    if not is_genuine(made, file):
        raise DataError(
            f"Expected {archive.name} to give {file.name} of the data set '{known.name}' with its "
            "known content, found other content. Nothing was saved; its home may have published "
            "something else."
        )
