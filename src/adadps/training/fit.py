"""Train a model from start to end: the loop around `adadps.training.run.PrivateRun`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from torch import nn

from adadps.accounting.delta import require_small_delta
from adadps.accounting.epsilon import epsilon_of_run, grouping_of
from adadps.accounting.ledger import DiskLedger
from adadps.accounting.samplers import Sampler
from adadps.data.examples import Examples
from adadps.engine.losses import Loss
from adadps.errors import BudgetError, ContractError, SettingError
from adadps.methods.stages.chain import Chain
from adadps.report.result import Result
from adadps.training.evaluation import Evaluation
from adadps.training.interruption import awaiting_the_step
from adadps.training.paid_run import PaidRun
from adadps.training.progress import Progress, progress_bar
from adadps.training.run import PrivateRun, RunOptions
from adadps.types import Accountant


def fit(
    model: nn.Module,
    loss: Loss,
    data: Examples,
    *,
    method: Chain,
    sampler: Sampler,
    steps: int | None = None,
    epochs: float | None = None,
    evaluate: Sequence[Evaluation] = (),
    progress: bool | None = None,
    settings: dict[str, Any] | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Train ``model`` in place with ``method``, and say what it cost.

    Give ``steps`` or ``epochs``. Further options are those of `PrivateRun`: ``delta`` (default
    1/(10 n)), ``accountant``, ``budget``, ``ledger``, ``randomness``, ``physical_batch_size``,
    ``debug``, ``assumed_public``, ``tuning_trials``, ``checkpoints``.

    With ``checkpoints`` (a folder, or `Checkpoints`) the same call again goes on where a killed
    process has stopped: with fresh batches and noise, and paying again for what was not kept.
    Ctrl-C then ends after the steps that are paid for (at most a hundredth of the run), and they
    are kept; pressed twice, it ends at once.

    >>> import torch
    >>> from adadps import dp_sgd, examples, poisson, privatize
    >>> data = examples(torch.randn(100, 3), torch.randn(100))
    >>> squared = lambda outputs, targets: (outputs.squeeze(1) - targets) ** 2
    >>> result = fit(torch.nn.Linear(3, 1), squared, data, steps=10,
    ...              method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=5.0), lr=0.1),
    ...              sampler=poisson(examples=100, expected_size=10))
    >>> result.privacy.private, result.privacy.steps
    (True, 10)
    """
    if (steps is None) == (epochs is None):
        raise ContractError("Expected either steps or epochs, found both or none. Give one.")
    count = steps if steps is not None else sampler.steps(epochs or 0)
    _require_within_budget(method, sampler, count, options)
    run = PrivateRun(
        model,
        loss,
        data,
        method=method,
        sampler=sampler,
        steps=count,
        before_paying=require_within_ledger if options.get("ledger") is not None else None,
        **options,
    )
    kept = options.get("checkpoints") is not None
    with progress_bar(run.steps, progress) as bar, awaiting_the_step(kept) as interruption:
        for _ in range(run.taken):
            bar.advance()
        for batch in run.batches():
            run.step(batch)
            _evaluate_due(run, batch.index, evaluate)
            _show(run, batch.index, bar)
            if interruption.asked and not run.has_paid_ahead:
                run.keep()
                raise KeyboardInterrupt
    _evaluate_what_is_missing(run, evaluate)
    result = run.result(settings)
    if options.get("ledger") is None and isinstance(run.ledger, DiskLedger):
        run.ledger.close()  # it was opened for this run, beside its checkpoints
    return result


def _require_within_budget(
    method: Chain, sampler: Sampler, steps: int, options: RunOptions
) -> None:
    """All steps are known now: refuse a plan that the budget would cut short."""
    budget, randomness = options.get("budget"), options.get("randomness")
    marked = options.get("debug") or (randomness is not None and randomness.mark)
    if budget is None or not isinstance(method, Chain):
        return
    others_refuse = marked or method.exposures or options.get("ledger") is not None
    if others_refuse:
        return
    delta = options.get("delta") or budget.delta
    require_small_delta(delta, sampler.examples, sampler.unit)
    try:
        found = epsilon_of_run(
            method,
            sampler,
            steps,
            delta=delta,
            accountant=options.get("accountant") or sampler.accountants(grouping_of(method))[0],
        )
        planned, fits = f"{found:.4g}", found <= budget.epsilon
    except SettingError:
        planned, fits = "more than can be computed", False
    if not fits:
        raise BudgetError(
            f"Expected {steps} steps within epsilon = {budget.epsilon:g} at delta = "
            f"{budget.delta:g}, found a plan that costs {planned}. Nothing was drawn. Plan fewer "
            "steps or more noise: `calibrate_noise` finds the noise, `calibrate_steps` the steps."
        )


def require_within_ledger(run: PaidRun) -> None:
    """Refuse now what the ledger would cut short, with the model half trained."""
    budget = run.ledger.budget
    if budget is not None and not run.fits_its_ledger():
        raise BudgetError(
            f"Expected {run.steps} steps within what is left on the ledger of epsilon = "
            f"{budget.epsilon:g} at delta = {budget.delta:g}, found {run.ledger.entries} charges "
            "on it and a plan that does not fit beside them. Nothing was drawn. Give the run less "
            "epsilon, which means more noise, or fewer steps; where nothing is left, no further "
            "run fits."
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
    """Move the bar; about twenty times a run, also say what has been spent."""
    marks = max(1, run.steps // 20)
    note = None
    if bar.shown and (index % marks == 0 or index == run.steps):
        note = _spent_so_far(run)
    bar.advance(note)


def _spent_so_far(run: PrivateRun) -> str:
    return "not private" if run.not_private_because else f"ε ≤ {epsilon_at_most(run):.2f}"


def epsilon_at_most(run: PaidRun) -> float:
    """A bound on what was spent that is quick to compute: by Rényi divergences, where they fit."""
    fits = run.sampler.accountants(grouping_of(run.method))
    bounds = [run.epsilon(accountant=Accountant.RDP if Accountant.RDP in fits else run.accountant)]
    if run.ledger.budget is not None:  # which holds at every step, whoever composes
        bounds.append(run.ledger.budget.epsilon)
    return min(bounds)
