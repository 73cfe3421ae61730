"""Spoiled checkpoints: a run goes on, or says why it cannot."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from adadps import (
    Accountant,
    Checkpoints,
    PrivateRun,
    dp_adam,
    examples,
    losses,
    poisson,
    privatize,
    public_examples,
    side,
)
from adadps.methods import adadps_public, dp_sgd_weighted
from adadps.training.checkpoint import digest_of
from fuzz import seeds
from fuzz.law import BreachError, ending_of

DATA = examples(torch.rand(20, 3), torch.arange(20) % 2)
NOISE = privatize(clip_norm=1.0, noise_multiplier=3.0)
TOLD = {"source": "a book", "public_because": "printed"}
KNOWN = side.frequency(side.given_frequencies([1.0, 0.5, 0.1], **TOLD), floor=0.01)
PUBLIC = public_examples(torch.rand(6, 3), torch.arange(6) % 2, batch_size=3, **TOLD)
RULE = side.RMSPropStatistics(decay=0.9, epsilon=1e-3)
METHODS = (
    dp_adam(NOISE, lr=0.1),
    adadps_public(PUBLIC, RULE, NOISE, lr=0.1),
    dp_sgd_weighted(KNOWN, NOISE, lr=0.1),
)
Write = Callable[[random.Random, Path, dict[str, bytes]], None]


def resumed(folder: Path, number: int) -> PrivateRun:
    """The run of one of the methods, begun or gone on with."""
    return PrivateRun(
        torch.nn.Linear(3, 2, bias=number != 2),
        losses.cross_entropy,
        DATA,
        method=METHODS[number],
        sampler=poisson(examples=20, expected_size=5),
        steps=6,
        accountant=Accountant.RDP,
        checkpoints=Checkpoints(folder, every=3),
    )


@cache
def begun(number: int) -> Path:
    """A folder with a checkpoint after three of six steps, and its ledger."""
    folder = seeds.workshop() / f"run-{number}"
    run = resumed(folder, number)
    for batch in run.batches():
        run.step(batch)
        if batch.index == 4:
            break
    run.ledger.close()
    return folder


def resume(rng: random.Random, folder: Path, write: Write) -> None:
    """Spoil a checkpoint, with its digest made to fit half of the time, and go on with the run."""
    number = rng.randrange(len(METHODS))
    place = folder / "run"
    shutil.copytree(begun(number), place)
    (step,) = place.glob("step-*")
    files = {file.name: file.read_bytes() for file in step.iterdir()}
    write(rng, step, files)
    if rng.random() < 0.5:
        _mend_digest(step)
    run = ending_of(lambda: resumed(place, number)).value
    if run is None:
        if not step.exists():
            raise BreachError("a checkpoint that was refused is gone")
        return
    begun_at = run.taken  # which someone who edits it on purpose may have moved
    ending_of(lambda: [run.step(batch) for batch in run.batches()])
    privacy = run.result().privacy
    run.ledger.close()
    if privacy.steps_paid < 4 + privacy.steps - begun_at:
        raise BreachError(f"{privacy.steps_paid} steps paid where more were taken")


def _mend_digest(step: Path) -> None:
    """As someone would who edits it on purpose."""
    try:
        held = json.loads((step / "checkpoint.json").read_text(encoding="utf-8"))
        held.pop("digest", None)
        held["digest"] = digest_of(held, step / "tensors.safetensors")
        (step / "checkpoint.json").write_text(json.dumps(held), encoding="utf-8")
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return
