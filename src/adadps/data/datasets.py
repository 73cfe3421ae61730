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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, Subset

from adadps.data.examples import Examples, examples
from adadps.data.identity import PublicRows, identities_of_rows
from adadps.data.items import Item, ItemForm
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.secret_draws import (
    FEW,
    generators_in,
    give_secret_defaults,
    give_secret_state,
    secret_generators,
)
from adadps.data.users import user_numbers
from adadps.errors import DataError, require


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

    def unreadable(self, rows: Iterable[int] | None = None) -> dict[int, str]:
        """Return the rows that would have no part in their steps, and why, before any run.

        This is for the eyes of the owner of the data, since which rows are broken may be private.
        ``rows`` are all rows by default. Words and classes that a model does not have are not
        among the reasons: no model is known yet.
        """
        found: dict[int, str] = {}
        with _in_private(self.dataset) as secret:
            for row in range(len(self)) if rows is None else map(int, rows):
                secret.give_states()
                try:
                    self.form.taken_apart(self.dataset[row])
                except (Exception, SystemExit) as error:
                    found[row] = f"{type(error).__name__}: {error}"
                secret.finds_others()
        return found


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
    with _in_private(dataset) as secret:
        for row in rows:
            secret.give_states()
            try:
                item = dataset[row]
                if secret.finds_others():  # the row may have made a generator with a known seed
                    secret.give_states()
                    item = dataset[row]
                    secret.finds_others()
                found.append(form.taken_apart(item))
            # Whatever is wrong with a private row, nobody may hear of it; `sys.exit` would tell.
            except (Exception, SystemExit):
                secret.finds_others()
                found.append(None)
    return found


class _RowGenerators:
    """The default generators, and those that a dataset holds, while its rows are read.

    Each gets a state of its own for every row: were there one for all rows, then a row that sets a
    seed would decide what is drawn for those behind it.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._at_first = dataset, generators_in(dataset)
        self._known: dict[int, Any] = {}
        self.finds_others()

    def give_states(self) -> None:
        """Give every known generator a new secret state."""
        give_secret_defaults(os.urandom)
        for generator in self._known.values():
            give_secret_state(generator, os.urandom)

    def finds_others(self) -> bool:
        """Look for generators again, but not through long lists; are there new ones?"""
        before = self._known
        now = [*self._at_first, *generators_in(self._dataset, FEW)]
        self._known = {id(generator): generator for generator in now}
        return not self._known.keys() <= before.keys()


@contextmanager
def _in_private(dataset: Any) -> Iterator[_RowGenerators]:
    """Draws from secret states, also of the dataset's own generators; warnings name no row."""
    secret = _RowGenerators(dataset)
    with secret_generators(os.urandom, torch.device("cpu")), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield secret


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
        with _in_private(dataset) as secret:
            secret.give_states()
            item = dataset[0]
    except Exception as error:
        raise DataError(
            f"Expected a first row that shows the form of all, found that it cannot be read "
            f"({type(error).__name__}). Put a readable row first, or declare the form by made-up "
            "rows: `examples(dataset, synthetic=(features, targets))`."
        ) from None
    return ItemForm.of(item, target)
