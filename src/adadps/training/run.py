"""One private run on data that is here: batches are drawn, differentiated, and move the weights.

Nothing about the private data leaves this room but what the method has released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn

from adadps.accounting.epsilon import Budget
from adadps.accounting.ledger import Ledger
from adadps.accounting.noisy_counts.price import Paid
from adadps.accounting.samplers import Sampler
from adadps.data.examples import Examples
from adadps.engine.losses import Loss
from adadps.engine.noise.randomness import Randomness
from adadps.engine.objective import Objective
from adadps.engine.passes.validation import objective
from adadps.errors import require
from adadps.methods.stages.chain import Chain
from adadps.report.result import Measurement
from adadps.training.batches import Batch, Drawing, Drawn
from adadps.training.checkpoint import Checkpoints
from adadps.training.evaluation import Evaluation
from adadps.training.paid_run import PaidRun
from adadps.training.preflight import require_parts
from adadps.training.stepping import Stepper
from adadps.types import Accountant


class PaidOptions(TypedDict, total=False):
    """The options of every run that is paid for step by step."""

    delta: float | None
    accountant: Accountant | None
    budget: Budget | None
    ledger: Ledger | None
    randomness: Randomness | None
    assumed_public: Iterable[str]
    tuning_trials: int | None
    checkpoints: Checkpoints | str | Path | None
    most_epsilon: float | None
    measured: Paid | None


class RunOptions(PaidOptions, total=False):
    """The options of a run that have defaults."""

    physical_batch_size: int | None
    debug: bool


class PrivateRun(PaidRun):
    """One training run that draws its own batches, pays for each, and refuses others.

    ::

        run = PrivateRun(model, loss, data, method=method, sampler=sampler, steps=1000)
        for batch in run.batches():
            run.step(batch)
        result = run.result()

    The model's parameters are updated in place. ``before_paying`` is called with the run before
    anything is charged or drawn, and may refuse it. ``most_epsilon`` is what this run alone may
    cost, beside the budget of its ledger, however often it is resumed. ``measured`` is what was
    found out about the data before, paid for under the name of this run. All options: `RunOptions`.
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
        physical_batch_size: int | None = None,
        debug: bool = False,
        before_paying: Callable[[PrivateRun], None] | None = None,
        **options: Unpack[PaidOptions],
    ) -> None:
        require(
            physical_batch_size is None or physical_batch_size >= 1,
            "physical_batch_size >= 1",
            physical_batch_size,
            "It bounds how many examples are differentiated at once.",
        )
        work = OnData(model, loss, data, chunk=physical_batch_size, debug=debug)
        self._on_data = work
        super().__init__(
            work,
            method=method,
            sampler=sampler,
            steps=steps,
            debug=debug,
            before_paying=before_paying,
            **options,
        )

    @property
    def objective(self) -> Objective:
        """What is differentiated."""
        return self._on_data.stepper.objective

    def evaluate(self, evaluation: Evaluation) -> list[Measurement]:
        """Measure the current weights on public or held-out data, and remember it."""
        epoch = self._taken * self.sampler.expected_size / self.sampler.examples
        found = evaluation.measure(
            lambda features: self.objective.outputs(self.params, features), self._taken, epoch
        )
        self.history += found
        return found


class OnData:
    """Work on examples in this process."""

    def __init__(
        self, model: nn.Module, loss: Loss, data: Examples, *, chunk: int | None, debug: bool
    ) -> None:
        self.model, self._loss, self._data = model, loss, data
        self._chunk, self._debug = chunk, debug
        self.settings: dict[str, Any] = {"physical_batch_size": chunk}

    def require_fit(self, method: Chain) -> None:
        """Data for the method, and a model and a loss for the data."""
        require_parts(method, self._data)
        self._objective = objective(self.model, self._loss, self._data)

    def begin(
        self, method: Chain, sampler: Sampler, units: Sampler, randomness: Randomness
    ) -> Stepper:
        """Gradients of this data, and batches of it."""
        self.stepper = Stepper(
            self._objective.drawing_from(randomness, quotes_errors=self._debug),
            self._loss,
            self._data,
            method=method,
            expected_size=sampler.expected_size,
            randomness=randomness,
            chunk=self._chunk,
            debug=self._debug,
        )
        self.drawing = Drawing(
            self._data, method=method, sampler=sampler, units=units, randomness=randomness
        )
        return self.stepper

    def draw(self, batch: Batch) -> Drawn:
        """The rows of a batch."""
        return self.drawing.next(batch)

    def take(self, drawn: Drawn, index: int) -> None:
        """Differentiate them, and move the weights."""
        self.stepper.take(drawn, index)
