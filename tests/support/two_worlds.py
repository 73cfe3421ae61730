"""One pipeline in two worlds that differ in one unit of privacy: everything that leaves.

Chance is fixed and noise is off, while the product believes that it is private. What two worlds
leave behind may then differ in weights alone. Of files with weights only names, shapes, types and
sizes are compared, and of a checkpoint not the digest of its weights; everything else is compared
as it is. Metrics on held-out rows do not look at the weights here (`metrics`), so that no number in
a file has to be left out.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import random
import shutil
import sqlite3
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adadps.accounting.samplers import Poisson
from adadps.engine.noise import normals
from adadps.engine.noise import randomness as noise
from adadps.training.evaluation import commonest_class_accuracy

THE_ONE = "the one more"
PROFILE = int(os.environ.get("ADADPS_WORLDS", "1"))
"""How many times as many examples hypothesis tries."""


@dataclass
class Left:
    """What a pipeline leaves behind: to be compared, and, apart from it, the weights."""

    console: str = ""
    errors: str = ""
    warned: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    ended: str = "well"
    told: list[str] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, str] = field(default_factory=dict)
    weights: list[torch.Tensor] = field(default_factory=list, repr=False)

    @property
    def compared(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "weights"}


class World:
    """Where a pipeline works, and what it tells: ``folder`` is empty, and looked at in the end."""

    def __init__(self, folder: Path, left: Left) -> None:
        self.folder, self._left = folder, left
        self._moments = 0

    def tell(self, *facts: Any) -> None:
        """Things that a user of the library can see."""
        self._left.told += [fact if isinstance(fact, str) else repr(fact) for fact in facts]

    def look(self) -> None:
        """All files at this moment, as somebody sees them who watches the folder."""
        self._moments += 1
        for name, content in _contents(self.folder).items():
            self._left.files[f"at moment {self._moments}: {name}"] = content

    def take(self, model: nn.Module) -> None:
        """A model that leaves: its weights apart; buffers, attributes and layout to be compared."""
        self._left.weights += [value.detach().clone() for value in model.parameters()]
        self.tell(*_about(model))

    def take_weights(self, params: dict[str, torch.Tensor]) -> None:
        self._left.weights += [value.detach().clone() for value in params.values()]
        self.tell(*(f"{name}: {tuple(value.shape)}" for name, value in params.items()))


Pipeline = Callable[[World, Any], None]


def left_by(pipeline: Pipeline, data: Any, units: Sequence[Any] | None = None) -> Left:
    """Run it, and collect. ``units`` are names of the units that samplers draw, in their order."""
    left, base = Left(), Path(tempfile.gettempdir()) / f"adadps-two-worlds-{os.getpid()}"
    shutil.rmtree(base, ignore_errors=True)  # the same name in both worlds: errors tell names
    base.mkdir()
    heard = _Heard()
    logging.getLogger().addHandler(heard)
    console, errors = io.StringIO(), io.StringIO()
    try:
        with (
            fixed_chance(units),
            warnings.catch_warnings(record=True) as warned,
            redirect_stdout(console),
            redirect_stderr(errors),
        ):
            warnings.simplefilter("always")
            try:
                pipeline(World(base, left), data)
            except Exception as error:
                left.ended = f"{type(error).__name__}: {error}"
                if not type(error).__module__.startswith("adadps"):
                    left.ended += "".join(traceback.format_tb(error.__traceback__)[-1:])
            left.generators = _generators()
        left.warned = [f"{one.category.__name__}: {one.message}" for one in warned]
        left.console, left.errors, left.logged = console.getvalue(), errors.getvalue(), heard.lines
        left.files |= _contents(base)
    finally:
        logging.getLogger().removeHandler(heard)
        shutil.rmtree(base, ignore_errors=True)
    return left


def differences(one: Left, other: Left) -> list[str]:
    """What tells two worlds apart, but for weights."""
    found = []
    for name, value in one.compared.items():
        theirs = other.compared[name]
        if isinstance(value, dict):
            for key in sorted(value.keys() | theirs.keys()):
                if value.get(key) != theirs.get(key):
                    found.append(f"{name}, {key}: {_first(value.get(key), theirs.get(key))}")
        elif value != theirs:
            found.append(f"{name}: {_first(value, theirs)}")
    return found


def _first(one: Any, other: Any) -> str:
    """Where they begin to differ."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        one, other = next(pair for pair in zip(one, other, strict=True) if pair[0] != pair[1])
    mine, theirs = str(one), str(other)
    pairs = enumerate(zip(mine, theirs, strict=False))
    place = next((n for n, (a, b) in pairs if a != b), min(len(mine), len(theirs)))
    shown = slice(max(0, place - 60), place + 60)
    return f"{mine[shown]!r} or {theirs[shown]!r}"


