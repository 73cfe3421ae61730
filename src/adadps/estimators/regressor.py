"""A private regressor for scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data
from torch import nn

from adadps.accounting.noisy_counts.price import CountedColumns, Price
from adadps.data.bounds import Bounds
from adadps.engine.losses import Loss, squared_error
from adadps.engine.noise.randomness import secure
from adadps.estimators.base import PrivateEstimator
from adadps.estimators.checks import refuse
from adadps.estimators.learning_task import LearningTask
from adadps.estimators.paid import (
    MeasuredFacts,
    bounds_with_noise,
    is_paid,
    warn_of_reading,
)
from adadps.estimators.planner.plan import RULE, LossFacts
from adadps.estimators.rows import RowScaling, Table
from adadps.types import Accountant

CONSTANT = 0.5
"""Size of the constant feature that replaces an intercept."""
OUTPUT_NOISE = 0.05
"""Noise that an output may have, where targets lie in [-1, 1]."""
LARGEST_RATE = 0.9
"""Gradient descent on (w·x - t)² with ‖x‖ <= 1 converges below 1."""
GRADIENT_NORM = 1.0
"""2 |w·x - t| at the start, for a typical target of 1/2."""


class AdaDPSRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A linear regression, or any torch module, trained with differential privacy.

    Targets are clipped to ``bounds=(low, high)`` and brought to [-1, 1]; features likewise by
    ``feature_bounds``, each a number or one number per column, and divided by √columns, so that no
    row is longer than 1. (Bounds of sparse rows are widened to have zero in the middle.) The loss
    is squared; predictions are scaled back, and lie within the bounds. y may have several columns.

    Where bounds are not known, ``"paid"`` has them measured with noise as a part of epsilon.
    Bounds that are left out are the smallest and largest numbers in the data: values of two
    records that anyone can read from the model. You are warned, and they are listed as assumed
    public.

    Budget, ledger, ``side``, ``module`` and the other options are those of `AdaDPSClassifier`.
    ``coef_`` and ``intercept_`` are in the units of the data.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (500, 2))
    >>> y = 3 * X[:, 0] - X[:, 1] + rng.normal(size=500)
    >>> model = AdaDPSRegressor(epsilon=3, bounds=(-20, 40), feature_bounds=(0, 10), examples=500)
    >>> _ = model.set_params(accountant="rdp").fit(X, y)
    >>> for fact in model.privacy_.assumed_public[:-1]:
    ...     print(fact)
    the number of examples, declared as 500
    bounds, declared: targets from -20 to 40
    bounds, declared: features from 0 to 10
    """

    def __init__(
        self,
        *,
        epsilon: float,
        epsilon_per_run: float | None = None,
        delta: float | None = None,
        bounds: tuple[Any, Any] | str | None = None,
        feature_bounds: tuple[Any, Any] | str | None = None,
        examples: int | None = None,
        side: Any = None,
        method: str = "auto",
        module: nn.Module | Callable[[int, int], nn.Module] | None = None,
        loss: Loss | None = None,
        batch_size: float | None = None,
        epochs: float | None = None,
        clip_norm: float | None = None,
        lr: float | None = None,
        ledger: str | PathLike[str] | None = None,
        accountant: Accountant | str | None = None,
        tuning_trials: int | None = None,
        strict: bool = False,
        processes: int = 1,
    ) -> None:
        self.epsilon = epsilon
        self.epsilon_per_run = epsilon_per_run
        self.delta = delta
        self.bounds = bounds
        self.feature_bounds = feature_bounds
        self.examples = examples
        self.side = side
        self.method = method
        self.module = module
        self.loss = loss
        self.batch_size = batch_size
        self.epochs = epochs
        self.clip_norm = clip_norm
        self.lr = lr
        self.ledger = ledger
        self.accountant = accountant
        self.tuning_trials = tuning_trials
        self.strict = strict
        self.processes = processes

    def fit(self, X: Any, y: Any, **unknown: Any) -> Self:
        """Train from scratch; the run costs ``epsilon_per_run`` (default: all of ``epsilon``)."""
        refuse(unknown)
        return self._learn(X, y, continued=False, one_by_one=False)

    def partial_fit(self, X: Any, y: Any, **unknown: Any) -> Self:
        """Continue with one more run on the same ledger; refused if it exceeds the budget."""
        refuse(unknown)
        return self._learn(X, y, continued=hasattr(self, "result_"), one_by_one=True)

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return predictions within the bounds of the targets."""
        found = self._outputs(X)
        values = self._target_bounds.from_unit(found)
        return values[:, 0] if self._is_flat else values

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Table, Any]:
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            accept_sparse="csr",
            dtype=np.float64,
            order="C",
            multi_output=True,
            y_numeric=True,
        )
        return X, np.asarray(y, dtype=np.float64)

    def _to_measure(self, X: Table, y: Any, classes: Any) -> CountedColumns:  # noqa: ARG002
        targets = y.reshape(len(y), -1).shape[1] if is_paid(self.bounds) else 0
        return CountedColumns(numbers=targets + (X.shape[1] if is_paid(self.feature_bounds) else 0))

    def _placeholders(self, X: Table, y: Any, classes: Any) -> MeasuredFacts:  # noqa: ARG002
        targets = Bounds.given((0, 1), y.reshape(len(y), -1).shape[1], "bounds")
        features = Bounds.given((0, 1), X.shape[1], "feature_bounds")
        return MeasuredFacts(
            targets=targets if is_paid(self.bounds) else None,
            features=features if is_paid(self.feature_bounds) else None,
            is_placeholder=True,
        )

    def _measure(self, X: Table, y: Any, classes: Any, price: Price) -> MeasuredFacts:  # noqa: ARG002
        noise, targets, features = secure(), None, None
        if is_paid(self.bounds):
            columns = y.reshape(len(y), -1)
            targets = bounds_with_noise(columns, price, noise, "targets", "bounds")
        if is_paid(self.feature_bounds):
            features = bounds_with_noise(X, price, noise, "features", "feature_bounds")
        return MeasuredFacts(targets=targets, features=features)

    def _task(
        self,
        X: Table,
        y: Any,
        *,
        continued: bool,
        classes: Any,  # noqa: ARG002
        found: MeasuredFacts | None,
    ) -> LearningTask:
        columns = y.reshape(len(y), -1)
        facts: tuple[str, ...] = ()
        if not continued:
            self._require_declared(
                bounds=self.bounds, feature_bounds=self.feature_bounds, examples=self.examples
            )
            held = found or MeasuredFacts()
            quiet = held.is_placeholder
            self._target_bounds, of_targets = _bounds(
                self.bounds, columns, "targets", "bounds", held.targets, quiet
            )
            of_rows, of_features = _bounds(
                self.feature_bounds, X, "features", "feature_bounds", held.features, quiet
            )
            if sparse.issparse(X):
                of_rows = of_rows.around_zero()
            self._scaling = RowScaling(of_rows, False, CONSTANT if self._has_intercept else 0.0)
            self._is_flat = y.ndim == 1
            facts = (*of_targets, *of_features)
        outputs = columns.shape[1]
        return LearningTask(
            scaling=self._scaling,
            targets=self._target_bounds.to_unit(columns).astype(np.float32),
            outputs=outputs,
            loss=self.loss or squared_error,
            loss_facts=LossFacts(
                GRADIENT_NORM / outputs**0.5, largest_lr=LARGEST_RATE * outputs, outputs=outputs
            ),
            facts=facts,
            rule=replace(RULE, output_noise=OUTPUT_NOISE),
        )

    @property
    def _has_intercept(self) -> bool:
        return self.module is None and self.side is None

    def _keep_coefficients(self, task: LearningTask) -> None:
        if self.module is not None or self.result_.feature_weights is not None:
            return
        weight = self.result_.params["weight"].double().numpy() * task.scaling.shrink
        offset = np.zeros(len(weight))
        if task.scaling.constant:
            weight, offset = weight[:, :-1], weight[:, -1] * task.scaling.constant
        targets, features = self._target_bounds, task.scaling.bounds
        assert features is not None
        half = targets.half
        weight = half[:, None] * weight * features.slope / features.slope.size**0.5
        offset = targets.middle + half * offset - weight @ features.middle
        self.coef_, self.intercept_ = (weight[0], offset[0]) if self._is_flat else (weight, offset)

    def __sklearn_tags__(self) -> Any:
        """Return tags: several targets at once are accepted."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _bounds(
    given: Any, table: Table, what: str, name: str, found: Bounds | None, quiet: bool
) -> tuple[Bounds, tuple[str, ...]]:
    """Return bounds, and what is assumed public about them: nothing if they were ``found``."""
    if found is not None:
        return found, ()
    if given is None:
        if not quiet:
            warn_of_reading(f"Bounds of the {what} are", name, "they are values of single people")
        held = Bounds.of(table)
        return held, (held.in_words(f"bounds, read off the data: {what}"),)
    declared = Bounds.given(given, table.shape[1], name)
    return declared, (declared.in_words(f"bounds, declared: {what}"),)
