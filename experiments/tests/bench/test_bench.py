"""`adadps bench`: contenders compute what they claim, rows are saved, failures are rows."""

import json
import os
import re
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

from adadps.cli.main import app
from adadps.errors import DataError
from adadps_experiments.bench import machine, measure, session, sheets
from adadps_experiments.bench.contenders import CONTENDERS, microbatch, ours, plain
from adadps_experiments.bench.machine import OtherLoad
from adadps_experiments.bench.measure import Timing, measure_epoch, measure_steps, reason_not_to_run
from adadps_experiments.bench.rows import RowFile, disturbed, find, load
from adadps_experiments.bench.targets import TARGETS, verdicts
from adadps_experiments.bench.workloads import WORKLOADS, SyntheticData, tokens_for

runner = CliRunner()
KINDS = ["logreg-10k", "autoencoder-64", "embedding-bag", "lstm"]
QUICK = Timing(threads=1, steps=2)
SCHEMA = {"workload", "contender", "ms_per_step", "peak_mb"}


def plain_text(text):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def row_of(workload, contender, ms=1.0, mb=10.0, **extra):
    numbers = {"ms_per_step": ms, "peak_mb": mb, "threads": 1}
    return {"workload": workload, "contender": contender, **numbers, **extra}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def short_runs(monkeypatch):
    monkeypatch.setattr(ours, "MOST_STEPS", 20)


@pytest.fixture
def tiny(monkeypatch):
    """Measure one tiny workload instead of all."""
    workload = replace(WORKLOADS["logreg-10k"].tiny(), name="tiny")
    monkeypatch.setattr(session, "WORKLOADS", {"tiny": workload})
    return workload


@pytest.fixture
def at_once(monkeypatch):
    """Replace measurements by instant ones, and list those that were made."""
    made = []

    def measure_contender(workload, name, timing):
        made.append(name)
        return row_of(workload.name, name)

    monkeypatch.setattr(session, "measure_contender", measure_contender)
    return made


# What is measured


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in ("adadps", "microbatch-loop") for kind in KINDS),
        ("adadps-feature", "embedding-bag"),
        ("adadps-dp-sgd", "autoencoder-64"),
    ],
)
def test_contenders_step_on_every_kind_of_workload(name, kind, short_runs):
    workload = WORKLOADS[kind].tiny()
    running = CONTENDERS[name].prepare(workload, workload.data())()
    running.step()
    assert (running.weights is not None) == (name in ours.METHODS)


def test_a_measurement_is_a_row(short_runs):
    row = measure_steps(WORKLOADS["logreg-10k"].tiny(), "adadps", QUICK)
    assert row.keys() >= SCHEMA | {"flush_ms", "touched_rows", "threads", "fastest_ms"}
    assert row["ms_per_step"] > 0
    assert row["steps"] == 2
    json.dumps(row, allow_nan=False)


def test_sizes_are_those_that_were_announced():
    sizes = {name: (w.parameters(), w.batch) for name, w in WORKLOADS.items()}
    assert sizes == {
        "logreg-10k": (10_001 * 500, 64),
        "logreg-10k-50": (10_001 * 50, 64),
        "logreg-1m-50": (1_000_001 * 50, 64),
        "autoencoder-64": (2_837_314, 64),
        "autoencoder-256": (2_837_314, 256),
        "embedding-bag": (100_000 * 64 + 65 * 64 + 65 * 20, 256),
        "lstm": (10_000 * 64 + 2 * (8 * 64 * 64 + 8 * 64) + 65 * 2, 64),
    }


def test_rows_hold_zipf_words_of_unit_length():
    data = replace(WORKLOADS["logreg-10k"], examples=2000).data()
    rows = data.features
    assert rows.nnz / len(data) == pytest.approx(35, abs=1)
    np.testing.assert_allclose(rows.multiply(rows).sum(1), 1, rtol=1e-5)
    counts = np.sort(np.bincount(rows.indices, minlength=10_000))[::-1]
    assert counts[0] > 0.95 * 2000, "the first word is in nearly every row"
    assert 1.5 < counts[100] / counts[200] < 2.7, "p goes with 1/rank"
    touched = data.touched(64)
    assert 35 < touched < 64 * 35
    assert tokens_for(35, 1_000_000) < tokens_for(35, 10_000)


