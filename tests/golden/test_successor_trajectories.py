"""Three exact steps of every successor of the paper's methods, from its formula in plain numpy."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from adadps.methods import successors as methods
from adadps.methods.stages import Chain
from support import successor_trajectories as formulas
from support.trajectories import LR, PRIVACY, Direction, descended, trained


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
    }


@pytest.mark.parametrize("name", cases().keys())
def test_three_steps(name):
    method, direction = cases()[name]
    expected = list(descended(direction))
    np.testing.assert_allclose(trained(method), expected, rtol=1e-9, atol=1e-12)


def test_every_successor_has_a_trajectory():
    known = {
        name
        for name, function in inspect.getmembers(methods, inspect.isfunction)
        if function.__module__ == methods.__name__
    }
    assert {name.split()[0] for name in cases()} == known
