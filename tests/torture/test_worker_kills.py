"""Workers of `fit(processes=...)`, or their caller, end at random instants; nobody is left."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import adadps
from adadps import Checkpoints, DiskLedger

KILLS = int(os.environ.get("ADADPS_PROCESS_KILLS", "0"))
pytestmark = pytest.mark.skipif(not KILLS, reason="set ADADPS_PROCESS_KILLS=20")

TESTS = Path(__file__).parents[1]
STEPS, PATIENCE = 3000, 600
ENDINGS = ("a worker is killed", "the caller is killed", "Ctrl-C", "Ctrl-C, twice")


def started(folder, processes):
    sources = str(Path(adadps.__file__).parents[1])
    script = str(TESTS / "torture" / "local_script.py")
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, script, str(folder), str(STEPS), str(processes)],
            env=os.environ
            | {"PYTHONPATH": f"{sources}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def workers_of(caller):
    """The processes below it that train (not the one that tracks resources)."""
    found = subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(caller.pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split(maxsplit=1) for line in found.stdout.splitlines()]
    return [int(pid) for pid, words in lines if "spawn_main" in words]


def diaries(folder):
    return {file: len(file.read_text().splitlines()) for file in folder.glob("diary-*")}


def end_it(caller, how, chance):
    """End the run in one of the ways; return the exit code of the caller."""
    if how == "a worker is killed":
        for pid in chance.sample(workers_of(caller), 1):
            os.kill(pid, signal.SIGKILL)
    elif how == "the caller is killed":
        caller.kill()
    else:
        caller.send_signal(signal.SIGINT)
        if how == "Ctrl-C, twice":
            time.sleep(chance.uniform(0, 0.1))
            with suppress(ProcessLookupError):
                caller.send_signal(signal.SIGINT)
    return caller.wait(60)


def require_nobody(pids):
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end, f"orphans: {pids}"
        time.sleep(0.1)


def require_paid(folder):
    """Each step that was taken, in any life, is on the ledger."""
    with DiskLedger(folder / "run" / "ledger") as ledger:
        entries = ledger.entries
    assert entries >= sum(diaries(folder).values())
    latest = Checkpoints(folder / "run").latest()
    assert latest is None or latest.taken <= latest.paid <= entries
    return entries


def test_ended_workers_lose_no_reservation_and_leave_nobody(tmp_path):
    chance = random.Random(time.time_ns())
    ended, runs, how_often = 0, 0, dict.fromkeys(ENDINGS, 0)
    while ended < KILLS:
        folder, runs = tmp_path / f"run-{runs}", runs + 1
        folder.mkdir()
        while ended < KILLS and not (folder / "end").exists():
            known = set(diaries(folder))
            caller = started(folder, chance.choice([2, 2, 3]))
            end = time.monotonic() + PATIENCE
            while not set(diaries(folder)) - known and caller.poll() is None:
                assert time.monotonic() < end, (folder / "log").read_text()[-3000:]
                time.sleep(0.05)
            time.sleep(chance.uniform(0, 2))
            pids = workers_of(caller)
            if caller.poll() is None and pids:
                how = ENDINGS[ended % len(ENDINGS)]
                assert end_it(caller, how, chance) != 0 or (folder / "end").exists()
                how_often[how] += 1
                ended += 1
            caller.wait(PATIENCE)
            require_nobody(pids)
            require_paid(folder)
        if not (folder / "end").exists():
            assert started(folder, 2).wait(PATIENCE) == 0, (folder / "log").read_text()[-3000:]
        found = json.loads((folder / "end").read_text())
        assert found["paid"] == require_paid(folder)
        with DiskLedger(folder / "run" / "ledger") as ledger:
            assert found["epsilon"] == pytest.approx(ledger.epsilon(found["delta"]), rel=1e-9)
        print(f"run {runs}: {how_often}, {found}")


UNGUARDED = """
import torch
import adadps
from adadps.types import Accountant
features, labels = torch.randn(50, 3), torch.zeros(50, dtype=torch.int64)
method = adadps.dp_sgd(adadps.privatize(clip_norm=1.0, noise_multiplier=2.0), lr=0.1)
adadps.fit(torch.nn.Linear(3, 2), adadps.losses.cross_entropy, adadps.examples(features, labels),
           method=method, batch_size=10, steps=3, accountant=Accountant.RDP, processes=2)
"""


def test_a_script_without_the_guard_is_told_so_and_starts_no_chain_of_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    sources = str(Path(adadps.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": sources},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1  # the workers say nothing
    assert "found that a worker process calls it, too" in done.stderr
