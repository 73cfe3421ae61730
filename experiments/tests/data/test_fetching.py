"""Fetching named data sets from a local server with small archives of the same layouts."""

import gzip
import hashlib
from dataclasses import replace

import pytest

from adadps.data.tables import read_table
from adadps.errors import DataError
from adadps_experiments.data.fetching import fetch
from adadps_experiments.data.imdb import LINE_BREAK
from adadps_experiments.data.named_sets import MNIST, STACKOVERFLOW, Checksum
from support.homes import home_with, left_in, tar_of
from support.small_originals import (
    AMAZON_NAME,
    AMAZON_ROWS,
    IMDB_NAME,
    IMDB_ROWS,
    IMDB_TABLES,
    IMDB_UNLABELLED_ROWS,
    TITLES_ROWS,
    TITLES_TSV,
    amazon_archive,
    imdb_archive,
    small_amazon,
    small_imdb,
    small_titles,
)

pytestmark = pytest.mark.usefixtures("cache")


def test_imdb_is_downloaded_verified_and_converted(cache):
    archive, seen = imdb_archive(), []
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        paths = fetch(known, url=home.url, arrived=lambda *pair: seen.append(pair))
    assert [path.name for path in paths] == IMDB_TABLES
    assert read_table(paths[0]).rows == IMDB_ROWS
    assert read_table(paths[1]).rows == IMDB_UNLABELLED_ROWS
    assert left_in(cache) == IMDB_TABLES
    assert seen[0] == (0, len(archive))
    assert seen[-1] == (len(archive), len(archive))
    assert LINE_BREAK in read_table(paths[0]).rows[0][5]


def test_amazon_is_converted_and_known_by_its_rows(cache):
    with home_with({AMAZON_NAME: amazon_archive()}) as home:
        (path,) = fetch(small_amazon(), url=home.url)
    assert read_table(path).rows == AMAZON_ROWS
    assert left_in(cache) == [path.name]


def test_titles_are_converted(cache):
    with home_with({"validation.tsv": TITLES_TSV}) as home:
        (path,) = fetch(small_titles(), url=home.url)
    assert read_table(path).rows == TITLES_ROWS


def test_stack_overflow_comes_from_three_archives(cache):
    held = {
        "stackoverflow.tar.bz2": tar_of(
            {f"stackoverflow_{part}.h5": part for part in ("train", "held_out", "test")}, "bz2"
        ),
        "stackoverflow.word_count.tar.bz2": tar_of({"stackoverflow.word_count": "the 9\n"}, "bz2"),
        "stackoverflow.tag_count.tar.bz2": tar_of({"stackoverflow.tag_count": "{}"}, "bz2"),
    }
    archives = tuple(
        replace(one, checksum=Checksum("sha256", hashlib.sha256(held[one.name]).hexdigest()))
        for one in STACKOVERFLOW.archives
    )
    with home_with(held) as home:
        paths = fetch(replace(STACKOVERFLOW, archives=archives), url=home.url)
    assert [path.read_text() for path in paths] == ["train", "held_out", "test", "the 9\n", "{}"]
    assert len(left_in(cache)) == 5


def test_what_is_there_is_not_fetched_again_unless_forced(cache):
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        fetch(known, url=home.url)
        fetch(known, url=home.url)
        assert len(home.asked) == 1
        fetch(known, url=home.url, force=True)
        assert len(home.asked) == 2


def test_a_spoiled_file_is_replaced(cache):
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        (path, _) = fetch(known, url=home.url)
        path.write_bytes(gzip.compress(b"split,label,text\ntrain,1,other\n"))
        fetch(known, url=home.url)
    assert read_table(path).rows == IMDB_ROWS


def test_a_file_of_the_users_own_folder_is_taken(cache, tmp_path, monkeypatch):
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        fetch(known, url=home.url)
        cache.rename(tmp_path / "own")
        monkeypatch.setenv("ADADPS_DATA", str(tmp_path / "own"))
        paths = fetch(known, url=home.url)
        assert len(home.asked) == 1
    assert {path.parent for path in paths} == {tmp_path / "own"}
    assert not cache.exists()


def test_a_spoiled_file_does_not_hide_the_fetched_one(cache, tmp_path, monkeypatch):
    """A file of the same name in the user's own folder is skipped."""
    own, archive = tmp_path / "own", imdb_archive()
    own.mkdir()
    monkeypatch.setenv("ADADPS_DATA", str(own))
    for spoiled in IMDB_TABLES:
        (own / spoiled).write_bytes(gzip.compress(b"split,label,movie,text\ntrain,1,tt,other\n"))
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        for _ in range(2):  # the second time nothing is fetched
            assert {path.parent for path in fetch(known, url=home.url)} == {cache}
        assert len(home.asked) == 1
    assert left_in(own) == IMDB_TABLES


def test_an_empty_cache_of_the_user_is_left(cache, tmp_path):
    cache.mkdir()
    with home_with({}) as home, pytest.raises(DataError):
        fetch(small_imdb(imdb_archive()), url=home.url)
    assert cache.is_dir()


def test_films_are_part_of_what_is_known_of_imdb():
    """They define the groups of reviews that must not be split."""
    url = "http://www.imdb.com/title/{}/usercomments\n"
    archive = imdb_archive(**{"aclImdb/train/urls_neg.txt": url.format("tt99")})
    with (
        home_with({IMDB_NAME: archive}) as home,
        pytest.raises(DataError, match=r"give imdb_labelled_50k\.csv\.gz .*found other content"),
    ):
        fetch(small_imdb(), url=home.url)


@pytest.mark.parametrize("tag", [b"c", b"c++", b"C#"])
def test_tags_are_known_by_every_character(tag):
    other = TITLES_TSV.replace(b"c#", tag)
    with (
        home_with({"validation.tsv": other}) as home,
        pytest.raises(DataError, match="found other content"),
    ):
        fetch(small_titles(), url=home.url)


def test_mnist_has_both_known_digests():
    (file,) = MNIST.files
    assert MNIST.archives[0].checksum.digest in file.sha256
    assert len(file.sha256) == 2
