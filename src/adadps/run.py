"""One private run: the first room that joins all others.

Before a step the ledger is asked; then the batch is drawn, differentiated, and put through the
chain; then the weights move. Nothing else about the private data leaves this room.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, TypedDict

import torch
from torch import Tensor, nn

from adadps.accounting import Budget, grouping_of, unit_of
from adadps.checkpoint import Checkpoint, Checkpoints, opened
from adadps.claims import Claim
from adadps.data.assumed import declared
from adadps.data.examples import Examples, PublicExamples, take
from adadps.drawing import Batch, Drawing, Drawn
from adadps.errors import ContractError, DataError, OrderError
from adadps.evaluation import Evaluation
from adadps.gradients.chunked import ChunkedGradients
from adadps.gradients.loss import Loss
from adadps.gradients.objective import objective
from adadps.gradients.waist import GradientBatch
from adadps.layout import lay_out_by_feature, lay_out_by_output
from adadps.ledger import DiskLedger, Ledger
from adadps.noise import Randomness, secure
from adadps.parts import require_parts
from adadps.payment import Payment, without_side_information
from adadps.public_facts import public_facts_of
from adadps.result import Measurement, PrivacyStatement, Result
from adadps.run_facts import (
    frozen_part_of,
    ledger_for,
    plan_of,
    sampling_of,
    side_information_of,
)
from adadps.sampling import Sampler
from adadps.stages.chain import Chain
from adadps.states import pack, require_like, unpack
from adadps.threads import torch_alone
from adadps.types import Accountant, Params, Step, require
from adadps.weights import Weights

LITTLE_WORK = 2**24
"""So many multiplications are not worth torch's threads, which keep cores busy after them."""

DEBUG_MARK = "debug: training loss, norms and batch sizes of private data were recorded"


EARLIER_MARK = "a step of this run was charged as not private before it was resumed"


class RunOptions(TypedDict, total=False):
    """The options of a run that have defaults."""

    delta: float | None
    accountant: Accountant | None
    budget: Budget | None
    ledger: Ledger | None
    randomness: Randomness | None
    physical_batch_size: int | None
    debug: bool
    assumed_public: Iterable[str]
    tuning_trials: int | None
    checkpoints: Checkpoints | str | Path | None
    most_epsilon: float | None


