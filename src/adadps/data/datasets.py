"""Examples of a map-style torch `Dataset`: a row is read when a paid step has drawn it.

Nothing else reads rows, but for the form of the first one, where no synthetic rows declare it.
Transforms with chance draw from generators whose states are secret. A row that cannot be read, or
has another form, has no part in its step, and nobody is told: which rows are broken may be private.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, Subset

from adadps.data.examples import Examples, as_numbers, examples
from adadps.data.fields import Features, Fields
from adadps.data.identity import PublicRows, identities_of_rows
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.secret_draws import (
    FEW,
    generators_in,
    give_secret_defaults,
    give_secret_state,
    secret_generators,
)
from adadps.data.sparse_rows import SparseRows
from adadps.data.users import user_numbers
from adadps.errors import DataError, require

TARGETS = ("labels", "label", "targets", "target")
"""The keys under which items that are mappings usually hold their targets."""

Item = tuple[tuple[Tensor, ...], Tensor]
"""The inputs and the target of one example."""


@dataclass(frozen=True)
class ItemForm:
    """How an item is taken apart, and the form that all of them have."""

    target: str | None
    """The key of the target, where it was named."""
    names: tuple[str, ...] | None
    single: bool
    """Is there one input, which the model gets as a tensor?"""
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    is_read_off: bool
    """Was it read off the first row, rather than declared by synthetic ones?"""

    @classmethod
    def of(cls, item: Any, target: str | None) -> ItemForm:
        """Return the form of an item."""
        inputs, label = _inputs_and_target(item, target)
        names = tuple(inputs) if isinstance(inputs, Mapping) else None
        single = names is None and not isinstance(inputs, tuple | list)
        held = [*_tensors(inputs, names, single), _number(label, "target")]
        shapes, dtypes = tuple(tuple(t.shape) for t in held), tuple(t.dtype for t in held)
        return cls(target, names, single, shapes, dtypes, is_read_off=True)

    @classmethod
    def declared_by(cls, synthetic: Examples, target: str | None) -> ItemForm:
        """Return the form of made-up rows, which is that of all rows."""
        features = synthetic.features
        if isinstance(features, SparseRows):
            raise DataError(
                "Expected dense synthetic rows beside a dataset, found sparse ones. Give them as "
                "the dataset gives its rows."
            )
        fields = features if isinstance(features, Fields) else Fields((features,))
        held = [*fields.tensors, synthetic.targets]
        return cls(
            target,
            fields.names,
            isinstance(features, Tensor),
            tuple(tuple(t.shape[1:]) for t in held),
            tuple(t.dtype for t in held),
            is_read_off=False,
        )

    def __str__(self) -> str:
        forms = (
            f"{shape} of {str(dtype).removeprefix('torch.')}"
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )
        return ", ".join(forms)

    def taken_apart(self, item: Any) -> Item:
        """Return inputs and target, or raise an error if they have another form."""
        inputs, label = _inputs_and_target(item, self.target)
        held = [*_tensors(inputs, self.names, self.single), _number(label, "target")]
        if tuple(tuple(t.shape) for t in held) != self.shapes:
            raise DataError("Expected items of one shape, found another.")
        held = [t.to(dtype) for t, dtype in zip(held, self.dtypes, strict=True)]
        if not all(bool(torch.isfinite(t).all()) for t in held if t.is_floating_point()):
            raise DataError("Expected finite numbers, found NaN or infinity.")
        return tuple(held[:-1]), held[-1]

    def empty(self) -> Item:
        """Return zeros in place of an item that cannot be read."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        held = tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in pairs)
        return held[:-1], held[-1]

    def features(self, tensors: Sequence[Tensor]) -> Features:
        """Return features of many examples, one tensor per input."""
        return tensors[0] if self.single else Fields(tuple(tensors), self.names)