def test_batches_are_fresh_and_targets_belong_to_their_rows():
    data = SyntheticData(torch.arange(50.0)[:, None], torch.arange(50))
    rng = np.random.default_rng(0)
    first, second = data.draw(rng, 8), data.draw(rng, 8)
    assert not torch.equal(first.targets, second.targets)
    assert torch.equal(first.features[:, 0].long(), first.targets)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_torch_lowers_the_loss(kind):
    workload = WORKLOADS[kind].tiny()
    model, batch = plain.model_of(workload, sparse=False), workload.data()

    @torch.no_grad()
    def loss():
        return float(workload.loss(model(*plain.inputs_of(batch)), batch.targets).mean())

    before, step = loss(), plain.sgd_step(model, workload, lambda: batch)
    for _ in range(20):
        step()
    assert loss() < before


@pytest.mark.parametrize("kind", ["logreg-10k", "embedding-bag"])
def test_sparse_and_dense_torch_take_the_same_step(kind):
    workload = WORKLOADS[kind].tiny()
    dense, sparse = (plain.model_of(workload, sparse=flag) for flag in (False, True))
    sparse.load_state_dict(dense.state_dict())
    data = workload.data()
    for model in (dense, sparse):
        rng = np.random.default_rng(1)
        plain.sgd_step(model, workload, lambda rng=rng: data.draw(rng, 8))()
    for ours_, theirs in zip(dense.parameters(), sparse.parameters(), strict=True):
        torch.testing.assert_close(ours_, theirs)
    grads = [parameter.grad for parameter in sparse.parameters()]
    assert any(grad.is_sparse for grad in grads)


def test_a_bag_of_sums_is_the_linear_layer():
    workload = WORKLOADS["logreg-10k"].tiny()
    bag, linear = plain.model_of(workload, sparse=False), workload.model()
    with torch.no_grad():
        bag.bag.weight.copy_(linear.weight.T)
        bag.bias.copy_(linear.bias)
    batch = workload.data().draw(np.random.default_rng(0), 8)
    expected = linear(microbatch.dense_features(batch))
    torch.testing.assert_close(bag(*plain.inputs_of(batch)), expected)


@pytest.mark.parametrize("clip_norm", [0.05, 0.4, 1e6])
def test_the_microbatch_loop_clips_each_groups_mean(clip_norm):
    workload = WORKLOADS["logreg-10k"].tiny()
    model = workload.model()
    batch = workload.data().draw(np.random.default_rng(0), 10)
    pair = (microbatch.dense_features(batch), batch.targets)
    A = [torch.rand_like(p.detach()) + 0.1 for p in model.parameters()]
    found = microbatch.clipped_sum(model, workload, pair, A, clip_norm=clip_norm, group=4)
    expected = [torch.zeros_like(a) for a in A]
    for start in (0, 4, 8):
        part, goal = pair[0][start : start + 4], pair[1][start : start + 4]
        model.zero_grad()
        functional.cross_entropy(model(part), goal).backward()
        scaled = [p.grad / a for p, a in zip(model.parameters(), A, strict=True)]
        norm = torch.cat([g.flatten() for g in scaled]).norm()
        for total, g in zip(expected, scaled, strict=True):
            total.add_(g / max(1.0, float(norm) / clip_norm))
    for ours_, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours_, theirs)


def test_ours_has_a_number_for_every_weight():
    workload = WORKLOADS["embedding-bag"].tiny()
    model = ours.model_of(workload)
    full = ours.full_side(model)
    assert {name: A.shape for name, A in full.items()} == {
        name: p.shape for name, p in model.named_parameters() if p.ndim == 2
    }
    assert torch.linalg.matrix_rank(full["0.weight"]) > 1, "nothing that an engine could factor"
    feature = ours.feature_side(model)
    assert {name: axis for name, (_, axis) in feature.items()} == {
        "0.weight": 0,
        "1.weight": 1,
        "3.weight": 1,
    }
    assert str(ours.full(model)).startswith("precondition")
    assert not str(ours.dp_sgd(model)).startswith("precondition")


