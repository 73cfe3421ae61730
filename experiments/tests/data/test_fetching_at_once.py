"""Two processes that fetch one data set at once: one succeeds, and nothing is damaged."""

import os
import subprocess
import sys

import pytest

from adadps.errors import DataError
from adadps.files import locked
from adadps_experiments.data import fetching
from adadps_experiments.data.fetching import fetch
from support.homes import home_with, left_in
from support.small_originals import (
    IMDB_NAME,
    IMDB_TABLES,
    TITLES_TSV,
    imdb_archive,
    small_imdb,
    small_titles,
)

pytestmark = pytest.mark.usefixtures("cache")


HELD = """
import sys
from dataclasses import replace
from adadps_experiments.data.fetching import fetch
from support.small_originals import small_imdb
known = small_imdb()
original = known.archives[0]
def slowly(archive, folder):
    print("converting", flush=True)
    sys.stdin.read()
    original.convert(archive, folder)
slow = replace(known, archives=(replace(original, convert=slowly),))
fetch(slow, url=lambda original: sys.argv[1] + "/" + original.name)
"""


@pytest.mark.parametrize("force", [False, True])
def test_a_set_is_fetched_by_one_process_at_a_time(cache, force):
    """The lock covers the conversion: a second process would remove what the first one converts."""
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive, "validation.tsv": TITLES_TSV}) as home:
        first = subprocess.Popen(
            [sys.executable, "-c", HELD, home.address],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert first.stdout.readline() == b"converting\n"
            with pytest.raises(
                DataError,
                match=r"only process that fetches the data set 'imdb'.*another process.*Wait",
            ):
                fetch(small_imdb(archive), url=home.url, force=force)
            fetch(small_titles(), url=home.url)  # another data set is not locked
        finally:
            first.communicate(timeout=60)
        assert first.returncode == 0
        assert len(home.asked) == 2
        fetch(small_imdb(archive), url=home.url)
        assert len(home.asked) == 2
    assert left_in(cache) == sorted([*IMDB_TABLES, *(file.name for file in small_titles().files)])


def test_what_another_process_has_brought_is_not_fetched_again(cache, monkeypatch):
    """It is absent at first, and present once the lock is held."""
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        brought = {path.name: path.read_bytes() for path in fetch(known, url=home.url)}
        for name in brought:
            (cache / name).unlink()

        def others_first(descriptor):
            for name, content in brought.items():
                (cache / name).write_bytes(content)
            return locked(descriptor)

        monkeypatch.setattr(fetching, "locked", others_first)
        fetch(known, url=home.url)
        assert len(home.asked) == 1
    assert left_in(cache) == IMDB_TABLES


def test_a_lock_that_its_holder_takes_away_is_made_anew(cache, monkeypatch):
    """Two processes never hold the lock at once, one of them on a file that was removed."""
    archive, tried = imdb_archive(), []

    def ended_just_now(descriptor):
        lock = cache / "downloads" / "imdb.lock"
        if len(tried) < 2:
            lock.unlink()
        if len(tried) == 1:
            lock.touch()
        tried.append(descriptor)
        return locked(descriptor)

    monkeypatch.setattr(fetching, "locked", ended_just_now)
    with home_with({IMDB_NAME: archive}) as home:
        fetch(small_imdb(archive), url=home.url)
    assert len(tried) == 3
    assert left_in(cache) == IMDB_TABLES


def test_a_folder_that_others_have_just_removed_is_made_anew(cache, monkeypatch):
    archive, opened, tried = imdb_archive(), os.open, []

    def removed_before(path, *how, **named):
        if str(path).endswith("imdb.lock") and not tried:
            tried.append(path)
            (cache / "downloads").rmdir()
        return opened(path, *how, **named)

    monkeypatch.setattr(fetching.os, "open", removed_before)
    with home_with({IMDB_NAME: archive}) as home:
        fetch(small_imdb(archive), url=home.url)
    assert len(tried) == 1
    assert left_in(cache) == IMDB_TABLES