def _inputs_and_target(item: Any, target: str | None) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        key = _target_among(item, target)
        return {name: value for name, value in item.items() if name != key}, item[key]
    if not isinstance(item, Sequence) or isinstance(item, str | bytes) or len(item) < 2:
        raise DataError(
            "Expected items of features and a target, (x, y), or mappings with a key among "
            f"{', '.join(TARGETS)}, found {type(item).__name__}. Return both from `__getitem__`."
        )
    return item[0] if len(item) == 2 else tuple(item[:-1]), item[-1]


def _tensors(inputs: Any, names: tuple[str, ...] | None, single: bool) -> list[Tensor]:
    held = [inputs] if single else inputs if names is None else [inputs[name] for name in names]
    return [_number(value, "features") for value in held]


def _target_among(item: Mapping[str, Any], target: str | None) -> str:
    wanted = TARGETS if target is None else (target,)
    found = [name for name in wanted if name in item]
    if not found:
        raise DataError(
            f"Expected items with the target under {' or '.join(map(repr, wanted))}, found the "
            f"keys {', '.join(map(repr, item))}. Name it by `target=`."
        )
    return found[0]


def _number(value: Any, what: str) -> Tensor:
    if type(value).__module__.startswith("PIL."):
        raise DataError(
            f"Expected numbers as {what}, found an image. Give the dataset a transform that makes "
            "tensors (`torchvision.transforms.ToTensor()`, say)."
        )
    held = as_numbers(value, what)
    return held.float() if held.dtype == torch.float64 and not isinstance(value, Tensor) else held


@dataclass(frozen=True)
class DatasetExamples(Examples):
    """Examples that are read from a `Dataset` as they are drawn. Build it with `from_dataset`.

    ``features`` and ``targets`` have the form of the data, and no row.
    """

    dataset: Any = field(default=None, repr=False, kw_only=True)
    form: ItemForm = field(kw_only=True)
    workers: int = field(default=0, kw_only=True)
    public: tuple[PublicRows, ...] = field(default=(), repr=False, kw_only=True)
    readers: _Readers = field(repr=False, compare=False, kw_only=True)

    is_read_when_drawn: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def read_off(self) -> tuple[str, ...]:
        """Return that the form of rows was read off the first one, if it was."""
        return (f"the form of a row, read off the first one: {self.form}",) * self.form.is_read_off

    def leaving_out(self, public: Sequence[PublicRows]) -> Self:
        """Return the same examples; rows that are public, too, will be absent from their steps."""
        if any(held.texts is not None for held in public):
            raise DataError(
                "Expected public data without texts beside a dataset whose rows are read as they "
                "are drawn, found texts, which cannot be compared there. Give `public_examples` "
                "without `texts=`, in the form of the dataset's rows."
            )
        return replace(self, public=tuple(public))

    def part(self, rows: Tensor) -> Self:
        """Return some of the rows as a dataset of their own; none is read."""
        subset: Any = Subset(self.dataset, rows.tolist())
        readers = _Readers(subset, self.form, self.workers)
        users = None if self.users is None else self.users[rows]
        return replace(self, dataset=subset, readers=readers, users=users)

    def take(self, rows: Tensor) -> Examples:
        """Read the given rows; those that cannot be read, and public ones, are marked absent."""
        read = self.readers.read(rows.tolist())
        items = [self.form.empty() if item is None else item for item in read]
        inputs = [
            torch.stack([item[0][place] for item in items])
            if items
            else torch.zeros((0, *shape), dtype=dtype)
            for place, (shape, dtype) in enumerate(
                zip(self.form.shapes[:-1], self.form.dtypes[:-1], strict=True)
            )
        ]
        targets = torch.stack([item[1] for item in items]) if items else self.targets
        features = self.form.features(inputs)
        absent = torch.tensor([item is None for item in read], dtype=torch.bool)
        seen = [held.rows for held in self.public if held.rows is not None]
        if seen and items:
            absent |= torch.from_numpy(identities_of_rows(features).within(seen))
        users = None if self.users is None else self.users[rows]
        return Examples(features, targets, users=users, synthetic=self.synthetic, absent=absent)


