"""What a ledger on disk costs per step of logreg-10k.

    python experiments/scripts/ledger_overhead.py [FOLDER]

One run with a ledger on disk and a budget. The time of each step and the part of it spent on the
ledger are measured together, so that changes in the speed of the machine do not matter. FOLDER
holds the ledger (default: the current folder): its disk is what is measured.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import adadps
from adadps.training import payment
from adadps_experiments.bench.contenders.ours import full, model_of
from adadps_experiments.bench.workloads import WORKLOADS

STEPS, WARM_UP = 3200, 200


def measure(folder: Path, at_once: int) -> dict[str, float]:
    """Measure the ledger's share of a step, with ``at_once`` steps reserved at a time."""
    payment.STEPS_RESERVED_AT_ONCE = at_once
    workload = WORKLOADS["logreg-10k"]
    data = workload.data()
    model = model_of(workload)
    asked: list[float] = []

    class Timed(adadps.DiskLedger):
        def authorise(self, event, **options):  # type: ignore[no-untyped-def]
            start = time.perf_counter()
            super().authorise(event, **options)
            asked.append(time.perf_counter() - start)

    with Timed(folder / "ledger", budget=adadps.Budget(50.0, 1e-6)) as ledger:
        run = adadps.PrivateRun(
            model,
            workload.loss,
            adadps.examples(data.features, data.targets),
            method=full(model),
            sampler=adadps.poisson(examples=workload.examples, expected_size=workload.batch),
            steps=STEPS,
            ledger=ledger,
        )
        steps, start = [], time.perf_counter()
        for batch in run.batches():
            run.step(batch)
            now = time.perf_counter()
            steps.append(now - start)
            start = now
    total, part = sum(steps[WARM_UP:]), sum(asked[WARM_UP:])
    return {
        "at_once": at_once,
        "steps": len(steps) - WARM_UP,
        "ms_per_step": 1e3 * total / (len(steps) - WARM_UP),
        "median_ms_per_step": 1e3 * statistics.median(steps[WARM_UP:]),
        "ledger_ms_per_step": 1e3 * part / (len(steps) - WARM_UP),
        "share": part / (total - part),
    }


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    for at_once in (1, 16):
        with tempfile.TemporaryDirectory(dir=place) as folder:
            print(json.dumps(measure(Path(folder), at_once)), flush=True)


if __name__ == "__main__":
    main()
