"""Trace which files of the package a private step, and the command `adadps train`, visit.

    python scripts/trace_files.py          # counts and lists
    python scripts/trace_files.py --json   # the same as JSON

A file is visited if a function in it is executed. Importing a module does not count, nor do
functions that are called while it is imported or while numba compiles. Compiled loops count: they
are seen where Python calls them, together with the loops that they call.

Steps are those of a prepared `PrivateRun` (batch, payment, draw, gradients, clip, noise, weights),
after two steps that fill caches: of a small network, and of a linear model on sparse rows, whose
noise is late.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import numba
import torch
from numba.core.dispatcher import Dispatcher
from scipy import sparse

import adadps
from adadps.cli.main import app

PACKAGE = Path(adadps.__file__).parent
COMPILER = str(Path(numba.__file__).parent)
WARM_UP = 2
ROWS, WIDTH, CLASSES = 200, 50, 3
WORDS = (("sweet apple pear plum", "fruit"), ("steel hammer saw nail", "tools"))


def visited_by(call: Callable[[], object]) -> set[str]:
    """Return the files of the package that a call visits."""
    visited: set[str] = set()
    package = f"{PACKAGE}{os.sep}"
    outermost = sys._getframe()

    def on_call(frame: FrameType, _event: str, _argument: Any) -> None:
        code = frame.f_code
        file = code.co_filename
        if file in visited or not file.startswith(package) or not code.co_flags & CO_OPTIMIZED:
            return
        if not _while_loading(frame, outermost):
            visited.add(file)

    def call_loop(loop: Any, *arguments: Any) -> Any:
        visited.update(_files_of_loop(loop.py_func))
        return in_machine_code(loop, *arguments)

    in_machine_code = Dispatcher.__call__
    Dispatcher.__call__ = call_loop
    threading.settrace(on_call)  # called for calls alone: it asks for no events within them
    sys.settrace(on_call)
    try:
        call()
    finally:
        sys.settrace(None)
        threading.settrace(None)
        del Dispatcher.__call__
    return {
        Path(file).relative_to(PACKAGE).as_posix() for file in visited if file.startswith(package)
    }


def _while_loading(frame: FrameType | None, outermost: FrameType) -> bool:
    """Tell whether the body of a module, or the compiler, is among the callers of ``frame``."""
    while frame is not None and frame is not outermost:
        code = frame.f_code
        if code.co_name == "<module>" or code.co_filename.startswith(COMPILER):
            return True
        frame = frame.f_back
    return False


def _files_of_loop(function: Any) -> Iterator[str]:
    """Yield the files of a compiled function and of the compiled functions that it names."""
    yield function.__code__.co_filename
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        if isinstance(called, Dispatcher) and called.py_func is not function:
            yield from _files_of_loop(called.py_func)


def visited_by_step(model: torch.nn.Module, features: Any, *, at: str) -> set[str]:
    """Return the files that the third step of a run visits; side information scales ``at``."""
    labels = torch.arange(ROWS) % CLASSES
    frequencies = adadps.side.given_frequencies(
        torch.linspace(1.0, 0.01, WIDTH), source="made up", public_because="no data is behind it"
    )
    run = adadps.PrivateRun(
        model,
        adadps.losses.cross_entropy,
        adadps.examples(features, labels),
        method=adadps.adadps(
            adadps.side.frequency(frequencies, floor=0.01, at=at),
            adadps.privatize(clip_norm=1.0, noise_multiplier=4.0),
            lr=0.1,
        ),
        sampler=adadps.poisson(examples=ROWS, expected_size=20),
        steps=WARM_UP + 2,  # one in the middle: the last one also hands the weights over
    )
    batches = iter(run.batches())
    for _ in range(WARM_UP):
        run.step(next(batches))
    return visited_by(lambda: run.step(next(batches)))


def step() -> set[str]:
    """Return the files that a step of a small network visits."""
    layers = torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, CLASSES)
    return visited_by_step(torch.nn.Sequential(*layers), torch.rand(ROWS, WIDTH), at="0.weight")


def sparse_step() -> set[str]:
    """Return the files that a step of a linear model on sparse rows visits."""
    rows = sparse.random_array((ROWS, WIDTH), density=0.1, format="csr", dtype="float32")
    return visited_by_step(adadps.sparse_linear(WIDTH, CLASSES), rows, at="weight")


def train() -> set[str]:
    """Return the files that `adadps train` visits on a small table of texts."""
    with tempfile.TemporaryDirectory() as folder:
        table, model = Path(folder) / "table.csv", Path(folder) / "model"
        with table.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *WORDS * (ROWS // 2)])
        columns = ["--text", "text", "--label", "label", "--classes", "fruit,tools"]
        more = ["--epsilon", "4", "--words", "1000", "--epochs", "2", "--out", str(model)]
        words = ["train", str(table), *columns, *more]
        with contextlib.redirect_stdout(io.StringIO()):
            visited = visited_by(lambda: app(words, standalone_mode=False))
        if not model.is_dir():
            raise SystemExit("`adadps train` has written no model: its trace means nothing.")
    return visited


TRACES: dict[str, Callable[[], set[str]]] = {
    "step": step,
    "sparse_step": sparse_step,
    "train": train,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    wanted = parser.parse_args()
    found = {name: sorted(trace()) for name, trace in TRACES.items()}
    if wanted.json:
        counted = {name: {"count": len(files), "files": files} for name, files in found.items()}
        print(json.dumps(counted, indent=2))
        return
    for name, files in found.items():
        print(f"{name}: {len(files)} files", *files, sep="\n  ")


if __name__ == "__main__":
    main()
