"""Failures while a data set is fetched: no incomplete file is left under its final name."""

import os
import subprocess
import sys
import tarfile
from dataclasses import replace

import pytest

from adadps.errors import DataError
from adadps_experiments.data.conversion import debian_members
from adadps_experiments.data.downloading import download
from adadps_experiments.data.fetching import fetch
from adadps_experiments.data.named_sets import STACKOVERFLOW, SetFile
from support.homes import home_with, left_in, tar_of
from support.small_originals import (
    AMAZON_FILES,
    AMAZON_NAME,
    IMDB_FILES,
    IMDB_NAME,
    IMDB_TABLES,
    imdb_archive,
    small_amazon,
    small_imdb,
    small_titles,
)

pytestmark = pytest.mark.usefixtures("cache")


def test_a_wrong_checksum_is_refused_and_nothing_is_left(cache):
    with home_with({IMDB_NAME: imdb_archive() + b"x"}) as home:
        known = small_imdb(imdb_archive())
        with pytest.raises(DataError, match=r"Expected a file with md5 .* Nothing was saved"):
            fetch(known, url=home.url)
    assert not cache.exists()


def test_other_content_is_refused_and_nothing_is_left(cache):
    other = imdb_archive(**{"aclImdb/train/pos/0_9.txt": "Another film."})
    with (
        home_with({IMDB_NAME: other}) as home,
        pytest.raises(DataError, match=r"found other content\. Nothing was saved"),
    ):
        fetch(small_imdb(), url=home.url)
    assert not cache.exists()


def test_a_wrong_fetch_leaves_what_was_there(cache):
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        (path, _) = fetch(known, url=home.url)
        before = path.read_bytes()
        home.files[IMDB_NAME] = b"changed"
        with pytest.raises(DataError):
            fetch(known, url=home.url, force=True)
    assert path.read_bytes() == before
    assert left_in(cache) == IMDB_TABLES


def test_a_missing_home_is_told_with_its_code(cache):
    with home_with({}) as home, pytest.raises(DataError, match="found HTTP 404"):
        fetch(small_imdb(), url=home.url)
    assert not cache.exists()


def test_no_network_is_told(cache):
    with home_with({}) as home:
        gone = home.url
    with pytest.raises(DataError, match=r"Expected to reach http://127.*Check the network"):
        fetch(small_imdb(), url=gone)
    assert not cache.exists()


@pytest.mark.parametrize("resumes", [True, False])
def test_a_broken_download_goes_on_where_it_was(cache, resumes):
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive}) as home:
        home.resumes, home.breaks_after = resumes, 300
        with pytest.raises(DataError, match=r"[Cc]all again"):
            fetch(small_imdb(archive), url=home.url)
        assert left_in(cache) == ["downloads", f"downloads/{IMDB_NAME}.part"]
        assert (cache / "downloads" / f"{IMDB_NAME}.part").read_bytes() == archive[:300]
        home.breaks_after = None
        fetch(small_imdb(archive), url=home.url)
    assert home.asked == [(IMDB_NAME, None), (IMDB_NAME, "bytes=300-")]
    assert left_in(cache) == IMDB_TABLES


def test_a_part_of_another_file_costs_one_new_start(cache):
    archive = imdb_archive()
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads" / f"{IMDB_NAME}.part").write_bytes(b"of yesterday")
    with home_with({IMDB_NAME: archive}) as home:
        fetch(small_imdb(archive), url=home.url)
    assert home.asked == [(IMDB_NAME, "bytes=12-"), (IMDB_NAME, None)]
    assert left_in(cache) == IMDB_TABLES


def test_a_part_that_is_too_long_is_begun_anew(cache):
    archive = imdb_archive()
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads" / f"{IMDB_NAME}.part").write_bytes(archive + b"more")
    with home_with({IMDB_NAME: archive}) as home:
        fetch(small_imdb(archive), url=home.url)
        assert [wanted for _, wanted in home.asked] == [f"bytes={len(archive) + 4}-", None]
    assert left_in(cache) == IMDB_TABLES


@pytest.mark.parametrize("length", [0, 1, 3, 11, 300])
def test_a_truncated_archive_of_unknown_length_is_refused(cache, length):
    with home_with({IMDB_NAME: imdb_archive()}) as home:
        home.says_length, home.breaks_after = False, length
        with pytest.raises(DataError, match=r"Expected (a whole archive|reviews 0, 1)"):
            fetch(small_imdb(), url=home.url)
    assert not cache.exists()


@pytest.mark.parametrize("name", ["../../evil.txt", "/etc/evil.txt", "aclImdb/../../evil"])
def test_names_that_lead_out_of_an_archive_are_refused(cache, tmp_path, name):
    with (
        home_with({IMDB_NAME: tar_of({name: "evil"} | IMDB_FILES)}) as home,
        pytest.raises(DataError, match="leads out of it"),
    ):
        fetch(small_imdb(), url=home.url)
    assert left_in(tmp_path) == []


