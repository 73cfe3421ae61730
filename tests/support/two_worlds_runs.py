"""Private runs of any kind, as the tests of two worlds and of their controls begin them."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from adadps import (
    Accountant,
    Checkpoints,
    DiskLedger,
    PrivateRun,
    Relation,
    dp_adam,
    methods,
    on_held_out,
    privatize,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.methods.stages import average_weights, by_label, chain, sgd, update_with
from support.problems import cross_entropy
from support.two_worlds import metrics
from support.two_worlds_problems import CLIP, SAMPLERS, SIGMA, relation_of

BY_NAME = {
    "dp_adam": lambda release: dp_adam(release, lr=0.1),
    "dp_adam_bc": lambda release: methods.dp_adam_bc(release, lr=0.1),
    "auto clip": lambda release: methods.dp_sgd_auto_clip(release, lr=0.5),
    "adaptive clip": lambda release: methods.dp_sgd_adaptive_clip(release, lr=0.5),
    "dp2": lambda release: methods.dp2(release, lr=0.5, preconditioned_lr=0.1, delay=1),
    "adamw, averaged": lambda release: chain(
        release, update_with(torch.optim.AdamW, lr=0.1), average_weights(0.5)
    ),
    "scaled": lambda release: methods.scale_then_privatize(release, lr=0.1),
}


@dataclass(frozen=True)
class Options:
    """Of a run by `PrivateRun`."""

    sampler: str
    method: str
    checkpoints: bool
    ledger: str
    physical_batch_size: int | None
    grouped: bool
    steps: int

    def chain(self, release):
        if self.method in BY_NAME:
            return BY_NAME[self.method](release)
        return chain(release, sgd(0.5, weight_decay=0.1 if self.method == "decay" else 0.0))


OPTIONS = st.builds(
    Options,
    sampler=st.sampled_from(list(SAMPLERS)),
    method=st.sampled_from(["dp_sgd", "decay", *BY_NAME]),
    checkpoints=st.booleans(),
    ledger=st.sampled_from(["memory", "disk"]),
    physical_batch_size=st.sampled_from([None, 1, 2]),
    grouped=st.booleans(),
    steps=st.integers(1, 3),
)


def run_of(kind, options, size):
    """A private run of any kind, from examples to what it tells."""
    sampler = SAMPLERS[options.sampler](size)
    grouped = options.grouped and sampler.relation is Relation.ADD_OR_REMOVE_ONE
    release = privatize(
        clip_norm=CLIP, noise_multiplier=SIGMA, groups=by_label(size=2) if grouped else None
    )

    method = options.chain(release)

    def pipeline(world, given):
        rows, labels = given
        data = kind.examples(rows, labels)
        torch.manual_seed(1)
        model = kind.model()
        ledger = DiskLedger(world.folder / "paid") if options.ledger == "disk" else MemoryLedger()
        run = PrivateRun(
            model,
            cross_entropy,
            data,
            method=method,
            sampler=sampler,
            steps=max(options.steps, 2 if options.method == "dp2" else 1),  # longer than its delay
            accountant=Accountant.RDP,
            ledger=ledger,
            physical_batch_size=options.physical_batch_size,
            checkpoints=Checkpoints(world.folder / "kept", 1) if options.checkpoints else None,
        )
        held_out = on_held_out("test", kind.features([rows[0]]), labels[:1], **metrics())
        for batch in run.batches():
            world.tell(batch)
            world.look()
            run.step(batch)
            run.evaluate(held_out)
        world.tell(data, run.history, run.taken, run.epsilon(), run.ledger.entries)
        result = run.result()
        result.save(world.folder / "result")
        world.take(model)
        world.tell(result.privacy, result.describe())

    return pipeline, relation_of(sampler)
