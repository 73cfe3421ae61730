"""Where the time of a private step goes, on one thread, so that the parts add up.

python experiments/scripts/profile_step.py logreg-10k autoencoder-64 autoencoder-256 embedding-bag
"""

import statistics
import sys
import time
import warnings
from collections import defaultdict

import torch

import adadps
from adadps.engine import ghost
from adadps.engine.by_example import PassByExample
from adadps.engine.noise import late, normals
from adadps.engine.noise import randomness as noise
from adadps.engine.rules import layered, sequence
from adadps.tensors import loops, sums
from adadps_experiments.bench.contenders import CONTENDERS, ours
from adadps_experiments.bench.contenders.plain import has_sparse_form
from adadps_experiments.bench.workloads import WORKLOADS

SPENT: dict[str, float] = defaultdict(float)
INSIDE: list[float] = []


def watched(owner, name, label):
    """Add the time of calls to ``label``, excluding watched calls inside them."""
    function = getattr(owner, name)

    def call(*arguments, **options):
        INSIDE.append(0.0)
        begin = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            taken, within = time.perf_counter() - begin, INSIDE.pop()
            SPENT[label] += taken - within
            if INSIDE:
                INSIDE[-1] += taken

    setattr(owner, name, call)


def watch():
    watched(normals, "draw_normals", "normals: AES and Box-Muller")
    watched(normals, "box_muller", "normals: Box-Muller")  # where OpenSSL encrypts
    watched(normals._BlockBuffer, "draw", "normals: OpenSSL's AES, Python")
    watched(late, "release_rows", "rows: change, noise, grid, write")
    watched(noise, "_add_noised", "dense: noise, grid, write")
    watched(sums.OuterSum, "entries", "dense: clipped sum")
    watched(layered.LayeredGradients, "norms", "norms")
    watched(ghost, "output_gradients", "loss")
    watched(sequence.LayerSequence, "layer_calls", "forward and backward")
    watched(PassByExample, "gradients", "forward and backward")


def step_of(workload, contender):
    """Return the time of a step of another contender, in ms."""
    running = CONTENDERS[contender].prepare(workload, workload.data())()
    return timed(running.step)


def timed(step, seconds=3.0):
    for _ in range(5):
        step()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        step()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main(names):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    loops.usable_cores = lambda: 1  # no noise is drawn ahead
    watch()
    for name in names:
        workload = WORKLOADS[name]
        data = workload.data()
        held = adadps.examples(data.features, data.targets)
        run = ours.private_run(workload, held, ours.full, ours.MOST_STEPS)
        batches = run.batches()
        for _ in range(10):
            run.step(next(batches))
        SPENT.clear()
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < 5:
            run.step(next(batches))
            steps += 1
        whole = 1000 * (time.perf_counter() - begin) / steps
        print(f"\n{name}: {whole:.2f} ms per step, one thread\n")
        print("| part | ms |\n|---|---|")
        for label, seconds in sorted(SPENT.items(), key=lambda item: -item[1]):
            print(f"| {label} | {1000 * seconds / steps:.2f} |")
        rest = whole - 1000 * sum(SPENT.values()) / steps
        print(f"| the rest (batch, ledger, chain, Python) | {rest:.2f} |")
        others = ["torch", *(["torch-sparse"] if has_sparse_form(workload) else [])]
        for contender in others:
            print(f"| beside it: {contender}, no privacy | {step_of(workload, contender):.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