def test_ours_trains_the_model_and_reads_its_weights(short_runs):
    workload = WORKLOADS["logreg-10k"].tiny()
    running = CONTENDERS["adadps"].prepare(workload, workload.data())()
    before = {name: value.clone() for name, value in running.weights().items()}
    running.step()
    after = running.weights()
    assert all(not torch.equal(before[name], value) for name, value in after.items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("kind", KINDS)
def test_opacus_moves_every_weight(kind, mode, monkeypatch):
    pytest.importorskip("opacus")
    from adadps_experiments.bench.contenders import opacus_steps

    held = []
    model_of = opacus_steps.model_of
    monkeypatch.setattr(
        opacus_steps, "model_of", lambda workload: held.append(model_of(workload)) or held[-1]
    )
    workload = WORKLOADS[kind].tiny()
    running = CONTENDERS[f"opacus-{mode}"].prepare(workload, workload.data())()
    before = [parameter.detach().clone() for parameter in held[0].parameters()]
    running.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, held[0].parameters(), strict=True)]
    assert all(moved)


def test_opacus_gets_the_same_function_as_the_others():
    pytest.importorskip("opacus")
    from adadps_experiments.bench.contenders import opacus_steps

    workload = WORKLOADS["embedding-bag"].tiny()
    model, theirs = workload.model(), opacus_steps.model_of(workload)
    weights = dict(zip(theirs.state_dict(), model.state_dict().values(), strict=True))
    theirs.load_state_dict(weights)
    tokens = workload.data().features[:5]
    torch.testing.assert_close(model(tokens), theirs(tokens))


# Memory and the machine


def test_a_contender_that_does_not_fit_is_not_tried(monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 20_000_000_000)
    monkeypatch.setattr(measure, "in_fresh_process", lambda *_, **__: pytest.fail("was tried"))
    monkeypatch.setattr(measure, "find_spec", lambda _: object())
    row = measure.measure_contender(WORKLOADS["logreg-1m-50"], "opacus-hooks", QUICK)
    assert row["ms_per_step"] is None
    assert row["error"] == "cannot run: needs 27.2 GB, 20.0 GB are free"
    assert reason_not_to_run(CONTENDERS["torch"], WORKLOADS["logreg-1m-50"]) is None
    monkeypatch.setattr(machine, "free_memory", lambda: None)
    assert reason_not_to_run(CONTENDERS["opacus-hooks"], WORKLOADS["logreg-1m-50"]) is None


def test_the_peak_counts_what_was_taken_and_given_back():
    begin = machine.memory_baseline()
    block = np.ones(8_000_000)
    del block
    assert begin.peak() > 55e6
    if begin.how == "VmHWM":
        assert machine.memory_baseline().peak() < 30e6, "an earlier peak is forgotten"


def test_other_work_is_a_share_of_our_cores():
    share = OtherLoad(threads=1).share()
    assert share is None or 0 <= share <= 1
    assert disturbed(row_of("tiny", "torch", other_work=0.5))
    assert not disturbed(row_of("tiny", "torch"))


# Failures


def _die(workload, name, timing):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_a_row():
    workload = WORKLOADS["logreg-10k"].tiny()
    row = measure.in_fresh_process(_die, workload, "torch", QUICK, patience=60)
    assert row["error"] == "cannot run: ended by signal 9 (out of memory?)"


def test_an_error_is_a_row_of_few_words(monkeypatch):
    def explode(*job):
        raise RuntimeError("no such\nkernel " + "x" * 500)

    monkeypatch.setattr(measure, "prepare_process", lambda _: None)
    sent = []
    pipe = SimpleNamespace(send=sent.append)
    measure._answer(pipe, explode, WORKLOADS["lstm"], "torch", QUICK)
    assert sent[0].startswith("cannot run: RuntimeError: no such kernel xxx")
    assert len(sent[0]) < 160
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")
    assert measure.failure_reason(error) == "cannot run: out of memory"