def distance(one: Left, other: Left) -> float:
    """Of all weights together, in L2; 0 where both were refused."""
    pairs = zip(one.weights, other.weights, strict=True)
    return float(sum((a.double() - b.double()).square().sum() for a, b in pairs) ** 0.5)


# --- chance is fixed, and noise is off ---


@contextmanager
def fixed_chance(units: Sequence[Any] | None = None) -> Iterator[None]:
    """The same keys, names and draws in every world; normals that are all zero.

    Poisson sampling tosses a coin for each unit by its name, and always draws `THE_ONE`: whoever is
    in both worlds is drawn in both or in none.
    """
    made = iter(range(10**9))

    def text(size: int = 32) -> str:
        return hashlib.sha256(f"{next(made)}".encode()).hexdigest()[: 2 * size]

    def keys() -> tuple[int, bytes]:
        drawn = hashlib.sha512(f"key {next(made)}".encode()).digest()
        return int.from_bytes(drawn[:16]), drawn[32:]

    def nothing(_self: Any, size: int, use: Any) -> None:
        if size:
            use(0, np.zeros(size))

    def draws(self: Poisson, size: int, rng: np.random.Generator) -> Iterator[Any]:
        del rng
        names = units if units is not None and len(units) == size else range(size)
        for step in range(10**9):
            drawn = [_heads(name, step, self.rate) for name in names]
            yield np.flatnonzero(drawn).astype(np.int64)

    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_hex", text)
        patch.setattr(noise, "_system_keys", keys)
        patch.setattr(normals.Normals, "draw", nothing)
        patch.setattr(Poisson, "batches", draws)
        yield


def _heads(name: Any, step: int, rate: float) -> bool:
    coin = hashlib.sha256(f"{name} at {step}".encode()).digest()
    return name == THE_ONE or int.from_bytes(coin[:4]) < rate * 2**32


def metrics() -> dict[str, Any]:
    """One that would come from weights, but is held fixed, and one that does not."""
    return {"accuracy": lambda *_: 0.5, "commonest": commonest_class_accuracy}


# --- what a world left ---


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(0)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(("numba", "matplotlib", "asyncio")):
            self.lines.append(f"{record.name}: {record.getMessage()}")


def _generators() -> dict[str, str]:
    """Where everybody's generators stand: how far they were moved tells how much was drawn."""
    return {
        "torch": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        "numpy": hashlib.sha256(repr(np.random.get_state()).encode()).hexdigest(),
        "random": hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
    }


def _contents(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = (path.stat().st_size, _content(path)) if path.is_file() else "a folder"
    return found


def _content(path: Path) -> Any:
    """What is in a file, without weights."""
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        length = int.from_bytes(content[:8], "little")
        return json.loads(content[8 : 8 + length])
    if content.startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
            return list(ledger.iterdump())
    if path.name.endswith(("-wal", "-shm")):  # pages of the ledger, with salts of their own
        return None
    if path.name == "checkpoint.json":
        held = json.loads(content)
        held["digest"] = len(held["digest"])  # of the weights
        return held
    return content


def _about(model: nn.Module) -> Iterator[str]:
    """Everything of a model but the values of its parameters."""
    for name, value in model.named_parameters():
        yield f"{name}: {type(value).__name__} {value.dtype} {tuple(value.shape)} {value.stride()}"
        yield f"{name}: {value.requires_grad} {value.grad is None} {sorted(vars(value))}"
    for name, value in model.named_buffers():
        yield f"{name}: {value.tolist()}"
    for name, module in model.named_modules():
        for key, value in sorted(vars(module).items()):
            if not key.startswith("_"):
                shown = value.tolist() if isinstance(value, torch.Tensor) else _simple(value)
                yield f"{name}.{key}: {shown}"


def _simple(value: Any) -> Any:
    plain = isinstance(value, str | int | float | tuple | list | dict | type(None))
    return value if plain else type(value).__name__
