"""Started by torchrun: trains in a folder, and notes every batch that it has paid for and drawn."""

import json
import os
import sys
from pathlib import Path

import torch

from adadps import Checkpoints
from support import team_work as work


def main(folder, steps):
    torch.set_num_threads(1)
    run = work.run_of(
        "sparse, late",
        sigma=4.0,
        share=0.2,
        steps=steps,
        checkpoints=Checkpoints(folder / "run", every=10),
    )
    first = float(run.randomness.normal((1,)))  # in all processes, so that they stay together
    with (folder / f"diary-{work.rank()}-{os.getpid()}").open("a", buffering=1) as diary:
        diary.write(json.dumps({"noise": first, "from": run.taken}) + "\n")
        for batch in run.batches():
            diary.write(json.dumps({"step": batch.index}) + "\n")
            run.step(batch)
    if work.rank() == 0:
        result = run.result()
        privacy = result.privacy
        found = {"epsilon": privacy.epsilon, "delta": privacy.delta}
        found |= {"paid": privacy.steps_paid, "steps": privacy.steps}
        (folder / "end").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
