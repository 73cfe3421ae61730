"""`adadps doctor`: which side information helps, judged on public data alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adadps.cli.commands.train import MOST_EXAMPLES, MOST_WORDS
from adadps.cli.main import (
    errors_as_messages,
    out,
    panel,
    print_json,
    printable,
    say_on_terminal,
    table_of_rows,
    whole_number,
)
from adadps.types import TextFeatures

if TYPE_CHECKING:
    from adadps.estimators.doctor.tables import TableFindings

MOST_FOLDS = 100
_TABLE = panel("The public table")
_RUN = panel("The private run that is planned")
_TRIED = panel("What is tried, and how often")
_SHOWN = panel("What is shown")
_COLUMNS = {
    "method": "method",
    "word list": "word_list",
    "accuracy": "accuracy",
    "gain, points": "gain",
    "by noise": "needed",
    "shown": "shown",
}
_LEGEND = """\
gain: over dp-sgd, in points of accuracy, ± standard error over the simulated
runs. by noise: what noise alone could give. shown: whether the gain (or loss)
exceeds that. dp-sgd-weighted gives rare words more weight in the features;
adadps scales gradients by word frequency before the clip; adadps-two-sided
does so after the noise too."""
_TERMS = {
    "method": "method",
    "word list": "word_list",
    "D": "diameter",
    "R": "ratio",
    "noise": "noise",
    "bound": "bound",
    "sharper": "sharper",
}
_TERMS_LEGEND = """\
D: the distance of the weights from the solution, ||w - w*||.
R: the largest E[g_j^2] / A_j^2 of a weight j; g is a batch's gradient.
noise: E||N||^2_A, the noise of a step. sum A is the same for all.
bound: the convex theorem's, D sqrt(2 sum A (R sum A + noise)) / sqrt(steps).
sharper: the same bound from an earlier, less coarse line of its proof."""


def doctor(
    public: Annotated[
        Path, typer.Argument(help="Table of PUBLIC labelled texts: .csv, .tsv, .jsonl, .parquet.")
    ],
    text: Annotated[str, _TABLE(help="Column of the texts.")],
    label: Annotated[str, _TABLE(help="Column of the labels.")],
    examples: Annotated[
        int,
        _RUN(callback=whole_number(1, MOST_EXAMPLES), help="Declared number of PRIVATE examples."),
    ],
    epsilon: Annotated[float, _RUN(help="What the private run may spend.")],
    delta: Annotated[float | None, _RUN(help="Default: 1/(10 examples).")] = None,
    steps: Annotated[
        int | None,
        _RUN(callback=whole_number(1), help="Default: by rule."),
    ] = None,
    batch_size: Annotated[float | None, _RUN(help="Default: by rule.")] = None,
    side: Annotated[
        list[Path] | None,
        _TRIED(help="Public FILE with columns word and frequency, tried too; may be repeated."),
    ] = None,
    public_texts: Annotated[
        Path | None,
        _TRIED(
            "--public",
            metavar="FILE",
            help="Further public texts, the source of vocabulary, frequencies and vectors.",
        ),
    ] = None,
    features: Annotated[
        TextFeatures, _TRIED(metavar="NAME", help="Texts as words, embeddings or both.")
    ] = TextFeatures.AUTO,
    words: Annotated[
        int,
        _TRIED(callback=whole_number(1, MOST_WORDS), help="Size of the public vocabulary."),
    ] = 10_000,
    language: Annotated[str, _TRIED(help="Language of the vocabulary.")] = "en",
    negation: Annotated[
        bool, _TRIED(" /--without-negation", help="Count 'good' in 'not good' as good.")
    ] = True,
    folds: Annotated[
        int,
        _TRIED(callback=whole_number(3, MOST_FOLDS), help="Simulated runs for each method."),
    ] = 8,
    seed: Annotated[
        int,
        _TRIED(callback=whole_number(0), help="Seed of the folds and of the simulated noise."),
    ] = 0,
    terms: Annotated[
        bool,
        _SHOWN("--terms", help="Also print the terms of the paper's theorem."),
    ] = False,
    as_json: Annotated[
        bool,
        _SHOWN("--json", help="Print JSON instead of a table."),
    ] = False,
) -> None:
    """Compare kinds of side information on public data, before any budget is spent.

    Private runs are simulated on the public texts, with the noise that they
    will have. The table must not be private: give a public sample, or public
    texts that resemble the private ones. The output ends with the
    `adadps train` command that follows the advice.

    Example:

    adadps doctor pilot.csv --text review --label kind --examples 9000 --epsilon 1
    """
    from adadps.estimators.doctor.tables import DoctorRequest, examine_table

    with errors_as_messages():
        request = DoctorRequest(
            public=public,
            text=text,
            label=label,
            examples=examples,
            epsilon=epsilon,
            delta=delta,
            side=tuple(side or ()),
            public_texts=public_texts,
            folds=folds,
            steps=steps,
            batch_size=batch_size,
            features=features,
            words=words,
            language=language,
            negation=negation,
            seed=seed,
        )
        found = examine_table(request, say_on_terminal)
        if as_json:
            print_json(found.describe())
        else:
            _show(found, terms)


def _show(found: TableFindings, terms: bool) -> None:
    facts = found.describe()
    findings = facts["findings"]
    title = (
        f"Simulated on {facts['public_rows']:,} public rows, {facts['folds']} times each; "
        "nothing was spent"
    )
    out.print(table_of_rows(title, _COLUMNS, [_row(one) for one in findings]))
    _say(_LEGEND)
    if terms:
        title = "Terms of the convex theorem, relative to dp-sgd's"
        out.print(table_of_rows(title, _TERMS, [_terms_of(one) for one in findings]))
        _say(_TERMS_LEGEND, *facts["theorem"])
    verdict = facts["verdict"]
    _say(f"\nVerdict: {verdict}.", *facts["reasons"])
    _say("\nWhat else may help, from results on other data:", *facts["further"])
    _say("\nNext, with your private table in place of private.csv:")
    out.print(printable(facts["next_command"]), markup=False, highlight=False, soft_wrap=True)


def _say(*lines: str) -> None:
    for line in lines:
        out.print(printable(line), markup=False, highlight=False)


def _row(finding: dict[str, Any]) -> dict[str, Any]:
    plain = finding["shown"] is None
    gain = f"{100 * finding['gain']:+.1f} ± {100 * finding['gain_standard_error']:.1f}"
    return {
        "method": finding["method"],
        "word_list": finding["word_list"],
        "accuracy": f"{finding['accuracy']:.3f}",
        "gain": None if plain else gain,
        "needed": None if plain else f"{100 * finding['gain_needed']:.1f}",
        "shown": finding["shown"],
    }


def _terms_of(finding: dict[str, Any]) -> dict[str, Any]:
    relative = finding["terms_relative_to_dp_sgd"]
    terms = {name: f"{value:.2g}" for name, value in relative.items()}
    return {"method": finding["method"], "word_list": finding["word_list"], **terms}