class PrivateRun:
    """One training run that draws its own batches, pays for each, and refuses others.

    ::

        run = PrivateRun(model, loss, data, method=method, sampler=sampler, steps=1000)
        for batch in run.batches():
            run.step(batch)
        result = run.result()

    The model's parameters are updated in place. ``before_paying`` is called with the run before
    anything is charged or drawn, and may refuse it. ``most_epsilon`` is what this run alone may
    cost, beside the budget of its ledger, however often it is resumed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Examples,
        *,
        method: Chain,
        sampler: Sampler,
        steps: int,
        delta: float | None = None,
        accountant: Accountant | None = None,
        budget: Budget | None = None,
        ledger: Ledger | None = None,
        randomness: Randomness | None = None,
        physical_batch_size: int | None = None,
        debug: bool = False,
        assumed_public: Iterable[str] = (),
        tuning_trials: int | None = None,
        checkpoints: Checkpoints | str | Path | None = None,
        most_epsilon: float | None = None,
        before_paying: Callable[[PrivateRun], None] | None = None,
    ) -> None:
        require(steps >= 1, "steps >= 1", steps, "Train for at least one step.")
        require(
            physical_batch_size is None or physical_batch_size >= 1,
            "physical_batch_size >= 1",
            physical_batch_size,
            "It bounds how many examples are differentiated at once.",
        )
        if not isinstance(method, Chain):
            raise OrderError(
                f"Expected a method such as `dp_sgd(...)` or `chain(...)`, found {method!r}."
            )
        self._checkpoints = opened(checkpoints)
        held = self._checkpoints.latest() if self._checkpoints else None
        self.ledger = ledger_for(ledger, budget, self._checkpoints)
        accountant = accountant or _accountant(method, sampler, ledger)
        plan = plan_of(method, sampler, steps, accountant)
        self._plan_hash = plan.plan_hash(sampler.relation, accountant)
        self._process = os.getpid()
        self.method, self.sampler, self._planned = method, sampler, steps
        self.randomness = randomness or secure()
        self.debug = debug
        self.history: list[Measurement] = list(held.history) if held else []
        self._debug: list[dict[str, float]] = []
        self._data, self._loss, self._chunk = data, loss, physical_batch_size
        self._assumed_public, self._tuning_trials = declared(assumed_public), tuning_trials
        self._taken = self._kept = held.taken if held else 0
        self._drawn: Drawn | None = None
        self._is_broken = False

        require_parts(method, data)
        self._lock = threading.Lock()
        self._claim = Claim(model)
        self.objective = objective(model, loss, data)
        self._frozen = frozen_part_of(model, self._assumed_public) if self._checkpoints else ""
        if held:
            held.require_same(
                plan=self._plan_hash, ledger=self.ledger.identity, frozen=self._frozen
            )
            self.randomness.require_fresh()
        self.name = held.run if held else self._new_or_known_name()
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
        if held:
            held.require_paid(self._payment.paid)
        self.not_private_because = self._reasons(held)

        self._relaid = lay_out_by_feature(self.objective.tables_by_feature(data.features))
        self._params = self.objective.params()
        self._little_for_torch = self._is_little_for_torch(self._params)
        self._weights = Weights(model, self._params, self.randomness)
        self._drawing = Drawing(
            data,
            method=method,
            sampler=sampler,
            units=self._payment.units,
            randomness=self.randomness,
        )
        if ledger is None and budget is None:
            self.mechanism_epsilon(steps)  # what has no number is refused now, not after training
        if held:
            held.put_into(self._params)
        if held and held.begun:
            self._go_on(held)
        else:
            self._begin(before_paying, first=held is None)
        if self._taken == self.steps:
            self._hand_over()

    def _begin(self, before_paying: Callable[[PrivateRun], None] | None, *, first: bool) -> None:
        """Open the run on its ledger, and pay for side information before any is drawn.

        The first checkpoint is there before anything is paid: then the run is found again.
        """
        self._states = self.method.init(self._params)
        if self._checkpoints:
            pack(self._states, self._params)  # what cannot be kept is refused before it is needed
        self._open()
        if before_paying is not None:
            before_paying(self)
        if self._checkpoints and first:
            self._checkpoints.write(self._checkpoint(begun=False))
        self._payment.pay_for_side_information()
        for preparation in self.method.preparations:
            self.objective = preparation.prepare(self.objective)

    def _go_on(self, held: Checkpoint) -> None:
        """Take up a run where its checkpoint has left it; side information comes with it."""
        self._states = unpack(held.states, held.state_tensors, self._params)
        require_like(self._states, self.method.init(self._params), self._params)
        if held.feature_weights is not None:
            weights = held.feature_weights.to(self._device)
            if weights.ndim != 1 or not weights.is_floating_point():
                raise DataError(
                    f"Expected weights of features in one axis, found {tuple(weights.shape)} of "
                    f"{weights.dtype}. Restore a copy of the checkpoint."
                )
            self.objective = self.objective.reparametrised(weights)
        self._open()

    def _open(self) -> None:
        self._payment.open()
        exposed = self.not_private_because
        self.steps = self._planned if exposed else self._payment.last_step(self._planned)

    def _new_or_known_name(self) -> str:
        """A new name; in a folder whose checkpoint is gone, that of the run on its ledger."""
        known = None
        if self._checkpoints and isinstance(self.ledger, DiskLedger):
            found = self.ledger.run_of(self._plan_hash)
            is_its_own = self.ledger.path == self._checkpoints.ledger
            if found and (is_its_own or not self.ledger.charged(found)):
                known = found
        return known or secrets.token_hex(8)

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
            self._take(drawn)

    def _take(self, drawn: Drawn) -> None:
        facts: dict[str, Tensor] = {}
        with torch_alone() if self._little_for_torch else nullcontext():
            step = self._step(facts)
            gradients, partly_read = self._gradients(drawn)
            update, self._states = self.method.apply(gradients, self._states, step)
            self._weights.apply(update, partly_read)
        if self.debug:
            self._debug.append(self._facts(drawn, facts))
        if self._taken == self.steps:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the model its plain parameters back, with all their noise."""
        self._weights.hand_over()
        lay_out_by_output(self._relaid)
        self._weights = Weights(self.objective.model, self.objective.params(), self.randomness)

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

    def _keep_if_due(self) -> None:
        """Write a checkpoint if it is time for one that is not there yet."""
        if self._checkpoints is None or self._is_broken or self._taken == self._kept:
            return
        if self._checkpoints.is_due(self._taken, self.steps):
            self._checkpoints.write(self._checkpoint())
            self._kept = self._taken

    @property
    def taken(self) -> int:
        """How many steps were taken, those before the run was resumed included."""
        return self._taken

    @property
    def params(self) -> Params:
        """The trainable parameters with all their noise, sharing memory with the model."""
        return self._weights.read()

    def evaluate(self, evaluation: Evaluation) -> list[Measurement]:
        """Measure the current weights on public or held-out data, and remember it."""
        try:
            outputs = self.objective.outputs(self.params, evaluation.examples.features)
        except (IndexError, RuntimeError) as error:
            raise DataError(
                f"Expected features in '{evaluation.name}' that fit the model, found some that it "
                f"refuses: {error}. Prepare them like the training data."
            ) from error
        targets = evaluation.examples.targets.to(outputs.device)
        epoch = self._taken * self.sampler.expected_size / self.sampler.examples
        found = [
            Measurement(
                self._taken,
                epoch,
                evaluation.name,
                evaluation.declared,
                name,
                float(metric(outputs, targets)),
            )
            for name, metric in evaluation.metrics.items()
        ]
        self.history += found
        return found

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
            settings={"physical_batch_size": self._chunk, **(settings or {})},
            history=tuple(self.history),
            params={
                name: value.clone(memory_format=torch.contiguous_format)
                for name, value in self.params.items()
            },
            feature_weights=self.objective.feature_weights,
            debug=tuple(self._debug),
            public_facts=public_facts_of(
                self.method,
                self._states,
                self._params,
                steps=self._taken,
                expected_size=self.sampler.expected_size,
                feature_weights=self.objective.feature_weights,
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
            assumed_public=(
                f"the number of {self.sampler.unit.value}s, declared as {self.sampler.examples}",
                *self._assumed_public,
            ),
            charges=self._payment.charges,
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
        states, tensors = pack(self._states, self._params) if begun else (None, {})
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
            feature_weights=self.objective.feature_weights if begun else None,
            states=states,
            state_tensors=tensors,
        )

    def _pay(self) -> None:
        if self.not_private_because:
            self._payment.note_exposure()
        else:
            self._payment.pay_for_step(self._taken + 1, self.steps)

    def _draw(self) -> Drawn:
        return self._drawing.next(Batch(self.name, self._taken + 1))

    def _gradients(self, drawn: Drawn) -> tuple[GradientBatch, Collection[str]]:
        """Gradients of the batch, and the names of tables of which it reads only some rows."""
        if len(drawn.rows) == 0:
            return ChunkedGradients(()), ()
        batch = self._data.take(drawn.rows).to(self._device)
        units = drawn.units.to(self._device) if drawn.units else None
        reads = self.objective.reads(batch.features)
        params = self._weights.read(reads)
        return self.objective.per_unit(params, batch, units, self._chunk), reads.keys()

    def _step(self, facts: dict[str, Tensor]) -> Step:
        def watch(name: str, value: Tensor) -> None:
            if self.debug:
                facts[name] = torch.cat([facts[name], value]) if name in facts else value

        return Step(
            index=self._taken,
            expected_size=self.sampler.expected_size,
            noise=self.randomness,
            mean_gradient=self._mean_gradient,
            watch=watch,
            late=True,
        )

    def _mean_gradient(self, public: PublicExamples) -> Params:
        batch = public.examples.to(self._device)
        params = self._weights.read(self.objective.reads(batch.features))
        return self.objective.mean_gradient(params, batch)

    def _facts(self, drawn: Drawn, facts: dict[str, Tensor]) -> dict[str, float]:
        """Un-noised facts about the batch, after the step; for debugging only."""
        found = {"step": float(self._taken), "batch_size": float(len(drawn.rows))}
        if drawn.units is not None:
            found["units"] = float(drawn.units.count)
        if len(drawn.rows):
            batch = self._data.take(drawn.rows).to(self._device)
            outputs = self.objective.outputs(self.params, batch.features)
            found["training_loss"] = float(self._loss(outputs, batch.targets).mean())
        if "norms" in facts:
            clipped = facts["norms"] > self.method.release.clip_norm
            found["clipped_fraction"] = float(clipped.double().mean())
            found["largest_norm"] = float(facts["norms"].max())
        return found

    def _is_little_for_torch(self, params: Params) -> bool:
        """Is nearly all the work in tables that are read row by row, by loops of our own?"""
        tables = self.objective.reads(take(self._data.features, torch.arange(1)))
        dense = sum(value.numel() for name, value in params.items() if name not in tables)
        return bool(tables) and dense * self.sampler.expected_size <= LITTLE_WORK

    @property
    def _device(self) -> torch.device:
        return next(self.objective.model.parameters()).device

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise ContractError(
                "Expected a run in the process that began it, found a fork of that process, which "
                "would spend the same budget twice. Begin the run in the child."
            )


def _accountant(method: Chain, sampler: Sampler, ledger: Ledger | None) -> Accountant:
    fitting = sampler.accountants(grouping_of(method))
    return fitting[0] if ledger is None else ledger.choose_accountant(fitting)
