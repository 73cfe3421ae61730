"""Steps that are paid for before anything is drawn: the contract of a run, whoever does the work.

Before a step the ledger is asked; then its batch is drawn, once, and its step is taken, once. What
a step *is* stands elsewhere: on data that is here (`adadps.training.run`), or on devices.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from adadps.accounting.epsilon import Budget, grouping_of, unit_of
from adadps.accounting.ledger import Ledger
from adadps.accounting.noisy_counts.price import Paid
from adadps.accounting.samplers import Sampler
from adadps.data.provenance import NOT_DECLARED, declared
from adadps.engine.noise.randomness import Randomness, secure
from adadps.errors import ContractError, OrderError, require
from adadps.methods.stages.chain import Chain
from adadps.methods.state_codec import pack
from adadps.report.result import Measurement, PrivacyStatement, Result
from adadps.tensors.sums import Params
from adadps.training.batches import Batch
from adadps.training.checkpoint import Checkpoint, Checkpoints
from adadps.training.debugging import DEBUG_MARK
from adadps.training.kept import Kept
from adadps.training.model_lock import Claim
from adadps.training.payment import Payment, without_side_information
from adadps.training.public_facts import public_facts_of
from adadps.training.run_facts import (
    frozen_part_of,
    ledger_for,
    plan_of,
    sampling_of,
    side_information_of,
    with_the_number,
)
from adadps.training.stepping import Moving
from adadps.types import Accountant

EARLIER_MARK = "a step of this run was charged as not private before it was resumed"


class Drawn(Protocol):
    """What was drawn for a batch; its content stays inside the run."""

    @property
    def batch(self) -> Batch:
        """The batch it was drawn for."""


class Work(Protocol):
    """What is done between payments."""

    model: nn.Module
    settings: dict[str, Any]

    def require_fit(self, method: Chain) -> None:
        """Say what does not fit the method, before anything is paid for or drawn."""

    def begin(
        self, method: Chain, sampler: Sampler, units: Sampler, randomness: Randomness
    ) -> Moving:
        """Weights and states that will move, and a beginning of the draws."""

    def draw(self, batch: Batch) -> Drawn:
        """Draw what a step is about."""

    def take(self, drawn: Any, index: int) -> None:
        """Take step number ``index``."""


class PaidRun:
    """A run of whole steps, each paid for first. ``before_paying`` may refuse it."""

    def __init__(
        self,
        work: Work,
        *,
        method: Chain,
        sampler: Sampler,
        steps: int,
        delta: float | None = None,
        accountant: Accountant | None = None,
        budget: Budget | None = None,
        ledger: Ledger | None = None,
        randomness: Randomness | None = None,
        debug: bool = False,
        assumed_public: Iterable[str] = (),
        tuning_trials: int | None = None,
        checkpoints: Checkpoints | str | Path | None = None,
        most_epsilon: float | None = None,
        measured: Paid | None = None,
        before_paying: Callable[[Any], None] | None = None,
    ) -> None:
        require(steps >= 1, "steps >= 1", steps, "Train for at least one step.")
        if not isinstance(method, Chain):
            raise OrderError(
                f"Expected a method such as `dp_sgd(...)` or `chain(...)`, found {method!r}."
            )
        self._kept = Kept(checkpoints)
        held = self._kept.held
        self.ledger = ledger_for(ledger, budget, self._kept.folder)
        accountant = accountant or _accountant(method, sampler, ledger)
        plan = plan_of(method, sampler, steps, accountant, measured.events if measured else ())
        self._plan_hash = plan.plan_hash(sampler.relation, accountant)
        self._process, self._life = os.getpid(), secrets.token_hex(8)
        self.method, self.sampler, self._planned = method, sampler, steps
        self.randomness = randomness or secure()
        self.debug = debug
        self.history: list[Measurement] = list(held.history) if held else []
        self._measured, self._tuning_trials = measured.facts if measured else (), tuning_trials
        known = declared(assumed_public)
        self._assumed_public = () if measured and known == (NOT_DECLARED,) else known
        self._taken = held.taken if held else 0
        self._drawn: Drawn | None = None
        self._is_broken = False

        self._lock = threading.Lock()
        self._claim = Claim(work.model)
        work.require_fit(method)
        self._work = work
        facts = (*self._assumed_public, *self._measured)
        self._frozen = frozen_part_of(work.model, facts) if self._kept else ""
        if held:
            held.require_same(
                steps=steps, plan=self._plan_hash, ledger=self.ledger.identity, frozen=self._frozen
            )
            self.randomness.require_fresh()
        self.name = measured.run if measured else self._kept.name_for(self.ledger, self._plan_hash)
        self._payment = Payment(
            self.ledger,
            self.name,
            method=method,
            sampler=sampler,
            plan=without_side_information(plan) if held and held.begun else plan,
            accountant=accountant,
            delta=delta,
            begins_after=self._taken,
            most_epsilon=most_epsilon,
        )
        if measured:
            self._payment.require_paid_first(measured.events)
        if held:
            held.require_paid(self._payment.paid)
        self.not_private_because = self._reasons(held)

        self._stepper = work.begin(method, sampler, self._payment.units, self.randomness)
        if ledger is None and budget is None:
            self.mechanism_epsilon(steps)  # what has no number is refused now, not after training
        if held:
            held.put_into(self._stepper.own_params)
        if held and held.begun:
            self._stepper.go_on(held)
            self._open()
        else:
            self._begin(before_paying, first=held is None)
        if self._taken == self.steps:
            self._stepper.hand_over()

    def _begin(self, before_paying: Callable[[Any], None] | None, *, first: bool) -> None:
        """Open the run on its ledger, and pay for side information before any is drawn.

        The first checkpoint is there before anything is paid: then the run is found again.
        """
        stepper = self._stepper
        stepper.begin()
        if self._kept:
            pack(stepper.states, stepper.own_params)
        self._open()
        if before_paying is not None:
            before_paying(self)
        if self._kept and first:
            self._kept.write(self._checkpoint(begun=False))
        self._payment.pay_for_side_information()
        stepper.prepare()

    def _open(self) -> None:
        self._payment.open()
        exposed = self.not_private_because
        self.steps = self._planned if exposed else self._payment.last_step(self._planned)

    @property
    def delta(self) -> float:
        """The delta at which epsilon is stated."""
        return self._payment.delta

    @property
    def accountant(self) -> Accountant:
        """Who composes the steps."""
        return self._payment.accountant

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Expected one owner of this run, found an attempt to copy it. A copy would spend the "
            "same budget twice: begin a new run."
        )

    def batches(self) -> Iterator[Batch]:
        """The batches of the steps that are left; each is paid for before it is drawn."""
        while True:
            self._keep_if_due()
            if self._taken >= self.steps:
                return
            self._require_own_process()
            self._require_whole()
            if self._drawn is None:
                self._pay()
                with self._or_broken():
                    self._drawn = self._draw()
            offered = self._drawn
            yield offered.batch
            if self._drawn is offered:
                raise OrderError(
                    "Expected `run.step(batch)` before the next batch, found a batch without its "
                    "step. Take the step: the batch is paid for."
                )

    def step(self, batch: Batch) -> None:
        """Take the step for a batch that this run has drawn, once."""
        self._require_own_process()
        self._claim.require_valid()
        self._require_whole()
        with self._lock:
            if self._drawn is None or batch != self._drawn.batch:
                raise OrderError(
                    "Expected the batch that this run has just drawn, found another one. Iterate "
                    "over `run.batches()` and step once with each: other batches would not be "
                    "accounted for."
                )
            drawn, self._drawn = self._drawn, None
            self._taken += 1
        with self._or_broken():
            self._work.take(drawn, self._taken)
            if self._taken == self.steps:
                self._stepper.hand_over()

    @contextmanager
    def _or_broken(self) -> Iterator[None]:
        """What was paid for happens whole, or the run is over.

        A step that has ended half-way has not added its noise; if others followed, whoever sees the
        weights of all steps would know which one failed, and failures can depend on the data.
        """
        try:
            yield
        except BaseException:
            self._is_broken = True
            raise

    def _require_whole(self) -> None:
        if self._is_broken:
            raise ContractError(
                "Expected a run of whole steps, found one in which a step was interrupted by an "
                "error. Resume it from its checkpoint, or begin a new run; what was paid stays "
                "paid."
            )

    @property
    def has_paid_ahead(self) -> bool:
        """Would steps be lost that are paid for, if the run ended now?"""
        return not self.not_private_because and self._payment.is_ahead(self._taken)

    def keep(self) -> None:
        """Write a checkpoint now, between two steps, if the run is kept and has gone on."""
        if not self._is_broken and self._drawn is None and self._kept.is_behind(self._taken):
            self._kept.write(self._checkpoint())

    def _keep_if_due(self) -> None:
        if self._kept.is_due(self._taken, self.steps):
            self.keep()

    @property
    def taken(self) -> int:
        """How many steps were taken, those before the run was resumed included."""
        return self._taken

    @property
    def params(self) -> Params:
        """The trainable parameters with all their noise, sharing memory with the model."""
        return self._stepper.params

    def epsilon(self, steps: int | None = None, accountant: Accountant | None = None) -> float:
        """Epsilon after ``steps`` steps (default: those taken); infinite if not private."""
        if self.not_private_because:
            return float("inf")
        return self.mechanism_epsilon(steps, accountant)

    def fits_its_ledger(self) -> bool:
        """Has the ledger room for all steps of this run, as things stand before the first?"""
        if self.not_private_because:
            return self.ledger.budget is None
        return self._payment.fits(self.steps - self._taken)

    def mechanism_epsilon(
        self, steps: int | None = None, accountant: Accountant | None = None
    ) -> float:
        """What the mechanism alone would cost, with fresh randomness and no debugging."""
        if self.not_private_because:
            return self._payment.mechanism_epsilon(steps, accountant or self.accountant)
        return self._payment.epsilon(steps, accountant)

    def result(self, settings: dict[str, Any] | None = None) -> Result:
        """What this run leaves behind."""
        self._keep_if_due()
        return Result(
            privacy=self._statement(),
            method=str(self.method),
            side_information=side_information_of(self.method),
            settings={**self._work.settings, **(settings or {})},
            history=tuple(self.history),
            params={
                name: value.clone(memory_format=torch.contiguous_format)
                for name, value in self.params.items()
            },
            feature_weights=self._stepper.feature_weights,
            debug=tuple(self._stepper.facts),
            public_facts=public_facts_of(
                self.method,
                self._stepper.states,
                self._stepper.own_params,
                steps=self._taken,
                expected_size=self.sampler.expected_size,
                feature_weights=self._stepper.feature_weights,
            ),
        )

    def _statement(self) -> PrivacyStatement:
        release = self.method.release
        return PrivacyStatement(
            epsilon=self.epsilon(),
            mechanism_epsilon=None if self.method.exposures else self.mechanism_epsilon(),
            delta=self.delta,
            accountant=self.accountant.value,
            relation=self.sampler.relation.value,
            unit=unit_of(self.method),
            clip_norm=release.clip_norm,
            noise_multiplier=release.noise_multiplier,
            steps=self._taken,
            steps_paid=self._payment.paid_steps,
            sampler=sampling_of(self.method, self.sampler),
            tuning_trials=self._tuning_trials,
            not_private_because=self.not_private_because,
            assumed_public=with_the_number(self._assumed_public, self.sampler),
            charges=self._payment.charges,
            measured=self._measured,
        )

    def _reasons(self, held: Checkpoint | None) -> tuple[str, ...]:
        """Why this run is not private, now or before it was resumed; empty if it is."""
        reasons = list(self.method.exposures)
        reasons += [self.randomness.mark] if self.randomness.mark else []
        reasons += [DEBUG_MARK] if self.debug else []
        reasons += held.marks if held else ()
        reasons += [EARLIER_MARK] if self._payment.was_exposed else []
        return tuple(dict.fromkeys(reasons))

    def _checkpoint(self, *, begun: bool = True) -> Checkpoint:
        held = self._stepper
        states, tensors = pack(held.states, held.own_params) if begun else (None, {})
        return Checkpoint(
            run=self.name,
            plan=self._plan_hash,
            ledger=self.ledger.identity,
            frozen=self._frozen,
            planned=self._planned,
            taken=self._taken,
            paid=self._payment.paid,
            marks=self.not_private_because,
            history=tuple(self.history),
            params=self.params,
            feature_weights=self._stepper.feature_weights if begun else None,
            states=states,
            state_tensors=tensors,
        )

    def _pay(self) -> None:
        if self.not_private_because:
            self._payment.note_exposure()
        else:
            self._payment.pay_for_step(self._taken + 1, self.steps)

    def _draw(self) -> Drawn:
        return self._work.draw(Batch(self.name, self._taken + 1, self._life))

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise ContractError(
                "Expected a run in the process that began it, found a fork of that process, which "
                "would spend the same budget twice. Begin the run in the child."
            )


def _accountant(method: Chain, sampler: Sampler, ledger: Ledger | None) -> Accountant:
    fitting = sampler.accountants(grouping_of(method))
    return fitting[0] if ledger is None else ledger.choose_accountant(fitting)
