"""What the private estimators share: check, plan, pay, train; all of it or nothing."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent
from scipy import sparse
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from adadps.accounting.epsilon import grouping_of
from adadps.accounting.ledger import Ledger
from adadps.accounting.noisy_counts.price import CountedColumns, Paid, Price, pay, price_of
from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.examples import Examples
from adadps.engine.losses import Loss
from adadps.engine.passes.validation import objective
from adadps.errors import SettingError
from adadps.estimators.account import Terms, Wish, agree, ledger_of, stated
from adadps.estimators.checks import (
    all_or_nothing,
    forget,
    in_our_words,
    ledger_path,
    number_of,
    require_flags,
    require_trials,
    whole_number_of_examples,
)
from adadps.estimators.doors import Door, door_for
from adadps.estimators.models import linear_layer, own_module, reading_layer
from adadps.estimators.paid import Found
from adadps.estimators.planner.defaults import RULE, Choice, Rule, choose
from adadps.estimators.planner.named_methods import adam_rate
from adadps.estimators.private_part import form_of, private_examples
from adadps.estimators.rows import Rows, Table
from adadps.estimators.statement import StatedEstimator, how_features_were_made
from adadps.methods.stages import Chain, privatize
from adadps.report.result import Result
from adadps.training.describe import plan_of
from adadps.training.fit import fit as train
from adadps.types import Relation

_planned = lru_cache(maxsize=64)(choose)
"""The same plan again, as in a search over folds, is not computed again."""


@dataclass(frozen=True)
class Task:
    """What is to be learned: nothing here but ``targets`` and the data's bounds is private."""

    rows: Rows
    targets: npt.NDArray[Any]
    outputs: int
    loss: Loss
    gradient_norm: float
    facts: tuple[str, ...]
    rule: Rule = RULE
    largest_lr: float | None = None


