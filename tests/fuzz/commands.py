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
    """One command line, often a good one on good files."""
    make = rng.choice((_plan, _ledger, _ledger, _train, _predict, _predict, _predict))
    wild = rng.choice((0.0, 0.0, 0.05, 0.2))
    _files(rng, folder, wild)
    arguments = make(rng, folder, wild)
    if rng.random() < wild / 2:
        arguments.insert(rng.randrange(len(arguments)), text(rng))
    if rng.random() < wild / 2:
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


def _files(rng: Random, folder: Path, wild: float) -> None:
    def perhaps_spoiled(content: bytes) -> bytes:
        return spoiled(rng, content) if rng.random() < wild else content

    comma, tab, *others = seeds.tables()
    data = tab if rng.random() < wild else rng.choice((comma, *others))
    (folder / "data.csv").write_bytes(perhaps_spoiled(data))
    (folder / "words.csv").write_bytes(perhaps_spoiled(seeds.word_lists()[0]))
    (folder / "old.ledger").write_bytes(perhaps_spoiled(rng.choice(seeds.ledgers())))
    (folder / "old.csv").write_text("precious", encoding="utf-8")
    model = folder / "model"
    model.mkdir()
    for name, content in rng.choice(seeds.models()).items():
        (model / name).write_bytes(perhaps_spoiled(content))


def _pick(rng: Random, wild: float, good: tuple[str, ...], bad: tuple[str, ...] = ()) -> str:
    """A good value; a bad one, a number or a text with the chance ``wild``."""
    if rng.random() >= wild:
        return rng.choice(good)
    return rng.choice((*bad, number(rng), text(rng))) if rng.random() < 0.5 or not bad else bad[0]


def _options(rng: Random, wild: float, known: dict[str, tuple[str, ...]], most: int) -> list[str]:
    """Some of the options with good values, and now and then a bad one."""
    arguments = []
    for name in rng.sample(sorted(known), rng.randint(0, min(most, len(known)))):
        arguments += [name] if known[name] == ("",) else [name, _pick(rng, wild, known[name])]
    return arguments


def _plan(rng: Random, folder: Path, wild: float) -> list[str]:
    two = [
        ("--epochs", _pick(rng, wild, ("1", "2"))) if rng.random() < 0.5 else ("--steps", "10"),
        ("--epsilon", _pick(rng, wild, ("1", "8"))),
        ("--noise-multiplier", _pick(rng, wild, ("1", "2"))),
    ]
    chosen = rng.sample(two, 2 if rng.random() >= wild else rng.randrange(4))
    known = {
        "--delta": ("1e-5", "1e-3"),
        "--sampling": ("poisson", "fixed", "shuffled"),
        "--relation": ("add-remove", "zero-out", "replace"),
        "--group-size": ("2", "4"),
        "--group-by": ("label", "advance", "position"),
        "--json": ("",),
    }
    unit = "--users" if rng.random() < 0.2 else "--examples"
    needed = [unit, _pick(rng, wild, ("1000",)), "--batch-size", _pick(rng, wild, ("100",))]
    accountant = ["--accountant", "rdp"] if rng.random() < 0.98 else []  # PLD takes its time
    lengths = [part for pair in chosen for part in pair]
    return ["plan", *needed, *lengths, *accountant, *_options(rng, wild, known, 3)]


def _ledger(rng: Random, folder: Path, wild: float) -> list[str]:
    file = _pick(rng, wild, ("old.ledger",), ("data.csv", "nowhere", "model"))
    known = {"--delta": ("1e-5", "0.1"), "--json": ("",)}
    return ["ledger", "show", str(folder / file.lstrip("/~")), *_options(rng, wild, known, 2)]


def _train(rng: Random, folder: Path, wild: float) -> list[str]:
    """Short runs: lengths and sizes are drawn from small numbers only."""
    small = {
        "--batch-size": (("4", "2.5", "12"), ("0", "-1", "nan", "1e9", "x")),
        "--epochs": (("0.5", "2"), ("0", "-1", "nan", "inf", "x")),
        "--examples": (("12", "20"), ("0", "-1", "x", "9" * 30)),
        "--words": (("20", "30"), ("1", "0", "-3", "x", "9" * 30)),
    }
    sizes = []
    for name, (good, bad) in small.items():
        if name in ("--words", "--epochs") or rng.random() < 0.4:  # their defaults take longer
            sizes += [name, rng.choice(bad if rng.random() < wild else good)]
    informed = rng.random() < 0.6
    names = (
        ("auto", "adadps", "adadps-two-sided", "dp-sgd-weighted")
        if informed
        else ("dp-sgd", "dp-adam")
    )
    method = ["--method", _pick(rng, wild, names)]
    if informed and rng.random() < 0.6:
        method += ["--side", _pick(rng, wild, (str(folder / "words.csv"), "wordfreq"), ("none",))]
        method += ["--side-source", _pick(rng, wild, ("a book",))]
        method += ["--side-because", _pick(rng, wild, ("printed",))]
    known = {
        "--delta": ("1e-3", "1e-5"),
        "--classes": ("a,b", "a,b,c"),
        "--numeric": ("id", "id=0,11"),
        "--categorical": ("kind", "kind=a,b,other"),
        "--missing": ("fill", "refuse"),
        "--strict": ("",),
        "--clip-norm": ("1", "0.3"),
        "--lr": ("1", "1e-3"),
        "--language": ("en", "de"),
        "--without-negation": ("",),
        "--test": (str(folder / "data.csv"),),
        "--check-overlap": ("",),
        "--json": ("",),
    }
    ledger = _pick(rng, wild, ("new.ledger", "sub/new.ledger", "old.ledger"), ("data.csv",))
    paid = ["--ledger", str(folder / ledger.lstrip("/~"))] if rng.random() < 0.98 else []
    if paid and rng.random() < max(0.1, wild):
        paid += ["--ledger-budget", _pick(rng, wild, ("9", "5"))]
    columns = ["--text", _pick(rng, wild, ("text",)), "--label", _pick(rng, wild, ("label",))]
    data = _pick(rng, wild, ("data.csv",), ("nowhere.csv", "model", "old.ledger"))
    where = _pick(rng, wild, ("out", "a/b/out"), ("model", "old.csv", "old.csv/out"))
    made = ["train", str(folder / data.lstrip("/~")), *columns, "--epsilon"]
    made += [_pick(rng, wild, ("5", "2")), "--out", str(folder / where.lstrip("/~"))]
    return [*made, *sizes, *method, *paid, *_options(rng, wild, known, 4)]


def _predict(rng: Random, folder: Path, wild: float) -> list[str]:
    known = {
        "--text": ("text", "id"),
        "--force": ("",),
        "--probabilities": ("",),
        "--json": ("",),
    }
    model = _pick(rng, wild, ("model",), ("nowhere", "data.csv", "."))
    data = _pick(rng, wild, ("data.csv",), ("nowhere.csv", "model", "old.csv"))
    where = _pick(
        rng,
        wild,
        ("o.csv", "o.tsv.gz", "x/o.jsonl", "o.parquet"),
        ("old.csv", "model", "data.csv/o"),
    )
    files = [str(folder / name.lstrip("/~")) for name in (model, data)]
    out = str(folder / where.lstrip("/~"))
    return ["predict", *files, "--out", out, *_options(rng, wild, known, 2)]
