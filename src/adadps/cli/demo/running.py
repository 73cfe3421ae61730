"""The whole demo: every row, the report, and a saved model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from adadps.accounting.epsilon import Budget
from adadps.cli.demo.contenders import CONTENDERS, NOT_PRIVATE, recorded_settings
from adadps.cli.demo.data import load_data, load_default_data
from adadps.cli.demo.training import (
    DEFAULTS,
    PUBLIC_ONLY,
    STEPS,
    noise_for,
    public_accuracy,
    train,
    train_defaults,
)
from adadps.errors import DataError
from adadps.files import remove_folder, write_json
from adadps.report.card import CARD_JSON, CARD_MARKDOWN
from adadps.report.card.audits import AUDIT_FILE
from adadps.report.html import report_of_comparison
from adadps.report.result import RESULT_FILE, WEIGHTS_FILE, Result

SHIPPED = "AdaDPS, two-sided"
OF_A_MODEL = {RESULT_FILE, WEIGHTS_FILE, CARD_JSON, CARD_MARKDOWN, AUDIT_FILE}


@dataclass(frozen=True)
class DemoOutcome:
    """The rows and files of a demo."""

    rows: list[dict[str, Any]]
    report: Path
    model: Path


def run_demo(folder: Path, epsilon: float, say: Callable[[str], None]) -> DemoOutcome:
    """Train all methods; write the report, the rows and the AdaDPS model into ``folder``."""
    Budget(epsilon, 0.5)  # refuses a bad epsilon before the data is read
    _require_room(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # steps are small: several threads would wait for each other
    try:
        return _run_demo(folder, epsilon, say)
    finally:
        torch.set_num_threads(threads)


def _run_demo(folder: Path, epsilon: float, say: Callable[[str], None]) -> DemoOutcome:
    say("Reading 30,300 package descriptions that come with adadps ...")
    data = load_data()
    say(f"Planning {STEPS} steps for epsilon = {epsilon:g} ...")
    sigma, winners = noise_for(data, epsilon), recorded_settings()
    results: dict[str, Result] = {}
    rows = []

    def keep(name: str, side: str, trained: tuple[Result, float]) -> None:
        result, seconds = trained
        results[name] = result
        rows.append(_row(name, side, result, seconds))
        say(f"{name}: accuracy {result.last('accuracy'):.3f} in {seconds:.0f} s")

    for contender in CONTENDERS:
        if contender.name == NOT_PRIVATE:  # private rows come first
            defaults = load_default_data(epsilon)
            alone = public_accuracy(defaults)
            keep(DEFAULTS, "word frequencies, embeddings", train_defaults(defaults, epsilon))
        trained = train(contender, winners[contender.name], sigma, data)
        keep(contender.name, contender.side, trained)
    rows.insert(0, _public_row(alone))
    write_json(folder / "demo.json", rows)
    report = _report(folder, rows, results)
    remove_folder(folder / "model", OF_A_MODEL)
    return DemoOutcome(rows, report, results[SHIPPED].save(folder / "model"))


def _require_room(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo."""
    model = folder / "model"
    other = folder.is_dir() and any(folder.iterdir()) and not (folder / "demo.json").exists()
    other = other or model.is_file() or model.is_symlink()
    other = other or (
        model.is_dir() and any(file.name not in OF_A_MODEL for file in model.iterdir())
    )
    if other or (folder.exists() and not folder.is_dir()):
        raise DataError(
            f"Expected a new folder or an earlier demo, found something else at {folder}. Choose "
            "another one with --out; nothing was changed."
        )


def _row(name: str, side: str, result: Result, seconds: float) -> dict[str, Any]:
    privacy = result.privacy
    return {
        "method": name,
        "side": side,
        "accuracy": result.last("accuracy"),
        "epsilon": privacy.epsilon if privacy.private else None,
        "delta": privacy.delta if privacy.private else None,
        "tuning_trials": privacy.tuning_trials,
        "seconds": round(seconds, 1),
    }


def _public_row(accuracy: float) -> dict[str, Any]:
    """Return the row of what is known without any private data."""
    return {
        "method": PUBLIC_ONLY,
        "side": "embeddings",
        "accuracy": accuracy,
        "epsilon": 0.0,
        "delta": 0.0,
        "tuning_trials": 0,
        "seconds": 0.0,
    }


def _report(folder: Path, rows: list[dict[str, Any]], results: dict[str, Result]) -> Path:
    best = max((row for row in rows if row["epsilon"] is not None), key=lambda row: row["accuracy"])
    return report_of_comparison(
        results,
        folder / "report.html",
        title="adadps demo: several private methods, one budget",
        lead="A linear classifier predicts the section of a Debian package from its description. "
        "The descriptions are treated as private; accuracy is measured on packages held out from "
        "training.",
        columns={
            "side information": {row["method"]: row["side"] for row in rows[1:]},
            "tuning trials": {row["method"]: str(row["tuning_trials"]) for row in rows[1:]},
            "seconds": {row["method"]: f"{row['seconds']:.0f}" for row in rows[1:]},
        },
        highlight=best["method"],
        notes=[
            "All private methods have the same epsilon. Those that were tuned have the same "
            "features, batches, steps and number of trials, which were made beforehand on a part "
            "of the training data; their cost is not part of this epsilon.",
            "The defaults had no trials on this data. They are those of adadps train when only "
            "epsilon and the sections are given: log counts of the same words and those of the "
            "sections' names, weighted by public inverse document frequencies, beside public "
            "embeddings, in shares by rule; so are batch size, clip norm and learning rate.",
            f"{PUBLIC_ONLY}: accuracy {rows[0]['accuracy']:.3f} at epsilon = 0.",
            "Side information can enter before the clip (the paper's AdaDPS), before the clip and "
            "after the noise (two-sided), or in the features; which is best depends on the data.",
            "Noise is fresh in every run: if you repeat the demo, accuracies change by half a "
            "point, sometimes by two.",
        ],
    )
