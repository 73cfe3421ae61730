"""Train on data in this process: `fit` from start to end, `PrivateRun` in a loop of your own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

from torch import nn

from adadps.accounting.epsilon import Budget
from adadps.accounting.ledger import DiskLedger, Ledger
from adadps.accounting.noisy_counts.price import Paid
from adadps.accounting.samplers import Sampler
from adadps.data.examples import Examples
from adadps.data.provenance import Provenance
from adadps.engine.group import Meeting
from adadps.engine.losses import Loss
from adadps.engine.noise.randomness import Randomness
from adadps.engine.objective import Objective
from adadps.errors import require
from adadps.methods.stages.chain import Chain
from adadps.report.result import Measurement, Result
from adadps.training.calibration import Wanted, complete_plan
from adadps.training.checkpoint import Checkpoints
from adadps.training.evaluation import Evaluation
from adadps.training.payment import PaymentTerms
from adadps.training.processes import (
    Shard,
    current_group,
    first_speaks,
    joined_terms,
    part_of,
    require_possible,
    sharded_over,
)
from adadps.training.progress import Progress, progress_bar
from adadps.training.run import Run
from adadps.training.sharded_stepper import ShardedStepper
from adadps.training.shared_ledger import SharedLedger
from adadps.training.stepper import DataStepper
from adadps.types import Accountant


def fit(
    model: nn.Module,
    loss: Loss,
    data: Examples | Shard,
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
    evaluate: Sequence[Evaluation] = (),
    assumed_public: Iterable[str] = (),
    tuning_trials: int | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
    physical_batch_size: int | None = None,
    randomness: Randomness | None = None,
    debug: bool = False,
    progress: bool | None = None,
    settings: dict[str, Any] | None = None,
    feature_sources: Iterable[Provenance] = (),
    measured: Paid | None = None,
    processes: int | None = None,
) -> Result:
    """Train ``model`` in place with ``method``, and state what it cost.

    >>> import torch
    >>> from adadps import Budget, dp_sgd, examples, losses
    >>> data = examples(torch.randn(1000, 3), torch.randint(2, (1000,)))
    >>> result = fit(torch.nn.Linear(3, 2), losses.cross_entropy, data, method=dp_sgd(lr=1.0),
    ...              clip_norm=1.0, batch_size=100, epochs=2,
    ...              budget=Budget(epsilon=2, delta=1e-4))
    >>> result.privacy.steps, result.privacy.epsilon <= 2
    (20, True)

    What is trained:
        ``loss(outputs, targets)`` returns one value per example. ``data`` is
        `examples(features, targets)`. ``method`` is a chain of stages such as `dp_sgd(lr=...)`.
    How long, on which batches:
        ``epochs`` or ``steps``. Batches are drawn by Poisson sampling with the expected size
        ``batch_size`` (users instead of examples where the method clips by user), or by a
        ``sampler`` of your own. ``examples`` declares the public number of examples (or users);
        without it the number is read off the data, and the result says so.
    What it may cost:
        ``budget`` is what this run may cost. ``clip_norm`` completes a method that leaves it open,
        and so does the noise: the smallest multiplier with which all steps fit the budget. A
        method that has its own noise is refused if it does not fit. ``ledger`` is an account that
        several runs share; with both, ``budget`` is this run's share of it. ``delta`` is that of
        the budget, or 1/(10 n); ``accountant`` the tightest that fits.
    What the result says:
        ``evaluate`` lists `on_held_out` and `on_public` data to measure on; ``assumed_public``
        states facts about the data that you knew without looking at it, ``tuning_trials`` how
        often you have trained on it before; ``settings`` is stored with the result.
        ``feature_sources`` say where public knowledge in the features comes from, such as
        `Embeddings.provenance`. ``measured`` is what was measured on the data before, and paid for
        under the name of this run.
    How it runs:
        ``physical_batch_size`` bounds how many examples are differentiated at once. ``progress``
        shows a bar (by default on a terminal). ``randomness`` and ``debug`` make a run
        reproducible or talkative, and mark it as not private. ``processes=2`` trains in two
        processes on this machine (`adadps.training.workers`); in a script, the call then belongs
        under ``if __name__ == "__main__":``.

    With ``checkpoints`` (a folder, or `Checkpoints`) the same call again resumes where a killed
    process has stopped: with fresh batches and noise, and paying again for steps that were lost.
    Ctrl-C then stops after the steps that are paid for (at most a hundredth of the run), which are
    saved; pressed twice, it stops at once.
    """
    options: dict[str, Any] = {
        "method": method,
        "clip_norm": clip_norm,
        "batch_size": batch_size,
        "steps": steps,
        "epochs": epochs,
        "examples": examples,
        "sampler": sampler,
        "budget": budget,
        "ledger": ledger,
        "delta": delta,
        "accountant": accountant,
        "assumed_public": assumed_public,
        "tuning_trials": tuning_trials,
        "checkpoints": checkpoints,
        "physical_batch_size": physical_batch_size,
        "randomness": randomness,
        "debug": debug,
        "feature_sources": feature_sources,
        "measured": measured,
        "must_fit": True,
    }
    if processes is not None and processes != 1:
        from adadps.training.workers import fit_in_workers

        return fit_in_workers(
            processes, model, loss, data, options, evaluate, progress=progress, settings=settings
        )
    run = PrivateRun(model, loss, data, **options)
    with (
        progress_bar(run.steps, progress if run.group.is_first else False) as bar,
        awaiting_the_step(checkpoints is not None) as interruption,
    ):
        take_all_steps(run, evaluate, bar, interruption if checkpoints is not None else None)
    return finish(run, evaluate, settings, closes=ledger is None)


def take_all_steps(
    run: PrivateRun,
    evaluate: Sequence[Evaluation],
    bar: Progress,
    interruption: Interruption | None,
) -> None:
    """Take the remaining steps; a run with checkpoints may be interrupted."""
    for _ in range(run.taken):
        bar.advance()
    for batch in run.batches():
        run.step(batch)
        _evaluate_due(run, batch.index, evaluate)
        _show(run, batch.index, bar)
        if interruption is not None and _ends_here(run, interruption):
            run.keep()
            raise KeyboardInterrupt(
                f"{run.taken} of {run.steps} steps are stored and paid for; the same call resumes"
            )


def finish(
    run: PrivateRun,
    evaluate: Sequence[Evaluation],
    settings: dict[str, Any] | None,
    *,
    closes: bool,
) -> Result:
    """Return the result after the last step; ``closes`` the ledger beside its checkpoints."""
    _evaluate_what_is_missing(run, evaluate)
    result = run.result(settings)
    own = run.ledger.own if isinstance(run.ledger, SharedLedger) else run.ledger
    if closes and isinstance(own, DiskLedger):
        own.close()  # it was opened for this run, beside its checkpoints
    return result


def _ends_here(run: PrivateRun, interruption: Interruption) -> bool:
    """Was an end asked for, in any process, and is nothing lost by it?"""
    group = run.group
    if group.is_alone:
        return interruption.asked and not run.has_paid_ahead
    return group.any(interruption.asked) and not group.tell(
        Meeting.WORD, lambda: run.has_paid_ahead
    )


def _evaluate_due(run: PrivateRun, index: int, evaluations: Sequence[Evaluation]) -> None:
    for evaluation in evaluations:
        last = index == run.steps
        if last or (evaluation.every is not None and index % evaluation.every == 0):
            run.evaluate(evaluation)


def _evaluate_what_is_missing(run: PrivateRun, evaluations: Sequence[Evaluation]) -> None:
    """A run that was resumed at its very end has not been measured there."""
    measured = {entry.data for entry in run.history if entry.step == run.taken}
    for evaluation in evaluations:
        if evaluation.name not in measured:
            run.evaluate(evaluation)


def _show(run: PrivateRun, index: int, bar: Progress) -> None:
    """Advance the bar; about twenty times per run, also show what has been spent."""
    marks = max(1, run.steps // 20)
    note = None
    if bar.shown and (index % marks == 0 or index == run.steps):
        note = _spent_so_far(run)
    bar.advance(note)


def _spent_so_far(run: PrivateRun) -> str:
    return "not private" if run.not_private_because else f"ε ≤ {run.epsilon_at_most():.2f}"


TOLD = b"\nEnding after the steps that are paid for. Ctrl-C again ends at once, and loses them.\n"


@dataclass
class Interruption:
    """Was an end asked for?"""

    asked: bool = False


@contextmanager
def awaiting_the_step(wanted: bool) -> Iterator[Interruption]:
    """Note the first Ctrl-C instead of raising it; a second one is raised at once.

    Only where it is ``wanted``, in the main thread, and if nothing else handles Ctrl-C: elsewhere
    nothing changes.
    """
    interruption = Interruption()
    usual = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not wanted or not is_main or usual is not signal.default_int_handler:
        yield interruption
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interruption.asked:
            signal.default_int_handler(number, frame)
        interruption.asked = True
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), TOLD)  # print is not for handlers of signals

    signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, usual)


class RunOptions(TypedDict, total=False):
    """The options of a run that other functions pass on to `PrivateRun`."""

    delta: float | None
    accountant: Accountant | None
    budget: Budget | None
    ledger: Ledger | None
    randomness: Randomness | None
    assumed_public: Iterable[str]
    tuning_trials: int | None
    feature_sources: Iterable[Provenance]
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
        data: Examples | Shard,
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
        feature_sources: Iterable[Provenance] = (),
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
        group = current_group()
        with group.together():
            sharded = sharded_over(model, group)
        group = group if sharded is None else sharded.group
        with group.together(), first_speaks(group):
            others = {"checkpoints": checkpoints is not None, "must_fit": must_fit}
            terms = joined_terms(group, wanted, terms, model, loss, data, others)
            whole = data.examples if isinstance(data, Shard) else data
            plan = complete_plan(wanted, whole, terms)
            require_possible(group, model, plan.method, plan.sampler, data, debug=debug)
            part = part_of(data, group)
            stepper = (
                DataStepper(model, loss, part, chunk=physical_batch_size, debug=debug)
                if sharded is None
                else ShardedStepper(sharded, loss, part, chunk=physical_batch_size)
            )
            super().__init__(
                stepper,
                plan,
                terms,
                randomness=randomness,
                debug=debug,
                assumed_public=assumed_public,
                tuning_trials=tuning_trials,
                feature_sources=feature_sources,
                checkpoints=checkpoints,
                must_fit=must_fit,
                group=group,
            )

    @property
    def objective(self) -> Objective:
        """What is differentiated."""
        return self._stepper.objective

    def evaluate(self, evaluation: Evaluation) -> list[Measurement]:
        """Measure the current weights on public or held-out data, and record it in the history."""
        params = self._stepper.evaluated_params
        return self._measure(evaluation, lambda features: self.objective.outputs(params, features))
