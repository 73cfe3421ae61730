"""Records of runs: a finished run is never lost and never repeated, whatever happens."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adadps.errors import DataError
from adadps_experiments.reproduce import records
from adadps_experiments.reproduce.records import RecordFile

FIRST = {"job": {"method": "dp-sgd", "setting": {"clip": 0.5}, "seed": 0}, "values": {"a": 0.25}}
SECOND = {"job": {"method": "dp-sgd", "setting": {"clip": 0.5}, "seed": 1}, "values": {"a": 0.5}}
THIRD = {"job": {"method": "adam", "note": "ε, \n and a line", "seed": 0}, "values": {"a": 1.0}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "folder" / "runs.jsonl"


def kept_with(path, *records):
    record_file = RecordFile(path)
    for record in records:
        record_file.add(record)
    return record_file


def test_what_was_added_is_found_at_once_and_after_reading_again(path):
    for record_file in (kept_with(path, FIRST, SECOND, THIRD), RecordFile(path)):
        assert len(record_file) == 3
        for record in (FIRST, SECOND, THIRD):
            assert record_file.find(record["job"]) == record
        assert record_file.find({**FIRST["job"], "seed": 2}) is None
    assert len(path.read_bytes().splitlines()) == 3


def test_looking_makes_an_empty_file_alone(path):
    """The lock on this file keeps other processes away."""
    assert len(RecordFile(path)) == 0
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == b""


HOLDER = """
import sys
from pathlib import Path
from adadps_experiments.reproduce.records import RecordFile
kept = RecordFile(Path(sys.argv[1]))
kept.add({"job": {"seed": 7}, "value": 1.0})
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_is_kept_away_until_the_first_has_ended(path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        content = path.read_bytes()
        for _ in range(2):  # a refusal must not count as holding the lock
            with pytest.raises(
                DataError, match=r"Expected to be the only process .*another process.*--json"
            ):
                RecordFile(path)
        assert path.read_bytes() == content
        kept_with(path.with_name("others.jsonl"), FIRST)  # another file is not locked
    finally:
        holder.communicate(timeout=60)
    assert RecordFile(path).find({"seed": 7})["value"] == 1.0


def test_a_killed_process_keeps_nobody_away(path):
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            HOLDER.replace("sys.stdin.read()", "__import__('os')._exit(9)"),
            str(path),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert killed.returncode == 9
    assert len(RecordFile(path)) == 1


def test_the_same_process_may_open_it_again_by_any_name(path, monkeypatch):
    first = kept_with(path, FIRST)
    monkeypatch.chdir(path.parent)
    for name in (path, Path(path.name), path.parent / ".." / path.parent.name / path.name):
        assert RecordFile(name).find(FIRST["job"]) == FIRST
    first.add(SECOND)
    assert len(RecordFile(path)) == 2


def test_the_order_of_names_is_no_part_of_a_job(path):
    record_file = kept_with(path, FIRST)
    turned = {"seed": 0, "setting": {"clip": 0.5}, "method": "dp-sgd"}
    assert list(turned) != list(FIRST["job"])
    assert record_file.find(turned) == FIRST
    assert RecordFile(path).find(turned) == FIRST


def test_a_record_that_must_be_there(path):
    record_file = kept_with(path, FIRST)
    assert record_file.require(FIRST["job"]) == FIRST
    with pytest.raises(KeyError):
        record_file.require(SECOND["job"])


def test_the_last_record_of_a_job_counts(path):
    record_file = kept_with(path, FIRST, {**FIRST, "values": {"a": 0.75}})
    assert len(record_file) == 1
    assert RecordFile(path).find(FIRST["job"])["values"] == {"a": 0.75}


def test_a_cut_anywhere_in_the_last_record_loses_that_record_alone(path):
    kept_with(path, FIRST, SECOND)
    before = len(path.read_bytes())
    kept_with(path, THIRD)
    whole = path.read_bytes()
    for size in range(before, len(whole) - 1):
        path.write_bytes(whole[:size])
        record_file = RecordFile(path)
        assert (len(record_file), record_file.find(THIRD["job"])) == (2, None), size
        record_file.add(THIRD)  # the job is run again, and its record has its own line
        assert path.read_bytes() == whole, size
        again = RecordFile(path)
        assert [again.find(one["job"]) for one in (FIRST, SECOND, THIRD)] == [FIRST, SECOND, THIRD]


@pytest.mark.parametrize("before", [[], [FIRST, SECOND]])
def test_a_whole_last_record_without_a_line_end_is_kept(path, before):
    """An editor may leave the file like this."""
    kept_with(path, *before, THIRD)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    record_file = RecordFile(path)
    assert (len(record_file), record_file.find(THIRD["job"])) == (len(before) + 1, THIRD)
    assert path.read_bytes() == whole
    record_file.add({**FIRST, "job": {"seed": 9}})  # the next one has its own line
    assert len(RecordFile(path)) == len(before) + 2


@pytest.mark.parametrize("record", [FIRST, {"values": {"a": 0.25}, "job": FIRST["job"]}])
@pytest.mark.parametrize("zeros", [0, 5])
def test_a_cut_record_is_known_by_its_beginning(path, record, zeros):
    """This holds also if blocks behind it never reached the disk."""
    whole = kept_with(path, record).path.read_bytes()
    for size in (0, 1, 8, 9, len(whole) - 2):
        path.write_bytes(whole + whole[:size] + b"\0" * zeros)
        assert len(RecordFile(path)) == 1
        assert path.read_bytes() == whole


def test_a_foreign_last_line_is_refused_and_stays(path):
    foreign = (b"hello", b"7", b'{"values": {"a": 1.0}}', b'{"job": "dp-sgd"}', b'{"rows": [1, ')
    mine = json.dumps(FIRST).encode() + b"\n"
    for before in (b"", mine):
        for line in foreign:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(before + line)
            with pytest.raises(DataError, match=r"line [12] of .*found something else"):
                RecordFile(path)
            assert path.read_bytes() == before + line


def test_a_foreign_file_loses_nothing_of_its_last_line(path):
    path.parent.mkdir(parents=True)
    for last in (b'{"job": {"se', b'{"job": {"seed": 0}}'):  # even one that looks like ours
        path.write_bytes(b"my notes\n" + last)
        with pytest.raises(DataError, match="line 1 of"):
            RecordFile(path)
        assert path.read_bytes() == b"my notes\n" + last


def test_a_file_that_was_cut_in_its_first_record_is_empty(path):
    kept_with(path, FIRST)
    path.write_bytes(path.read_bytes()[:10])
    assert len(RecordFile(path)) == 0
    assert path.read_bytes() == b""


DAMAGE = {
    "half a record": b'{"job": {"method": "dp-',
    "no JSON": b"hello",
    "an empty line": b"",
    "no job": b'{"values": {"a": 1.0}}',
    "a job that is a word": b'{"job": "dp-sgd"}',
    "a list": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "NaN": b'{"job": {"seed": NaN}}',
    "a name twice": b'{"job": {"seed": 1}, "job": {"seed": 2}}',
    "no UTF-8": b'{"job": {"seed": "\xe9"}}',
    "zeros": b"\0" * 20,
}


@pytest.mark.parametrize("line", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_damage_elsewhere_is_an_error_that_names_the_line(path, line, place):
    kept_with(path, FIRST, SECOND)
    lines = path.read_bytes().splitlines()
    lines.insert(place - 1, line)
    content = b"\n".join(lines) + b"\n"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"Expected .* line {place} of .*found .*\. \S.*\.$"):
        RecordFile(path)
    assert path.read_bytes() == content  # nothing is discarded


def test_what_is_no_number_is_not_written(path):
    record_file = kept_with(path, FIRST)
    content = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        record_file.add({"job": {"seed": 1}, "value": float("nan")})
    assert path.read_bytes() == content
    assert record_file.find({"seed": 1}) is None


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("I am in the way", encoding="utf-8")
    record_file = RecordFile(tmp_path / "elsewhere" / "runs.jsonl")
    record_file.path = tmp_path / "file" / "runs.jsonl"
    with pytest.raises(DataError, match=r"Expected to write .*found: .*still there"):
        record_file.add(FIRST)
    assert record_file.find(FIRST["job"]) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
def test_a_folder_that_cannot_be_written_to_is_refused(path):
    record_file = kept_with(path, FIRST)
    path.chmod(0o400)
    with pytest.raises(DataError, match="Expected to write"):
        record_file.add(SECOND)
    assert RecordFile(path).find(FIRST["job"]) == FIRST


def test_a_disk_that_fails_is_refused_and_the_record_is_not_taken_as_kept(path, monkeypatch):
    record_file = kept_with(path, FIRST)

    def full(_file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        record_file.add(SECOND)
    assert record_file.find(SECOND["job"]) is None


def test_a_cut_line_in_a_file_that_cannot_be_mended_is_refused(path, monkeypatch):
    kept_with(path, FIRST)
    with path.open("ab") as file:
        file.write(b'{"job"')
    opened = type(path).open

    def read_only(self, mode="r", *others, **named):
        if "+" in mode or "a" in mode or "w" in mode:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, mode, *others, **named)

    monkeypatch.setattr(type(path), "open", read_only)
    with pytest.raises(DataError, match="Permission denied"):
        RecordFile(path)


def test_a_folder_in_the_place_of_the_file_is_refused(path):
    path.mkdir(parents=True)
    with pytest.raises(DataError, match=r"Expected to write .*found: .*Choose"):
        RecordFile(path)


def test_every_record_is_synced_before_the_next_one(path, monkeypatch):
    """At each sync the file must already hold the whole record, with its line end."""
    seen = []
    monkeypatch.setattr(records.os, "fsync", lambda _file: seen.append(path.read_bytes()))
    kept_with(path, FIRST, SECOND)
    lines = [json.dumps(record).encode() + b"\n" for record in (FIRST, SECOND)]
    assert seen == [lines[0], lines[0] + lines[1]]
