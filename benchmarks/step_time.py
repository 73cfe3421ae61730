"""Time of one training step, side by side in one run: ours, and the same model without privacy.

    make bench

Prints a table of milliseconds a step and ratios to plain torch. Ratios are what counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import sparse
from torch import nn
from torch.nn import functional

from adadps import PrivateRun, adadps, chain, dp_adam, dp_sgd, examples, poisson, privatize, side
from adadps.gradients.general import GeneralEngine
from adadps.stages import average, sgd

PRIVACY = privatize(clip_norm=1.0, noise_multiplier=1.0)
Step = Callable[[], None]


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def bag_of_words(rows: int, words: int, classes: int) -> tuple[sparse.csr_matrix, np.ndarray]:
    """About 35 Zipf-distributed words a row."""
    rng = np.random.default_rng(0)
    columns = np.minimum(rng.zipf(1.3, size=(rows, 35)) - 1, words - 1)
    entries = (np.ones(columns.size, dtype=np.float32), columns.ravel())
    matrix = sparse.csr_matrix((*entries, np.arange(rows + 1) * 35), shape=(rows, words))
    return matrix, rng.integers(classes, size=rows)


def torch_step(model: nn.Module, features: torch.Tensor, targets: torch.Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(features), targets).backward()
        optimizer.step()

    return step


def our_step(model: nn.Module, data, method, batch: int, *, general: bool = False) -> Step:
    run = PrivateRun(
        model,
        cross_entropy,
        data,
        method=method,
        sampler=poisson(examples=len(data), expected_size=batch),
        steps=1000,
    )
    if general:
        run.objective = type(run.objective)(model, GeneralEngine(model, cross_entropy))
    batches = run.batches()
    return lambda: run.step(next(batches))


def milliseconds(step: Step, repeats: int) -> float:
    step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def linear_workload(batch: int) -> dict[str, tuple[Step, int]]:
    words, classes = 10_000, 57
    matrix, labels = bag_of_words(4096, words, classes)
    data = examples(matrix, labels)
    dense = torch.from_numpy(matrix[:batch].toarray())
    weights = torch.linspace(0.1, 1.0, words)
    by_feature = side.fixed({"weight": (weights, 1)}, source="bench", public_because="made up")
    full = side.fixed(
        {"weight": weights.expand(classes, words)}, source="bench", public_because="made up"
    )

    def ours(method, general=False):
        return our_step(nn.Linear(words, classes), data, method, batch, general=general)

    targets = torch.from_numpy(labels[:batch])
    return {
        "torch, dense, no privacy": (torch_step(nn.Linear(words, classes), dense, targets), 10),
        "ours, no privacy": (ours(chain(average(), sgd(0.1))), 10),
        "DP-SGD": (ours(dp_sgd(PRIVACY, 0.1)), 10),
        "AdaDPS, A by feature": (ours(adadps(by_feature, PRIVACY, 0.1)), 10),
        "AdaDPS, full A": (ours(adadps(full, PRIVACY, 0.1)), 10),
        "DP-Adam": (ours(dp_adam(PRIVACY, 0.1)), 10),
        "DP-SGD, general engine": (ours(dp_sgd(PRIVACY, 0.1), general=True), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {
        name: milliseconds(step, repeats)
        for name, (step, repeats) in linear_workload(options.batch_size).items()
    }
    base = found["torch, dense, no privacy"]
    title = f"One step, linear 10,000 x 57, ~35 words a row, batch {options.batch_size}"
    table = Table("contender", "ms a step", "ratio to torch", title=title)
    for name, value in found.items():
        table.add_row(name, f"{value:.1f}", f"{value / base:.2f}")
    Console().print(table)
    if options.json:
        rows = [{"contender": name, "ms_per_step": value} for name, value in found.items()]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
