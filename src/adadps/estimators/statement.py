"""What a fitted estimator says about privacy, and what of it survives clones and copies."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Self

from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from adadps.accounting.ledger import DiskLedger, Ledger, MemoryLedger
from adadps.errors import DataError, PrivacyWarning
from adadps.estimators.siblings import Siblings
from adadps.estimators.vectorizer import PublicVectorizer
from adadps.report.result import PrivacyStatement, Result

UNCOUNTED = (
    "This estimator, or one of its family, was sent to another process (n_jobs > 1, a pickle, a "
    "fork), where fits are not counted: the statement says that the number of trials is not known. "
    "Give `ledger=path`, which all processes pay from, or declare `tuning_trials`."
)
FITTED_BEFORE = (
    "whatever was fitted to make the features, such as scalers, vectorizers or a selection of "
    "columns: an estimator cannot see it, and epsilon does not cover it"
)


def how_features_were_made(side: Any) -> str:
    """What is assumed public about the steps before an estimator, which it cannot see.

    Side information that comes from a `PublicVectorizer` is about the features that this makes.

    >>> how_features_were_made(PublicVectorizer(words=500))
    'that the features are those of PublicVectorizer, which is fitted to nothing (500 public words)'
    """
    if not isinstance(side, PublicVectorizer):
        return FITTED_BEFORE
    words = f"{len(side.get_feature_names_out())} public words"
    return f"that the features are those of PublicVectorizer, which is fitted to nothing ({words})"


class StatedEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator with a result, a ledger, and a count of the fits of its clones."""

    result_: Result
    _family: Siblings
    _ledger: MemoryLedger | None
    _ledger_identity: str
    _ledger_path: Path | None

    @property
    def privacy_(self) -> PrivacyStatement:
        """What may be said about privacy."""
        check_is_fitted(self, "result_")
        held: Result = self.result_
        return held.privacy

    @property
    def epsilon_(self) -> float:
        """What may be claimed: epsilon of this run, or the whole budget if there were others."""
        return self.privacy_.epsilon

    @property
    def delta_(self) -> float:
        """The delta at which epsilon is stated."""
        return self.privacy_.delta

    @property
    def ledger_(self) -> Ledger:
        """The ledger in memory, or the one at its path, opened anew: close it after use."""
        check_is_fitted(self, "result_")
        path = self._ledger_path
        if path is not None:
            if not os.path.exists(path):
                raise DataError(f"Expected the ledger {path}, found none. Put it back in place.")
            return DiskLedger(path)
        held: MemoryLedger | None = getattr(self, "_ledger", None)
        if held is None:
            raise NotFittedError(
                "Expected the ledger of this model, found a copy of the model without it: a ledger "
                "in memory stays with the object that was trained. The statement is in `privacy_`."
            )
        return held

    def _remember_ledger(self, ledger: Ledger) -> None:
        self._ledger_identity = ledger.identity
        self._ledger = ledger if isinstance(ledger, MemoryLedger) else None
        self._ledger_path = ledger.path.absolute() if isinstance(ledger, DiskLedger) else None

    def _trials(self, ledger: Ledger, *, going_on: bool) -> int | None:
        """What is declared, or what was counted if that is more; None is unknown.

        A model that goes on is not warned of: that it was saved in between is nothing unusual.
        """
        declared = None if self.tuning_trials is None else int(self.tuning_trials)
        on_disk = isinstance(ledger, DiskLedger)
        family = self._siblings()
        trials = family.trials(declared, ledger=ledger.identity)
        if trials is None and family.elsewhere and not (going_on or on_disk):
            warnings.warn(UNCOUNTED, PrivacyWarning, stacklevel=4)
        return trials

    def _siblings(self) -> Siblings:
        if not hasattr(self, "_family"):
            self._family = Siblings()
        return self._family

    def __sklearn_clone__(self) -> Self:
        family = self._siblings()
        twin: Self = super().__sklearn_clone__()
        twin._family = family
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Without the ledger: a copy of it could be spent twice."""
        self._siblings()  # so that the copy is known to be one
        state = dict(super().__getstate__())
        return {name: value for name, value in state.items() if name != "_ledger"}
