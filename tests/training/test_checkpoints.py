"""Checkpoints: a run that is resumed is the same training, and what is in its folder."""

import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from scipy import sparse

import adadps
import adadps.accounting.ledger.summary
from adadps import Checkpoints, examples, fit, on_public
from adadps.errors import DataError
from support.problems import cross_entropy
from support.resuming import (
    DENSE,
    EVERYONE,
    FREQUENT,
    KINDS,
    LABELS,
    METHODS,
    NOISY,
    SOME,
    WHITENED,
    WORDS,
    advance,
    begin,
    model,
    weights,
)

CASES = [*itertools.product(METHODS, KINDS), ("whitened", "dense")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, name, kind):
    """Bit for bit; but what the rounding of a late table leaves over is not in a checkpoint."""
    options = {"method": METHODS.get(name, WHITENED), "features": KINDS[kind], "sampler": EVERYONE}
    whole = advance(begin(tmp_path / "whole", **options))
    for stop in (2, 6, 9):
        advance(begin(tmp_path / "parts", **options), until=stop)
    resumed = begin(tmp_path / "parts", **options)
    assert resumed.taken == 8
    advance(resumed)
    for parameter, value in weights(whole).items():
        found = resumed.params[parameter]
        if KINDS[kind] is WORDS and parameter == "weight":
            torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(value, found), parameter
    assert whole.history == resumed.history


def test_measurements_of_earlier_lives_stay(tmp_path):
    watched = on_public("few", DENSE, LABELS, every=1, accuracy=adadps.accuracy)
    run = begin(tmp_path)
    for batch in run.batches():
        run.step(batch)
        run.evaluate(watched)
        if batch.index == 5:
            break
    resumed = begin(tmp_path)
    assert [entry.step for entry in resumed.history] == [1, 2, 3, 4]
    assert resumed.history == run.history[:4]


def test_a_finished_run_is_only_read_again(tmp_path):
    options = {
        "method": adadps.dp_sgd(NOISY, lr=0.1),
        "sampler": SOME,
        "steps": 6,
        "checkpoints": tmp_path / "run",
        "evaluate": [on_public("few", DENSE, LABELS, accuracy=adadps.accuracy)],
    }
    first = fit(model(), cross_entropy, examples(DENSE, LABELS), **options)
    again = fit(model(), cross_entropy, examples(DENSE, LABELS), **options)
    assert first.privacy == again.privacy
    assert first.history == again.history != ()
    assert torch.equal(first.params["weight"], again.params["weight"])


def test_a_run_that_is_resumed_at_its_end_is_measured_there(tmp_path):
    options = {"steps": 12, "every": 12}
    advance(begin(tmp_path, **options))  # nobody has evaluated
    result = fit(
        model(),
        cross_entropy,
        examples(DENSE, LABELS),
        method=adadps.dp_sgd(NOISY, lr=0.1),
        sampler=SOME,
        steps=12,
        checkpoints=tmp_path,
        evaluate=[on_public("few", DENSE, LABELS, accuracy=adadps.accuracy)],
    )
    assert [entry.step for entry in result.history] == [12]


def test_noise_and_batches_are_drawn_afresh(tmp_path):
    advance(begin(tmp_path / "one"), until=4)
    advance(begin(tmp_path / "one"), until=5)  # writes nothing after step 4
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    ends = [weights(advance(begin(tmp_path / name))) for name in ("one", "other")]
    assert not torch.equal(ends[0]["weight"], ends[1]["weight"])


def newest(folder):
    return sorted(folder.glob("step-*"))[-1]


def test_hazard_23_a_checkpoint_holds_noised_weights_and_no_trace_of_batches(tmp_path):
    held = {}
    for name, features in (("one", WORDS), ("other", WORDS[::-1].tocsr() * 2)):
        method = adadps.adadps(FREQUENT, NOISY, lr=0.1)
        advance(begin(tmp_path / name, method, features=features), until=9)
        folder = newest(tmp_path / name)
        assert {path.name for path in folder.iterdir()} == {
            "checkpoint.json",
            "tensors.safetensors",
        }
        content = json.loads((folder / "checkpoint.json").read_text())
        held[name] = {k: v for k, v in content.items() if k not in ("run", "ledger", "digest")}
    assert held["one"] == held["other"]  # nothing in the text depends on the data


def test_hazard_23_weights_in_a_checkpoint_have_all_their_noise(tmp_path):
    """Rows that no batch has touched must be noised as well."""
    nothing = sparse.csr_matrix((30, 6), dtype=np.float32)
    method = adadps.adadps(FREQUENT, NOISY, lr=0.1)
    run = advance(begin(tmp_path, method, features=nothing, steps=8), until=5)
    before = Checkpoints(tmp_path).latest().params["weight"]
    start = model().weight.detach()
    moved = before != start  # on its grid one number of some thousand stays, but not three
    assert bool(moved.any(0).all())
    assert torch.equal(begin(tmp_path, method, features=nothing, steps=8).params["weight"], before)
    del run


def test_the_folder_of_a_run_is_shown_as_its_ledger(tmp_path):
    advance(begin(tmp_path), until=5)
    shown = adadps.accounting.ledger.summary.summarise(tmp_path)
    assert shown == adadps.accounting.ledger.summary.summarise(tmp_path / "ledger")
    assert shown["entries"] == 5


def test_only_the_newest_checkpoint_is_kept(tmp_path):
    advance(begin(tmp_path))
    assert [path.name for path in tmp_path.glob("*step-*")] == ["step-00000012"]


def damage_truncate(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])


def damage_flip(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(bytes(content))


def damage_remove(folder, name):
    (folder / name).unlink()


@pytest.mark.parametrize("name", ["checkpoint.json", "tensors.safetensors"])
@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_remove])
def test_hazard_23_a_damaged_checkpoint_is_refused_and_left_as_it_is(tmp_path, damage, name):
    advance(begin(tmp_path), until=5)
    damage(newest(tmp_path), name)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(DataError, match="step-00000004"):
        begin(tmp_path)
    after = sorted(path.name for path in tmp_path.rglob("*"))
    assert [name for name in before if "ledger" not in name] == [
        name for name in after if "ledger" not in name
    ]


def test_a_full_disk_is_told_and_loses_nothing(tmp_path, monkeypatch):
    run = begin(tmp_path)

    def full(*_arguments):
        raise SafetensorError("I/O error: No space left on device")  # as safetensors says it

    monkeypatch.setattr("adadps.report.result.save_file", full)
    with pytest.raises(DataError, match="No space"):
        advance(run)
    monkeypatch.undo()
    assert not list(tmp_path.glob(".adadps-*"))
    assert advance(begin(tmp_path)).result().privacy.steps_paid == 16


def test_a_checkpoint_says_when_it_is_due():
    assert [t for t in range(1, 11) if Checkpoints("x", every=4).is_due(t, 10)] == [4, 8, 10]
    assert [t for t in range(1, 201) if Checkpoints("x").is_due(t, 200)] == list(range(4, 201, 4))
    assert replace(Checkpoints("x"), every=3).every == 3
