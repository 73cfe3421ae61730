"""A private run: every step is paid for before its batch is drawn, and drawn once.

A run has two parts. `Payment` is its account on a ledger: the plan, what was charged, what still
fits the budget. `Stepper` is what moves: batches, gradients, weights; its module follows one step
from batch to weights. `Run` holds the two together and is the same for data in this process
(`PrivateRun`) and for devices (`adadps.training.federated.FederatedRun`).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch

from adadps.accounting.epsilon import grouping_of, unit_of
from adadps.accounting.ledger import Ledger
from adadps.accounting.noisy_counts.price import Paid
from adadps.data.provenance import NOT_DECLARED, Provenance, declared
from adadps.engine.group import ALONE, Group, Meeting
from adadps.engine.noise.randomness import Randomness, secure
from adadps.errors import ContractError, OrderError
from adadps.files import process
from adadps.report.result import Measurement, PrivacyStatement, Result
from adadps.tensors.sums import Params
from adadps.training.calibration import TrainingPlan
from adadps.training.checkpoint import Checkpoint, Checkpoints, RunFolder, pack
from adadps.training.debugging import DEBUG_MARK
from adadps.training.describe import (
    public_facts_of,
    sampling_of,
    side_information_of,
    with_the_number,
)
from adadps.training.evaluation import Evaluation
from adadps.training.payment import Payment, PaymentTerms
from adadps.training.processes import digest_of_states, require_same, take_over_model
from adadps.training.stepper import Batch, Drawn, ModelLock, Stepper
from adadps.types import Accountant

EARLIER_MARK = "a step of this run was charged as not private before it was resumed"


class Run:
    """A run of whole steps, each paid for first; what a step does is the stepper's duty."""

    def __init__(
        self,
        stepper: Stepper,
        plan: TrainingPlan,
        terms: PaymentTerms,
        *,
        randomness: Randomness | None = None,
        debug: bool = False,
        assumed_public: Iterable[str] = (),
        tuning_trials: int | None = None,
        feature_sources: Iterable[Provenance] = (),
        checkpoints: Checkpoints | str | Path | None = None,
        must_fit: bool = False,
        group: Group = ALONE,
    ) -> None:
        self.group = stepper.group = group
        self.method, self.sampler, self._planned = plan.method, plan.sampler, plan.steps
        if self.method.is_open:
            raise OrderError(
                f"Expected a clip norm and a noise multiplier, found {self.method.release}. Give "
                "both to `privatize(...)`."
            )
        self._folder = RunFolder(checkpoints, group)
        held = self._folder.found
        self._payment = Payment(plan.method, plan.sampler, plan.steps, terms, self._folder, group)
        self.randomness = (randomness or secure()).shared_by(group)
        if not group.is_alone:
            group.follows(lambda: self.randomness.position)
        self.debug, self._tuning_trials = debug, tuning_trials
        self._feature_sources = tuple(feature_sources)
        self.history: list[Measurement] = list(held.history) if held else []
        self._state_facts(assumed_public, plan.read_off, terms.measured)
        self._taken = held.taken if held else 0
        self._drawn: Drawn | None = None
        self._is_broken = False
        self._process, self._life = process(), secrets.token_hex(8)
        self._lock, self._model_lock = threading.Lock(), ModelLock(stepper.model)
        require_same(group, lambda: {"plan": self._payment.plan_hash, "run": self.name})
        take_over_model(stepper.model, group)
        stepper.require_fit(plan.method)
        self._stepper = stepper
        self._require_same(held)
        self.not_private_because = self._reasons(held)
        stepper.begin(plan.method, plan.sampler, self._payment.units, self.randomness)
        if terms.ledger is None and terms.budget is None:
            self.mechanism_epsilon(plan.steps)  # what cannot be priced is refused before training
        self._start(held, must_fit)
        require_same(group, self._start_in_words)
        if self._taken == self.steps:
            stepper.hand_over()

    def _start_in_words(self) -> dict[str, str]:
        stepper = self._stepper
        return {
            "first weights": stepper.digest(),
            "side information and first states": digest_of_states(stepper.common_states),
            "steps": str(self.steps),
            "reasons why it is not private": str(self.not_private_because),
        }

    def _state_facts(
        self, assumed_public: Iterable[str], read_off: tuple[str, ...], measured: Paid | None
    ) -> None:
        self._measured = measured.facts if measured else ()
        known = declared(assumed_public)
        known = () if measured and known == (NOT_DECLARED,) else known
        self._assumed_public = (*read_off, *known)

    def _require_same(self, held: Checkpoint | None) -> None:
        """Refuse to resume as another run, on another ledger, or with randomness used before."""
        facts = (*self._assumed_public, *self._measured)
        self._frozen = self._stepper.frozen_part(facts) if self._folder else ""
        if held is None:
            return
        held.require_same(
            steps=self._planned,
            plan=self._payment.plan_hash,
            ledger=self.ledger.identity,
            frozen=self._frozen,
        )
        self.randomness.require_fresh()
        held.require_paid(self._payment.paid)

    def _start(self, held: Checkpoint | None, must_fit: bool) -> None:
        """Open the run on its ledger; begin it, or resume it from its checkpoint."""
        if held:
            self._stepper.load(held)
        if held and held.begun:
            self._stepper.resume(held)
            self._open()
        else:
            self._begin(must_fit, first=held is None)

    def _begin(self, must_fit: bool, *, first: bool) -> None:
        """Open the run on its ledger, and pay for side information before any is drawn.

        The first checkpoint is written before anything is paid, so that the run is found again.
        """
        stepper = self._stepper
        self.method.require_steps(self._planned)
        stepper.initialise()
        if self._folder:
            pack(stepper.states, stepper.own_params)
        self._open()
        if must_fit:
            self._require_room()
        self._payment.record()
        if self._folder and first:
            self._folder.write(self._checkpoint(begun=False))
        self._payment.pay_for_side_information()
        stepper.prepare()

    def _open(self) -> None:
        self._payment.open()
        exposed = self.not_private_because
        self.steps = self._planned if exposed else self._payment.last_step(self._planned)

    def _require_room(self) -> None:
        """Refuse a plan that the budget would cut short, before anything is drawn."""
        if self.not_private_because:
            self._payment.require_private(self.not_private_because)
        else:
            self._payment.require_room(self.steps)

    @property
    def ledger(self) -> Ledger:
        """The account that the run is paid from."""
        return self._payment.ledger

    @property
    def name(self) -> str:
        """The name of the run on its ledger."""
        return self._payment.run

    @property
    def delta(self) -> float:
        """The delta at which epsilon is stated."""
        return self._payment.delta

    @property
    def accountant(self) -> Accountant:
        """The accountant that composes the steps."""
        return self._payment.accountant

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Expected one owner of this run, found an attempt to copy it. A copy would spend the "
            "same budget twice: begin a new run."
        )

    def batches(self) -> Iterator[Batch]:
        """Iterate over the batches of the remaining steps; each is paid for before it is drawn."""
        while True:
            with self.group.together():
                offered = self._next()
            if offered is None:
                return
            yield offered.batch
            if self._drawn is offered:
                raise OrderError(
                    "Expected `run.step(batch)` before the next batch, found a batch without its "
                    "step. Take the step: the batch is paid for."
                )

    def _next(self) -> Drawn | None:
        """Pay for the next batch and draw it; None after the last step."""
        self._keep_if_due()
        if self._taken >= self.steps:
            return None
        self._require_own_process()
        self._require_whole()
        if self._drawn is None:
            self._stepper.require_same_model()
            self._pay()
            with self._or_broken():
                self._drawn = self._draw()
        return self._drawn

    def step(self, batch: Batch) -> None:
        """Take the step for a batch that this run has drawn, once."""
        with self.group.together():
            self._step(batch)

    def _step(self, batch: Batch) -> None:
        self._require_own_process()
        self._model_lock.require_valid()
        self._require_whole()
        self._stepper.require_same_model()
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
            self._stepper.take(drawn, self._taken)
            if self._taken == self.steps:
                self._stepper.hand_over()
            if self._taken == self.steps or self._taken.bit_count() == 1:
                self._require_equal_weights()

    def _require_equal_weights(self) -> None:
        """Stop all processes if their replicas of the weights differ: at steps 1, 2, 4, 8, ..."""
        if self.group.is_alone or self.group.is_sharded:  # every shard is in one process alone
            return
        found = self.group.gather(Meeting.WEIGHTS, self._stepper.digest())
        other = next((rank for rank, one in enumerate(found) if one != found[0]), None)
        if other is not None:
            raise ContractError(
                f"Expected the same weights in all processes after step {self._taken}, found other "
                f"ones in process {other} than in process 0. Give all processes the same kind of "
                "machine, libraries and number of threads, and let none of them change the model."
            )

    @contextmanager
    def _or_broken(self) -> Iterator[None]:
        """End the run if a step that was paid for does not happen whole.

        A step that stopped half-way has not added its noise. If others followed, anyone who sees
        the weights of all steps would know which one failed, and failures can depend on the data.
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
        """Would steps that are paid for be lost if the run ended now?"""
        return not self.not_private_because and self._payment.is_ahead(self._taken)

    def keep(self) -> None:
        """Write a checkpoint now, between two steps, if the run writes any and has moved."""
        if not self._is_broken and self._drawn is None and self._folder.is_behind(self._taken):
            self._folder.write(self._checkpoint())

    def _keep_if_due(self) -> None:
        if self._folder.checkpoints and self._folder.is_due(self._taken, self.steps):
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

    def epsilon_at_most(self) -> float:
        """Return a bound on what was spent that is quick to compute, by Rényi divergences."""
        fitting = self.sampler.accountants(grouping_of(self.method))
        quick = Accountant.RDP if Accountant.RDP in fitting else self.accountant
        bounds = [self.epsilon(accountant=quick)]
        if self.ledger.budget is not None:  # the ledger keeps it after every step
            bounds.append(self.ledger.budget.epsilon)
        return min(bounds)

    def mechanism_epsilon(
        self, steps: int | None = None, accountant: Accountant | None = None
    ) -> float:
        """What the mechanism alone would cost, with fresh randomness and no debugging."""
        if self.not_private_because:
            return self._payment.mechanism_epsilon(steps, accountant or self.accountant)
        return self._payment.epsilon(steps, accountant)

    def _measure(self, evaluation: Evaluation, predict: Any) -> list[Measurement]:
        epoch = self._taken * self.sampler.expected_size / self.sampler.examples

        def measured() -> list[Measurement]:
            return evaluation.measure(predict, self._taken, epoch)

        found = measured() if self.group.is_alone else self._told(measured)
        self.history += found
        return found

    def _told(self, measured: Callable[[], list[Measurement]]) -> list[Measurement]:
        """What the first process measures, in all of them."""
        group = self.group
        with group.together():
            # Where each process holds a shard, all have to run the model.
            found = measured() if group.is_sharded else None
            told = group.tell(
                Meeting.EVALUATION,
                lambda: [asdict(one) for one in (measured() if found is None else found)],
            )
        return [Measurement(**one) for one in told]

    def result(self, settings: dict[str, Any] | None = None) -> Result:
        """What this run leaves behind: weights, history and the statement about privacy."""
        self._keep_if_due()
        return Result(
            privacy=self._statement(),
            method=str(self.method),
            side_information=side_information_of(self.method, self._feature_sources),
            settings={**self._stepper.settings, **(settings or {})},
            history=tuple(self.history),
            params={
                name: value.clone(memory_format=torch.contiguous_format)
                for name, value in self._stepper.given_params.items()
            },
            feature_weights=self._stepper.feature_weights,
            debug=tuple(self._stepper.facts),
            public_facts=public_facts_of(
                self.method,
                self._stepper.states,
                self._stepper.whole_form,
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
        stepper = self._stepper
        params, states, tensors = stepper.packed() if begun else (self.params, None, {})
        return Checkpoint(
            run=self.name,
            plan=self._payment.plan_hash,
            ledger=self.ledger.identity,
            frozen=self._frozen,
            planned=self._planned,
            taken=self._taken,
            paid=self._payment.paid,
            marks=self.not_private_because,
            history=tuple(self.history),
            params=params,
            feature_weights=stepper.feature_weights if begun else None,
            states=states,
            state_tensors=tensors,
        )

    def _pay(self) -> None:
        if self.not_private_because:
            self._payment.note_exposure()
        else:
            self._payment.pay_for_step(self._taken + 1, self.steps)

    def _draw(self) -> Drawn:
        return self._stepper.draw(Batch(self.name, self._taken + 1, self._life))

    def _require_own_process(self) -> None:
        if process() != self._process:
            raise ContractError(
                "Expected a run in the process that began it, found a fork of that process, which "
                "would spend the same budget twice. Begin the run in the child."
            )
