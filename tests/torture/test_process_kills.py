"""Processes of torchrun are killed at random instants, and started again in another number."""

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
import torch

import adadps
from adadps import DiskLedger
from support import team_work as work
from support.team import Team

KILLS = int(os.environ.get("ADADPS_PROCESS_KILLS", "0"))
pytestmark = pytest.mark.skipif(not KILLS, reason="set ADADPS_PROCESS_KILLS=20")

TESTS = Path(__file__).parents[1]
STEPS = 4000
PATIENCE = 600


def torchrun(folder, world, restarts=0):
    sources = str(Path(adadps.__file__).parents[1])
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(world), "--max-restarts", str(restarts)),
        *(str(TESTS / "torture" / "group_script.py"), str(folder), str(STEPS)),
    ]
    variables = {"PYTHONPATH": f"{sources}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def lives(folder):
    """What every process of every life has noted."""
    return [
        [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
        for file in sorted(folder.glob("diary-*"))
    ]


def end_all(started):
    """Kill torchrun and its processes, each of which has a session of its own."""
    if started.poll() is None:
        os.kill(started.pid, signal.SIGSTOP)  # it must not start others meanwhile
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(started.pid)], capture_output=True, check=False
        )
        for pid in (started.pid, *map(int, found.stdout.split())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    started.wait()


def workers(folder, known):
    """The processes that have begun to train since, by their diaries."""
    found = {int(file.name.split("-")[2]) for file in folder.glob("diary-*")} - known
    return sorted(pid for pid in found if Path(f"/proc/{pid}").exists())


def require_all_paid(folder):
    """Every batch that any process has drawn is on the ledger, once for each life."""
    by_life = {}
    for life in lives(folder):
        if life:
            drawn = by_life.setdefault(life[0]["noise"], [])
            drawn.append([note["step"] for note in life[1:]])
    for drawn in by_life.values():
        longest = max(drawn, key=len)
        assert all(one == longest[: len(one)] for one in drawn)
    needed = sum(max(len(one) for one in drawn) for drawn in by_life.values())
    with DiskLedger(folder / "run" / "ledger") as ledger:
        assert ledger.entries >= needed
        return ledger.entries


def require_true_epsilon(folder, entries):
    """What the run states is what its ledger has composed: all reservations of all lives."""
    end = json.loads((folder / "end").read_text())
    assert end["paid"] == entries > end["steps"]
    with DiskLedger(folder / "run" / "ledger") as ledger:
        assert end["epsilon"] == pytest.approx(ledger.epsilon(end["delta"]), rel=1e-9)
    return end


def test_killed_processes_lose_no_reservation(tmp_path):
    """Runs one after the other, each killed at random instants until it is through."""
    chance = random.Random(time.time_ns())
    killed, runs = 0, 0
    while killed < KILLS:
        folder, runs = tmp_path / f"run-{runs}", runs + 1
        folder.mkdir()
        killed += kill_until_through(folder, chance, KILLS - killed)
        if not (folder / "end").exists():
            final = torchrun(folder, 2)
            assert final.wait(PATIENCE) == 0, (folder / "log").read_text()[-3000:]
        end = require_true_epsilon(folder, require_all_paid(folder))
        begun = {life[0]["noise"] for life in lives(folder) if life}
        print(f"run {runs}: {killed} kills so far, {len(begun)} lives, {end}")


def kill_until_through(tmp_path, chance, most):
    """Kill a process at random instants, at most this often; return how often."""
    killed = 0
    while killed < most and not (tmp_path / "end").exists():
        known = {int(file.name.split("-")[2]) for file in tmp_path.glob("diary-*")}
        world = chance.choice([1, 2, 3, 4])
        started = torchrun(tmp_path, world, restarts=chance.choice([0, 1]))
        end = time.monotonic() + PATIENCE
        while len(workers(tmp_path, known)) < world:
            assert time.monotonic() < end, (tmp_path / "log").read_text()[-3000:]
            if started.poll() is not None:
                break
            time.sleep(0.1)
        time.sleep(chance.uniform(0, 2))
        for pid in workers(tmp_path, known)[:: chance.choice([1, 2])][:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(chance.uniform(0, 8))  # long enough for some of the restarts
        end_all(started)
        if (tmp_path / "run" / "ledger").exists():
            require_all_paid(tmp_path)
    return killed


def test_a_restart_by_torchrun_resumes_from_the_checkpoint(tmp_path):
    started = torchrun(tmp_path, 2, restarts=3)
    end = time.monotonic() + PATIENCE
    while not list((tmp_path / "run").glob("step-0*[1-9]*")) or not workers(tmp_path, set()):
        assert time.monotonic() < end
        time.sleep(0.1)
    os.kill(workers(tmp_path, set())[-1], signal.SIGKILL)
    assert started.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-3000:]
    begun = {life[0]["noise"]: life[0]["from"] for life in lives(tmp_path) if life}
    assert len(begun) == 2  # noise of the second life is from another key
    assert max(begun.values()) > 0
    require_all_paid(tmp_path)


def test_four_processes_train_what_one_does(tmp_path):
    alone = work.all_trained(0.0, 1.0, 100)
    with Team(4, patience=PATIENCE) as team:
        found = team.run(work.all_trained, 0.0, 1.0, 100)
        noisy = team.run(work.all_trained, 1.0, 0.3, 100)
    for name, (weights, *_) in alone.items():
        for other in found:
            for key, value in weights.items():
                assert torch.equal(other[name][0][key], found[0][name][0][key])
                assert torch.allclose(other[name][0][key], value, atol=1e-4)
        for other in noisy:
            for key, value in noisy[0][name][0].items():
                assert torch.equal(other[name][0][key], value)
