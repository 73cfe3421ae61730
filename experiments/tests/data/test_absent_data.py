"""Data sets that are not on this machine are fetched, or an error says where to put them."""

import hashlib
import json
import re
import socket
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from adadps.cli.main import app
from adadps.errors import DataError
from adadps_experiments.commands.data import get_if_absent
from adadps_experiments.commands.reproduce import NEEDED
from adadps_experiments.data.fetching import fetch
from adadps_experiments.data.finding import require
from adadps_experiments.data.named_sets import AMAZON, IMDB, NAMED_SETS, NamedSet, SetFile
from adadps_experiments.reproduce.text.corpora import CORPORA
from support.homes import home_with, left_in
from support.small_originals import IMDB_NAME, IMDB_TABLES, imdb_archive, small_imdb


@pytest.fixture
def _no_network(monkeypatch):
    """All connections go to a proxy at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]  # bound but not listening: refused at once
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, "")
        yield


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("words", [["imdb", "--quick"], ["imdb", "--tune"], ["moments"]])
def test_data_that_is_not_there(cache, tmp_path, monkeypatch, request, words, own):
    """The message names the file that is missing, where it is looked for, and its home."""
    request.getfixturevalue("_no_network")  # after the fixture `cache`, which removes proxies
    if own:
        monkeypatch.setenv("ADADPS_DATA", str(tmp_path / "own"))
    rows = tmp_path / "rows.json"
    shown = CliRunner().invoke(app, ["reproduce", *words, "--json", str(rows)])
    assert shown.exit_code == 1
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.stderr)
    message = re.sub(r"\s+", "", plain)  # long words are broken at the end of a line
    places = [cache, *([tmp_path / "own"] if own else [])]
    [known] = [one for one in (IMDB, AMAZON) if f"Fetching'{one.name}'failed" in message]
    for part in (*(str(place / known.files[0].name) for place in places), known.home):
        assert part in message
    assert ("ADADPS_DATA,forafolderofyourown,isnotset" in message) != own
    assert f"failed:Expectedtoreach{known.archives[0].url},found:" in message
    assert message.endswith(f"with:adadpsdatafetch{known.name}")
    assert list(tmp_path.iterdir()) == []  # neither rows nor a file of runs nor a cache


def test_sets_that_are_there_are_not_fetched(cache, monkeypatch):
    monkeypatch.setattr("adadps_experiments.data.fetching.download", _never)
    cache.mkdir()
    monkeypatch.setitem(NAMED_SETS, "imdb", replace(IMDB, files=DIGITS.files))
    (cache / "mnist.npz").write_bytes(b"right")
    get_if_absent(["imdb", "debian"])


DIGITS = NamedSet(
    "mnist", "w", "h", "t", (SetFile("mnist.npz", (hashlib.sha256(b"right").hexdigest(),)),)
)


@pytest.mark.parametrize(
    ("own", "fetched", "state"),
    [
        (b"right", None, "verified"),
        (b"right", b"spoiled", "verified"),
        (b"spoiled", b"right", "verified"),
        (b"spoiled", b"spoiled", "other content"),
        (b"spoiled", None, "other content"),
        (None, b"right", "verified"),
        (None, b"spoiled", "other content"),
        (None, None, "absent"),
    ],
)
def test_all_commands_see_the_file_that_is_loaded(
    cache, tmp_path, monkeypatch, own, fetched, state
):
    """A damaged file in the user's folder does not hide a good one in the cache."""
    monkeypatch.setitem(NAMED_SETS, "mnist", DIGITS)
    monkeypatch.setenv("ADADPS_DATA", str(tmp_path / "own"))
    for folder, content in ((tmp_path / "own", own), (cache, fetched)):
        folder.mkdir()
        if content is not None:
            (folder / "mnist.npz").write_bytes(content)
    listed = json.loads(CliRunner().invoke(app, ["data", "list", "--json"]).stdout)
    [[file]] = [known["files"] for known in listed if known["name"] == "mnist"]
    assert file["state"] == state
    if state == "verified":
        path = require(DIGITS, DIGITS.files[0])
        assert file["path"] == str(path)
        assert path.read_bytes() == b"right"
        get_if_absent(["mnist"])
    else:
        with pytest.raises(DataError, match="other content" if state != "absent" else "nothing"):
            get_if_absent(["mnist"])


def test_a_spoiled_set_is_fetched_again(cache, monkeypatch):
    """Its loader would refuse it only after everything before it has been run."""
    archive = imdb_archive()
    cache.mkdir()
    (cache / IMDB_TABLES[0]).write_bytes(b"spoiled")
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        (original,) = known.archives
        local = replace(original, url=home.url(original))
        monkeypatch.setitem(NAMED_SETS, "imdb", replace(known, archives=(local,)))
        fetch(NAMED_SETS["imdb"])
        (cache / IMDB_TABLES[0]).write_bytes(b"spoiled")
        get_if_absent(["imdb"])
        assert len(home.asked) == 2
    assert require(known, known.files[0]).read_bytes() != b"spoiled"


def _never(*_, **__):
    raise AssertionError("something was downloaded")


def test_an_absent_set_is_fetched(cache, monkeypatch):
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        (original,) = known.archives
        local = replace(original, url=home.url(original))
        monkeypatch.setitem(NAMED_SETS, "imdb", replace(known, archives=(local,)))
        get_if_absent(["imdb"])
        get_if_absent(["imdb"])
        assert len(home.asked) == 1
    assert left_in(cache) == IMDB_TABLES


def test_every_problem_names_the_sets_behind_it():
    assert set(NEEDED) == set(CORPORA)
    assert all(name in NAMED_SETS for names in NEEDED.values() for name in names)
