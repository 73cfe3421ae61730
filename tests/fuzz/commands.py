"""Command lines: odd options for plan, ledger show, train and predict, on small spoiled files."""

from __future__ import annotations

import os
import random
from pathlib import Path

from fuzz import seeds
from fuzz.law import command_ends_well
from fuzz.mutation import number, spoiled, text

Random = random.Random


def commands(rng: Random, folder: Path) -> None:
    """One command line."""
    make = rng.choice((_plan, _plan, _ledger, _ledger, _train, _train, _train, _predict, _predict))
    _files(rng, folder)
    arguments = make(rng, folder)
    if rng.random() < 0.05:
        arguments.insert(rng.randrange(len(arguments)), text(rng))
    if rng.random() < 0.05:
        del arguments[rng.randrange(len(arguments))]
    arguments = [_as_a_shell_passes(argument) for argument in arguments]
    command_ends_well(arguments, folder, kept=_charged(arguments))


def _as_a_shell_passes(argument: str) -> str:
    """Bytes without NUL, whatever they mean."""
    return os.fsdecode(argument.replace("\0", "0").encode("utf-8", "surrogatepass"))


def _charged(arguments: list[str]) -> tuple[str, ...]:
    """A ledger that exists keeps the names of runs that were refused: it is no output.

    SQLite leaves its own files beside a ledger that was looked at.
    """
    return ("old.ledger",) if "train" in arguments else ("old.ledger-wal", "old.ledger-shm")


def _files(rng: Random, folder: Path) -> None:
    (folder / "data.csv").write_bytes(_sometimes(rng, rng.choice(seeds.tables())))
    (folder / "words.csv").write_bytes(_sometimes(rng, seeds.word_lists()[0]))
    (folder / "old.ledger").write_bytes(_sometimes(rng, rng.choice(seeds.ledgers())))
    (folder / "old.csv").write_text("precious", encoding="utf-8")
    model = folder / "model"
    model.mkdir()
    for name, content in rng.choice(seeds.models()).items():
        (model / name).write_bytes(_sometimes(rng, content))


def _sometimes(rng: Random, content: bytes) -> bytes:
    return spoiled(rng, content) if rng.random() < 0.15 else content


def _options(rng: Random, known: dict[str, tuple[str, ...]], most: int) -> list[str]:
    """Some of the options with good values, and now and then a bad one."""
    chosen = rng.sample(sorted(known), rng.randint(0, min(most, len(known))))
    arguments = []
    for name in chosen:
        drawn = rng.random()
        good = rng.choice(known[name])
        value = good if drawn < 0.75 else number(rng) if drawn < 0.9 else text(rng)
        arguments += [name] if good == "" else [name, value]
    return arguments


def _plan(rng: Random, folder: Path) -> list[str]:
    known = {
        "--epochs": ("1", "2"),
        "--steps": ("10", "5"),
        "--epsilon": ("1", "8"),
        "--noise-multiplier": ("1", "2"),
        "--delta": ("1e-5",),
        "--sampling": ("poisson", "fixed", "shuffled"),
        "--relation": ("add-remove", "zero-out", "replace"),
        "--group-size": ("2", "4"),
        "--group-by": ("label", "advance", "position"),
        "--json": ("",),
    }
    needed = ["--examples", _mostly(rng, "1000"), "--batch-size", _mostly(rng, "100")]
    accountant = ["--accountant", "rdp"] if rng.random() < 0.95 else []
    return ["plan", *needed, *accountant, *_options(rng, known, 5)]


def _mostly(rng: Random, good: str) -> str:
    return good if rng.random() < 0.85 else number(rng)


def _ledger(rng: Random, folder: Path) -> list[str]:
    file = rng.choice(("old.ledger", "old.ledger", "data.csv", "nowhere", "model", text(rng)))
    known = {"--delta": ("1e-5", "0.1"), "--json": ("",)}
    return ["ledger", "show", str(folder / file.lstrip("/~")), *_options(rng, known, 2)]


def _train(rng: Random, folder: Path) -> list[str]:
    """Short runs: lengths and sizes are drawn from small numbers only."""
    known = {
        "--method": ("adadps", "dp-sgd", "dp-adam", "adadps-two-sided", "dp-sgd-weighted"),
        "--side": ("wordfreq", "none", str(folder / "words.csv"), str(folder / "nowhere")),
        "--side-source": ("a book",),
        "--side-because": ("printed",),
        "--delta": ("1e-3", "1e-5"),
        "--classes": ("a,b", "a,b,c", "a", "a,,b"),
        "--clip-norm": ("1", "0.3"),
        "--lr": ("1", "1e-3"),
        "--language": ("en", "de", "xx"),
        "--ledger-budget": ("9", "1"),
        "--test": (str(folder / "data.csv"), str(folder / "words.csv")),
        "--json": ("",),
    }
    small = {
        "--batch-size": ("4", "2.5", "0", "-1", "nan", "12", "1e9"),
        "--epochs": ("0.5", "2", "0", "-1", "nan", "inf", "x"),
        "--examples": ("12", "20", "0", "-1", "x", "9" * 30),
        "--words": ("20", "1", "0", "-3", "x", "9" * 30),
    }
    sizes = [part for name, values in small.items() for part in _given(rng, name, values)]
    ledger = folder / rng.choice(("old.ledger", "new.ledger", "data.csv", "sub/new.ledger"))
    paid = ["--ledger", str(ledger)] if rng.random() < 0.8 else []  # without, PLD takes its time
    columns = ["--text", _column(rng, "text"), "--label", _column(rng, "label")]
    data = folder / rng.choice(("data.csv",) * 6 + ("nowhere.csv", "model", "old.ledger"))
    where = folder / rng.choice(("out", "a/b/out", "model", "old.csv", "old.csv/out"))
    epsilon = ["--epsilon", _mostly(rng, "5")]
    made = ["train", str(data), *columns, *epsilon, "--out", str(where), *sizes, *paid]
    return [*made, *_options(rng, known, 5)]


def _given(rng: Random, name: str, values: tuple[str, ...]) -> list[str]:
    if name in ("--words", "--epochs"):  # their defaults take longer
        return [name, values[0] if rng.random() < 0.7 else rng.choice(values)]
    return [name, rng.choice(values)] if rng.random() < 0.4 else []


def _column(rng: Random, good: str) -> str:
    return good if rng.random() < 0.9 else rng.choice(("id", "nothing", text(rng)))


def _predict(rng: Random, folder: Path) -> list[str]:
    known = {"--text": ("text", "id", "nothing"), "--force": ("",)}
    model = folder / rng.choice(("model",) * 6 + ("nowhere", "data.csv", "."))
    data = folder / rng.choice(("data.csv",) * 6 + ("nowhere.csv", "model", "old.csv"))
    where = folder / rng.choice(("o.csv", "o.tsv.gz", "x/o.csv", "old.csv", "model", "data.csv/o"))
    return ["predict", str(model), str(data), "--out", str(where), *_options(rng, known, 2)]
