"""New files and folders, written whole or not at all.

Each is made beside its place, synchronised with the disk and then renamed, so that nobody finds a
half-written one. After an error nothing is left: no draft, and no folder that was created only to
hold it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adadps.errors import DataError
from adadps.files.removing import (
    draft_folder,
    remove_file,
    remove_if_empty,
    replace,
    require_no_ledger,
)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a draft folder to fill; on success it becomes ``target``, which must not exist yet.

    The draft has the name of the target, in a temporary folder beside it.

    >>> place = Path(tempfile.mkdtemp()) / "model"
    >>> with new_folder(place) as draft:
    ...     _ = (draft / "weights").write_text("1 2 3")
    >>> draft.name, [file.name for file in place.iterdir()]
    ('model', ['weights'])
    """
    with _explained(target), _parents(target):
        _require_absent(target, "Choose another name")
        with draft_folder(target.parent) as around:
            draft = around / target.name
            draft.mkdir()
            yield draft
            for file in draft.iterdir():
                file.chmod(0o644)
                sync(file)
            draft.chmod(0o755)
            sync(draft)
            _require_absent(target, "Choose another name")
            replace(draft, target)
        sync(target.parent)


@contextmanager
def new_file(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a draft file to fill; on success it becomes ``target``.

    >>> place = Path(tempfile.mkdtemp()) / "table.csv"
    >>> with new_file(place, overwrite=False) as draft:
    ...     _ = draft.write_text("name")
    >>> place.read_text()
    'name'
    """
    with _explained(target):
        if target.is_dir():
            raise DataError(
                f"Expected the name of a file, found the folder {target}. Name a file in it; "
                "nothing was overwritten."
            )
        with _parents(target):
            if not (overwrite and target.is_file()):
                _require_absent(target, "Choose another name, or add --force")
            require_no_ledger(target)
            descriptor, name = tempfile.mkstemp(prefix=".adadps-", dir=target.parent)
            os.close(descriptor)
            draft = Path(name)
            try:
                yield draft
                draft.chmod(0o644)
                sync(draft)
                if not overwrite:
                    _require_absent(target, "Choose another name, or add --force")
                replace(draft, target)
            except BaseException:
                remove_file(draft)
                raise


@contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Create the folders above; after an error, remove those that did not exist before."""
    missing = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            remove_if_empty(folder)  # someone else may have put something there
        raise


def _require_absent(target: Path, cure: str) -> None:
    """Refuse a name that is taken, or impossible, before any work is done for it."""
    if "\0" in str(target):
        raise DataError(
            "Expected the name of a file or folder, found one with a NUL character. Remove the NUL."
        )
    try:
        os.lstat(target)
    except FileNotFoundError:
        return
    raise DataError(
        f"Expected a name that does not exist yet, found {target}. {cure}; nothing was overwritten."
    )


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"Expected to write {target}, found: {error}. Choose a place that can be written to; "
            "nothing was overwritten."
        ) from error


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON for other programs to read."""
    write_file(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, and create its folder."""
    with new_file(path, overwrite=True) as draft:
        draft.write_bytes(content)
