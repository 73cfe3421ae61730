"""Trials of the image experiments: short ones, and finals as long as runs."""

from __future__ import annotations

from collections.abc import Sequence

from adadps_experiments.reproduce import trials
from adadps_experiments.reproduce.images.jobs import METRIC, ImageJob, run
from adadps_experiments.reproduce.images.methods import IMAGE_METHODS, methods_of
from adadps_experiments.reproduce.images.problems import SIZES
from adadps_experiments.reproduce.records import RecordFile
from adadps_experiments.reproduce.results import Setting, Winners

PROTOCOL = (
    "Eight settings for each method, and up to two steps beyond the edge of a grid at which the "
    "best one lies, by the same rule for all; the best score on a sixth of the training images, "
    "held out from the trials; one run each, at the smaller epsilon, calibrated to it for its own "
    "length. Where trials are shorter than the runs of the table, the best is tried again at the "
    "length of those, then with steps half as long, and a quarter as long if half was better; the "
    "best of these wins. As in the paper, trials are not part of the epsilons."
)


def tune(
    parts: Sequence[str],
    record_file: RecordFile,
    workers: int | None = None,
    held: Winners | None = None,
    methods: Sequence[str] | None = None,
    *,
    quick: bool = False,
) -> Winners:
    """Run the trials that have no record; return the winners, beside those ``held`` before.

    If it is ``quick``, there are no finals, and winners are for runs as long as trials alone.
    """
    found = {}
    for part in parts:
        size = SIZES[part]
        search = trials.Search(run, record_file, METRIC, size.lower_is_better, workers)
        found[part] = {
            name: search.winner(
                _trials(part, name),
                size.epochs if has_finals(part, name) and not quick else None,
            )
            for name in trials.chosen(part, methods, methods_of(part))
        }
    return trials.merged(held, found, PROTOCOL, tuple(IMAGE_METHODS))


def _trials(experiment: str, method: str) -> list[ImageJob]:
    return [
        ImageJob(
            experiment=experiment,
            method=method,
            setting=setting,
            epsilon=SIZES[experiment].tuned_at,
            seed=trials.TUNING_SEED,
            tuning=True,
        )
        for setting in methods_of(experiment)[method]
    ]


def has_finals(experiment: str, method: str) -> bool:
    """Tell whether trials of a method are shorter than its runs."""
    size = SIZES[experiment]
    return size.trial_epochs < size.epochs and not IMAGE_METHODS[method].only_public


def setting_of(experiment: str, method: str, winners: Winners, *, quick: bool = False) -> Setting:
    """Return the recorded setting of a method for runs of the table, or as long as trials."""
    finals = has_finals(experiment, method)
    return trials.setting_of(
        experiment, method, winners, needs_finals=finals and not quick, of_trials=finals and quick
    )
