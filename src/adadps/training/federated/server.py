"""The server of a federation: it has the weights, the ledger and the noise, and no data.

::

    run = FederatedRun(model, method=method, sampler=poisson(users=400, expected_size=20), rounds=9,
                       loss=loss, example=made_up_rows)
    run.require_ready(refusals)                          # of dry runs with run.preview
    for batch in run.batches():                          # paid for before any device is asked
        for node in run.cohort(batch, connected_nodes):
            ...                                          # send run.task, run.scale, the weights
        run.answer(batch, node, update)                  # in any order, late, twice, or never
        run.step(batch)                                  # clip, sum, add noise
    result = run.result()

However many devices answer, the round is noised and stays paid for. Their number is not recorded,
because under Poisson sampling it is a fact about private draws. This includes rounds in which no
device was asked. If devices were asked and all of them are silent, the run ends and releases
nothing: further rounds would spend the budget and teach the model nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from adadps.accounting.epsilon import Budget
from adadps.accounting.ledger import Ledger
from adadps.accounting.samplers import Rows, Sampler
from adadps.data.examples import Examples, PublicExamples
from adadps.data.provenance import Provenance
from adadps.data.row_kind import RowKind
from adadps.engine.choice import require_separate_examples
from adadps.engine.chunked import ChunkedGradients
from adadps.engine.local import Part, of_updates, table_axis
from adadps.engine.losses import Loss
from adadps.engine.noise.randomness import Randomness
from adadps.engine.objective import predict
from adadps.engine.passes.validation import objective
from adadps.engine.waist import Step
from adadps.errors import ContractError, DeviceError, ModelError, OrderError, SettingError, require
from adadps.methods.stages.chain import Chain
from adadps.methods.stages.users import Users
from adadps.report.result import Measurement
from adadps.tensors.sums import Params
from adadps.training.calibration import TrainingPlan
from adadps.training.checkpoint import Checkpoints
from adadps.training.evaluation import Evaluation
from adadps.training.federated.answers import (
    Cohorts,
    checked_update,
    grouped_by_form,
    largest_honest_norm,
)
from adadps.training.federated.dry_runs import Preview, Refusal, require_ready
from adadps.training.federated.task import Task, scale_of, task_of
from adadps.training.payment import PaymentTerms
from adadps.training.processes import require_alone
from adadps.training.run import Run
from adadps.training.stepper import Batch, Stepper
from adadps.types import Accountant

NOT_COMPARED = "no user has rows of the public data: the rows on devices cannot be compared with it"
WHO_TAKES_PART = "which users take part, and when: noise added by devices protects only their data"


@dataclass
class Round:
    """A round that is paid for: the drawn places, the nodes that were asked, and their answers."""

    batch: Batch
    places: Rows
    cohort: tuple[int, ...] | None = None
    answers: dict[int, dict[str, Part] | None] = field(default_factory=dict)

    @property
    def is_silent(self) -> bool:
        """Whether devices were asked and none has given an answer that counts."""
        return bool(self.cohort) and all(update is None for update in self.answers.values())


class FederatedRun(Run):
    """A run whose users are devices. Each of its ``rounds`` is a step.

    Options are those of `PrivateRun`: ``budget`` is what the run may cost, ``ledger`` the account
    that it is paid from; ``delta``, ``accountant``, ``checkpoints``; ``assumed_public`` and
    ``tuning_trials``, which are stated.

    The method begins with `train_locally`, clips by user, and says who adds the noise. A plan that
    does not fit its budget or ledger is refused. With ``checkpoints``, repeating the same call
    resumes a run whose server has died.

    Before anything is paid, the model is checked. Given ``loss`` and ``example``, so is whether the
    devices' loss fits the model: ``example`` is made-up `examples`, whose kind and shape are
    declared to be those of the devices' rows. Nothing else of it is used.
    """

    _stepper: DeviceStepper

    def __init__(
        self,
        model: nn.Module,
        *,
        method: Chain,
        sampler: Sampler,
        rounds: int,
        loss: Loss | None = None,
        example: Examples | None = None,
        budget: Budget | None = None,
        ledger: Ledger | None = None,
        delta: float | None = None,
        accountant: Accountant | None = None,
        assumed_public: Iterable[str] = (),
        tuning_trials: int | None = None,
        feature_sources: Iterable[Provenance] = (),
        checkpoints: Checkpoints | str | Path | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        if not isinstance(method, Chain):
            raise OrderError(f"Expected a method such as `chain(...)`, found {method!r}.")
        require(rounds >= 1, "rounds >= 1", rounds, "Train for at least one round.")
        require_alone("a federation")
        super().__init__(
            DeviceStepper(model, loss, example),
            TrainingPlan(method, sampler, rounds),
            PaymentTerms(budget=budget, ledger=ledger, delta=delta, accountant=accountant),
            randomness=randomness,
            assumed_public=(*assumed_public, *_taken_for_public(method)),
            tuning_trials=tuning_trials,
            feature_sources=feature_sources,
            checkpoints=checkpoints,
            must_fit=True,
        )

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self._stepper.model

    @property
    def task(self) -> Task:
        """What every device is asked to do."""
        return self._stepper.task

    @property
    def preview(self) -> Preview:
        """What devices receive for their `dry_run`, before the first round."""
        return Preview.of(self.model, self.task, self._stepper.kind)

    def require_ready(self, answers: Mapping[int, Refusal | None]) -> None:
        """Refuse to begin if the `dry_run` of any node found that it cannot do the task."""
        require_ready(answers)

    @property
    def scale(self) -> Params | None:
        """D = 1/A for every parameter, which devices need too; None without side information."""
        return self._stepper.scale

    @property
    def least_answers(self) -> int:
        """The fewest answers with which a round is not discarded."""
        return self._stepper.least_answers

    @property
    def discarded(self) -> int:
        """The number of rounds in this process that had too few answers and so had no effect.

        They stay paid for. This happens only where devices add the noise in shares, and then
        anyone can see it in the weights.
        """
        return self._stepper.discarded

    def cohort(self, batch: Batch, nodes: Iterable[int]) -> tuple[int, ...]:
        """Draw which of the connected nodes to ask. Call it once per round."""
        drawn = self._drawn
        if not isinstance(drawn, Round) or drawn.batch != batch or drawn.cohort is not None:
            raise OrderError(
                "Expected one cohort for the round that this run has just begun, found a call for "
                "another round, or a second call. Iterate over `run.batches()`, and ask once."
            )
        drawn.cohort = self._stepper.cohorts.members(drawn.places, nodes)
        return drawn.cohort

    def answer(self, batch: Batch, node: int, update: Any) -> None:
        """Take the answer of a node: a tensor, or rows of one (`RowSparse`), for each parameter.

        Call it from one thread at a time, as with every method of a run. Answers are kept until
        `step`. An answer is silently dropped if it comes after its round, from a node that was not
        asked, or as a second answer. One that is not finite, or has the wrong names or shapes,
        counts as missing.
        """
        drawn = self._drawn
        if not isinstance(drawn, Round) or drawn.batch != batch:
            return
        if node in (drawn.cohort or ()) and node not in drawn.answers:
            drawn.answers[node] = self._stepper.checked(update)

    def step(self, batch: Batch) -> None:
        """Clip and sum the answers, add noise, and move the weights.

        If devices were asked and all of them are silent, the step is refused and releases nothing.
        The round stays paid for, and the run is over; what was released before is kept.
        """
        drawn = self._drawn
        if isinstance(drawn, Round) and drawn.batch == batch and drawn.is_silent:
            self._require_own_process()
            self._require_whole()
            self._drawn = None
            self.keep()
            self._is_broken = True
            raise DeviceError(
                f"Expected an answer that counts from the devices asked in round {batch.index}, "
                "found none. Nothing was released; the round stays paid for. Look at the logs of "
                "the devices, and resume from a checkpoint or begin a new run."
            )
        super().step(batch)

    def evaluate(self, evaluation: Evaluation) -> list[Measurement]:
        """Measure the current weights on public or held-out data; record this in the history."""
        self._stepper.weights.read()
        return self._measure(evaluation, lambda features: predict(self.model, features, None))


class DeviceStepper(Stepper):
    """Takes steps from the updates that devices have computed."""

    def __init__(self, model: nn.Module, loss: Loss | None, example: Examples | None) -> None:
        if (loss is None) != (example is None):
            raise SettingError(
                "Expected both loss and example, or neither, found one of them. Give the devices' "
                "loss, and `examples` of made-up rows of the same kind and shape as theirs."
            )
        super().__init__(model)
        self._loss, self._example = loss, example
        self.kind = None if example is None else RowKind.of(example)
        self.discarded = 0

    def require_fit(self, method: Chain) -> None:
        """Refuse a method that devices cannot perform, and a model that cannot be trained."""
        self.task = task_of(method)
        self._params = {
            name: parameter.detach()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        if not self._params:
            raise ModelError(
                "Expected a model with trainable parameters, found none. Set requires_grad on the "
                "parameters that should be trained."
            )
        require_separate_examples(self.model)
        if self._loss is not None and self._example is not None:
            objective(self.model, self._loss, self._example)
        self.scale = scale_of(method, self._params)
        self._largest_norm = largest_honest_norm(self.task, self._params)
        self._axes = {name: table_axis(self.model, name) for name in self._params}

    def begin(
        self,
        method: Chain,
        sampler: Sampler,
        units: Sampler,
        randomness: Randomness,
    ) -> None:
        """Prepare to draw cohorts and to move the weights."""
        users = method.release.groups
        assert isinstance(users, Users)  # `task_of` has asked for them
        users.deviation(method.release.noise_multiplier, sampler.expected_size)
        self.least_answers = users.noise.least_answers() if self.task.noise else 0
        self._expected_size = sampler.expected_size
        self.cohorts = Cohorts(units, randomness.generator)
        self._hold(self._params, method, randomness)

    def draw(self, batch: Batch) -> Round:
        """Draw the places of a round; nodes are assigned to them when `cohort` is called."""
        return Round(batch, self.cohorts.next())

    def checked(self, update: Any) -> dict[str, Part] | None:
        """Return an answer that can be added, or None."""
        return checked_update(update, self._params, self._largest_norm, self._axes)

    def take(self, drawn: Round, index: int) -> None:
        """Clip, sum, add noise and move the weights; do nothing if there are too few answers.

        Too few answers would carry too little noise.
        """
        answers = [update for update in drawn.answers.values() if update is not None]
        if len(answers) < self.least_answers:
            self.discarded += 1
            return
        pieces = ChunkedGradients(
            tuple(partial(of_updates, part) for part in grouped_by_form(answers))
        )
        step = Step(
            index=index,
            expected_size=self._expected_size,
            noise=self._randomness,
            mean_gradient=_no_public_data,
            late=True,
            answers=len(answers),
        )
        self.move(pieces, (), step)


def _taken_for_public(method: Chain) -> list[str]:
    """Return what is stated as assumed public, because epsilon does not cover it."""
    compared = [NOT_COMPARED] if method.public_rows else []
    return [*compared, *([WHO_TAKES_PART] if task_of(method).noise else [])]


def _no_public_data(_public: PublicExamples) -> NoReturn:
    raise ContractError("Expected a method without public gradients, found one that needs them.")