def test_links_in_an_archive_are_not_followed(cache, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("private")
    link = tarfile.TarInfo("stackoverflow.tag_count")
    link.type, link.linkname = tarfile.SYMTYPE, str(secret)
    original = replace(STACKOVERFLOW.archives[1], checksum=None)
    known = replace(STACKOVERFLOW, files=(SetFile(link.name),), archives=(original,))
    with (
        home_with({original.name: tar_of({}, odd=[link])}) as home,
        pytest.raises(DataError, match=r"Expected stackoverflow\.tag_count in"),
    ):
        fetch(known, url=home.url)
    assert left_in(tmp_path) == ["secret"]


@pytest.mark.parametrize("missing", [*IMDB_FILES][:12])
def test_missing_members_are_refused(cache, missing):
    files = {name: text for name, text in IMDB_FILES.items() if name != missing}
    with (
        home_with({IMDB_NAME: tar_of(files)}) as home,
        pytest.raises(DataError, match="Expected reviews 0, 1"),
    ):
        fetch(small_imdb(), url=home.url)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            {key: text for key, text in AMAZON_FILES.items() if key.split("/")[1] != "dvd"},
            "Expected reviews in dvd/positive",
        ),
        (
            {key: text.replace("</title>", "") for key, text in AMAZON_FILES.items()},
            "Expected a title in every review",
        ),
    ],
)
def test_missing_reviews_and_fields_of_amazon_are_refused(cache, files, told):
    with home_with({AMAZON_NAME: tar_of(files)}) as home, pytest.raises(DataError, match=told):
        fetch(small_amazon(), url=home.url)
    assert not cache.exists()


@pytest.mark.parametrize("tags", ["php", "__import__('os')", "[1]", "{}", "[''", "['']"])
def test_tags_that_are_no_list_are_refused(cache, tags):
    with (
        home_with({"validation.tsv": f"title\ttags\nWhy?\t{tags}\n".encode()}) as home,
        pytest.raises(DataError, match=r"Expected tags such as \['php', 'sql'\]"),
    ):
        fetch(small_titles(), url=home.url)
    assert not cache.exists()


def test_a_conversion_that_is_interrupted_keeps_the_download_alone(cache):
    archive = imdb_archive()

    def interrupted(_archive, folder):
        (folder / IMDB_TABLES[0]).write_bytes(b"half")
        raise KeyboardInterrupt

    known = small_imdb(archive)
    (original,) = known.archives
    stopping = replace(known, archives=(replace(original, convert=interrupted),))
    with home_with({IMDB_NAME: archive}) as home:
        with pytest.raises(KeyboardInterrupt):
            fetch(stopping, url=home.url)
        assert left_in(cache) == ["downloads", f"downloads/{IMDB_NAME}"]
        fetch(known, url=home.url)
        assert len(home.asked) == 1
    assert left_in(cache) == IMDB_TABLES


def test_a_cache_that_cannot_be_written_to_is_told(cache):
    cache.write_text("a file")
    with (
        home_with({IMDB_NAME: imdb_archive()}) as home,
        pytest.raises(DataError, match=r"Expected to write to .*ADADPS_CACHE"),
    ):
        fetch(small_imdb(), url=home.url)
    assert cache.read_text() == "a file"


def test_two_downloads_to_one_place_do_not_mix(cache, tmp_path):
    part = tmp_path / "x.part"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.flock(f, fcntl.LOCK_EX); "
            "print('held', flush=True); sys.stdin.read()",
            str(part),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with (
            home_with({"x": b"content"}) as home,
            pytest.raises(DataError, match=r"only process that downloads .*another process"),
        ):
            download(f"{home.address}/x", tmp_path / "x", None, lambda *_: None)
    finally:
        holder.communicate()
    with home_with({"x": b"content"}) as home:
        download(f"{home.address}/x", tmp_path / "x", None, lambda *_: None)
    assert (tmp_path / "x").read_bytes() == b"content"


KILLED = """
import os, sys
from adadps_experiments.data.fetching import fetch
from support.small_originals import imdb_archive, small_imdb
known = small_imdb(imdb_archive())
def die(held, total):
    if held:
        os._exit(9)
fetch(known, url=lambda original: sys.argv[1] + "/" + original.name, arrived=die)
"""


def test_a_killed_download_leaves_a_part_that_serves(cache):
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive}) as home:
        paths = os.pathsep.join(sys.path)
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, home.address],
            env=os.environ | {"PYTHONPATH": paths},
            check=False,
        )
        assert killed.returncode == 9
        left = ["downloads", f"downloads/{IMDB_NAME}.part", "downloads/imdb.lock"]
        assert left_in(cache) == left
        fetch(small_imdb(archive), url=home.url)
    assert left_in(cache) == IMDB_TABLES


def package_of(data, name=b"data.tar.xz"):
    """Return a Debian package with this content."""

    def part(name, content):
        header = name.ljust(48) + str(len(content)).encode().ljust(10) + b"`\n"
        return header + content + b"\n" * (len(content) % 2)

    return b"!<arch>\n" + part(b"debian-binary", b"2.0\n") + part(b"odd", b"1") + part(name, data)


def test_files_of_a_debian_package_are_extracted(tmp_path):
    original, folder = tmp_path / "x.deb", tmp_path / "to"
    folder.mkdir()
    original.write_bytes(package_of(tar_of({"./usr/share/a.gz": "one", "./usr/share/b": "two"})))
    debian_members("mine-", "a.gz")(original, folder)
    assert left_in(folder) == ["mine-a.gz"]
    assert (folder / "mine-a.gz").read_text() == "one"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"no package", b"!<arch>\n", b"!<arch>\n" + b"x" * 60, package_of(b"no archive"),
        package_of(tar_of({"a.gz": "one"}), b"control.tar"), package_of(tar_of({"b": "two"})),
        package_of(tar_of({"a.gz": "one" * 999}))[:-400],
    ],
)  # fmt: skip
def test_a_broken_debian_package_is_refused(tmp_path, content):
    original, folder = tmp_path / "x.deb", tmp_path / "to"
    folder.mkdir()
    original.write_bytes(content)
    with pytest.raises(DataError, match=r"Expected (a whole archive|a Debian package|a\.gz in)"):
        debian_members("mine-", "a.gz")(original, folder)