class PrivateEstimator(StatedEstimator):
    """Base of the estimators. Their constructors only remember what they are given."""

    module_: nn.Module | None
    _rows: Rows
    _facts: tuple[str, ...]

    def _task(self, X: Table, y: Any, *, going_on: bool, classes: Any, found: Found | None) -> Task:
        raise NotImplementedError

    def _wanted(self, X: Table, y: Any, classes: Any) -> CountedColumns:
        """What is to be measured, and paid for."""
        raise NotImplementedError

    def _stand_in(self, X: Table, y: Any, classes: Any) -> Found:
        """Something in place of what is to be measured."""
        raise NotImplementedError

    def _measure(self, X: Table, y: Any, classes: Any, price: Price) -> Found:
        """Count it, with noise; the price is paid."""
        raise NotImplementedError

    def _trained_on(
        self,
        X: Table,
        y: Any,
        found: Found | None,  # noqa: ARG002
    ) -> tuple[Table, Any]:
        """The rows that the model can be trained on, each judged alone: here all of them."""
        return X, y

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Table, Any]:
        raise NotImplementedError

    def _learn(
        self, X: Any, y: Any, *, going_on: bool, one_by_one: bool, classes: Any = None
    ) -> Self:
        """One run. Only when it has gone well does the estimator change."""
        with all_or_nothing(self):
            if not going_on:
                forget(self)
            wish = self._wish()
            with in_our_words(), declared_read(DeclaredRead.FORM):
                X, y = self._checked(X, y, reset=not going_on)
            count = self._declared(X.shape[0])
            held = getattr(self, "_ledger", None) if going_on else None
            terms = agree(wish, examples=count, held=held, one_by_one=one_by_one)
            price = None if going_on else self._price(X, y, classes, count, terms)
            found = None if price is None else self._stand_in(X, y, classes)
            if going_on:
                X, y = self._trained_on(X, y, None)
            task = self._task(X, y, going_on=going_on, classes=classes, found=found)
            model = self._model(task, X, going_on)
            door = self._door(model, X.shape[1])
            if going_on and door.name != self.result_.settings["method"]:
                raise _another("method")
            choice = self._choice(count, door, task, terms, price.events if price else ())
            method, paid = _method(door, choice), None
            if price is None:
                data = self._private(X, task, method)
            elif self.module is not None:  # the linear model and its losses need no trial
                objective(model, task.loss, form_of(X, task.targets, task.rows))
            with ledger_of(terms, held, self._ledger_identity if going_on else None) as ledger:
                shared = ledger.entries > 0
                trials = self._trials(ledger, going_on=going_on)
                if price is not None:
                    run = _pay(ledger, price, method, choice)
                    found = self._measure(X, y, classes, price)
                    paid = Paid(run, price.events, (price.in_words(), *found.facts))
                    X, y = self._trained_on(X, y, found)
                    task = self._task(X, y, going_on=False, classes=classes, found=found)
                    model = self._model(task, X, going_on=False)
                    data = self._private(X, task, method)
                self._facts = self._facts_with(task, count, going_on)
                result = self._run(
                    model, task, data, method, door.name, choice, ledger, trials, paid
                )
                self._remember_ledger(ledger)
            self._keep(result, terms, task, model, shared=shared, going_on=going_on)
        return self

    def _run(
        self,
        model: nn.Module,
        task: Task,
        data: Examples,
        method: Chain,
        name: str,
        choice: Choice,
        ledger: Ledger,
        trials: int | None,
        paid: Paid | None,
    ) -> Result:
        return train(
            model,
            task.loss,
            data,
            method=method,
            sampler=choice.sampler,
            steps=choice.steps,
            progress=False,
            ledger=ledger,
            delta=choice.budget.delta,
            accountant=choice.accountant,
            assumed_public=self._facts,
            tuning_trials=trials,
            measured=paid,
            settings={"method": name, "epochs": choice.epochs, "lr": choice.lr},
        )

    def _keep(
        self,
        result: Result,
        terms: Terms,
        task: Task,
        model: nn.Module,
        *,
        shared: bool,
        going_on: bool,
    ) -> None:
        """What the run has left, and what may be said about all calls so far."""
        steps = result.privacy.steps
        if going_on:  # what the first call has measured is still what the model is made of
            known = replace(result.privacy, measured=self.result_.privacy.measured)
            result = replace(result, privacy=known)
            steps += self.result_.privacy.steps_paid or 0
        self.result_ = stated(result, terms, shared=shared, steps_paid=steps)
        self._rows = task.rows
        self.module_ = None if self.module is None else model
        if not going_on:
            self._siblings().count(self._ledger_identity)
        self._keep_coefficients(task)

    def _wish(self) -> Wish:
        require_flags(self)
        require_trials(self.tuning_trials)
        if self.module is None and self.loss is not None:
            raise SettingError(
                "Expected a module for a loss of your own, found `loss` without `module`. The "
                "linear model has a loss of its own: leave `loss` out, or give both."
            )
        return Wish(
            number_of(self, "epsilon", required=True),
            number_of(self, "epsilon_per_run"),
            number_of(self, "delta"),
            self.accountant,
            ledger_path(self.ledger),
        )

    def _declared(self, found: int) -> int:
        self._require_declared(examples=self.examples)
        if self.examples is None:
            return found
        return whole_number_of_examples(self.examples)

    def _require_declared(self, **given: Any) -> None:
        """Under `strict`, nothing may be read off the data."""
        missing = [name for name, value in given.items() if value is None]
        if self.strict and missing:
            raise SettingError(
                f"Expected {', '.join(missing)} with strict=True, found that they would be read "
                "off the private data. Declare them."
            )

    def _facts_with(self, task: Task, count: int, going_on: bool) -> tuple[str, ...]:
        """Of all calls so far. A declared number of examples is told of by the run itself."""
        read_off = (f"the number of examples, read off the data: {count}",)
        made = how_features_were_made(self.side)
        facts = (*(read_off if self.examples is None else ()), *task.facts, made)
        earlier = self._facts if going_on else ()
        return tuple(dict.fromkeys((*earlier, *facts)))

    def _model(self, task: Task, X: Table, going_on: bool) -> nn.Module:
        """A copy of what is to be trained: the caller's module stays as it is."""
        if going_on and (self.module is None) != (self.module_ is None):
            raise _another("kind of model")
        if self.module is None:
            width = X.shape[1] + bool(task.rows.constant)
            layer = linear_layer(width, task.outputs, sparse_rows=sparse.issparse(X))
            return self.result_.restore(layer) if going_on else layer
        if going_on and self.module_ is not None:
            return copy.deepcopy(self.module_)
        return own_module(self.module, X.shape[1], task.outputs)

    def _door(self, model: nn.Module, width: int) -> Door:
        linear = self.module is None
        at = "weight" if linear else reading_layer(model, width)
        return door_for(self.method, self.side, at=at, width=width, linear=linear)

    def _price(self, X: Table, y: Any, classes: Any, count: int, terms: Terms) -> Price | None:
        """What it costs to measure what is wanted; None if nothing is."""
        columns = self._wanted(X, y, classes)
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

    def _private(self, X: Table, task: Task, method: Chain) -> Examples:
        return private_examples(X, task.targets, task.rows, method.public_rows)

    def _choice(
        self,
        count: int,
        door: Door,
        task: Task,
        terms: Terms,
        besides: tuple[DpEvent, ...],
    ) -> Choice:
        choice = _planned(
            examples=count,
            budget=terms.run,
            gradient_norm=task.gradient_norm,
            accountant=terms.accountant,
            clipped_norm=door.clipped_norm,
            noised_norm=door.noised_norm,
            batch_size=number_of(self, "batch_size"),
            epochs=number_of(self, "epochs"),
            clip_norm=number_of(self, "clip_norm"),
            lr=number_of(self, "lr"),
            rule=task.rule,
            besides=besides,
        )
        if self.lr is None and door.adaptive:
            return replace(choice, lr=adam_rate(choice.steps))
        if self.lr is None and task.largest_lr is not None:
            choice = replace(choice, lr=min(choice.lr, task.largest_lr))
        return choice

    def _keep_coefficients(self, task: Task) -> None:
        raise NotImplementedError

    def _outputs(self, X: Any) -> npt.NDArray[np.float64]:
        """One row of outputs an example: of the module, or of the linear model in float64."""
        check_is_fitted(self, "result_")
        with in_our_words():
            X = validate_data(
                self, X, reset=False, accept_sparse="csr", dtype=np.float64, order="C"
            )
        if self.module_ is not None:
            held = self.result_.outputs(self.module_, self._rows(X)).double().numpy()
            return held.reshape(len(held), -1)
        weight = self.result_.params["weight"].double().numpy()
        rows = self._rows(X)
        if self.result_.feature_weights is not None:
            rows = Rows(None, normalised=True)(
                rows @ sparse.diags_array(self.result_.feature_weights.double().numpy())
            )
        return np.asarray(rows @ weight.T)

    def __sklearn_tags__(self) -> Any:
        """Sparse rows are welcome; noise is fresh in every run."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = True
        return tags


def _method(door: Door, choice: Choice) -> Chain:
    privacy = privatize(clip_norm=choice.clip_norm, noise_multiplier=choice.noise_multiplier)
    return door.chain(privacy, choice.lr)


def _pay(ledger: Ledger, price: Price, method: Chain, choice: Choice) -> str:
    """Open the run on its ledger under its whole plan, and charge what is measured first."""
    sampler, accountant = choice.sampler, choice.accountant
    step = sampler.step_event(choice.noise_multiplier, 1, accountant, grouping_of(method))
    plan = plan_of(method, sampler, choice.steps, accountant, price.events)
    charged = sampler.charged_steps(choice.steps)
    return pay(ledger, price, plan, step=step, charged_steps=charged, own=False)


def _another(what: str) -> SettingError:
    return SettingError(
        f"Expected the {what} of the first call of `partial_fit`, found another one. Set it back, "
        "or begin anew with `fit`."
    )
