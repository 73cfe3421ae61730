"""Data sets that are not on this machine: they are fetched, or it is told where to put them."""

import re
import socket
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from adadps.cli import app
from adadps.commands.data import get_if_absent
from adadps.commands.reproduce import NEEDED
from adadps.data.named_sets import AMAZON, IMDB, NAMED_SETS
from adadps.reproduce.corpora import CORPORA
from homes import home_with, left_in
from small_originals import IMDB_NAME, IMDB_TABLES, imdb_archive, small_imdb


@pytest.fixture
def _no_network(monkeypatch):
    """Nobody listens at the proxy through which all homes are reached."""
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
    request.getfixturevalue("_no_network")  # after the cache, which clears the way of proxies
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
    assert ("ADADPS_DATA,afolderofyourown,isnotset" in message) != own
    assert f"failed:Expectedtoreach{known.originals[0].url},found:" in message
    assert message.endswith(f"with:adadpsdatafetch{known.name}")
    assert list(tmp_path.iterdir()) == []  # neither rows nor a file of runs nor a cache


def test_sets_that_are_there_are_not_fetched(cache, monkeypatch):
    monkeypatch.setattr("adadps.data.fetching.download", _never)
    cache.mkdir()
    for file in IMDB.files:
        (cache / file.name).touch()  # whether it is genuine is for its loader to say
    get_if_absent(["imdb", "debian"])


def _never(*_, **__):
    raise AssertionError("something was downloaded")


def test_an_absent_set_is_fetched(cache, monkeypatch):
    archive = imdb_archive()
    with home_with({IMDB_NAME: archive}) as home:
        known = small_imdb(archive)
        (original,) = known.originals
        local = replace(original, url=home.url(original))
        monkeypatch.setitem(NAMED_SETS, "imdb", replace(known, originals=(local,)))
        get_if_absent(["imdb"])
        get_if_absent(["imdb"])
        assert len(home.asked) == 1
    assert left_in(cache) == IMDB_TABLES


def test_every_problem_names_the_sets_behind_it():
    assert set(NEEDED) == set(CORPORA)
    assert all(name in NAMED_SETS for names in NEEDED.values() for name in names)
