"""Examples: features and targets that are checked once, when they come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from adadps.data.fields import Features, Fields
from adadps.data.identity import Identities, PublicRows, identities_of_rows, text_identities
from adadps.data.provenance import DeclaredRead, Provenance, declared_read, digest_of
from adadps.data.sparse_rows import SparseRows
from adadps.data.users import user_numbers
from adadps.errors import DataError

COMPUTABLE = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
"""The types of numbers that a model can be given."""


@dataclass(frozen=True)
class Examples:
    """Features and targets of equal length. Build it with `examples`.

    Its ``repr`` shows nothing of its content, which may be private. ``texts`` are keyed hashes by
    which public texts are recognised, not the texts; ``users`` are numbers that tell users apart;
    ``before`` are keyed hashes of the rows before they were scaled, if public rows were not scaled.
    """

    features: Features = field(repr=False)
    targets: Tensor = field(repr=False)
    texts: Identities | None = field(default=None, repr=False, compare=False)
    users: Tensor | None = field(default=None, repr=False, compare=False)
    before: Identities | None = field(default=None, repr=False, compare=False)
    synthetic: Examples | None = field(default=None, repr=False, compare=False)
    """Made-up rows of the same form, on which models are checked; None if any will do."""
    absent: Tensor | None = field(default=None, repr=False, compare=False)
    """Marks rows that could not be read, and have no part in a step; None if all could."""

    is_read_when_drawn: ClassVar[bool] = False
    """Are rows read from somewhere else when a step has drawn them?"""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def read_off(self) -> tuple[str, ...]:
        """Return what was read off the rows and is assumed to be public."""
        return ()

    def leaving_out(self, public: Sequence[PublicRows]) -> Self:  # noqa: ARG002
        """Return examples that compare rows with public ones as they are read; these need not."""
        return self

    def take(self, rows: Tensor) -> Examples:
        """Return the given rows, in the given order."""
        texts = None if self.texts is None else self.texts.take(rows)
        users = None if self.users is None else self.users[rows]
        before = None if self.before is None else self.before.take(rows)
        absent = None if self.absent is None else self.absent[rows]
        taken = take(self.features, rows)
        return Examples(taken, self.targets[rows], texts, users, before, self.synthetic, absent)

    def part(self, rows: Tensor) -> Examples:
        """Return some of the rows as data of their own; a dataset does not read them yet."""
        return self.take(rows)

    def to(self, device: torch.device) -> Examples:
        """Return the same examples on another device."""
        if self.targets.device == device:
            return self
        users = None if self.users is None else self.users.to(device)
        features, targets = self.features.to(device), self.targets.to(device)
        absent = None if self.absent is None else self.absent.to(device)
        return Examples(features, targets, self.texts, users, self.before, self.synthetic, absent)


@dataclass(frozen=True)
class PublicExamples:
    """Examples that may be read freely, with the reason why.

    Batches for the steps t = 1, 2, ... depend only on ``seed`` and t, so that two stages of one
    chain see the same public gradient.
    """

    examples: Examples
    provenance: Provenance
    batch_size: int
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= len(self.examples):
            raise DataError(
                f"Expected a public batch size between 1 and the {len(self.examples)} public "
                f"examples, found {self.batch_size}. Choose it in that range."
            )
        if self.seed < 0:
            raise DataError(f"Expected a seed >= 0, found {self.seed}. Choose another one.")

    @cached_property
    def rows(self) -> PublicRows:
        """The rows and texts that private data is compared with."""
        return PublicRows(identities_of_rows(self.examples.features), self.examples.texts)

    def batch(self, index: int) -> PublicExamples:
        """Return the public batch of step ``index``, drawn without replacement."""
        rng = np.random.default_rng([self.seed, index])
        rows = rng.choice(len(self.examples), self.batch_size, replace=False, shuffle=False)
        drawn = self.examples.take(torch.from_numpy(rows))
        return PublicExamples(drawn, self.provenance, self.batch_size, seed=self.seed)


def examples(
    features: Any,
    targets: Any = None,
    *,
    texts: Sequence[str] | None = None,
    users: Any = None,
    synthetic: tuple[Any, Any] | None = None,
    target: str | None = None,
    workers: int = 0,
) -> Examples:
    """Check features and targets, and hold them in torch.

    ``features`` is an array or tensor with one example along the first axis, a scipy or torch
    sparse matrix, or several tensors: a tuple of them, which the model gets by position, or a
    mapping, by name. ``targets`` has one entry per example. ``texts`` are the texts that the
    features were made from, if any; examples whose text is public as well are then left out of
    training. The texts are not stored. ``users`` names the user of each example, by an integer or a
    text, for methods that protect users (`by_user`); spellings of one key are one user
    (`adadps.data.users`). Users are numbered, and their keys are not stored. ``synthetic`` has
    made-up features and targets, for a model or loss that accepts only some values; models are
    checked on such rows, never on private ones.

    A map-style torch `Dataset` takes the place of both features and targets
    (`adadps.data.datasets`): its rows are read as they are drawn, by as many processes as there are
    ``workers`` (none: by this one). An item is ``(x, y)``, or a mapping with the target under the
    key ``target``.

    >>> len(examples([[0.0, 1.0], [1.0, 0.0]], [0, 1]))
    2
    """
    if targets is None:
        from adadps.data.datasets import from_dataset

        return from_dataset(
            features, target=target, users=users, synthetic=synthetic, workers=workers, texts=texts
        )
    held, labels = as_features(features), _as_targets(targets)
    if len(held) != len(labels):
        raise DataError(
            f"Expected as many targets as rows of features, found {len(labels)} targets for "
            f"{len(held)} rows. Check that both come from the same table."
        )
    if len(labels) == 0:
        raise DataError("Expected at least one example, found none. Check the file or the filter.")
    with declared_read(DeclaredRead.USERS):
        numbers = None if users is None else user_numbers(users, len(labels))
    made_up = None if synthetic is None else same_form(examples(*synthetic), held, labels)
    return Examples(held, labels, text_identities(texts, len(labels)), numbers, synthetic=made_up)


def require_examples(data: Any) -> Examples:
    """Refuse data that is not `Examples`, such as a loader of torch."""
    if not isinstance(data, Examples):
        raise DataError(
            f"Expected `adadps.examples(features, targets)` as data, found {type(data).__name__}. "
            "Wrap features and targets in it, or a dataset of torch: `adadps.examples(dataset)`; "
            "of a `DataLoader`, give its dataset, because the run draws the batches."
        )
    return data


def same_form(synthetic: Examples, features: Features, targets: Tensor) -> Examples:
    """Made-up rows, which must have the shape and type of the data."""
    expected, found = (_form(*held) for held in (
        (features, targets), (synthetic.features, synthetic.targets)
    ))  # fmt: skip
    if expected != found:
        raise DataError(
            f"Expected synthetic rows of the form of the data, {expected}, found {found}. Give "
            "them the same shape and type."
        )
    return synthetic


def _form(features: Features, targets: Tensor) -> str:
    if isinstance(features, SparseRows):
        rows = f"sparse rows of {features.width} columns"
    elif isinstance(features, Fields):
        rows = features.form()
    else:
        rows = f"rows of shape {tuple(features.shape[1:])} and {features.dtype}"
    return f"{rows} with targets of shape {tuple(targets.shape[1:])} and {targets.dtype}"


def public_examples(
    features: Any,
    targets: Any = None,
    *,
    source: str,
    public_because: str,
    batch_size: int,
    seed: int = 0,
    texts: Sequence[str] | None = None,
) -> PublicExamples:
    """Hold public data with its provenance, and compute its hash.

    Private examples with the same features, or the same text, are left out of training. A torch
    `Dataset` takes the place of both features and targets, and is read whole.

    >>> public = public_examples([[1.0]], [0], source="toy", public_because="made up", batch_size=1)
    >>> len(public.batch(1).examples)
    1
    """
    held = examples(features, targets, texts=texts)
    if held.is_read_when_drawn:
        held = held.take(torch.arange(len(held)))
        if held.absent is not None and bool(held.absent.any()):
            raise DataError(
                f"Expected public rows of one form, found {int(held.absent.sum())} that cannot be "
                "read or have another form. Leave them out."
            )
    parts = tensors_of(held.features)
    provenance = Provenance(source, public_because, digest_of([*parts, held.targets]))
    return PublicExamples(held, provenance, batch_size, seed=seed)


def private_rows(data: Examples, public: Sequence[PublicRows]) -> Tensor:
    """Mark the rows of ``data`` that are in none of the public sets, by features or by text.

    Texts are compared when `normalised`, so that a text is recognised though its features were
    computed in another way. Whether a row is left out depends on that row and on public data alone,
    so that the filter costs no privacy. How many were left out is not reported.

    >>> from adadps.data.identity import public_rows
    >>> data = examples([[1.0], [2.0], [3.0]], [0, 1, 0], texts=["Yes!", "no", "maybe"])
    >>> corpus = public_rows(torch.tensor([[9.0], [3.0]]), ["YES", "never"])
    >>> private_rows(data, [corpus]).tolist()
    [False, True, False]
    """
    private = torch.ones(len(data), dtype=torch.bool)
    if data.is_read_when_drawn:
        return private  # `leaving_out` compares rows as they are read
    rows = [held.rows for held in public if held.rows is not None]
    texts = [held.texts for held in public if held.texts is not None]
    if texts and data.texts is None:
        raise DataError(
            "Expected the texts of the private examples too, found texts of the public data "
            "alone, so that equal texts would not be found. Give `examples(..., texts=...)`."
        )
    with declared_read(DeclaredRead.PUBLIC_TOO):
        if rows:
            hashes = identities_of_rows(data.features) if data.before is None else data.before
            private &= ~torch.from_numpy(hashes.within(rows))
        if texts and data.texts is not None:
            private &= ~torch.from_numpy(data.texts.within(texts))
    return private


@declared_read(DeclaredRead.FORM)
def as_features(features: Any) -> Features:
    """Convert features to the form that the engines read, and refuse values that are not finite."""
    held = _as_rows(features)
    if not all(bool(torch.isfinite(values).all()) for values in _real_values(held)):
        raise DataError(
            "Expected finite features, found NaN or infinity. Fill or drop the missing values "
            "before training (per example, or with statistics of public data)."
        )
    return held


def take(features: Features, rows: Tensor) -> Features:
    """Return the given rows of ``features``, in the given order."""
    return features[rows] if isinstance(features, Tensor) else features.take(rows)


def tensors_of(features: Features) -> list[Tensor]:
    """Return the tensors that hold the features."""
    if isinstance(features, SparseRows):
        return [features.offsets, features.columns, features.values]
    return [features] if isinstance(features, Tensor) else list(features.tensors)


def _real_values(features: Features) -> list[Tensor]:
    return [tensor for tensor in tensors_of(features) if tensor.is_floating_point()]


def _as_fields(features: Any) -> Fields:
    names = tuple(features) if isinstance(features, Mapping) else None
    parts = tuple(features.values() if isinstance(features, Mapping) else features)
    if not parts or (names is not None and not all(isinstance(name, str) for name in names)):
        raise DataError(
            "Expected a mapping from names of the model's inputs to tensors, found an empty one or "
            "other keys. Give at least one input, by its name as text."
        )
    tensors = tuple(
        _as_tensor(part, f"input {place if names is None else repr(names[place])}")
        for place, part in enumerate(parts)
    )
    lengths = [len(tensor) for tensor in tensors]
    if len(set(lengths)) > 1:
        raise DataError(
            f"Expected inputs with one row for each example, found {lengths} rows. Check that all "
            "come from the same table; what all examples share belongs into the model."
        )
    return Fields(tensors, names)


def _as_rows(features: Any) -> Features:
    if isinstance(features, Fields):
        return _as_fields(
            features.tensors
            if features.names is None
            else dict(zip(features.names, features.tensors, strict=True))
        )
    if isinstance(features, Mapping) or (
        isinstance(features, tuple)
        and features
        and all(isinstance(part, Tensor | np.ndarray) and part.ndim for part in features)
    ):
        return _as_fields(features)
    if isinstance(features, SparseRows):
        features.require_consistent()
        return features
    if sparse.issparse(features):
        return SparseRows.from_scipy(features)
    if isinstance(features, Tensor) and features.layout is not torch.strided:
        return SparseRows.from_torch(features)
    return _as_tensor(features, "features")


@declared_read(DeclaredRead.FORM)
def _as_targets(targets: Any) -> Tensor:
    held = _as_tensor(targets, "targets")
    if held.is_floating_point() and not bool(torch.isfinite(held).all()):
        raise DataError(
            "Expected finite targets, found NaN or infinity. Drop the examples without a target "
            "before training."
        )
    return held


def _as_tensor(values: Any, what: str) -> Tensor:
    """Tensors unchanged; anything else as numbers, with float64 rounded to float32."""
    held = as_numbers(values, what)
    if not isinstance(values, Tensor) and held.dtype == torch.float64:
        held = held.float()
    if held.ndim == 0:
        raise DataError(
            f"Expected {what} with one example along the first axis, found a single number. Give a "
            "vector, a matrix, or a tensor of shape (examples, ...)."
        )
    return held


def as_numbers(values: Any, what: str) -> Tensor:
    """Return a tensor of real numbers for computation, from whatever holds them.

    >>> as_numbers([[1, 2]], "features")
    tensor([[1, 2]])
    """
    if isinstance(values, Tensor):
        held = values.detach()
    else:
        try:
            array = np.asarray(values)
            held = torch.as_tensor(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))
            held = held.reshape(array.shape)  # a single number was made a vector
        except (OverflowError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"Expected numbers as {what}, found something else ({error}). Turn texts into bags "
                "of words, and categories and labels into integers."
            ) from error
    if held.is_meta or held.layout is not torch.strided or held.dtype not in COMPUTABLE:
        where = "no memory" if held.is_meta else f"{held.dtype} in {held.layout}"
        raise DataError(
            f"Expected real numbers in memory as {what}, found a tensor with {where}. Convert them "
            "to a dense tensor of float32 or int64."
        )
    return held
