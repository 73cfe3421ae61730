"""Private data that remembers every access: by which operation, from where, and who had paid.

`Recording.watching()` hooks the runs: what happens between the payment for a step and the end of
that step belongs to it. Tensors made by `Recording.tensor` log whatever looks at their content.
Outside of paid steps all that is computed from them is recorded as well, so that a fact which was
read in passing is noticed when it is used; within a paid step results are plain, since they leave
it only noised. Shapes and types of numbers are no content.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.utils.data import Dataset

import adadps
from adadps.accounting.ledger import DiskLedger, MemoryLedger
from adadps.data.examples import Examples
from adadps.data.provenance import DeclaredRead, read_under_way
from adadps.data.row_store import RowStore
from adadps.data.sparse_rows import SparseRows
from adadps.data.tables import Table
from adadps.estimators import base as estimators
from adadps.estimators.tables import training
from adadps.training.run import Run
from adadps.training.tuning.trial import PrepaidLedger

SOURCES = str(Path(adadps.__file__).parent)


@dataclass(frozen=True)
class Access:
    """One look at private data."""

    what: str
    how: str
    where: str
    step: str | None
    declared: DeclaredRead | None
    charges: int

    @property
    def is_paid(self) -> bool:
        return self.step is not None

    @property
    def is_allowed(self) -> bool:
        if self.declared is DeclaredRead.PAID_MEASUREMENT and not self.is_paid:
            return self.charges > 0
        return self.is_paid or self.declared is not None

    def __str__(self) -> str:
        return f"{self.what} by {self.how} in {self.where}"


class Recording:
    """The log, and whose turn it is."""

    def __init__(self) -> None:
        self.log: list[Access] = []
        self.step: str | None = None
        self.charges = 0
        self.files: set[str] = set()

    @property
    def outside(self) -> list[str]:
        """Accesses that neither belong to a paid step nor are declared."""
        return sorted({str(access) for access in self.log if not access.is_allowed})

    @property
    def steps(self) -> list[str]:
        """The paid steps in which something was read, in order."""
        return list(dict.fromkeys(access.step for access in self.log if access.step))

    @property
    def declared(self) -> set[DeclaredRead]:
        """What was read by declaration, outside of paid steps; measurements wherever they were."""
        measured = DeclaredRead.PAID_MEASUREMENT
        found = (one for one in self.log if not one.is_paid or one.declared is measured)
        return {one.declared for one in found if one.declared is not None}

    def note(self, what: str, how: str) -> None:
        self.log.append(
            Access(what, how, _in_the_product(), self.step, read_under_way(), self.charges)
        )

    # --- data that is recorded ---

    def tensor(self, name: str, values: torch.Tensor) -> PrivateTensor:
        held = values.detach().as_subclass(PrivateTensor)
        held.recording, held.name_of_data = self, name
        return held

    def array(self, name: str, values: Any) -> PrivateArray:
        held = np.array(values).view(PrivateArray)
        held.recording, held.name_of_data = self, name
        return held

    def matrix(self, name: str, values: Any) -> PrivateMatrix:
        held = PrivateMatrix(values)
        held.recording, held.name_of_data = self, name
        return held

    def features(self, values: Any) -> Any:
        """Features as a run holds them."""
        if not isinstance(values, SparseRows):
            return self.tensor("features", values)
        parts = (values.offsets, values.columns, values.values)
        return SparseRows(*(self.tensor("features", part) for part in parts), values.width)

    def examples(self, data: Examples) -> Examples:
        """The same examples with every field recorded."""
        users = None if data.users is None else self.tensor("users", data.users)
        targets = self.tensor("targets", data.targets)
        return Examples(self.features(data.features), targets, data.texts, users)

    def dataset(self, features: Any, targets: Any) -> RecordedDataset:
        return RecordedDataset(self, features, targets)

    # --- hooks ---

    @contextmanager
    def watching(self) -> Iterator[Recording]:
        """Know whose step it is; record tables, rows on disk and what estimators are given."""
        with pytest.MonkeyPatch.context() as patch:
            self._know_the_steps(patch)
            self._record_tables(patch)
            self._record_estimators(patch)
            _OPENED.append(self)
            try:
                yield self
            finally:
                _OPENED.remove(self)

    def _know_the_steps(self, patch: pytest.MonkeyPatch) -> None:
        pay, step = Run._pay, Run.step

        def paying(run: Run) -> None:
            pay(run)
            self.step = f"{run.name}: {run.taken + 1}"

        def stepping(run: Run, batch: Any) -> None:
            try:
                step(run, batch)
            finally:
                self.step = None

        patch.setattr(Run, "_pay", paying)
        patch.setattr(Run, "step", stepping)
        for kind in (MemoryLedger, DiskLedger, PrepaidLedger):
            patch.setattr(kind, "authorise", self._counting(kind.authorise))

    def _counting(self, authorise: Any) -> Any:
        def charged(*given: Any, **named: Any) -> Any:
            done = authorise(*given, **named)
            self.charges += 1
            return done

        return charged

    def _record_tables(self, patch: pytest.MonkeyPatch) -> None:
        mapped, load_rows = RowStore._mapped, training.load_rows
        private: set[int] = set()

        def loading(path: Path, model: Any, store: RowStore, **named: Any) -> Examples:
            if str(path) in self.files:  # held-out rows have a store of their own
                private.add(id(store))
            return load_rows(path, model, store, **named)

        def recorded(store: RowStore, name: str) -> torch.Tensor:
            what = name if name in ("targets", "users") else "features"
            held = mapped(store, name)
            return self.tensor(what, held) if id(store) in private else held

        def rows_of(table: Table) -> Any:
            if str(table.source) in self.files:
                self.note(f"rows of {table.source.name}", "rows")
            return table.__dict__["rows"]

        patch.setattr(training, "load_rows", loading)
        patch.setattr(RowStore, "_mapped", recorded)
        slot = property(rows_of, lambda table, rows: table.__dict__.update(rows=rows))
        patch.setattr(Table, "rows", slot, raising=False)

    def _record_estimators(self, patch: pytest.MonkeyPatch) -> None:
        private_examples = estimators.private_examples

        def examined(*given: Any) -> Examples:
            return self.examples(private_examples(*given))

        patch.setattr(estimators, "private_examples", examined)
        for kind in (adadps.AdaDPSClassifier, adadps.AdaDPSRegressor):
            patch.setattr(kind, "_checked", self._recorded(kind._checked))
        for name in ("asarray", "array", "ascontiguousarray", "asanyarray"):
            patch.setattr(np, name, _noticing(getattr(np, name)))

    def _recorded(self, checked: Any) -> Any:
        def given_back(*given: Any, **named: Any) -> Any:
            self.note("X and y", "validate_data")
            X, y = checked(*given, **named)
            kind = self.matrix if sparse.issparse(X) else self.array
            return kind("X", X), self.array("y", y)

        return given_back


def _in_the_product() -> str:
    """The innermost function of the product that is running."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(SOURCES):
            return f"{file[len(SOURCES) + 1 :]}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "nowhere in the product"


