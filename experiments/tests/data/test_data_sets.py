"""Named data sets: the registry, where files are looked for, and the command."""

import gzip
import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from adadps.cli.main import app
from adadps.errors import DataError, SettingError
from adadps.training.progress import progress_of_bytes
from adadps_experiments.data import named_sets
from adadps_experiments.data.amazon import amazon_reviews
from adadps_experiments.data.digests import rows_digest
from adadps_experiments.data.finding import cache_folder, data_folders, find, is_genuine, require
from adadps_experiments.data.imdb import imdb
from adadps_experiments.data.named_sets import (
    IMDB,
    MNIST,
    NAMED_SETS,
    RowsDigest,
    SetFile,
    named_set,
)
from support.homes import home_with
from support.small_originals import IMDB_NAME, imdb_archive, small_imdb

runner = CliRunner()
HEX = re.compile(r"[0-9a-f]+")
FILE = IMDB.files[0]


def said(shown):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", shown.stderr).split())


def test_every_set_is_told_whole():
    for name, known in NAMED_SETS.items():
        assert name == known.name
        assert all((known.what, known.home, known.terms))
        made = [file for original in known.archives for file in original.makes]
        assert sorted(made) == sorted(file.name for file in known.files)
        for file in known.files:
            for digest in (*file.sha256, file.content, file.rows and file.rows.sha256):
                assert digest is None or (len(digest) == 64 and HEX.fullmatch(digest))
        for original in known.archives:
            assert original.url.startswith("https://")
            if original.checksum:
                length = {"md5": 32, "sha256": 64}[original.checksum.algorithm]
                assert len(original.checksum.digest) == length
                assert HEX.fullmatch(original.checksum.digest)


def test_what_is_fetched_can_be_verified_one_way_or_the_other():
    for known in NAMED_SETS.values():
        for original in known.archives:
            verified = [known.file(name).has_digest for name in original.makes]
            assert original.checksum or all(verified)


def test_file_names_belong_to_one_set():
    names = [file.name for known in NAMED_SETS.values() for file in known.files]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("typed", "meant"), [("imbd", "imdb"), ("IMDB", "imdb"), ("stack-overflow", "stackoverflow")]
)
def test_an_unknown_name_suggests_the_nearest(typed, meant):
    with pytest.raises(SettingError, match=f"Did you mean '{meant}'"):
        named_set(typed)


def test_a_name_like_no_other_lists_all():
    with pytest.raises(SettingError, match=r"imdb, amazon, .*Choose one of them"):
        named_set("xyzzy")


def test_the_users_folder_is_searched_before_the_cache(cache, tmp_path, monkeypatch):
    assert data_folders() == (cache,)
    monkeypatch.setenv("ADADPS_DATA", str(tmp_path / "own"))
    assert data_folders() == (tmp_path / "own", cache)
    file = SetFile("x")
    assert find(file) is None
    for folder in (cache, tmp_path / "own"):
        folder.mkdir()
        (folder / "x").touch()
        assert find(file) == folder / "x"


def test_the_cache_follows_the_platform(monkeypatch):
    for name in ("ADADPS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == Path("/home/someone/.cache/adadps")
    monkeypatch.setenv("XDG_CACHE_HOME", "/quick")
    assert cache_folder() == Path("/quick/adadps")
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path("/home/someone/Library/Caches/adadps")
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache_folder() == Path("/local/adadps")
    monkeypatch.setenv("ADADPS_CACHE", "/mine")
    assert cache_folder() == Path("/mine")


def test_an_absent_set_is_told_with_places_home_and_command(cache, tmp_path, monkeypatch):
    with pytest.raises(DataError) as told:
        imdb()
    for part in (str(cache / FILE.name), "ADADPS_DATA", IMDB.home, "adadps data fetch imdb"):
        assert part in str(told.value)
    monkeypatch.setenv("ADADPS_DATA", str(tmp_path / "own"))
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "own" / FILE.name))):
        require(IMDB, FILE)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"a,b\n1,2\n", mtime=0),
        gzip.compress(b"x" * 99, mtime=0)[:-9],
    ],
)
def test_a_file_with_other_content_is_refused(cache, content):
    cache.mkdir()
    (cache / FILE.name).write_bytes(content)
    with pytest.raises(DataError, match=r"found a file with other content.*data fetch imdb"):
        imdb()


