"""Trains by `fit(processes=...)` in a folder, and notes every step that was taken."""

import json
import os
import sys
from pathlib import Path

import torch

from adadps import Checkpoints, dp_sgd, examples, fit, on_public, poisson, privatize
from adadps.engine.losses import cross_entropy
from adadps.types import Accountant
from support import team_work as work


class Diary:
    """A metric of the first worker: one line a step."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, _outputs, _targets):
        with (self.folder / f"diary-0-{os.getpid()}").open("a") as diary:
            diary.write("taken\n")
        return 0.0


def main(folder, steps, processes):
    model, data = work.sparse_problem()
    few = torch.zeros(1, work.WORDS), torch.zeros(1, dtype=torch.int64)
    privacy = fit(
        model,
        cross_entropy,
        examples(*data),
        method=dp_sgd(privatize(clip_norm=0.5, noise_multiplier=4.0), lr=0.5),
        sampler=poisson(examples=work.ROWS, expected_size=0.2 * work.ROWS),
        steps=steps,
        accountant=Accountant.RDP,
        checkpoints=Checkpoints(folder / "run", every=10),
        evaluate=[on_public("diary", *few, every=1, noted=Diary(folder))],
        processes=processes,
    ).privacy
    found = {"epsilon": privacy.epsilon, "delta": privacy.delta}
    found |= {"paid": privacy.steps_paid, "steps": privacy.steps}
    (folder / "end").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
