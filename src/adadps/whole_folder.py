"""Folders that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from adadps.errors import DataError


def write_whole_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write into a new folder, and give it its name when all of it is on the disk."""
    if target.exists():
        raise DataError(
            f"Expected a folder that does not exist yet, found {target}. Choose another name; "
            "nothing was overwritten."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            fill(draft)
            for file in draft.iterdir():
                sync(file)
            draft.chmod(0o755)
            sync(draft)
            os.rename(draft, target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync(target.parent)
    except (OSError, TypeError) as error:
        raise DataError(
            f"Expected to write {target}, found: {error}. Choose a folder that can be written to; "
            "nothing was overwritten."
        ) from error


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
