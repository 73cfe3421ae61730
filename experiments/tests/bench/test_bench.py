"""What `adadps bench` measures: contenders that compute what they claim, memory, other load."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from adadps_experiments.bench import machine, measure
from adadps_experiments.bench.contenders import CONTENDERS, microbatch, ours, plain
from adadps_experiments.bench.machine import OtherLoad
from adadps_experiments.bench.measure import Timing, measure_steps, reason_not_to_run
from adadps_experiments.bench.rows import disturbed
from adadps_experiments.bench.workloads import WORKLOADS, SyntheticData, tokens_for
from support.bench_rows import row_of

NETWORKS = ["lstm", "gru", "transformer", "conv1d-text", "cnn"]
NETWORKS += [name for name in ("bert-tiny", "lora") if name in WORKLOADS]
KINDS = ["logreg-10k", "autoencoder-64", "embedding-bag", *NETWORKS]
NO_GHOST = {"bert-tiny"}
"""Models on which ghost clipping stops in Opacus 1.6, as the rows of the benchmark say."""
QUICK = Timing(threads=1, steps=2)
SCHEMA = {"workload", "contender", "ms_per_step", "peak_mb"}


# What is measured


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("microbatch-loop", kind) for kind in KINDS),
        *(("adadps", kind) for kind in KINDS),
        *(("adadps-feature", kind) for kind in ("embedding-bag", "transformer", "cnn")),
        ("adadps-dp-sgd", "autoencoder-64"),
        *(("adadps-whitened", kind) for kind in ("autoencoder-64", "cnn")),
    ],
)
def test_contenders_step_on_every_kind_of_workload(name, kind, short_runs):
    workload = WORKLOADS[kind].tiny()
    running = CONTENDERS[name].prepare(workload, workload.data())()
    running.step()
    assert (running.weights is not None) == name.startswith("adadps")
    assert (running.engine is not None) == name.startswith("adadps")


def test_a_measurement_is_a_row(short_runs):
    row = measure_steps(WORKLOADS["logreg-10k"].tiny(), "adadps", QUICK)
    assert row.keys() >= SCHEMA | {"flush_ms", "touched_rows", "threads", "fastest_ms"}
    assert row["ms_per_step"] > 0
    assert row["steps"] == 2
    assert row["engine"] == "ghost, whole batches"
    json.dumps(row, allow_nan=False)


def test_sizes_are_those_that_were_announced():
    sizes = {name: (w.parameters(), w.batch) for name, w in WORKLOADS.items()}
    tables, layers = (30_522 + 128 + 2) * 128, 2 * _encoder_layer(128, 512)
    head = 129 * 2
    assert sizes.pop("bert-tiny", None) in (
        (tables + 2 * 128 + layers + 129 * 128 + head, 32),
        None,
    )
    assert sizes.pop("lora", None) in ((2 * 2 * 2 * 8 * 128 + head, 32), None)
    assert sizes == {
        "logreg-10k": (10_001 * 500, 64),
        "logreg-10k-50": (10_001 * 50, 64),
        "logreg-1m-50": (1_000_001 * 50, 64),
        "autoencoder-64": (2_837_314, 64),
        "autoencoder-256": (2_837_314, 256),
        "embedding-bag": (100_000 * 64 + 65 * 64 + 65 * 20, 256),
        "lstm": (10_000 * 64 + 2 * (8 * 64 * 64 + 8 * 64) + 65 * 2, 64),
        "gru": (10_000 * 64 + 6 * 64 * 64 + 6 * 64 + 65 * 2, 64),
        "transformer": (10_128 * 128 + 2 * _encoder_layer(128, 512) + 129 * 2, 32),
        "conv1d-text": (10_000 * 64 + 128 * (64 * 5 + 1) + 129 * 2, 64),
        "cnn": (16 * 65 + 32 * (16 * 16 + 1) + 513 * 32 + 33 * 10, 256),
    }


def _encoder_layer(width, inner):
    attention, norms = 4 * width * (width + 1), 4 * width
    return attention + norms + inner * (width + 1) + width * (inner + 1)


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
    if mode == "ghost" and kind in NO_GHOST:
        pytest.skip("Opacus cannot run it")
    from adadps_experiments.bench.contenders import opacus_steps

    held = []
    model_of = opacus_steps.model_of
    monkeypatch.setattr(
        opacus_steps, "model_of", lambda workload: held.append(model_of(workload)) or held[-1]
    )
    workload = WORKLOADS[kind].tiny()
    running = CONTENDERS[f"opacus-{mode}"].prepare(workload, workload.data())()
    trained = [parameter for parameter in held[0].parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in trained]
    running.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, trained, strict=True)]
    assert all(moved)


@pytest.mark.parametrize("kind", ["embedding-bag", *NETWORKS])
def test_opacus_gets_the_same_function_as_the_others(kind):
    pytest.importorskip("opacus")
    from adadps_experiments.bench.contenders import opacus_models

    workload = WORKLOADS[kind].tiny()
    models = []
    for model_of in (type(workload).model, opacus_models.model_of):
        torch.manual_seed(1)
        models.append(model_of(workload))
    rows = workload.data().features[:5]
    torch.testing.assert_close(*(model(rows) for model in models))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [name for name in NETWORKS if name not in NO_GHOST])
def test_ghost_norms_of_opacus_are_those_of_single_examples(kind):
    pytest.importorskip("opacus")
    from opacus.grad_sample import GradSampleModuleFastGradientClipping as Clipping

    from adadps_experiments.bench.contenders import opacus_models

    workload = WORKLOADS[kind].tiny()
    model, data = opacus_models.model_of(workload), workload.data()
    rows, targets = data.features[:3], data.targets[:3]
    expected = []
    for row, target in zip(rows.split(1), targets.split(1), strict=True):
        loss = workload.loss(model(row), target).sum()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, trained)
        expected.append(torch.cat([gradient.flatten() for gradient in gradients]).norm())
    theirs = Clipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
    workload.loss(theirs(rows), targets).mean().backward()
    torch.testing.assert_close(theirs.get_norm_sample(), torch.stack(expected))


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
