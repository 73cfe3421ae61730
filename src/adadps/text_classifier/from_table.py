"""From a table on disk to a model in a folder: everything is checked before anything is paid."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from adadps.accounting import Budget, default_delta, require_epsilon
from adadps.checkpoint import Checkpoints
from adadps.data.identity import identities_of_texts
from adadps.data.tables import read_table
from adadps.data.text import public_vocabulary
from adadps.errors import BudgetError, DataError, SettingError
from adadps.ledger import DiskLedger
from adadps.ledger.summary import summarise
from adadps.result import Result
from adadps.side import Frequencies, word_frequencies
from adadps.text_classifier.saved import TextModel, save_classifier
from adadps.text_classifier.settings import Method, Settings, default_settings
from adadps.text_classifier.training import LabelledTexts, Plan, plan_training, train_classifier
from adadps.text_classifier.word_list import frequencies_from_file
from adadps.types import Accountant
from adadps.writing import new_folder

MOSTLY = 0.5


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asks for; None is "choose for me"."""

    data: Path
    text: str
    label: str
    epsilon: float
    out: Path
    method: Method = Method.ADADPS
    side: str | None = None
    side_source: str | None = None
    side_because: str | None = None
    delta: float | None = None
    examples: int | None = None
    classes: str | None = None
    batch_size: float | None = None
    epochs: float | None = None
    clip_norm: float | None = None
    lr: float | None = None
    words: int = 10_000
    language: str = "en"
    ledger: Path | None = None
    ledger_budget: float | None = None
    checkpoint: Path | None = None
    strict: bool = False
    test: Path | None = None

    def settings(self, examples: int) -> Settings:
        """What was given, and defaults for a declared number of examples."""
        return default_settings(
            self.method,
            examples=examples,
            batch_size=self.batch_size,
            epochs=self.epochs,
            clip_norm=self.clip_norm,
            lr=self.lr,
        )


def train_from_table(request: Request, say: Callable[[str], None]) -> Result:
    """Train and save as asked; the folder appears when everything has gone well."""
    _require_sensible(request)
    with new_folder(request.out) as draft:
        say(f"Reading {request.data} ...")
        data = read_texts(request.data, request.text, request.label)
        test = read_texts(request.test, request.text, request.label) if request.test else None
        _require_held_out(test, data, request.test)
        model = TextModel(
            _declared_classes(request.classes) or data.classes(),
            public_vocabulary(request.words, request.language),
            request.text,
        )
        train = data.examples(model)
        held_out = test.examples(model) if test else None
        say("Planning the noise ...")
        plan = _plan(request, request.examples or len(data), _side(request, model.vocabulary))
        say(
            f"Training {plan.steps} steps with noise multiplier {plan.noise_multiplier:g} for "
            f"ε = {plan.budget.epsilon:g} at δ = {plan.budget.delta:.3g} ..."
        )
        held = Checkpoints(request.checkpoint).latest() if request.checkpoint else None
        if held is not None:
            say(f"Going on from step {held.taken} of {held.planned}, by {request.checkpoint} ...")
        with _ledger(request, plan.budget) or nullcontext() as ledger:
            try:
                result = train_classifier(
                    model,
                    train,
                    plan=plan,
                    ledger=ledger,
                    checkpoints=request.checkpoint,
                    held_out=held_out,
                    assumed_public=_assumed_public(request, model),
                )
            except BudgetError as error:
                raise _with_what_is_left(error, request.ledger) from error
        save_classifier(model, result, draft)
    return result


def read_texts(path: Path, text: str, label: str) -> LabelledTexts:
    """Two columns of a table."""
    table = read_table(path)
    return LabelledTexts(path, table.column(text), table.column(label), table.lines)


def _require_sensible(request: Request) -> None:
    """Refuse at once what no data can mend."""
    require_epsilon(request.epsilon)
    if request.delta is not None:
        Budget(request.epsilon, request.delta)
    if request.text == request.label:
        raise SettingError(
            f"Expected different columns for texts and labels, found '{request.text}' for both. "
            "Labels become classes, which stand in the model."
        )
    if request.strict and (request.classes is None or request.examples is None):
        raise SettingError(
            "Expected --classes and --examples with --strict, found that they would be read off "
            "the private data. Give both."
        )
    _require_places_apart(request)
    informed, side = request.method.takes_side_information, request.side
    if informed and side == "none":
        raise SettingError(
            f"Expected side information for {request.method.value}, found --side none. Leave it "
            "out for public word frequencies, or use --method dp-sgd."
        )
    if not informed and side not in (None, "none"):
        raise SettingError(
            f"Expected no side information for {request.method.value}, found --side {side}. Use "
            "--method adadps, adadps-two-sided or dp-sgd-weighted."
        )
    if request.ledger is None and request.ledger_budget is not None:
        raise SettingError("Expected a ledger for --ledger-budget, found none. Add --ledger FILE.")
    if request.ledger_budget is not None:
        require_epsilon(request.ledger_budget)