def test_a_file_that_changes_is_verified_again(cache):
    cache.mkdir()
    (cache / "x").write_bytes(b"right")
    right = hashlib.sha256(b"right").hexdigest()
    file = SetFile("x", sha256=(right,))
    assert require(IMDB, file) == cache / "x"
    (cache / "x").write_bytes(b"wrong!")
    with pytest.raises(DataError, match="other content"):
        require(IMDB, file)


def test_a_table_is_known_whoever_packed_it(tmp_path):
    path = tmp_path / "t.csv.gz"
    plain = b"name,colour\npear,green\napple,red\n"
    path.write_bytes(gzip.compress(plain, 1))
    assert not is_genuine(path, SetFile("t", content="0" * 64))
    (tmp_path / "u.csv.gz").write_bytes(gzip.compress(plain, 9))
    assert is_genuine(
        tmp_path / "u.csv.gz", SetFile("u", content=hashlib.sha256(plain).hexdigest())
    )
    rows = RowsDigest(("colour", "name"), rows_digest([["red", "apple"], ["green", "pear"]]))
    assert is_genuine(path, SetFile("t", rows=rows))
    path.write_bytes(gzip.compress(b"name,colour\npear,red\napple,red\n", mtime=0))
    assert not is_genuine(path, SetFile("t", rows=rows))


def test_labels_and_tags_count_with_every_character():
    tags = ("c", "c#", "c++", "C", "c c")
    assert len({rows_digest([["a title", tag]], exact=[1]) for tag in tags}) == len(tags)
    assert rows_digest([["a title", "c#"]]) == rows_digest([["a title", "c"]])
    other = [["A-title", "c#"], ["b", "c"]]  # texts and order are compared tolerantly
    expected = rows_digest([["b", "c "], ["A &amp; title", " c#"]], exact=[1])
    assert rows_digest(other, exact=[1]) == expected
    assert rows_digest(other, exact=[0, 1]) != expected


def test_exact_columns_are_columns_and_those_that_are_labels():
    exact = {
        file.name.split("_")[0]: set(file.rows.exact)
        for known in NAMED_SETS.values()
        for file in known.files
        if file.rows and file.rows.exact and set(file.rows.exact) <= set(file.rows.columns)
    }
    assert exact == {
        "imdb": {"split", "label", "movie"},
        "amazon": {"domain", "label"},
        "stackoverflow": {"tags"},
    }


@pytest.mark.parametrize("width", [80, 200])
def test_list_shows_every_set(cache, monkeypatch, width):
    monkeypatch.setattr("adadps_experiments.commands.data.out", Console(width=width))
    shown = runner.invoke(app, ["data", "list"])
    assert shown.exit_code == 0
    for name in NAMED_SETS:
        assert name in shown.stdout
    assert "absent" in shown.stdout
    assert "part of" in shown.stdout


def test_list_as_json(cache):
    cache.mkdir()
    (cache / "mnist.npz").write_bytes(b"other")
    (cache / "stackoverflow.tag_count").write_bytes(b"{}")
    shown = json.loads(runner.invoke(app, ["data", "list", "--json"]).stdout)
    held = {known["name"]: known for known in shown}
    assert set(held) == set(NAMED_SETS)
    (digits,) = held["mnist"]["files"]
    assert digits["state"] == "other content"
    assert digits["path"] == str(cache / "mnist.npz")
    assert digits["bytes"] == 5
    states = {file["name"]: file["state"] for file in held["stackoverflow"]["files"]}
    assert states["stackoverflow.tag_count"] == "present, no known digest"
    assert states["stackoverflow_train.h5"] == "absent"
    (packages,) = held["debian"]["files"]
    assert Path(packages["path"]).is_file()
    assert held["imdb"]["home"] == IMDB.home


