"""Six exact steps of every successor of the paper's methods, from its formula in plain numpy."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from adadps.methods import successors as methods
from adadps.methods.stages import Chain, inverse_sqrt
from support import successor_trajectories as formulas
from support.trajectories import BATCHES, LR, PRIVACY, RATE, Direction, descended, trained


def dp2(delay: int, reuse: int) -> Chain:
    return methods.dp2(
        PRIVACY,
        lr=LR,
        preconditioned_lr=inverse_sqrt(RATE / 2),
        delay=delay,
        reuse=reuse,
        decay=0.6,
        epsilon=0.2,
        gain=1.5,
    )


def cases() -> dict[str, tuple[Chain, Direction]]:
    return {
        "dp_adam_bc": (
            methods.dp_adam_bc(PRIVACY, lr=LR, floor=formulas.FLOOR),
            formulas.dp_adam_bc(),
        ),
        "dp_sgd_auto_clip": (
            methods.dp_sgd_auto_clip(PRIVACY, lr=LR, stability=formulas.STABILITY),
            formulas.auto_clip,
        ),
        "dp2": (dp2(delay=1, reuse=1), formulas.dp2(1, 1, 0.5)),
        "dp2 with an average of two": (dp2(delay=2, reuse=1), formulas.dp2(2, 1, 0.5)),
        "dp2 that reuses its estimate": (dp2(delay=1, reuse=2), formulas.dp2(1, 2, 0.5)),
        "scale_then_privatize": (
            methods.scale_then_privatize(PRIVACY, lr=LR, betas=(0.8, 0.7), epsilon=0.1),
            formulas.scale_then_privatize(),
        ),
        "dp_sgd_adaptive_clip": (
            methods.dp_sgd_adaptive_clip(PRIVACY, lr=LR, quantile=0.4, rate=0.7, share=0.2),
            formulas.adaptive_clip(0.4, 0.7, 0.2),
        ),
    }


@pytest.mark.parametrize("name", cases().keys())
def test_six_steps(name):
    method, direction = cases()[name]
    expected = list(descended(direction, steps=6))
    found = trained(method, batches=BATCHES * 2)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_every_successor_has_a_trajectory():
    known = {
        name
        for name, function in inspect.getmembers(methods, inspect.isfunction)
        if function.__module__ == methods.__name__
    }
    assert {name.split()[0] for name in cases()} == known
