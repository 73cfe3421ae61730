"""A training process is killed by the operating system, at any instant, and resumed.

``ADADPS_KILLS`` (default 20) is how many kills at random instants there are; ``ADADPS_EVERY_LINE``
is the stride through the lines of a step and a checkpoint (1: a kill at every single one).
"""

import os
import shutil

import numpy as np
import pytest

from adadps import files
from adadps.accounting.ledger import disk
from adadps.training import checkpoint, payment, run, stepper
from support.killing import Findings, Scene, in_a_fork, killed_after, killed_at_line, train

KILLS = int(os.environ.get("ADADPS_KILLS", "20"))
STRIDE = int(os.environ.get("ADADPS_EVERY_LINE", "113"))
FILES = {room.__file__ for room in (checkpoint, disk, payment, run, stepper, files)}
RNG = np.random.default_rng()


def finish(scene):
    _, status = os.waitpid(in_a_fork(lambda: train(scene)), 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory):
    """Loops are compiled here once, and not in every child."""
    from adadps import fit
    from support.killing import DATA, FEATURES, METHODS, SAMPLER, adadps
    from support.problems import cross_entropy

    for method in METHODS.values():
        model = adadps.sparse_linear(FEATURES, 3, bias=False)
        fit(model, cross_entropy, DATA, method=method, sampler=SAMPLER, steps=2)


@pytest.mark.parametrize("method", ["late", "adam"])
def test_hazard_16_a_run_killed_at_random_instants_loses_and_repeats_nothing(
    tmp_path, method, capsys
):
    findings, wanted = Findings(), KILLS // 2
    while findings.kills < wanted:
        scene = Scene(tmp_path / str(findings.runs), method)
        scene.folder.mkdir()
        while findings.kills < wanted:
            if not killed_after(lambda scene=scene: train(scene), RNG.uniform(0.005, 0.6)):
                break
            findings.kills += 1
        else:
            finish(scene)
        findings.examine(scene)
    with capsys.disabled():
        print(f"\n{method}: {findings}")
    assert findings.lost_reservations == 0
    assert findings.repeated_draws == 0
    assert findings.undercounted == 0


def test_hazard_16_a_kill_at_any_line_of_a_step_or_a_checkpoint(tmp_path, capsys):
    """Two steps and two checkpoints of a run that goes on, killed at one line after the other."""
    template = Scene(tmp_path / "template", steps=3, every=1)
    template.folder.mkdir()
    first = int(RNG.integers(1, STRIDE + 1))
    findings, line = Findings(), first
    while True:
        scene = Scene(tmp_path / str(line), steps=3, every=1)
        scene.folder.mkdir()
        alive = not killed_at_line(lambda trace, scene=scene: train(scene, trace), FILES, line)
        if not alive:
            findings.kills += 1
            finish(scene)
        findings.examine(scene)
        shutil.rmtree(scene.folder)
        if alive:
            break
        line += STRIDE
    with capsys.disabled():
        print(f"\nline by line ({line} lines): {findings}")
    assert findings.kills >= 500 // STRIDE
    assert findings.lost_reservations == 0
    assert findings.repeated_draws == 0
    assert findings.undercounted == 0


def test_the_examination_notices_a_lost_reservation_and_a_repeated_draw(tmp_path):
    scene = Scene(tmp_path, steps=3, every=1)
    finish(scene)
    diary = scene.diary.read_text()
    scene.diary.write_text(diary + "paid one-more\n")
    missing = Findings()
    missing.examine(scene)
    assert missing.lost_reservations == 1
    assert missing.undercounted == 1
    noise = next(line for line in diary.splitlines() if line.startswith("noise"))
    scene.diary.write_text(f"{diary}{noise}\n")
    repeated = Findings()
    repeated.examine(scene)
    assert repeated.repeated_draws == 1
