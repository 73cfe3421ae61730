"""What the private estimators share: check, plan, pay and train, or change nothing."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from adadps.accounting.ledger import Ledger
from adadps.accounting.noisy_counts.choice import ChoicePrice
from adadps.accounting.noisy_counts.price import Charged, CountedColumns, Paid, Price, price_of
from adadps.data.examples import Examples
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.engine.group import Meeting
from adadps.engine.passes.validation import objective
from adadps.errors import SettingError, SideInformationError
from adadps.estimators.budget import BudgetOptions, EstimatorBudget, opened_ledger, terms_for
from adadps.estimators.checks import (
    another_than_before,
    data_errors_as_ours,
    declared_examples,
    forget_fit,
    ledger_path,
    method_called,
    number_of,
    require_flags,
    require_trials,
    side_information,
    unchanged_on_error,
)
from adadps.estimators.learning_task import LearningTask
from adadps.estimators.paid import MeasuredFacts, pay_before
from adadps.estimators.paid_mix import (
    MixTrials,
    candidates,
    price_of_mix,
    require_one_choice,
    require_weighted,
)
from adadps.estimators.planner.methods import (
    PreparedMethod,
    linear_layer,
    own_module,
    prepare_method,
    reading_layer,
    resolved,
)
from adadps.estimators.planner.plan import (
    GivenSettings,
    PlannedRun,
    PrepareByShare,
    plan_training,
)
from adadps.estimators.privacy_statement import StatedEstimator, how_features_were_made
from adadps.estimators.rows import RowScaling, Table, no_examples_like, private_examples
from adadps.estimators.tables.features import prepare_for_rows, text_features
from adadps.estimators.text import directions_of
from adadps.estimators.together import FactsInWords, TermsInWords, refuse_choice
from adadps.estimators.vectorizer import PublicVectorizer
from adadps.methods.side import Embeddings, Frequencies
from adadps.methods.stages import Chain
from adadps.report.result import Result
from adadps.training.fit import fit as train
from adadps.training.processes import (
    current_group,
    first_speaks,
    opened_for_all,
    own_ledger,
    told_by_first,
)
from adadps.types import Method, Relation, TextFeatures


class PrivateEstimator(StatedEstimator, ABC):
    """Base of the estimators. As in scikit-learn, constructors only store their arguments."""

    module_: nn.Module | None
    _scaling: RowScaling
    _facts: tuple[str, ...]

    @abstractmethod
    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Table, Any]:
        """Return X and y as scikit-learn checks and converts them."""

    @abstractmethod
    def _task(
        self, X: Table, y: Any, *, continued: bool, classes: Any, found: MeasuredFacts | None
    ) -> LearningTask:
        """Return the task for these rows, with what was measured (``found``) about them."""

    @abstractmethod
    def _to_measure(self, X: Table, y: Any, classes: Any) -> CountedColumns:
        """Return which columns are measured and paid for."""

    @abstractmethod
    def _placeholders(self, X: Table, y: Any, classes: Any) -> MeasuredFacts:
        """Return placeholders for what is going to be measured."""

    @abstractmethod
    def _measure(self, X: Table, y: Any, classes: Any, price: Price) -> MeasuredFacts:
        """Measure with noise; the price is already paid."""

    @abstractmethod
    def _keep_coefficients(self, task: LearningTask) -> None:
        """Set the coefficients of a linear model."""

    def _trainable(
        self,
        X: Table,
        y: Any,
        found: MeasuredFacts | None,  # noqa: ARG002
    ) -> tuple[Table, Any]:
        """Return the rows that can be trained on, each judged by itself: here all of them."""
        return X, y

    def _learn(
        self, X: Any, y: Any, *, continued: bool, one_by_one: bool, classes: Any = None
    ) -> Self:
        """Train one run; the estimator changes only if it succeeds."""
        group = current_group()
        with group.together(), first_speaks(group), unchanged_on_error(self):
            if not continued:
                forget_fit(self)
            options = self._budget_options()
            with data_errors_as_ours(), declared_read(DeclaredRead.FORM):
                X, y = self._checked(X, y, reset=not continued)
            count = self._example_count(X.shape[0])
            earlier = getattr(self, "_ledger", None) if continued else None
            terms = told_by_first(
                group,
                lambda: terms_for(options, examples=count, earlier=earlier, one_by_one=one_by_one),
                TermsInWords.encode,
                lambda told: TermsInWords.decode(told, options.path),
            )
            price = None if continued else self._price(X, y, classes, count, terms)
            choice = self._price_of_mix(count, terms, price, one_by_one=one_by_one)
            found = None if price is None else self._placeholders(X, y, classes)
            if continued:
                X, y = self._trainable(X, y, None)
            task = self._task(X, y, continued=continued, classes=classes, found=found)
            model = self._model(task, X, continued)
            prepared = self._prepared(model, X.shape[1])
            plan = self._plan(prepared, count, task, terms, price or choice)
            if choice is not None:
                require_weighted(plan.method)
                refuse_choice(group)
            if continued and plan.method != self.result_.settings["method"]:
                raise another_than_before("method")
            paid = None
            if price is None:
                data = self._private(X, task, plan.chain)
            elif self.module is not None:  # the linear model and its losses need no trial
                objective(model, task.loss, no_examples_like(X, task.targets, task.scaling))
            identity = self._ledger_identity if continued else None
            with opened_for_all(group, lambda: opened_ledger(terms, earlier, identity)) as ledger:
                shared, trials = group.tell(
                    Meeting.LEDGER,
                    lambda: (ledger.entries > 0, self._trials(ledger, continued=continued)),
                )
                if price is not None:
                    run, found = told_by_first(
                        group,
                        lambda: self._paid_facts(ledger, price, plan, X, y, classes),
                        FactsInWords.encode,
                        FactsInWords.decode,
                    )
                    paid = Paid(run, price.events, (price.in_words(), *found.facts))
                    X, y = self._trainable(X, y, found)
                    task = self._task(X, y, continued=False, classes=classes, found=found)
                    model = self._model(task, X, continued=False)
                    data = self._private(X, task, plan.chain)
                if choice is not None:
                    mixes = self._trials_of_mix(choice, plan, prepared, task, model, data)
                    plan, paid = mixes.paid_choice(choice, ledger)
                self._facts = self._facts_with(task, count, continued)
                result = self._run(model, task, data, plan, ledger, trials, paid)
                self._remember_ledger(ledger)
            self._keep(result, terms, task, model, shared=shared, continued=continued)
        return self

    def _paid_facts(
        self, ledger: Ledger, price: Price, plan: PlannedRun, X: Table, y: Any, classes: Any
    ) -> tuple[str, MeasuredFacts]:
        """Pay and measure; return the name of the run that has paid."""
        own = own_ledger(ledger)
        assert own is not None  # of several processes, only the first one measures
        return pay_before(own, price, plan), self._measure(X, y, classes, price)

    def _run(
        self,
        model: nn.Module,
        task: LearningTask,
        data: Examples,
        plan: PlannedRun,
        ledger: Ledger,
        trials: int | None,
        paid: Paid | None,
    ) -> Result:
        settings = plan.settings
        return train(
            model,
            task.loss,
            data,
            method=plan.chain,
            sampler=settings.sampler,
            steps=settings.steps,
            progress=False,
            ledger=ledger,
            delta=settings.budget.delta,
            accountant=settings.accountant,
            assumed_public=self._facts,
            tuning_trials=trials,
            measured=paid,
            settings=plan.describe(),
            feature_sources=[held.provenance for held in self._vectors],
            processes=self.processes,
        )

    def _keep(
        self,
        result: Result,
        terms: EstimatorBudget,
        task: LearningTask,
        model: nn.Module,
        *,
        shared: bool,
        continued: bool,
    ) -> None:
        """Store the result, and claim the whole budget if the ledger has paid for other runs."""
        steps = result.privacy.steps
        if continued:  # the model still depends on what the first call has measured
            known = replace(result.privacy, measured=self.result_.privacy.measured)
            result = replace(result, privacy=known)
            steps += self.result_.privacy.steps_paid or 0
        if shared:
            result = result.claiming(terms.whole.epsilon, steps_paid=steps)
        self.result_ = result
        self._scaling = task.scaling
        self.module_ = None if self.module is None else model
        if not continued:
            self._shared_fit_count().add(self._ledger_identity)
        self._keep_coefficients(task)

    def _budget_options(self) -> BudgetOptions:
        require_flags(self)
        require_trials(self.tuning_trials)
        if self.module is None and self.loss is not None:
            raise SettingError(
                "Expected a module for a custom loss, found `loss` without `module`. The linear "
                "model has its own loss: leave `loss` out, or give both."
            )
        return BudgetOptions(
            number_of(self, "epsilon", required=True),
            number_of(self, "epsilon_per_run"),
            number_of(self, "delta"),
            self.accountant,
            ledger_path(self.ledger),
        )

    def _example_count(self, found: int) -> int:
        self._require_declared(examples=self.examples)
        return found if self.examples is None else declared_examples(self.examples)

    def _require_declared(self, **given: Any) -> None:
        """Refuse, under `strict`, what would be read off the data."""
        missing = [name for name, value in given.items() if value is None]
        if self.strict and missing:
            raise SettingError(
                f"Expected {', '.join(missing)} with strict=True, found that they would be read "
                "off the private data. Declare them."
            )

    def _facts_with(self, task: LearningTask, count: int, continued: bool) -> tuple[str, ...]:
        """Return the facts of all calls so far; the run itself states a declared number."""
        read_off = (f"the number of examples, read off the data: {count}",)
        made = how_features_were_made(self.side)
        facts = (*(read_off if self.examples is None else ()), *task.facts, made)
        earlier = self._facts if continued else ()
        return tuple(dict.fromkeys((*earlier, *facts)))

    def _model(self, task: LearningTask, X: Table, continued: bool) -> nn.Module:
        """Return a copy of the model to train: the caller's module stays as it is."""
        if continued and (self.module is None) != (self.module_ is None):
            raise another_than_before("kind of model")
        if self.module is None:
            width = X.shape[1] + bool(task.scaling.constant)
            layer = linear_layer(width, task.outputs, sparse_rows=sparse.issparse(X))
            if self._embeddings is not None:
                self._require_texts(X.shape[1], self._embeddings)
            if self._embeddings is not None and task.names:
                start = torch.from_numpy(directions_of(task.names, self._embeddings))
                first = len(self.side.public_words())
                with torch.no_grad():
                    layer.weight[:, first : first + start.shape[1]] = start
            return self.result_.restore(layer) if continued else layer
        if continued and self.module_ is not None:
            return copy.deepcopy(self.module_)
        return own_module(self.module, X.shape[1], task.outputs)

    def _price(
        self, X: Table, y: Any, classes: Any, count: int, terms: EstimatorBudget
    ) -> Price | None:
        """Return the price of what is measured, None if nothing is."""
        columns = self._to_measure(X, y, classes)
        if not columns:
            return None
        return price_of(
            columns,
            units=count,
            what="examples",
            budget=terms.run,
            accountant=terms.accountant,
            relation=Relation.ADD_OR_REMOVE_ONE,
        )

    def _price_of_mix(
        self, count: int, terms: EstimatorBudget, price: Price | None, *, one_by_one: bool
    ) -> ChoicePrice | None:
        """Return the price of choosing the mix of words and embeddings, None if it is given."""
        side = self.side
        if not isinstance(side, PublicVectorizer) or side.features != TextFeatures.CHOOSE:
            return None
        others = price is not None or self.module is not None
        require_one_choice(one_by_one=one_by_one, others=others, classifies=is_classifier(self))
        return price_of_mix(count, terms.run, terms.accountant)

    def _trials_of_mix(
        self,
        choice: ChoicePrice,
        plan: PlannedRun,
        prepare: Any,
        task: LearningTask,
        model: nn.Module,
        data: Examples,
    ) -> MixTrials:
        start = copy.deepcopy(model)
        mixes = candidates(choice, task.outputs, plan.settings.budget.epsilon)
        return MixTrials(plan, prepare, mixes, lambda _: copy.deepcopy(start), task.loss, data)

    def _private(self, X: Table, task: LearningTask, method: Chain) -> Examples:
        side, words = self.side, None
        if isinstance(side, PublicVectorizer) and side.public_texts is not None:
            words = len(side.public_words())
        return private_examples(X, task.targets, task.scaling, method.public_rows, words)

    def _plan(
        self,
        prepared: PreparedMethod | PrepareByShare,
        count: int,
        task: LearningTask,
        terms: EstimatorBudget,
        price: Charged | None,
    ) -> PlannedRun:
        return plan_training(
            prepared,
            examples=count,
            budget=terms.run,
            loss=task.loss_facts,
            accountant=terms.accountant,
            given=GivenSettings(
                batch_size=number_of(self, "batch_size"),
                epochs=number_of(self, "epochs"),
                clip_norm=number_of(self, "clip_norm"),
                lr=number_of(self, "lr"),
            ),
            rule=task.rule,
            besides=price.events if price else (),
        )

    @property
    def _embeddings(self) -> Embeddings | None:
        """Return the public vectors behind the features, if a vectorizer says so."""
        side = self.side
        return side.public_embeddings() if isinstance(side, PublicVectorizer) else None

    @property
    def _vectors(self) -> tuple[Embeddings, ...]:
        """Return all public vectors behind the features."""
        side = self.side
        return side.public_vectors() if isinstance(side, PublicVectorizer) else ()

    def _prepared(self, model: nn.Module, width: int) -> PreparedMethod | PrepareByShare:
        linear, side = self.module is None, self.side
        vectors = self._embeddings
        informed = side is not None and (vectors is None or bool(side.public_words()))
        method = resolved(method_called(self.method), informed=informed, linear=linear)
        at = "weight" if linear else reading_layer(model, width)
        if vectors is not None:
            return self._prepared_for_texts(method, vectors, width, at)
        return prepare_method(method, side_information(self.side, method), width=width, at=at)

    def _require_texts(self, width: int, vectors: Embeddings) -> None:
        side = self.side
        expected = text_features(side.public_words(), vectors, side.fitted_vectors()).width
        if width != expected:
            raise SideInformationError(
                f"Expected the {expected} features of the vectorizer given as `side`, found "
                f"{width}. Give the vectorizer that makes the features."
            )

    def _prepared_for_texts(
        self, method: Method, vectors: Embeddings, width: int, at: str | None
    ) -> PrepareByShare:
        """Return what prepares the method for rows of words and embeddings."""
        self._require_texts(width, vectors)
        if at is None:
            raise SideInformationError(
                f"Expected a layer of the module that reads the {width} features, found none. "
                "Leave `side` out."
            )
        fitted = self.side.fitted_vectors()
        features = text_features(self.side.public_words(), vectors, fitted)
        found = side_information(self.side, method)
        known = found if isinstance(found, Frequencies) else None
        return lambda share: replace(prepare_for_rows(method, features, known, share), at=at)

    def _outputs(self, X: Any) -> npt.NDArray[np.float64]:
        """Return one row of outputs per example; those of the linear model are in float64."""
        check_is_fitted(self, "result_")
        with data_errors_as_ours():
            X = validate_data(
                self, X, reset=False, accept_sparse="csr", dtype=np.float64, order="C"
            )
        rows = self._scaling(X)
        if self.module_ is not None:
            held: npt.NDArray[np.float64] = (
                self.result_.outputs(self.module_, rows).double().numpy()
            )
            return held.reshape(len(held), -1)
        weight = self.result_.params["weight"].double().numpy()
        if self.result_.feature_weights is not None:
            weights = sparse.diags_array(self.result_.feature_weights.double().numpy())
            rows = RowScaling(None, normalised=True)(rows @ weights)
        return np.asarray(rows @ weight.T)

    def __sklearn_tags__(self) -> Any:
        """Return tags: sparse rows are accepted, and noise is fresh in every run."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = True
        return tags