# --- files ---

_OPENED: list[Recording] = []


def _hear(event: str, given: tuple[Any, ...]) -> None:
    """Whoever opens a private file, by whatever way Python has."""
    if event == "open" and _OPENED:
        for recording in _OPENED:
            if str(given[0]) in recording.files:
                recording.note(f"the file {Path(given[0]).name}", "open")


sys.addaudithook(_hear)


# --- tensors ---

_FORM = (
    *("shape", "dtype", "device", "layout", "ndim", "is_sparse", "is_meta", "is_cpu", "is_cuda"),
    *("requires_grad", "_version", "is_quantized", "is_mkldnn", "is_nested", "grad_fn"),
    *("is_leaf", "grad", "itemsize", "nbytes", "is_sparse_csr", "is_xla", "is_mps"),
)
_FORM_CALLS = (
    *("__len__", "size", "dim", "numel", "nelement", "stride", "is_floating_point", "is_complex"),
    *("is_contiguous", "element_size", "is_inference", "storage_offset", "get_device", "is_signed"),
    *("is_tensor", "requires_grad_", "ndimension", "is_shared", "type"),
    *("__hash__", "is_same_size", "has_names", "_is_view", "is_set_to"),
)
_ABOUT_FORM = {getattr(torch.Tensor, name).__get__ for name in _FORM}


