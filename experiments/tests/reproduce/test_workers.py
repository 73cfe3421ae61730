"""Worker processes of an experiment: one that is killed, and a parent that is killed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adadps.errors import DataError
from adadps_experiments.reproduce import workers
from adadps_experiments.reproduce.records import RecordFile
from adadps_experiments.reproduce.workers import run_all
from support.pieces_of_work import refused, work


@pytest.fixture
def _one_process(monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 1)


@pytest.mark.usefixtures("_one_process")
def test_a_killed_worker_is_told_and_what_has_ended_is_kept(tmp_path):
    path = tmp_path / "runs.jsonl"
    with pytest.raises(DataError) as refusal:
        run_all(work, [(0,), (1,), (2,)], "tests", done=RecordFile(path).add)
    assert re.match("Expected tests to finish.*process was killed.*saved", str(refusal.value))
    assert "1 ran at once; --workers sets how many" in str(refusal.value)
    held = RecordFile(path)
    assert held.find({"seed": 0}) == {"job": {"seed": 0}, "value": 0.0}
    assert held.find({"seed": 1}) is None
    left = [(seed,) for seed in (0, 2) if held.find({"seed": seed}) is None]
    run_all(work, left, "tests", done=held.add)  # the same call again resumes
    assert len(RecordFile(path)) == 2


@pytest.mark.usefixtures("_one_process")
def test_answers_come_in_order_and_are_handed_on():
    """Run in one separate process, because starting a process takes seconds."""
    seen = []
    assert run_all(divmod, [(7, 2), (9, 4)], "dividing", done=seen.append) == [(3, 1), (2, 1)]
    assert sorted(seen) == [(2, 1), (3, 1)]
    assert run_all(divmod, [], "dividing", done=seen.append) == []
    assert len(seen) == 2


class AskedError(Exception):
    """Raised in place of starting this many processes."""


@pytest.mark.parametrize(
    ("most", "jobs", "expected"), [(None, 9, 3), (None, 2, 2), (1, 9, 1), (5, 9, 5), (50, 9, 9)]
)
def test_no_more_processes_than_cores_that_may_be_used(monkeypatch, most, jobs, expected):
    """A container, a batch system or taskset may allow fewer cores than the machine has."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 2, 5}, raising=False)

    def asked(count, **_):
        raise AskedError(count)

    monkeypatch.setattr(workers, "ProcessPoolExecutor", asked)
    with pytest.raises(AskedError) as caught:
        run_all(divmod, [(7, 2)] * jobs, "dividing", most=most)
    assert caught.value.args == (expected,)


@pytest.mark.usefixtures("_one_process")
def test_an_error_of_the_work_itself_is_told_as_it_is():
    with pytest.raises(ValueError, match="seed 5"):
        run_all(refused, [(5,)], "tests")


PARENT = """
import sys
from adadps_experiments.reproduce import workers
from support.pieces_of_work import wait
if __name__ == "__main__":
    workers.run_all(wait, [(sys.argv[1], 0), (sys.argv[1], 1)], "waiting", most=2)
"""


def until(happened, seconds):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def runs(process):
    """Tell whether it is running, and not a zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen in /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    folder = tmp_path / "numbers"
    folder.mkdir()
    parent = subprocess.Popen(
        [sys.executable, script, folder],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    files = [folder / "0", folder / "1"]
    try:
        until(lambda: all(file.exists() for file in files), 120)
    finally:
        parent.kill()
        parent.wait()
    children = [int(file.read_text(encoding="utf-8")) for file in files]
    try:
        until(lambda: not any(map(runs, children)), 15)
    finally:
        for child in filter(runs, children):
            os.kill(child, signal.SIGKILL)
