"""The example on Flower as real processes: the right model, and the right ledger after kills.

Slow (minutes, since every message starts a Python process): `make torture` runs it.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from scipy import sparse

pytest.importorskip("flwr", reason="needs Flower: pip install 'adadps[federated]'")

from adadps import DiskLedger, PrivateRun, epsilon_of_run, examples, load_result
from adadps.engine.losses import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
from processes import APP, Federation

sys.path.insert(0, str(APP))
from maintainers import server_app, task

pytestmark = pytest.mark.skipif(
    os.environ.get("ADADPS_FLOWER") != "1", reason="slow: set ADADPS_FLOWER=1, or `make torture`"
)

NODES = (1, 2, 3)  # people with few packages: nobody has to choose among them
CONFIG = {
    "users": len(NODES),
    "cohort": len(NODES),  # of fewer, all might be the node that is killed: that is silence
    "rounds": 6,
    "noise-multiplier": 2.0,
    "clip-norm": 1.0,
    "answer-within": 60.0,
}


def taken(kept):
    """How many rounds the newest checkpoint has."""
    steps = [int(path.name[5:]) for path in kept.glob("step-*") if path.name[5:].isdecimal()]
    return max(steps, default=0)


def test_a_node_and_the_server_are_killed(tmp_path):
    kept, out = tmp_path / "kept", tmp_path / "out"
    config = {**CONFIG, "checkpoints": kept, "out": out}
    with Federation(tmp_path) as federation:
        federation.start_link()
        for number in NODES:
            federation.start_node(number)
        federation.submit(config)
        federation.wait(lambda: taken(kept) >= 2, "two rounds")
        federation.kill("node-3")
        federation.wait(lambda: taken(kept) >= 3, "a round after the node's end")
        federation.kill("link")  # and the ServerApp with it
        lost_at = taken(kept)
        paid_then = _paid(kept)
        assert lost_at < 6, "killed too late to show anything"
        federation.start_link()
        federation.submit(config)
        federation.wait(out.exists, "the end")
    privacy = load_result(out).privacy
    assert privacy.steps == 6
    assert privacy.steps_paid == paid_then + 6 - lost_at
    assert _paid(kept) == privacy.steps_paid
    run = server_app.new_run({**CONFIG, "checkpoints": ""})
    price = epsilon_of_run(
        run.method, run.sampler, privacy.steps_paid, delta=privacy.delta, accountant=run.accountant
    )
    assert privacy.epsilon == pytest.approx(price)
    print(json.dumps({"paid at the kill": paid_then, "kept": lost_at, "paid": _paid(kept)}))


def test_a_misspelt_key_ends_the_run_before_anything_is_paid(tmp_path):
    kept, out = tmp_path / "kept", tmp_path / "out"
    with Federation(tmp_path) as federation:
        federation.start_link()
        for number in NODES:
            federation.start_node(number, key="partition_id")
        federation.submit({**CONFIG, "checkpoints": kept, "out": out, "least-nodes": len(NODES)})
        link = tmp_path / "link.log"
        federation.wait(lambda: "Finished task" in link.read_text("utf-8"), "the end of the app")
        said = federation.server_log()
    assert "found that 3 of 3 cannot: Expected 'partition-id' in the configuration of this" in said
    assert "Exit Code: 201" in said, "an unhandled exception in the ServerApp"
    for number in NODES:
        assert "Traceback" in (tmp_path / f"node-{number}.log").read_text("utf-8")
    assert _paid(kept) == 0
    assert not out.exists()


def _paid(kept):
    """Charges on the run's ledger: one a round."""
    with DiskLedger(kept / "ledger") as ledger:
        return ledger.entries


QUIET = {
    **CONFIG,
    "answer-within": 600.0,
    "cohort": len(NODES),
    "rounds": 2,
    "noise-multiplier": 0.0,
    "clip-norm": 0.5,
}


def test_the_same_model_as_in_one_process(tmp_path):
    """Without noise, everybody asked at every round, the clip on: up to float32."""
    out = tmp_path / "out"
    with Federation(tmp_path) as federation:
        federation.start_link()
        for number in NODES:
            federation.start_node(number)
        federation.submit({**QUIET, "checkpoints": "", "out": out, "least-nodes": len(NODES)})
        federation.wait(out.exists, "the end", seconds=1500)
    require_the_model_of_one_process(out, NODES)


def test_the_same_model_under_ray(tmp_path):
    """Flower's own simulation, which numbers its nodes from 0."""
    out = tmp_path / "out"
    size = "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=2"
    with Federation(tmp_path) as federation:
        federation.start_link("--simulation")
        config = {**QUIET, "checkpoints": "", "out": out, "least-nodes": 3}
        federation.submit(config, "--federation-config", size)
        federation.wait(out.exists, "the end", seconds=1500)
    require_the_model_of_one_process(out, range(3))


def require_the_model_of_one_process(out, people):
    found = load_result(out).params
    server = server_app.new_run({**QUIET, "checkpoints": ""})
    start = {name: value.clone() for name, value in server.params.items()}
    model = task.new_model()
    model.load_state_dict(start)
    run = PrivateRun(
        model,
        cross_entropy,
        rows_of_everybody(people),
        method=server.method,
        sampler=server.sampler,
        steps=QUIET["rounds"],
    )
    for batch in run.batches():
        run.step(batch)
    for name, value in run.params.items():
        assert not torch.equal(value, start[name])
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def rows_of_everybody(people):
    """The rows of all nodes, in one table with users."""
    parts = [task.rows_and_labels_of(user) for user in people]
    owners = [user for user, (_, labels) in enumerate(parts) for _ in labels]
    rows = sparse.vstack([rows for rows, _ in parts], format="csr")
    return examples(rows, [label for _, labels in parts for label in labels], users=owners)