def test_a_missing_package_is_a_hint(tiny, monkeypatch):
    monkeypatch.setattr(measure, "find_spec", lambda _: None)
    options = ["--contender", "opacus-ghost"]
    shown = runner.invoke(app, ["bench", *options], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "pip install 'adadps-experiments[bench]'" in plain_text(shown.stderr)
    assert "cannot run: opacus is not" in plain_text(shown.stdout)
    assert "[bench]" in shown.stdout


# Rows, tables, targets


def test_verdicts_of_targets():
    rows = [
        row_of("logreg-10k", "adadps", ms=2.0, mb=100.0),
        row_of("logreg-10k", "opacus-hooks", ms=1000.0, mb=499.0),
        row_of("logreg-10k", "opacus-ghost", ms=None, mb=None, error="cannot run: no"),
        row_of("autoencoder-64", "adadps", ms=3.0),
        row_of("autoencoder-64", "torch", ms=1.0),
        row_of("logreg-10k-50", "adadps", ms=1.0, touched_rows=1000.0),
        row_of("logreg-1m-50", "adadps", ms=1.1, touched_rows=1100.0),
    ]
    found = {
        (verdict.target.workload, verdict.target.compared): (verdict.ratio, verdict.outcome)
        for verdict in verdicts(rows)
    }
    assert found["logreg-10k", "time: opacus-hooks ÷ adadps"] == (500, "met")
    assert found["logreg-10k", "memory: opacus-hooks ÷ adadps"] == (4.99, "missed")
    assert found["logreg-10k", "time: opacus-ghost ÷ adadps"] == (None, "opacus-ghost cannot run")
    assert found["logreg-10k", "time: torch-sparse ÷ adadps"] == (None, "not measured")
    assert found["autoencoder-64", "time: adadps ÷ torch"] == (3, "missed")
    ratio, outcome = found["logreg-1m-50", "time per touched row: adadps ÷ adadps on logreg-10k-50"]
    assert (ratio, outcome) == (pytest.approx(1), "met")
    assert not any(workload == "embedding-bag" for workload, _ in found)
    assert {target.workload for target in TARGETS} <= set(WORKLOADS)
    assert {target.against for target in TARGETS} <= set(CONTENDERS)


def test_tables_show_ratios_and_reasons():
    rows = [
        row_of("lstm", "torch", ms=4.0, threads=2, touched_rows=1000.0),
        row_of("lstm", "adadps", ms=2.0, flush_ms=7.0, threads=2, touched_rows=1000.0),
        row_of("lstm", "opacus-hooks", ms=None, mb=None, threads=2, error="cannot run: needs 9 GB"),
        row_of("logreg-10k-epoch", "adadps", ms=5.0, seconds=20.0, steps=3845),
        row_of("lstm", "microbatch-loop", threads=2, other_work=0.5),
    ]
    text = sheets.as_markdown(sheets.sheets_of(rows))
    assert "### lstm (1,000 rows touched per batch, threads: 2)" in text
    assert "| adadps | 2 | 10 | 1 | 0.5 | 2 | 7 |" in text
    assert "| torch | 4 | 10 | 2 | 1 | 4 | – |" in text
    assert "| opacus-hooks | cannot run: needs 9 GB | – | – | – | – | – |" in text
    assert "| logreg-10k-epoch | adadps | 20 | measured: 3,845 steps |" in text
    assert "| lstm | microbatch-loop | 50% |" in text
    assert text.index("| adadps |") < text.index("| torch |"), "ours comes first"


def test_nothing_measured_is_nothing_to_draw():
    with pytest.raises(DataError, match="at least one measured row"):
        sheets.draw_chart([row_of("lstm", "torch", ms=None, mb=None, error="cannot run: no")])


def test_rows_are_on_disk_as_they_come_in(tiny, monkeypatch, tmp_path):
    """A run that is killed at its second row has saved the first, and resumes there."""
    file = tmp_path / "rows.json"

    def interrupted(workload, name, timing):
        if name == "torch-sparse":
            raise KeyboardInterrupt
        return row_of(workload.name, name)

    monkeypatch.setattr(session, "measure_contender", interrupted)
    jobs = [(tiny, "torch"), (tiny, "torch-sparse"), (tiny, "microbatch-loop")]
    with pytest.raises(KeyboardInterrupt):
        session.measure_all(jobs, QUICK, RowFile(file, resume=False), print)
    assert [row["contender"] for row in load(file)] == ["torch"]

    tried = []

    def again(workload, name, timing):
        tried.append(name)
        return row_of(workload.name, name, ms=2.0)

    monkeypatch.setattr(session, "measure_contender", again)
    rows = session.measure_all(jobs, QUICK, RowFile(file, resume=True), print)
    assert tried == ["torch-sparse", "microbatch-loop"]
    assert rows == load(file)
    assert find(rows, "tiny", "torch")["ms_per_step"] == 1.0


def test_failed_and_disturbed_rows_are_measured_again(tiny, at_once, tmp_path):
    file = RowFile(tmp_path / "rows.json", resume=False)
    file.put(row_of("tiny", "torch", ms=None, mb=None, error="cannot run: no"))
    file.put(row_of("tiny", "microbatch-loop", other_work=0.9))
    file.put(row_of("tiny", "adadps", other_work=0.01))
    file.put(row_of("tiny", "torch-sparse", threads=2))
    names = ("torch", "microbatch-loop", "adadps", "torch-sparse")
    session.measure_all([(tiny, name) for name in names], QUICK, file, print)
    assert at_once == ["torch", "microbatch-loop", "torch-sparse"]
    assert [row["contender"] for row in file.rows] == list(names), "each in its place"


@pytest.mark.parametrize("content", ["", "{}", '[{"workload": "x"}]'])
def test_other_files_are_refused(content, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(content, encoding="utf-8")
    shown = runner.invoke(app, ["bench", "--from", str(file)])
    assert shown.exit_code == 1
    assert "Expected rows of `adadps bench --json`" in plain_text(shown.stderr)


# The command


def test_the_command_measures_in_a_fresh_process(tiny, tmp_path):
    file, picture = tmp_path / "out" / "rows.json", tmp_path / "out" / "rows.png"
    options = ["--contender", "torch", "--steps", "2", "--threads", "1"]
    shown = runner.invoke(app, ["bench", *options, "--json", str(file), "--plot", str(picture)])
    assert shown.exit_code == 0, shown.output
    (row,) = json.loads(file.read_text(encoding="utf-8"))
    assert row.keys() >= SCHEMA
    assert (row["workload"], row["contender"]) == ("tiny", "torch")
    assert row["steps"] == 2
    assert row["threads"] == 1
    assert row["ms_per_step"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = runner.invoke(app, ["bench", "--from", str(file), "--markdown"])
    assert "| torch |" in again.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload", "nothing"], "Expected a workload among logreg-10k,"),
        (["--contender", "nobody"], "Expected a contender among adadps,"),
        (["--workload", "lstm", "--contender", "torch-sparse"], "has no sparse layer"),
        (["--steps", "0"], "Expected --steps between 1 and"),
        (["--threads", "-1"], "Expected --threads between 1 and"),
        (["--resume"], "Add --json FILE"),
    ],
)
def test_bad_input_is_told(options, message):
    shown = runner.invoke(app, ["bench", *options])
    assert shown.exit_code == 2
    assert message in plain_text(shown.stderr)


def test_a_missing_file_is_told():
    shown = runner.invoke(app, ["bench", "--from", "/nowhere/rows.json"])
    assert shown.exit_code == 1
    assert "Give such a file" in plain_text(shown.stderr)


def test_the_help_names_everything():
    text = plain_text(runner.invoke(app, ["bench", "--help"]).output)
    assert f"Workloads: {', '.join(WORKLOADS)}." in text
    assert f"Contenders: {', '.join(CONTENDERS)}." in text


def test_all_contenders_take_part_by_default(tiny, at_once):
    shown = runner.invoke(app, ["bench"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert at_once == list(CONTENDERS)


def test_an_epoch_is_measured_from_the_first_step_to_the_weights():
    workload = replace(WORKLOADS["logreg-10k"].tiny(), examples=80)
    row = measure_epoch(workload, "adadps", QUICK)
    assert row["steps"] == 10
    assert row["seconds"] == pytest.approx(row["ms_per_step"] * 10 / 1000)


def test_the_epoch_stands_beside_an_extrapolation(monkeypatch, at_once, tmp_path):
    answer = row_of("logreg-10k", "adadps", ms=4.0, steps=3845, seconds=15.38)
    monkeypatch.setattr(session, "in_fresh_process", lambda *_, **__: dict(answer))
    file = tmp_path / "rows.json"
    shown = runner.invoke(app, ["bench", "--epoch", "--json", str(file), "--markdown"])
    assert shown.exit_code == 0, shown.output
    assert "| logreg-10k-epoch | adadps | 15.4 | measured: 3,845 steps |" in shown.stdout
    assert "| opacus-hooks | 3.85 | extrapolated: 3,845 × 1 ms |" in shown.stdout
    assert [row["workload"] for row in load(file)] == ["logreg-10k-epoch"] * 2
    assert isinstance(WORKLOADS["logreg-10k"].tiny().model(), nn.Linear)