def _require_places_apart(request: Request) -> None:
    if request.checkpoint is not None:
        out, folder = (Path(os.path.abspath(path)) for path in (request.out, request.checkpoint))
        if out == folder or folder in out.parents or out in folder.parents:
            raise SettingError(
                f"Expected different places for --out and --checkpoint, found {request.out} and "
                f"{request.checkpoint}. The model would stand in the way of the run."
            )
        if os.path.exists(folder / "result.json"):
            raise SettingError(
                f"Expected a folder of its own for --checkpoint, found the model {folder}. Choose "
                "another name."
            )


def _require_held_out(test: LabelledTexts | None, data: LabelledTexts, path: Path | None) -> None:
    """Refuse training texts as a test: their accuracy would be an un-noised fact about them."""
    if test is None:
        return
    known = identities_of_texts(test.texts).within([identities_of_texts(data.texts)])
    if known.mean() > MOSTLY:
        raise DataError(
            f"Expected texts in {path} that were not trained on, found mostly training texts. "
            "Hold some out before training."
        )


def _declared_classes(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names) or len(names) < 2:
        raise SettingError(
            f"Expected at least two different classes, found '{text}'. Separate them by commas: "
            "--classes good,bad."
        )
    return names


def _side(request: Request, words: tuple[str, ...]) -> Frequencies | None:
    if not request.method.takes_side_information:
        return None
    if request.side in (None, "wordfreq"):
        return word_frequencies(words, request.language)
    return frequencies_from_file(
        Path(request.side or ""),
        words,
        source=request.side_source,
        public_because=request.side_because,
    )


def _plan(request: Request, examples: int, side: Frequencies | None) -> Plan:
    """The run's own epsilon, at the ledger's delta and by its accountant where there is one."""
    accountant, delta = Accountant.PLD, default_delta(examples)
    if request.ledger is not None:
        accountant = Accountant.RDP
        if os.path.exists(request.ledger):
            with DiskLedger(request.ledger) as ledger:
                accountant = ledger.choose_accountant((Accountant.PLD, Accountant.RDP))
                held = ledger.budget
            delta = held.delta if held is not None else delta
            _require_same_budget(request, held)
    delta = delta if request.delta is None else request.delta
    return plan_training(
        request.settings(examples),
        examples=examples,
        budget=Budget(request.epsilon, delta),
        accountant=accountant,
        side=side,
    )


def _require_same_budget(request: Request, held: Budget | None) -> None:
    if request.ledger_budget is not None and (
        held is None or request.ledger_budget != held.epsilon
    ):
        raise SettingError(
            f"Expected the budget that the ledger {request.ledger} began with, found "
            f"--ledger-budget {request.ledger_budget:g}. Leave it out to continue."
        )


def _ledger(request: Request, budget: Budget) -> DiskLedger | None:
    """Made only now, when nothing but the training itself can fail."""
    if request.ledger is None:
        return None
    if os.path.exists(request.ledger):
        return DiskLedger(request.ledger)
    whole = budget.epsilon if request.ledger_budget is None else request.ledger_budget
    if whole < budget.epsilon:
        raise SettingError(
            f"Expected a ledger with room for this run, found --ledger-budget {whole:g} below "
            f"--epsilon {budget.epsilon:g}. Give the ledger more or the run less."
        )
    return DiskLedger(request.ledger, budget=Budget(whole, budget.delta))


def _with_what_is_left(error: BudgetError, ledger: Path | None) -> BudgetError:
    left = summarise(ledger)["left"] if ledger is not None else None
    return error if left is None else BudgetError(f"{error} Left: epsilon = {left:.4g}.")


def _assumed_public(request: Request, model: TextModel) -> list[str]:
    facts = [
        f"the vocabulary: the {len(model.vocabulary)} most frequent words of wordfreq, language "
        f"{request.language}"
    ]
    how = "read off the data" if request.classes is None else "declared"
    facts.append(f"the classes, {how}: {', '.join(model.classes)}")
    if request.examples is None:
        facts.append("that number of examples was read off the data")
    return facts