class _Readers:
    """Reads items in this process, or in several others; never more than was asked for."""

    def __init__(self, dataset: Any, form: ItemForm, workers: int) -> None:
        self._dataset, self._form, self._workers = dataset, form, workers
        self._pool: ProcessPoolExecutor | None = None

    def read(self, rows: list[int]) -> list[Item | None]:
        """Return the items of these rows, None for each that cannot be read."""
        if not self._workers or len(rows) < 2:
            return _read(self._dataset, self._form, rows)
        if self._pool is None:
            given = (self._dataset, self._form, os.getpid())
            self._pool = ProcessPoolExecutor(
                self._workers, initializer=_Worker.start, initargs=given
            )
        size = -(-len(rows) // self._workers)
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        found: list[Item | None] = []
        try:
            for part in self._pool.map(_Worker.read, parts):
                found += [None if item is None else _as_item(item) for item in part]
        except BrokenProcessPool:
            self._pool = None
            raise DataError(
                "Expected processes that read the dataset to stay alive, found that one has ended. "
                "Check their memory, or use `workers=0`."
            ) from None
        return found


class _Worker:
    """What a process that reads holds."""

    dataset: Any
    form: ItemForm

    @classmethod
    def start(cls, dataset: Any, form: ItemForm, parent: int) -> None:
        """Hold the dataset; torch gets one thread, because the other processes work as well."""
        torch.set_num_threads(1)
        cls.dataset, cls.form = dataset, form
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()

    @classmethod
    def read(cls, rows: list[int]) -> list[Any]:
        """Return the items as arrays, which can be sent without shared memory."""
        found = _read(cls.dataset, cls.form, rows)
        return [item if item is None else _as_arrays(item) for item in found]


def _end_with(parent: int) -> None:
    """End this process soon after its parent, whose locked files it has open, too.

    A parent that was killed cannot end it, and its run could not be resumed while they are locked.
    """
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _as_arrays(item: Item) -> tuple[list[Any], list[Any]]:
    """Bit patterns and types, because numpy has no bfloat16."""
    tensors = [*item[0], item[1]]
    raw = [t.contiguous().reshape(-1).view(torch.uint8).numpy() for t in tensors]
    return raw, [(tuple(t.shape), t.dtype) for t in tensors]


def _as_item(sent: tuple[list[Any], list[Any]]) -> Item:
    tensors = [
        torch.from_numpy(np.array(raw)).view(dtype).reshape(shape)
        for raw, (shape, dtype) in zip(*sent, strict=True)
    ]
    return tuple(tensors[:-1]), tensors[-1]


def _read(dataset: Any, form: ItemForm, rows: list[int]) -> list[Item | None]:
    found: list[Item | None] = []
    with _in_private(dataset) as begin_row:
        for row in rows:
            begin_row()
            try:
                item = dataset[row]
                if begin_row():  # the row may have made a generator, whose seed may be known
                    item = dataset[row]
                found.append(form.taken_apart(item))
            except Exception:  # whatever is wrong with a private row, nobody may hear of it
                found.append(None)
    return found


@contextmanager
def _in_private(dataset: Any) -> Iterator[Callable[[], bool]]:
    """Draws from secret states, also of the dataset's own generators; warnings name no row.

    What is yielded gives every generator a state of its own for the next row: were there one for
    all rows, then a row that sets a seed would decide what is drawn for those behind it. It looks
    for generators again, but not through long lists, and returns whether there are new ones.
    """
    at_first = generators_in(dataset)
    own = {id(generator): generator for generator in at_first}

    def begin_row() -> bool:
        nonlocal own
        known, now = own, [*at_first, *generators_in(dataset, FEW)]
        own = {id(generator): generator for generator in now}
        give_secret_defaults(os.urandom)
        for generator in own.values():
            give_secret_state(generator, os.urandom)
        return not own.keys() <= known.keys()

    with secret_generators(os.urandom, torch.device("cpu")), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield begin_row


def from_dataset(
    dataset: Dataset[Any],
    *,
    target: str | None = None,
    users: Any = None,
    synthetic: tuple[Any, Any] | None = None,
    workers: int = 0,
    texts: Sequence[str] | None = None,
) -> DatasetExamples:
    """Hold a map-style torch `Dataset`, whose rows are read when a step has drawn them.

    An item is ``(x, y)``, ``(x1, x2, ..., y)`` or a mapping with the target under the key
    ``target`` (by default ``labels``, ``label``, ``targets`` or ``target``); x may be a tensor, or
    a tuple or mapping of tensors. All items have one form: pad sequences to one length. The form is
    that of ``synthetic``, made-up features and targets; without them it is read off the first item,
    and the result says so. ``workers`` is the number of processes that read, ``users`` is that of
    `examples`.

    >>> from torch.utils.data import TensorDataset
    >>> data = from_dataset(TensorDataset(torch.rand(5, 2), torch.arange(5)))
    >>> len(data), data.take(torch.tensor([3])).targets
    (5, tensor([3]))
    """
    if texts is not None:
        raise DataError(
            "Expected a dataset without `texts=`, found both: texts are compared with public ones "
            "before training, a dataset is read during it. Leave `texts` out."
        )
    require(workers >= 0, "workers >= 0", workers, "0 reads in this process.")
    require_map_style(dataset)
    made_up = None if synthetic is None else examples(*synthetic)
    if made_up is not None:
        form = ItemForm.declared_by(made_up, target)
    else:
        with declared_read(DeclaredRead.FORM):
            form = _form_of_first(dataset, target)
    with declared_read(DeclaredRead.USERS):
        numbers = None if users is None else user_numbers(users, len(dataset))  # type: ignore[arg-type]
    tensors = [
        torch.zeros((0, *shape), dtype=dtype)
        for shape, dtype in zip(form.shapes, form.dtypes, strict=True)
    ]
    features, targets = form.features(tensors[:-1]), tensors[-1]
    return DatasetExamples(
        features,
        targets,
        users=numbers,
        synthetic=made_up,
        dataset=dataset,
        form=form,
        workers=workers,
        readers=_Readers(dataset, form, workers),
    )


def require_map_style(dataset: Any) -> None:
    """Refuse what cannot be sampled row by row."""
    if isinstance(dataset, Tensor | np.ndarray | Sequence | Mapping):
        raise DataError(
            f"Expected targets beside the features, found {type(dataset).__name__} alone. Call "
            "`examples(features, targets)`, or give a torch `Dataset` whose items have both."
        )
    if isinstance(dataset, DataLoader | Sampler):
        raise DataError(
            f"Expected a dataset, found {type(dataset).__name__}, which draws rows: that is the "
            "run's part, which draws each row with the same probability and pays for it first. "
            "Give the dataset, `adadps.examples(loader.dataset, workers=...)`."
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise DataError(
            "Expected a map-style dataset, found one that only iterates. The privacy of a step "
            "rests on rows that were drawn at random, so any row must be readable by its number: "
            "give the dataset `__getitem__` and `__len__`, or write its rows to files first."
        )
    if not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise DataError(
            "Expected a dataset with at least one row and a `__len__`, found none. Check the "
            "folder or the filter."
        )


def _form_of_first(dataset: Any, target: str | None) -> ItemForm:
    try:
        with _in_private(dataset) as begin_row:
            begin_row()
            item = dataset[0]
    except Exception as error:
        raise DataError(
            f"Expected a first row that shows the form of all, found that it cannot be read "
            f"({type(error).__name__}). Put a readable row first, or declare the form by made-up "
            "rows: `examples(dataset, synthetic=(features, targets))`."
        ) from None
    return ItemForm.of(item, target)
