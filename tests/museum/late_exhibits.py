"""The museum of late noise: rows with pending noise that they do not get.

The library trains as it is, with another history of steps in `adadps.engine.noise.late`. Half of
the canaries are not in the data: nothing reads their rows before the end. The others are in about
every second batch, and their noise is pending in between.
"""

from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from adadps.audit.built_in import CanarySettings
from adadps.engine.noise import late

CONFIDENCE = 1 - 1e-6
"""A true claim is called broken once in a million audits."""

WAITING = {"epsilon": 1.5, "delta": 1e-12, "steps": 64, "rate": 0.5}

Past = late._StepHistory


class NeverDrawn(Past):
    """Rows whose noise was pending for more than one step get none."""

    def gathered(self, since):
        kept, deviation = super().gathered(since)
        return kept, np.where(since < self.now - 1, 0.0, deviation)


class OneStepsWorth(Past):
    """Rows whose noise was pending for more than one step get that of the last step only."""

    def gathered(self, since):
        kept, deviation = super().gathered(since)
        _, last = super().gathered(np.full_like(since, self.now - 1))
        return kept, np.minimum(deviation, last)


@dataclass(frozen=True)
class LateExhibit:
    what: str
    broken: type[Past]
    intact: type[Past] = Past
    method: str = "dp-sgd"
    canaries: int = 1000

    def audited(self, past, factor=1):
        asked = CanarySettings(
            method=self.method, path="late", canaries=factor * self.canaries, **WAITING
        )
        with patch.object(late, "_StepHistory", past):
            return asked.audit(confidence=CONFIDENCE)


NEVER, ONE = "late noise never drawn", "one step of late noise drawn"

LATE_EXHIBITS = {
    NEVER: lambda: LateExhibit(NEVER, NeverDrawn),
    ONE: lambda: LateExhibit(ONE, OneStepsWorth),
}