class PrivateTensor(torch.Tensor):
    """A tensor whose every use is logged; see the module."""

    recording: Recording
    name_of_data: str

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        source = next(_private_in((*args, *(kwargs or {}).values())), None)
        if source is None or func in _ABOUT_FORM or func.__name__ in _FORM_CALLS:
            return result
        recording, name = source.recording, source.name_of_data
        if not _is_a_view(result, source):
            recording.note(name, getattr(func, "__name__", str(func)))
            if recording.step is not None:
                return result
            if read_under_way() is DeclaredRead.PAID_MEASUREMENT:
                return result
        return _all_recorded(result, recording, name)


def _private_in(values):
    for value in values:
        if isinstance(value, PrivateTensor) and hasattr(value, "recording"):
            yield value
        elif isinstance(value, list | tuple):
            yield from _private_in(value)
        elif isinstance(value, dict):
            yield from _private_in(value.values())


def _is_a_view(result, source):
    """Does it show the same memory, without having looked at it?"""
    with torch._C.DisableTorchFunctionSubclass():
        return _same_memory(result, source)


def _same_memory(result, source):
    parts = result if isinstance(result, list | tuple) else (result,)
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        return False
    if any(part.is_sparse or source.is_sparse for part in parts):
        return False
    home = source.untyped_storage().data_ptr()
    return all(part.untyped_storage().data_ptr() == home and home for part in parts)


def _all_recorded(result, recording, name):
    if isinstance(result, torch.Tensor):
        return recording.tensor(name, result)
    if type(result) in (list, tuple):
        return type(result)(_all_recorded(part, recording, name) for part in result)
    return result


# --- datasets ---


class RecordedDataset(Dataset):
    """A dataset that logs every row that is read."""

    def __init__(self, recording: Recording, features: Any, targets: Any) -> None:
        self.recording, self.features, self.targets = recording, features, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> Any:
        self.recording.note("a row of the dataset", "__getitem__")
        return self.features[row], self.targets[row]


# --- arrays and sparse matrices, as estimators hold them ---


class PrivateArray(np.ndarray):
    """An array whose every use is logged, as far as Python can see."""

    recording: Recording | None = None
    name_of_data = ""

    def __array_finalize__(self, source):
        self.recording = getattr(source, "recording", None)
        self.name_of_data = getattr(source, "name_of_data", "")

    def __array_ufunc__(self, ufunc, method, *given, **named):
        self._note(ufunc.__name__)
        plain = [_plain(one) for one in given]
        if named.get("out") is not None:
            named["out"] = tuple(_plain(one) for one in named["out"])
        return getattr(ufunc, method)(*plain, **named)

    def __array_function__(self, func, types, args, kwargs):
        self._note(func.__name__)
        plain = [_plain(one) for one in args]
        return func(*plain, **{name: _plain(value) for name, value in kwargs.items()})

    def __getitem__(self, place):
        self._note("__getitem__")
        return _plain(super().__getitem__(_plain(place)))

    def __iter__(self):
        self._note("__iter__")
        return iter(_plain(self))

    def _note(self, how):
        if self.recording is not None:
            self.recording.note(self.name_of_data, how)


def _method(name):
    def called(self, *given, **named):
        self._note(name)
        return getattr(_plain(self), name)(*given, **named)

    return called


for _name in (
    *("astype", "copy", "tolist", "min", "max", "sum", "mean", "any", "all", "argmax", "argmin"),
    *("item", "tobytes", "flatten", "ravel", "sort", "argsort", "std", "var", "searchsorted"),
    *("nonzero", "round", "dot", "cumsum", "prod", "take", "clip"),
):
    setattr(PrivateArray, _name, _method(_name))


def _plain(value):
    if isinstance(value, PrivateArray):
        return value.view(np.ndarray)
    if isinstance(value, list | tuple):
        return type(value)(_plain(one) for one in value)
    return value


def _noticing(function):
    """numpy's conversions look past a subclass: they are noticed here."""

    def called(values, *given, **named):
        if isinstance(values, PrivateArray):
            values._note(function.__name__)
            values = _plain(values)
        return function(values, *given, **named)

    return called


class PrivateMatrix(sparse.csr_matrix):
    """A sparse matrix that logs whoever takes its content."""

    recording: Recording | None = None
    name_of_data = ""

    def __getattribute__(self, name):
        if name in ("data", "indices", "indptr"):
            held = object.__getattribute__(self, "__dict__")
            if held.get("recording") is not None:
                held["recording"].note(held["name_of_data"], name)
        return super().__getattribute__(name)
