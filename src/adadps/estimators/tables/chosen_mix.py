"""`--features choose`: plan, pay, then choose the mix of a table's texts, all under one plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from torch import nn

from adadps.accounting.noisy_counts.price import Paid
from adadps.data.examples import Examples
from adadps.estimators.paid_mix import CandidateMix, MixTrials, candidates, facts_of, price_of_mix
from adadps.estimators.planner.plan import PlannedRun
from adadps.estimators.tables.features import plan_for_rows, prepare_for_rows
from adadps.estimators.tables.paid_once import Content, PaidFirst, measured_once
from adadps.estimators.tables.request import Declared, TrainingRequest
from adadps.estimators.tables.run_folder import TableRunFolder, budget_of, paying_ledger
from adadps.estimators.tables.saved_model import TableModel
from adadps.methods.side import Frequencies
from adadps.types import Unit


@dataclass(frozen=True)
class ChosenMix:
    """The run with the mix that was chosen, and the payment for the choice."""

    plan: PlannedRun
    mix: CandidateMix
    first: PaidFirst


def choose_mix(
    request: TrainingRequest,
    declared: Declared,
    model: TableModel,
    frequencies: Frequencies | None,
    train: Examples,
    folder: TableRunFolder,
    opened: ExitStack,
    *,
    units: int,
    layer: Callable[[PlannedRun], nn.Module],
    most_rows_at_once: int,
) -> ChosenMix:
    """Pay for and make the choice, or read what this run has chosen before.

    ``units`` is the declared or assumed number of examples or users; ``layer`` returns the model
    before it is trained.
    """
    run = budget_of(request, units)
    unit = Unit.EXAMPLE if declared.user_column is None else Unit.USER
    price = price_of_mix(units, run.budget, run.accountant, unit)
    targets, features = model.targets, model.features
    plan = plan_for_rows(
        request,
        declared,
        features,
        targets,
        frequencies,
        examples=units,
        budget=run.budget,
        accountant=run.accountant,
        besides=price.events,
    )
    trials = MixTrials(
        plan,
        partial(prepare_for_rows, declared.method, features, frequencies),
        candidates(price, model.schema.label.outputs, request.epsilon),
        layer,
        targets.loss,
        train,
        most_rows_at_once,
    )
    ledger = opened.enter_context(paying_ledger(request, folder.own_ledger, run.budget))

    def made() -> Content:
        mix = trials.choose(price)
        return {"mix": trials.mixes.index(mix)}

    def known(content: Content) -> CandidateMix:
        place = content["mix"]
        if not isinstance(place, int) or not 0 <= place < len(trials.mixes):
            raise ValueError(place)
        return trials.mixes[place]

    held = measured_once(folder, price, plan, ledger, measure=made, check=known)
    mix = known(held.content)
    paid = Paid(held.run, price.events, facts_of(price, mix))
    return ChosenMix(trials.chosen(mix), mix, PaidFirst(paid, ledger))
