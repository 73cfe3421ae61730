"""Records that are read again: whoever needs one finds here whether a run can have written it.

A file of records can be edited, merged or damaged between two commands; what does not fit is told
with its file and the way to run it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adadps.errors import DataError
from adadps_experiments.reproduce.keeping import Kept, Record

IN_EVERY_RUN = {
    "examples",
    "noise_multiplier",
    "clip_norm",
    "private",
    "epsilon_pld",
    "epsilon_rdp",
    "seconds",
}


def sound_run(kept: Kept, job: Record) -> Record:
    """The record of a run on text: shares with a name, a curve of shares, and what it cost."""
    return _sound(kept, job, _is_run)


def sound_trial(kept: Kept, job: Record) -> Record:
    """The record of a trial on text: its accuracy is a share.

    >>> import tempfile
    >>> from pathlib import Path
    >>> kept = Kept(Path(tempfile.mkdtemp()) / "trials.jsonl")
    >>> kept.add({"job": {"method": "adam"}, "values": {}})
    >>> sound_trial(kept, {"method": "adam"})
    Traceback (most recent call last):
    adadps.errors.DataError: Expected the record of a run of adam in ... to run it again.
    """
    return _sound(kept, job, lambda record: _is_share(record["values"]["accuracy"]))


def sound_toy_run(kept: Kept, job: Record) -> Record:
    """The record of a run on the toy problem: losses are numbers, or null beyond all numbers."""
    return _sound(kept, job, _is_toy_run)


def _sound(kept: Kept, job: Record, is_whole: Callable[[Record], bool]) -> Record:
    record = kept.require(job)
    try:
        if not is_whole(record):
            raise ValueError("a value is missing or cannot be")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"Expected the record of a run of {job['method']} in {kept.path}, found a damaged one "
            f"({error}). Delete the line with {record['job']} to run it again."
        ) from error
    return record


def _is_run(record: Record) -> bool:
    shares = [*record["values"].values(), *(value for _, value in record["curve"])]
    return bool(record["values"]) and all(map(_is_share, shares)) and record.keys() >= IN_EVERY_RUN


def _is_toy_run(record: Record) -> bool:
    losses = [record["loss"], *(value for _, value in record["curve"])]
    steps = [step for step, _ in record["curve"]]
    ends = bool(steps) and all(type(step) is int for step in steps)
    return ends and all(loss is None or isinstance(loss, float) for loss in losses)


def _is_share(value: Any) -> bool:
    return isinstance(value, float) and 0 <= value <= 1
