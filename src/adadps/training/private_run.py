"""A private run on data in this process: `PrivateRun`, the tier below `fit`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from torch import nn

from adadps.accounting.epsilon import Budget
from adadps.accounting.ledger import Ledger
from adadps.accounting.noisy_counts.price import Paid
from adadps.accounting.samplers import Sampler
from adadps.data.examples import Examples
from adadps.engine.losses import Loss
from adadps.engine.noise.randomness import Randomness
from adadps.engine.objective import Objective
from adadps.errors import require
from adadps.methods.stages.chain import Chain
from adadps.report.result import Measurement
from adadps.training.calibration import Wanted, plan_training
from adadps.training.checkpoint import Checkpoints
from adadps.training.evaluation import Evaluation
from adadps.training.payment import PaymentTerms
from adadps.training.run import Run
from adadps.training.stepper import DataStepper
from adadps.types import Accountant


class RunOptions(TypedDict, total=False):
    """The options of a run that other functions pass on to `PrivateRun`."""

    delta: float | None
    accountant: Accountant | None
    budget: Budget | None
    ledger: Ledger | None
    randomness: Randomness | None
    assumed_public: Iterable[str]
    tuning_trials: int | None
    checkpoints: Checkpoints | str | Path | None
    measured: Paid | None
    physical_batch_size: int | None
    debug: bool


class PrivateRun(Run):
    """One training run that draws its own batches, pays for each, and refuses others.

    ::

        run = PrivateRun(model, loss, data, method=dp_sgd(lr=1.0), clip_norm=1.0, batch_size=500,
                         epochs=5, budget=Budget(epsilon=2, delta=1e-5))
        for batch in run.batches():
            run.step(batch)
        result = run.result()

    The model's parameters are updated in place. The parameters are those of `fit`, but for
    ``evaluate``, ``progress`` and ``settings``; ``measured`` is what was measured on the data
    before, and paid for under the name of this run. With ``must_fit`` a plan that the budget would
    cut short is refused before anything is drawn.
    """

    _stepper: DataStepper

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Examples,
        *,
        method: Chain,
        clip_norm: float | None = None,
        batch_size: float | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        examples: int | None = None,
        sampler: Sampler | None = None,
        budget: Budget | None = None,
        ledger: Ledger | None = None,
        delta: float | None = None,
        accountant: Accountant | None = None,
        assumed_public: Iterable[str] = (),
        tuning_trials: int | None = None,
        checkpoints: Checkpoints | str | Path | None = None,
        physical_batch_size: int | None = None,
        randomness: Randomness | None = None,
        debug: bool = False,
        measured: Paid | None = None,
        must_fit: bool = False,
    ) -> None:
        require(
            physical_batch_size is None or physical_batch_size >= 1,
            "physical_batch_size >= 1",
            physical_batch_size,
            "It bounds how many examples are differentiated at once.",
        )
        terms = PaymentTerms(
            budget=budget, ledger=ledger, delta=delta, accountant=accountant, measured=measured
        )
        wanted = Wanted(
            method=method,
            clip_norm=clip_norm,
            batch_size=batch_size,
            steps=steps,
            epochs=epochs,
            examples=examples,
            sampler=sampler,
        )
        super().__init__(
            DataStepper(model, loss, data, chunk=physical_batch_size, debug=debug),
            plan_training(wanted, data, terms),
            terms,
            randomness=randomness,
            debug=debug,
            assumed_public=assumed_public,
            tuning_trials=tuning_trials,
            checkpoints=checkpoints,
            must_fit=must_fit,
        )

    @property
    def objective(self) -> Objective:
        """What is differentiated."""
        return self._stepper.objective

    def evaluate(self, evaluation: Evaluation) -> list[Measurement]:
        """Measure the current weights on public or held-out data, and record it in the history."""
        return self._measure(
            evaluation, lambda features: self.objective.outputs(self.params, features)
        )
