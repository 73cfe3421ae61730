"""What a fitted estimator states about privacy, and what of it survives clones and copies."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import Any, Self

from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from adadps.accounting.ledger import DiskLedger, Ledger, MemoryLedger
from adadps.errors import DataError, PrivacyWarning
from adadps.estimators.text import counted
from adadps.estimators.vectorizer import PublicVectorizer
from adadps.files import forks
from adadps.report.result import PrivacyStatement, Result
from adadps.training.processes import own_ledger

UNCOUNTED = (
    "This estimator, or one of its clones, was sent to another process (n_jobs > 1, a pickle, a "
    "fork), where fits are not counted: the statement says that the number of trials is not known. "
    "Give `ledger=path`, which all processes pay from, or declare `tuning_trials`."
)
FITTED_BEFORE = (
    "whatever was fitted to make the features, such as scalers, vectorizers or a selection of "
    "columns: an estimator cannot see it, and epsilon does not cover it"
)
_COUNTING = Lock()


def how_features_were_made(side: Any) -> str:
    """Return what is assumed public about the steps before an estimator, which it cannot see.

    Side information from a `PublicVectorizer` is about the features that the vectorizer makes.

    >>> how_features_were_made(PublicVectorizer(words=500))
    'that the features are those of PublicVectorizer, which is fitted to nothing (500 public words)'
    """
    if not isinstance(side, PublicVectorizer):
        return FITTED_BEFORE
    words = side.public_words()
    parts = [counted(words)] if words else []
    parts += [f"{vectors.name} embeddings" for vectors in side.public_vectors()]
    to = "nothing" if side.public_texts is None else side.public_texts.source
    made = f"which is fitted to {to} ({' and '.join(parts)})"
    return f"that the features are those of PublicVectorizer, {made}"


class StatedEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator with a result, a ledger, and a count of the fits of its clones."""

    result_: Result
    _fit_count: FitCount
    _ledger: MemoryLedger | None
    _ledger_identity: str
    _ledger_path: Path | None

    @property
    def privacy_(self) -> PrivacyStatement:
        """Return the privacy statement of the model."""
        check_is_fitted(self, "result_")
        held: Result = self.result_
        return held.privacy

    @property
    def epsilon_(self) -> float:
        """Return the claimed epsilon: of this run, or of the whole budget beside other runs."""
        return self.privacy_.epsilon

    @property
    def delta_(self) -> float:
        """Return the delta at which epsilon is stated."""
        return self.privacy_.delta

    @property
    def ledger_(self) -> Ledger:
        """Return the ledger in memory, or open the one at its path: close it after use."""
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
        self._ledger_identity, own = ledger.identity, own_ledger(ledger)
        self._ledger = own if isinstance(own, MemoryLedger) else None
        self._ledger_path = own.path.absolute() if isinstance(own, DiskLedger) else None

    def _trials(self, ledger: Ledger, *, continued: bool) -> int | None:
        """Return the declared or counted trials, whichever are more; None if unknown.

        A model that continues its training gives no warning: saving it in between is common.
        """
        declared = None if self.tuning_trials is None else int(self.tuning_trials)
        on_disk = isinstance(own_ledger(ledger), DiskLedger)
        count = self._shared_fit_count()
        trials = count.trials(declared, ledger=ledger.identity)
        if trials is None and count.elsewhere and not (continued or on_disk):
            warnings.warn(UNCOUNTED, PrivacyWarning, stacklevel=6)  # of `fit`
        return trials

    def _shared_fit_count(self) -> FitCount:
        if not hasattr(self, "_fit_count"):
            self._fit_count = FitCount()
        return self._fit_count

    def __sklearn_clone__(self) -> Self:
        count = self._shared_fit_count()
        clone: Self = super().__sklearn_clone__()
        clone._fit_count = count
        return clone

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the ledger, a copy of which could be spent twice."""
        self._shared_fit_count()  # so that the copy shares it
        state = dict(super().__getstate__())
        return {name: value for name, value in state.items() if name != "_ledger"}


class FitCount:
    """How many fits an estimator and its clones have made, and which ledger paid for each.

    Clones in one process share it; fits in another process are not seen here.

    >>> count = FitCount()
    >>> for ledger in ("a", "b", "b"):
    ...     count.add(ledger)
    >>> count.trials(None, ledger="b"), count.trials(0, ledger="c")
    (2, 4)
    """

    def __init__(self, fits: Counter[str] | None = None, *, sent: bool = False) -> None:
        self.fits = Counter(fits)
        self._sent = sent
        self._forks = forks()

    def add(self, ledger: str) -> None:
        """Count a fit that this ledger has paid; searches may fit in several threads at once."""
        with _COUNTING:
            self.fits[ledger] += 1

    @property
    def elsewhere(self) -> bool:
        """Return whether clones may be fitted in another process, as by n_jobs > 1.

        After a pickle or a fork there may be clones on either side of it.
        """
        return self._sent or self._forks != forks()

    def trials(self, declared: int | None, *, ledger: str) -> int | None:
        """Return how many fits epsilon does not cover, the present one included.

        Epsilon covers the fits that the same ``ledger`` has paid, and no others. None is unknown:
        there may be fits that were not counted. A declared number is accepted unless more fits
        were counted.
        """
        with _COUNTING:
            others = self.fits.total() - self.fits[ledger]
        counted = others + 1 if others else 0
        if self.elsewhere:
            return declared if declared and declared >= counted else None
        return max(declared or 0, counted) if counted else declared

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        self._sent = True
        return _unpickled, (dict(self.fits),)


def _unpickled(fits: dict[str, int]) -> FitCount:
    return FitCount(Counter(fits), sent=True)
