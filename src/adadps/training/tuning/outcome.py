"""The result of a tuning: the best trial, and what all trials cost together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadps.errors import DataError
from adadps.report.result import PrivacyStatement, Result
from adadps.report.saved_result import load_result
from adadps.training.tuning.price import Setting


@dataclass(frozen=True)
class TrialRow:
    """One trial of a fixed grid; its score is None if the model diverged."""

    setting: Setting
    score: float | None


@dataclass(frozen=True)
class TuningResult:
    """The best trial, with the price of all trials.

    ``result`` is the result of the best trial, except that its privacy statement covers the whole
    tuning. All other properties are read from that statement, so a saved result loses nothing.
    """

    result: Result

    def __post_init__(self) -> None:
        if self.result.privacy.tuning is None:
            raise DataError(
                "Expected the result of a tuning, found that of a single run. Use `load_result`."
            )

    @classmethod
    def load(cls, folder: str | Path) -> TuningResult:
        """Read what `save` wrote."""
        return cls(load_result(folder))

    def save(self, folder: str | Path) -> Path:
        """Write the best trial's weights and everything else into a new folder."""
        return self.result.save(folder)

    @property
    def privacy(self) -> PrivacyStatement:
        """The privacy statement, whose epsilon covers all trials together."""
        return self.result.privacy

    @property
    def setting(self) -> dict[str, Any]:
        """The setting of the best trial."""
        return dict(self._record["chosen"])

    @property
    def score(self) -> float | None:
        """The score of the best trial; None if its model diverged."""
        score: float | None = self._record["score"]
        return score

    @property
    def trial_epsilon(self) -> float:
        """Epsilon of the best trial's training alone. It must not be claimed as the guarantee."""
        epsilon = self._record["trial_epsilon"]
        return float("inf") if epsilon is None else float(epsilon)

    @property
    def trials(self) -> tuple[TrialRow, ...] | None:
        """Every trial of a fixed grid; None after private selection, which keeps them secret."""
        table = self._record["table"]
        if table is None:
            return None
        return tuple(TrialRow(dict(row["setting"]), row["score"]) for row in table)

    @property
    def looked_at(self) -> tuple[dict[str, str], ...]:
        """The data on which trials were compared, and how it is declared."""
        return tuple(dict(entry) for entry in self._record["looked_at"])

    @property
    def _record(self) -> dict[str, Any]:
        assert self.privacy.tuning is not None
        return self.privacy.tuning

    def __str__(self) -> str:
        lines = [str(self.privacy), f"best setting: {_words(self.setting)}", _scored(self.score)]
        if self.privacy.private:
            lines.append(f"one trial alone: ε = {self.trial_epsilon:.3f}")
        for entry in self.looked_at:
            seen = f"{entry['metric']} on {entry['data']}"
            lines.append(f"looked at: {seen} ({entry['declared']}; {entry['protection']})")
        if self._record["must_stay_secret"]:
            lines.append(f"must stay secret: {self._record['must_stay_secret']}")
        for row in self.trials or ():
            lines.append(f"  {_words(row.setting)}: {_scored(row.score)}")
        return "\n".join(lines)


def _words(setting: Setting) -> str:
    return ", ".join(f"{name} = {value}" for name, value in setting.items()) or "no settings"


def _scored(score: float | None) -> str:
    return "score: none (diverged)" if score is None else f"score: {score:.6g}"
