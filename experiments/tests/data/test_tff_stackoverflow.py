"""Stack Overflow's h5 files, on a small file of TensorFlow Federated's layout."""

import sys

import pytest

from adadps.errors import DataError
from adadps_experiments.data.tff_counts import stackoverflow_vocabulary, tag_counts, word_counts
from adadps_experiments.data.tff_stackoverflow import (
    StackOverflowUsers,
    stackoverflow_held_out,
    stackoverflow_test,
    stackoverflow_train,
)
from support.tff_files import FIELDS, USERS, h5py, write


@pytest.mark.parametrize("fixed_length", [False, True])
def test_users_and_their_entries_come_back(tmp_path, fixed_length):
    with StackOverflowUsers(write(tmp_path / "s.h5", fixed_length=fixed_length)) as held:
        assert held.users == ("00000001", "00000017", "empty")
        assert len(held) == 3
        read = dict(held)
    for user, rows in USERS.items():
        assert len(read[user]) == len(rows)
        for found, row in zip(read[user], rows, strict=True):
            tags = tuple(tag for tag in row[2].split("|") if tag)
            assert (found.tokens, found.title, found.tags) == (row[0], row[1], tags)
            assert (found.score, found.creation_date, found.type) == row[3:]
    first = read["00000001"][0]
    assert first.tags == ("python", "list", "vb . net")
    assert first.text == "how do i sort ? sorting a list"
    assert read["00000001"][2].tags == ()


def test_only_the_user_asked_for_is_read(tmp_path):
    path = write(tmp_path / "s.h5", tokens=None)
    with StackOverflowUsers(path) as held:
        assert held.sentences("00000017")[0].tokens.startswith("naïve")
        with pytest.raises(DataError, match=r"dataset 'examples/00000001/tokens' in .*found none"):
            held.sentences("00000001")


@pytest.mark.parametrize("name", FIELDS)
def test_a_missing_dataset_is_named(tmp_path, name):
    told = f"Expected a dataset 'examples/00000001/{name}'"
    path = write(tmp_path / "s.h5", **{name: None})
    with StackOverflowUsers(path) as held, pytest.raises(DataError, match=told):
        held.sentences("00000001")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"tags": [b"a"]}, "Expected datasets of equal length"),
        ({"tokens": [[b"a"], [b"b"], [b"c"]]}, "found the shape"),
        ({"tokens": [1, 2, 3]}, "Expected texts"),
        ({"score": [1.5, 2.0, 3.0]}, "Expected whole numbers"),
        ({"score": [b"1", b"2", b"3"]}, "Expected whole numbers"),
        ({"title": [b"\xff\xfe", b"b", b"c"]}, "Expected text in UTF-8"),
    ],
)
def test_datasets_of_another_kind_are_refused(tmp_path, changed, told):
    path = write(tmp_path / "s.h5", **changed)
    with StackOverflowUsers(path) as held, pytest.raises(DataError, match=told):
        held.sentences("00000001")


def test_unknown_users_are_refused(tmp_path):
    path = write(tmp_path / "s.h5")
    with (
        StackOverflowUsers(path) as held,
        pytest.raises(DataError, match="Expected a user 'nobody'"),
    ):
        held.sentences("nobody")


def test_other_files_are_refused(tmp_path):
    whole = write(tmp_path / "s.h5").read_bytes()
    cases = {
        "cut.h5": whole[: len(whole) // 2],
        "text.h5": b"title,tags\n",
        "empty.h5": b"",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match="Expected a whole HDF5 file"):
            StackOverflowUsers(tmp_path / name)
    with pytest.raises(DataError, match="found nothing"):
        StackOverflowUsers(tmp_path / "absent.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset("examples", data=[1])
    with pytest.raises(DataError, match="Expected a group 'examples'"):
        StackOverflowUsers(tmp_path / "other.h5")
    with pytest.raises(DataError, match="Expected users in"):
        StackOverflowUsers(_without_users(tmp_path / "nobody.h5"))


def _without_users(path):
    with h5py.File(path, "w") as file:
        file.create_group("examples")
    return path


def test_a_file_that_is_damaged_inside_is_refused(tmp_path):
    """The texts of a user are in a separate heap; without it, they cannot be read."""
    path = write(tmp_path / "s.h5")
    path.write_bytes(path.read_bytes().replace(b"GCOL", b"XXXX"))
    with (
        StackOverflowUsers(path) as held,
        pytest.raises(DataError, match="Expected a whole HDF5 file"),
    ):
        held.sentences("00000001")


def test_nothing_is_read_after_the_end(tmp_path):
    with StackOverflowUsers(write(tmp_path / "s.h5")) as held:
        pass
    with pytest.raises(DataError):
        held.sentences("00000001")


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "s.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"pip install 'adadps-experiments\[h5\]'"):
        StackOverflowUsers(path)


def test_the_named_files_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("ADADPS_DATA", str(tmp_path))
    parts = {
        "train": stackoverflow_train,
        "held_out": stackoverflow_held_out,
        "test": stackoverflow_test,
    }
    for name, opened in parts.items():
        write(tmp_path / f"stackoverflow_{name}.h5", {f"user of {name}": USERS["00000017"]})
        with opened() as held:
            assert held.users == (f"user of {name}",)
    (tmp_path / "stackoverflow.word_count").write_text("the 30\nto 20\n<URL> 5\n")
    (tmp_path / "stackoverflow.tag_count").write_text('{"c": 1, "vb . net": 9, "java": 9}')
    known = stackoverflow_vocabulary(words=2, tags=2)
    assert known.words == ("the", "to")
    assert known.tags == ("vb . net", "java")
    assert (known.users_of_word, known.users_of_tag) == ((30, 20), (9, 9))


def test_absent_files_are_told_with_their_home(cache):
    with pytest.raises(DataError, match=r"stackoverflow_train.h5.*adadps data fetch stackoverflow"):
        stackoverflow_train()
    with pytest.raises(DataError, match=r"stackoverflow.word_count.*tensorflow"):
        stackoverflow_vocabulary()


@pytest.mark.parametrize(
    "content",
    [b"the", b"the x\n", b"the -1\n", b"the 1\nthe 1\n", b"\n\n", b"\xff 1\n", b"a " + b"9" * 5000],
)
def test_spoiled_word_counts_are_refused(tmp_path, content):
    path = tmp_path / "words"
    path.write_bytes(content)
    with pytest.raises(DataError, match="Expected"):
        word_counts(path, 2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"a": "1"}',
        b'{"a": -1, "b": 1}',
        b'{"a": true}',
        b"\x80\x04K\x01.",
        b'{"a": 1}',
    ],
)
def test_spoiled_tag_counts_are_refused(tmp_path, content):
    path = tmp_path / "tags"
    path.write_bytes(content)
    with pytest.raises(DataError, match="Expected"):
        tag_counts(path, 2)
