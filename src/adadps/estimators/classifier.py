"""A private classifier for scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import validate_data
from torch import nn

from adadps.accounting.noisy_counts.price import CountedColumns, Price
from adadps.data.bounds import Bounds
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.engine.losses import Loss, binary_cross_entropy, cross_entropy
from adadps.engine.noise.randomness import secure
from adadps.errors import PrivacyWarning, SettingError
from adadps.estimators.base import PrivateEstimator
from adadps.estimators.checks import refuse
from adadps.estimators.labels import (
    Labels,
    declared_labels,
    facts_about,
    is_indicator,
    labels_of,
    require_usable,
    whole_numbers,
)
from adadps.estimators.learning_task import LearningTask
from adadps.estimators.paid import (
    UNKNOWN_CLASSES,
    MeasuredFacts,
    bounds_with_noise,
    classes_with_noise,
    is_paid,
    rows_of_classes,
    warn_of_reading,
)
from adadps.estimators.planner.plan import LossFacts, first_gradient
from adadps.estimators.rows import RowScaling, Table
from adadps.types import Accountant

CONSTANT = 0.3
"""Size of the constant feature that replaces an intercept."""

UNITS = (
    "Dense rows are normalised as they are, without feature_bounds: where columns have different "
    "units, those with large numbers drown the others. Give feature_bounds=(low, high), numbers or "
    "one number per column, as they are known without looking at the data; or set "
    "normalise_rows=True if all columns are of one kind, or were scaled by public bounds before."
)


class AdaDPSClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A linear classifier, or any torch module, trained with differential privacy.

    Only ``epsilon`` must be given; batch size, steps, clip norm and learning rate follow from it
    and from the declared number of examples (`adadps.estimators.planner`). X is a dense array, a
    scipy sparse matrix or a numeric DataFrame. y holds classes, or is an indicator matrix for
    several labels per example, each of which then has its own logistic loss.

    What is paid:

    - ``epsilon`` at ``delta`` (default 1/(10 n)) is the whole budget, ``epsilon_per_run`` what one
      call of `fit` or `partial_fit` may cost (default: all of it).
    - `fit` starts again with a new budget: two fits cost two budgets. A search or a cross
      validation makes many fits. Their number, for an estimator and its clones in this process,
      is stated as ``privacy_.tuning_trials`` (or what you declare, if that is more), but it is
      not part of epsilon. Fits in other processes (``n_jobs`` > 1) are not counted: unless you
      declare them the number is unknown (None), and you are warned. With ``ledger``, a path, all
      fits of all clones and processes share one budget; epsilon then states that budget, and a
      run that exceeds it is refused.
    - `partial_fit` continues under the budget of the calls before it. Once several runs have been
      charged to a ledger, the whole budget is claimed, and ``epsilon_`` states it.

    What must be public:

    - ``classes`` and ``examples`` (rows per call). Where they are not given they are read off the
      data and listed in ``privacy_.assumed_public``; a class of one or two rows is then refused,
      and you are warned that epsilon does not cover the classes. ``strict=True`` refuses to read
      anything off the data.
    - ``classes="paid"`` and ``feature_bounds="paid"`` are measured with noise instead, as a part
      of epsilon: ``privacy_.measured`` states what they cost. Rows of a class that is too rare to
      be released are not trained on.
    - Whatever was fitted before: a `CountVectorizer`, `TfidfVectorizer` or `StandardScaler` in
      front of this step knows all private rows, which epsilon does NOT cover. A step cannot see
      its pipeline, so there is no warning: ``privacy_.assumed_public`` and the card state the
      assumption, also under ``strict=True``. Use `PublicVectorizer`, `HashingVectorizer`,
      `Normalizer`, or ``feature_bounds=(low, high)``, which bring features to [-1, 1].
    - ``side``: how frequent features are, from a `PublicVectorizer`, `adadps.side.Frequencies` of
      words, or a fixed source. ``method`` says where it enters: "auto" (weighted features),
      "adadps", "adadps-two-sided", "dp-sgd-weighted"; without it "dp-sgd" or "dp-adam".

    Rows are L2-normalised one by one (``normalise_rows``), after their columns have been brought
    to [-1, 1] by ``feature_bounds=(low, high)`` if there are any: dense columns of different units
    need them, and you are warned where they are missing. A small constant feature replaces the
    intercept (``fit_intercept``; none with side information). ``module`` is a torch module, or a
    function of the numbers of inputs and outputs that makes one; ``loss`` then returns one value
    per example. Its rows are left as they are, and ``clip_norm`` and ``lr`` should be given: the
    defaults are made for a linear layer. ``sample_weight`` is refused. ``processes=2`` trains in
    two processes on this machine.

    Attributes: ``classes_``, ``coef_`` and ``intercept_`` (of a linear model, for rows as they are
    normalised), ``n_features_in_``, ``feature_names_in_``, ``result_``, ``privacy_``, ``epsilon_``,
    ``delta_``, ``ledger_``, ``module_``. Scores of private data are not covered by epsilon: use
    held-out data.

    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(600, 5, n_informative=3, random_state=0)
    >>> model = AdaDPSClassifier(epsilon=3, classes=[0, 1], feature_bounds=(-8, 8))
    >>> _ = model.set_params(accountant="rdp").fit(X, y)
    >>> print(model.privacy_)
    ε = 3.000 at δ = 0.000167 (RDP, add or remove one, per example)
    >>> for fact in model.privacy_.assumed_public[-4:-1]:
    ...     print(fact)
    the number of examples, read off the data: 600
    the classes, declared: 0, 1
    bounds, declared: features from -8 to 8
    """

    _labels: Labels
    _label_facts: tuple[str, ...]
    _classes_were_paid: bool

    def __init__(
        self,
        *,
        epsilon: float,
        epsilon_per_run: float | None = None,
        delta: float | None = None,
        classes: Sequence[Any] | str | None = None,
        examples: int | None = None,
        feature_bounds: tuple[Any, Any] | str | None = None,
        side: Any = None,
        method: str = "auto",
        module: nn.Module | Callable[[int, int], nn.Module] | None = None,
        loss: Loss | None = None,
        fit_intercept: bool | None = None,
        normalise_rows: bool | None = None,
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
        self.classes = classes
        self.examples = examples
        self.feature_bounds = feature_bounds
        self.side = side
        self.method = method
        self.module = module
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.normalise_rows = normalise_rows
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

    def partial_fit(self, X: Any, y: Any, classes: Any = None, **unknown: Any) -> Self:
        """Continue with one more run on the same ledger; refused if it exceeds the budget."""
        refuse(unknown)
        continued = hasattr(self, "result_")
        return self._learn(X, y, continued=continued, one_by_one=True, classes=classes)

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Return one score per class or label; for two classes, the second minus the first."""
        scores = self._outputs(X)
        if len(self.classes_) == 2 and not self._labels.several:
            return scores[:, 1] - scores[:, 0]
        return scores

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the likeliest class, or an indicator matrix of labels likelier than a half."""
        scores = self._outputs(X)
        return self._labels.decoded(scores)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return probabilities of classes, which add up to 1, or of each label by itself."""
        scores = self._outputs(X)
        if self._labels.several:
            return np.asarray(expit(scores))
        return np.asarray(softmax(scores, axis=1))

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
        )
        y = whole_numbers(y)
        require_usable(y)
        return X, y

    def _to_measure(self, X: Table, y: Any, classes: Any) -> CountedColumns:
        paid = is_paid(self.classes if classes is None else classes)
        with declared_read(DeclaredRead.FORM):
            several = paid and is_indicator(y)
        if several:
            raise SettingError(
                "Expected one label per example for classes='paid', found an indicator matrix. Its "
                "columns are known already: declare their names, or leave `classes` out."
            )
        if paid and self.module is not None:
            raise SettingError(
                "Expected declared classes for a module, found classes='paid'. A module is made "
                "for a number of outputs: declare them by `classes=...`."
            )
        return CountedColumns(
            names=int(paid), numbers=X.shape[1] if is_paid(self.feature_bounds) else 0
        )

    def _placeholders(self, X: Table, y: Any, classes: Any) -> MeasuredFacts:  # noqa: ARG002
        labels, features = Labels(np.arange(UNKNOWN_CLASSES), several=False), None
        if is_paid(self.feature_bounds):
            features = Bounds.given((0, 1), X.shape[1], "feature_bounds")
        paid = is_paid(self.classes if classes is None else classes)
        return MeasuredFacts(labels if paid else None, features=features, is_placeholder=True)

    def _measure(self, X: Table, y: Any, classes: Any, price: Price) -> MeasuredFacts:
        noise, labels, features = secure(), None, None
        if is_paid(self.classes if classes is None else classes):
            labels = classes_with_noise(y, price, noise)
        if is_paid(self.feature_bounds):
            features = bounds_with_noise(X, price, noise, "features", "feature_bounds")
        return MeasuredFacts(labels, features=features)

    def _trainable(self, X: Table, y: Any, found: MeasuredFacts | None) -> tuple[Table, Any]:
        """Return the rows of classes that were common enough to be released."""
        earlier = self._labels if found is None and self._classes_were_paid else None
        labels = earlier if found is None else found.labels
        if labels is None:
            return X, y
        return rows_of_classes(X, y, labels)

    def _task(
        self, X: Table, y: Any, *, continued: bool, classes: Any, found: MeasuredFacts | None
    ) -> LearningTask:
        is_placeholder = found is not None and found.is_placeholder
        measured = found.labels if found is not None else None
        labels = measured or self._agreed_labels(y, continued, classes, quiet=is_placeholder)
        if not continued:
            read_off = classes is None and self.classes is None
            fact = facts_about(labels, read_off=read_off)
            self._label_facts = () if measured else (fact,)
            self._classes_were_paid = measured is not None
        scaling, more = self._row_scaling(X, continued, found)
        task = LearningTask(
            scaling=scaling,
            targets=np.empty(0) if measured and is_placeholder else labels.encoded(y),
            outputs=labels.outputs,
            loss=self.loss or (binary_cross_entropy if labels.several else cross_entropy),
            loss_facts=LossFacts(
                0.5 / labels.outputs**0.5 if labels.several else first_gradient(labels.outputs),
                outputs=labels.outputs,
            ),
            facts=(*self._label_facts, *more),
            names=tuple(one for one in labels.classes.tolist() if isinstance(one, str)),
        )
        self._labels, self.classes_ = labels, labels.classes
        return task

    def _agreed_labels(self, y: Any, continued: bool, classes: Any, *, quiet: bool) -> Labels:
        declared = self.classes if classes is None else classes
        if continued:
            named = None if declared is None or is_paid(declared) else set(declared)
            if named is not None and named != set(self.classes_.tolist()):
                raise SettingError(
                    "Expected the classes of the first call, found others. The model has an output "
                    "for each of those: leave `classes` out."
                )
            return self._labels
        self._require_declared(classes=declared, examples=self.examples)
        if declared is not None:
            return declared_labels(declared, y)
        with declared_read(DeclaredRead.ASSUMED_PUBLIC):
            if not quiet and not is_indicator(y):
                warn_of_reading(
                    "Classes are", "classes", "they are stored in the model for everyone to read"
                )
            return labels_of(y)

    def _row_scaling(
        self, X: Table, continued: bool, found: MeasuredFacts | None
    ) -> tuple[RowScaling, tuple[str, ...]]:
        if continued:
            return self._scaling, ()
        linear = self.module is None
        intercept = (
            linear and self.side is None if self.fit_intercept is None else self.fit_intercept
        )
        if intercept and not (linear and self.side is None):
            raise SettingError(
                "Expected fit_intercept only for a linear model without side information, found it "
                "with `side` or `module`. Leave it out; a module may have its own bias."
            )
        normalised = linear if self.normalise_rows is None else bool(self.normalise_rows)
        facts: tuple[str, ...] = ()
        bounds = None if found is None else found.features
        if bounds is None and self.feature_bounds is not None:
            bounds = Bounds.given(self.feature_bounds, X.shape[1], "feature_bounds")
            facts = (bounds.in_words("bounds, declared: features"),)
        units = bounds is None and normalised and self.normalise_rows is None
        if units and not sparse.issparse(X) and not (found and found.is_placeholder):
            warnings.warn(UNITS, PrivacyWarning, stacklevel=5)
        return RowScaling(bounds, normalised, CONSTANT if intercept else 0.0), facts

    def _keep_coefficients(self, task: LearningTask) -> None:
        if self.module is not None:
            return
        weight = self.result_.params["weight"].double().numpy() * task.scaling.shrink
        if task.outputs == 2 and not self._labels.several:
            weight = weight[1:] - weight[:1]
        if task.scaling.constant:
            weight, last = weight[:, :-1], weight[:, -1] * task.scaling.constant
            self.intercept_ = last
        else:
            self.intercept_ = np.zeros(len(weight))
        weights = self.result_.feature_weights
        self.coef_ = weight if weights is None else weight * weights.double().numpy()

    def __sklearn_tags__(self) -> Any:
        """Return tags: several classes and several labels are accepted."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
