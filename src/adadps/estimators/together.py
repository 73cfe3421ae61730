"""Estimators and tables under torchrun: what the first process does alone, in words for the others.

All processes read the same table and check it alike. The first one alone opens the ledger, pays for
and makes what is measured, and writes files; the others are told, by the pairs of functions here
(`adadps.training.processes.told_by_first`).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adadps.accounting.epsilon import Budget
from adadps.data.bounds import Bounds
from adadps.engine.group import Group
from adadps.errors import ContractError
from adadps.estimators.budget import EstimatorBudget
from adadps.estimators.labels import Labels
from adadps.estimators.paid import MeasuredFacts
from adadps.estimators.tables.paid_once import MeasuredFile
from adadps.estimators.tables.run_folder import RunBudget
from adadps.types import Accountant


def refuse_choice(group: Group) -> None:
    """Refuse features that are chosen by trials, each of which is a training of its own."""
    if not group.is_alone:
        raise ContractError(
            f"Expected named features in {group.size} processes, found features that are chosen: "
            "the trials that choose run in one process. Name them (words, embeddings, both), or "
            "start one process with `processes` (--processes), which chooses before it starts "
            "others."
        )


class TermsInWords:
    """The budget of an estimator; the path of the ledger is known to all."""

    @staticmethod
    def encode(terms: EstimatorBudget) -> Any:
        """Return it as JSON."""
        return [asdict(terms.whole), asdict(terms.run), terms.accountant.value]

    @staticmethod
    def decode(told: Any, path: Path | None) -> EstimatorBudget:
        """Return what was encoded."""
        whole, run, accountant = told
        return EstimatorBudget(Budget(**whole), Budget(**run), Accountant(accountant), path)


class BudgetInWords:
    """The budget of a run on a table."""

    @staticmethod
    def encode(run: RunBudget) -> Any:
        """Return it as JSON."""
        return [asdict(run.budget), run.accountant.value]

    @staticmethod
    def decode(told: Any) -> RunBudget:
        """Return what was encoded."""
        return RunBudget(Budget(**told[0]), Accountant(told[1]))


class FileInWords:
    """What was measured about the columns of a table, and the name of the run that has paid."""

    @staticmethod
    def encode(held: MeasuredFile) -> Any:
        """Return it as JSON."""
        return asdict(held)

    @staticmethod
    def decode(told: Any) -> MeasuredFile:
        """Return what was encoded."""
        return MeasuredFile(**told)


class FactsInWords:
    """What an estimator has measured, and the name of the run that has paid.

    >>> facts = MeasuredFacts(Labels(np.array(["a", "b"]), several=False))
    >>> run, found = FactsInWords.decode(FactsInWords.encode(("r", facts)))
    >>> run, found.labels.classes.tolist(), found.facts == facts.facts
    ('r', ['a', 'b'], True)
    """

    @staticmethod
    def encode(paid: tuple[str, MeasuredFacts]) -> Any:
        """Return it as JSON."""
        run, found = paid
        classes = None if found.labels is None else _array_in_words(found.labels.classes)
        bounds = [
            None if held is None else [_array_in_words(held.low), _array_in_words(held.high)]
            for held in (found.targets, found.features)
        ]
        return [run, classes, *bounds]

    @staticmethod
    def decode(told: Any) -> tuple[str, MeasuredFacts]:
        """Return what was encoded."""
        run, classes, *bounds = told
        labels = None if classes is None else Labels(_array(classes), several=False)
        targets, features = (
            None if held is None else Bounds(_array(held[0]), _array(held[1])) for held in bounds
        )
        return run, MeasuredFacts(labels, targets, features)


def _array_in_words(values: npt.NDArray[Any]) -> Any:
    return [values.dtype.str, values.tolist()]


def _array(told: Any) -> npt.NDArray[Any]:
    return np.array(told[1], dtype=told[0])