def test_path_prints_the_path_alone(cache, monkeypatch):
    shown = runner.invoke(app, ["data", "path", "mnist"])
    assert shown.exit_code == 1
    assert shown.stdout == ""
    assert "adadps data fetch mnist" in said(shown)
    cache.mkdir()
    (cache / "mnist.npz").write_bytes(b"right")
    right = hashlib.sha256(b"right").hexdigest()
    monkeypatch.setitem(
        NAMED_SETS,
        "mnist",
        named_sets.NamedSet("mnist", "w", "h", "t", (SetFile("mnist.npz", (right,)),)),
    )
    shown = runner.invoke(app, ["data", "path", "mnist"])
    assert (shown.exit_code, shown.stdout) == (0, f"{cache / 'mnist.npz'}\n")
    packages = runner.invoke(app, ["data", "path", "debian"]).stdout.strip()
    assert Path(packages).is_file()


@pytest.mark.parametrize("command", ["path", "fetch"])
def test_commands_suggest_the_nearest_name(cache, command):
    shown = runner.invoke(app, ["data", command, "amazn"])
    assert shown.exit_code == 2
    assert "Did you mean 'amazon'?" in said(shown)


def test_fetch_brings_a_set_and_prints_where_it_is(cache, monkeypatch):
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        (original,) = known.archives
        local = replace(original, url=home.url(original))
        monkeypatch.setitem(NAMED_SETS, "imdb", replace(known, archives=(local,)))
        shown = runner.invoke(app, ["data", "fetch", "imdb"])
        again = runner.invoke(app, ["data", "fetch", "imdb"])
        assert len(home.asked) == 1
        assert runner.invoke(app, ["data", "fetch", "imdb", "--force"]).exit_code == 0
        assert len(home.asked) == 2
    assert shown.exit_code == again.exit_code == 0
    paths = [str(cache / file.name) for file in known.files]
    assert shown.stdout.split() == again.stdout.split() == paths


def test_an_interrupted_fetch_says_that_it_can_go_on(cache, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("adadps_experiments.data.fetching.download", interrupted)
    hook = sys.unraisablehook
    shown = runner.invoke(app, ["data", "fetch", "mnist"])
    sys.unraisablehook = hook
    assert shown.exit_code == 130
    assert "downloaded data is saved; repeat the command to resume" in said(shown)
    assert not cache.exists()


def test_the_bar_shows_how_much_has_arrived(capsys, monkeypatch):
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)  # rich takes it for a terminal
    with progress_of_bytes("fetching x") as moved:
        moved(0, None)
        moved(2_000_000, 4_000_000)
        moved(4_000_000, 4_000_000)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "fetching x" in shown
    assert "4.0/4.0 MB" in shown


def test_fetch_without_a_home_fails_and_leaves_nothing(cache, monkeypatch):
    with home_with({}) as home:
        (original,) = MNIST.archives
        local = replace(original, url=home.url(original))
        monkeypatch.setitem(NAMED_SETS, "mnist", replace(MNIST, archives=(local,)))
        shown = runner.invoke(app, ["data", "fetch", "mnist"])
    assert shown.exit_code == 1
    assert "HTTP 404" in said(shown)
    assert not cache.exists()


def test_fetch_of_what_comes_with_the_package(cache):
    shown = runner.invoke(app, ["data", "fetch", "debian"])
    assert shown.exit_code == 0
    assert "is part of adadps" in said(shown)
    assert not cache.exists()


@pytest.mark.parametrize("load", [imdb, amazon_reviews])
def test_loaders_refuse_a_set_of_another_content(cache, tmp_path, load):
    known = {imdb: IMDB, amazon_reviews: named_sets.AMAZON}[load]
    cache.mkdir()
    with gzip.open(cache / known.files[0].name, "wt") as stream:
        stream.write("domain,split,label,movie,title,text\nbooks,train,1,m,t,text\n")
    with pytest.raises(DataError, match="other content"):
        load()
