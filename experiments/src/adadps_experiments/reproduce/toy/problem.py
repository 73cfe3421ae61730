"""The toy problem of the paper (figure "toy"): linear regression with frequent and rare features.

1,000 examples with 500 binary features: the first 50 are 1 in 90 % of the examples and matter
little (w = 0.01), the other 450 are 1 in 1 % of them and matter much (w = 1). Side information is
which features are frequent: A = 1 for those, 0.01 for the rest. Left panel: SGD and AdaS without
privacy. Right panel: DP-SGD and AdaDPS at the same epsilon.

The loss shown is the *training* loss, as in the paper; the data is synthetic, hence public. The
paper's N(0, 0.01) for the label noise is read as a standard deviation of 0.01; read as a variance,
both methods without privacy end at the noise floor of 0.0025 (docs/decisions/toy-label-noise.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adadps.accounting.events import without_delta_warning
from adadps.accounting.samplers import poisson
from adadps.data.examples import Examples, examples
from adadps.methods.paper import adadps, adas, dp_sgd, plain_sgd
from adadps.methods.side import fixed
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain, privatize
from adadps.report.result import Result
from adadps.training.evaluation import on_public
from adadps.training.fit import fit
from adadps.types import Accountant
from adadps_experiments.reproduce.records import Record
from adadps_experiments.reproduce.results import Setting

EXAMPLES, FEATURES, FREQUENT = 1000, 500, 50
BATCH, DELTA, SIGMA = 8, 1e-3, 0.7
LABEL_NOISE = 0.01
PRIVATE_STEPS, PLAIN_STEPS, POINTS = 2250, 40_000, 50

SAMPLER = poisson(examples=EXAMPLES, expected_size=BATCH)


@dataclass(frozen=True)
class ToyMethod:
    """One line of the figure: a method, and how its chain is built from a setting."""

    name: str
    side: str
    private: bool
    build: Callable[[Setting], Chain]

    @property
    def steps(self) -> int:
        """Return the number of training steps."""
        return PRIVATE_STEPS if self.private else PLAIN_STEPS


def toy_data(seed: int, label_noise: float = LABEL_NOISE) -> Examples:
    """Draw the data of one run; ``label_noise`` is a standard deviation.

    >>> toy_data(0).features.shape
    torch.Size([1000, 500])
    """
    rng = np.random.default_rng(seed)
    frequent = np.arange(FEATURES) < FREQUENT
    features = rng.random((EXAMPLES, FEATURES)) < np.where(frequent, 0.9, 0.01)
    targets = features @ np.where(frequent, 0.01, 1.0) + rng.normal(0, label_noise, EXAMPLES)
    return examples(features.astype(np.float32), targets.astype(np.float32))


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return ½ (wᵀx - y)² for every example."""
    return 0.5 * (outputs.squeeze(1) - targets).square()


def frequent_or_rare() -> Fixed:
    """Return side information with A = 1 for frequent features and 0.01 for rare ones."""
    diagonal = torch.where(torch.arange(FEATURES) < FREQUENT, 1.0, 0.01)
    return fixed(
        {"weight": (diagonal, 1)},
        source="which features are frequent: A = 1 or 0.01",
        public_because="known to the model's engineers",
    )


def _privacy(setting: Setting) -> Any:
    return privatize(clip_norm=setting["clip_norm"], noise_multiplier=SIGMA)


TOY_METHODS = (
    ToyMethod("sgd", "none", False, lambda s: plain_sgd(s["lr"])),
    ToyMethod("adas", "frequent or rare", False, lambda s: adas(frequent_or_rare(), s["lr"])),
    ToyMethod("dp-sgd", "none", True, lambda s: dp_sgd(_privacy(s), lr=s["lr"])),
    ToyMethod(
        "adadps",
        "frequent or rare",
        True,
        lambda s: adadps(frequent_or_rare(), _privacy(s), lr=s["lr"]),
    ),
)

# For `adadps reproduce toy --tune`: the methods of a panel have the same number of trials.
GRIDS: dict[str, list[Setting]] = {
    "sgd": [{"lr": lr} for lr in (0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06)],
    "adas": [{"lr": lr} for lr in (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005)],
    "dp-sgd": [
        {"clip_norm": clip, "lr": step / clip}
        for clip in (0.5, 2.0, 10.0)
        for step in (0.05, 0.075, 0.1, 0.125)
    ],
    "adadps": [
        {"clip_norm": clip, "lr": step / clip}
        for clip in (2.0, 10.0, 50.0)
        for step in (0.05, 0.075, 0.1, 0.125)
    ],
}


def run(method: ToyMethod, setting: Setting, seed: int, steps: int | None = None) -> Result:
    """Train one method on the data of one seed; private sampling and noise have no seed."""
    data, count = toy_data(seed), steps or method.steps
    model = nn.Linear(FEATURES, 1, bias=False)
    nn.init.zeros_(model.weight)
    shown = on_public(
        "training (synthetic)",
        data.features,
        data.targets,
        every=max(1, count // POINTS),
        loss=lambda outputs, targets: float(half_squared_error(outputs, targets).mean()),
    )
    with without_delta_warning():
        return fit(
            model,
            half_squared_error,
            data,
            method=method.build(setting),
            sampler=SAMPLER,
            steps=count,
            delta=DELTA,
            accountant=Accountant.RDP,
            evaluate=[shown],
            progress=False,
        )


def job_of(method: ToyMethod, setting: Setting, seed: int, steps: int | None) -> Record:
    """Describe everything that a run depends on except randomness."""
    return {
        "dataset": "toy regression",
        "method": method.name,
        "setting": dict(setting),
        "steps": steps or method.steps,
        "batch": BATCH,
        "noise_multiplier": SIGMA if method.private else None,
        "label_noise": LABEL_NOISE,
        "seed": seed,
    }


def record_of(name: str, setting: Setting, seed: int, steps: int | None) -> Record:
    """Run a job and return its record."""
    method = method_named(name)
    result = run(method, setting, seed, steps)
    return {
        "job": job_of(method, setting, seed, steps),
        "loss": _finite(result.last("loss")),
        "curve": [[entry.step, _finite(entry.value)] for entry in result.history],
    }


def method_named(name: str) -> ToyMethod:
    """Return the method of this name."""
    return next(method for method in TOY_METHODS if method.name == name)


def _finite(value: float) -> float | None:
    """Return the loss, or None if it is not finite."""
    return value if math.isfinite(value) else None
