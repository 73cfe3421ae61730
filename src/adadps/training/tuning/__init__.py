"""Tuning that is paid for: a fixed grid, composed, or private selection.

Every trial on private data costs privacy, and so does looking at the scores. `tune` checks that the
budget covers all trials before the first one draws anything. Its result states the total.
"""

from adadps.training.tuning.outcome import TrialRow, TuningResult
from adadps.training.tuning.price import calibrate_tuning
from adadps.training.tuning.score import highest, lowest, private_accuracy
from adadps.training.tuning.search import tune
from adadps.training.tuning.selection import fixed_grid, private_selection

__all__ = [
    "TrialRow",
    "TuningResult",
    "calibrate_tuning",
    "fixed_grid",
    "highest",
    "lowest",
    "private_accuracy",
    "private_selection",
    "tune",
]
