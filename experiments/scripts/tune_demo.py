"""Tune the demo: the same number of trials for each method, on a fold of the training data.

One line per trial is appended to a file, and trials that are there are skipped, so that tuning can
be stopped and resumed. At the end the trials and the winners are written where the demo reads them.

    python experiments/scripts/tune_demo.py --epsilon 1 --trials demo-trials.jsonl

With --dampened the features are log(1 + count), and the summary goes to --summary instead.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from adadps.cli.demo import CONTENDERS, STEPS, load_data, noise_for, train
from adadps.files import write_json
from adadps_experiments.reproduce.results import Setting

RECORDED = Path(__file__).parents[2] / "src/adadps/cli/demo/recorded.json"

SHAPES = ((0.03, 0.5), (0.1, 1.0), (0.01, 1.0))  # floor and power of A
LENGTHS = (5.0, 8.0, 12.0, 16.0, 20.0, 28.0)  # lr · C: the length of a step along clipped gradients

GRIDS: dict[str, list[Setting]] = {
    "DP-SGD": [
        {"clip_norm": clip, "lr": length / clip} for clip in (0.3, 1.0) for length in LENGTHS
    ],
    "DP-Adam": [
        {"clip_norm": clip, "lr": lr}
        for clip in (0.3, 1.0)
        for lr in (0.03, 0.045, 0.06, 0.08, 0.1, 0.12)
    ],
    "AdaDPS, before the clip": [
        {"clip_norm": 2.0, "lr": length / 2.0, "floor": floor, "power": power}
        for floor, power in SHAPES
        for length in LENGTHS[1:5]
    ],
    "AdaDPS, two-sided": [  # the scale after the noise is about 1/floor^power: take it out of lr
        {"clip_norm": 2.0, "lr": length / 2.0 * floor**0.5, "floor": floor, "power": 0.5}
        for floor in (0.1, 0.03, 0.01)
        for length in LENGTHS[1:5]
    ],
    "DP-SGD, weighted features": [
        {"clip_norm": 0.3, "lr": length / 0.3, "floor": floor, "power": power}
        for floor, power in SHAPES
        for length in LENGTHS[1:5]
    ],
    "Adam, no privacy": [
        {"lr": lr}
        for lr in (2e-3, 4e-3, 8e-3, 1e-2, 1.5e-2, 2e-2, 3e-2, 0.04, 0.06, 0.08, 0.12, 0.16)
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--trials", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="only these methods; the summary needs all")
    parser.add_argument("--dampened", action="store_true")
    parser.add_argument("--summary", type=Path, default=RECORDED)
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = _read(options.trials)
    data = load_data(dampened=options.dampened, tuning=True)
    sigma = noise_for(data, options.epsilon)
    for contender in CONTENDERS:
        if options.only and contender.name not in options.only:
            continue
        for setting in GRIDS[contender.name]:
            key = json.dumps([contender.name, setting], sort_keys=True)
            if key not in done:
                result, seconds = train(contender, setting, sigma, data)
                done[key] = result.last("accuracy")
                with options.trials.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "accuracy": done[key]}) + "\n")
                print(f"{key}: {done[key]:.4f} ({seconds:.0f} s)", flush=True)
    if not options.only:
        write_json(options.summary, _summary(done, options))


def _read(path: Path) -> dict[str, float]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["key"]: line["accuracy"] for line in lines}


def _summary(done: dict[str, float], options: argparse.Namespace) -> dict[str, object]:
    contenders = {}
    for name, grid in GRIDS.items():
        trials = [
            {
                "setting": setting,
                "accuracy": done[json.dumps([name, setting], sort_keys=True)],
            }
            for setting in grid
        ]
        best = max(trials, key=lambda trial: trial["accuracy"])
        contenders[name] = {"winner": best["setting"], "trials": trials}
    return {
        "command": "python experiments/scripts/tune_demo.py "
        f"--epsilon {options.epsilon:g} --trials FILE"
        + (" --dampened --summary FILE" if options.dampened else ""),
        "tuned_on": f"accuracy after {STEPS} steps on a fold of the training data, split by "
        "source; the test packages were not read",
        "contenders": contenders,
    }


if __name__ == "__main__":
    main()
