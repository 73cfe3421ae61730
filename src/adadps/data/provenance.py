"""What is public and why, and every read of private rows outside of paid steps.

The library cannot know whether a label set or a vocabulary was read from the private data. It asks
the caller, and shows the answer to everyone who reads the result (`Provenance`, `AssumedPublic`).

Training reads private rows within steps that are paid for before they are drawn. Any other code
that reads a private row marks it with `declared_read`; the tests record every access and accept no
others. The list is short, and a new entry changes the privacy contract: it must be added to
docs/privacy-contract.md as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from adadps.errors import DataError, SideInformationError


@dataclass(frozen=True)
class Provenance:
    """The source of side information and the reason why it is not sensitive.

    >>> Provenance("wordfreq 3.1, English", public_because="a published word list").source
    'wordfreq 3.1, English'
    """

    source: str
    public_because: str
    digest: str | None = None

    def __post_init__(self) -> None:
        for name in ("source", "public_because"):
            if not getattr(self, name).strip():
                raise SideInformationError(
                    f"Expected a provenance with a {name}, found an empty text. Side information "
                    "is free of privacy cost only if it is public: say where it comes from and why."
                )

    def describe(self) -> dict[str, str | None]:
        """Return the provenance as it stands on the privacy card."""
        return {
            "source": self.source,
            "public_because": self.public_because,
            "digest": self.digest,
        }


PIECE = 2**20
"""This many numbers are hashed at once: a large tensor is not copied whole."""


def digest_of(parts: Iterable[Tensor | str]) -> str:
    """Return the SHA-256 of *public* tensors and texts. Never call it on private data.

    >>> digest_of(["a public word list"])[:8]
    'c1f34e89'
    """
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            sha.update(str((part.dtype, tuple(part.shape))).encode())
            for some in _pieces(part.detach()):
                line = some.cpu().contiguous().reshape(-1)
                if line.stride(0) != 1:  # a single number is contiguous with any stride
                    line = line.clone(memory_format=torch.contiguous_format)
                sha.update(line.view(torch.uint8).numpy().data)
        else:
            sha.update(part.encode() + b"\0")
    return sha.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Slices along the first axis, or along the second one of a wide matrix: none is large."""
    if tensor.ndim == 0 or tensor.numel() <= PIECE:
        yield tensor
        return
    size = max(1, PIECE * len(tensor) // tensor.numel())
    for piece in torch.split(tensor, size):
        if piece.numel() > PIECE and piece.ndim > 1:
            for row in piece:
                yield from _pieces(row)
        else:
            yield piece


RARE = 3
"""A class or level that is read from the data needs at least this many people: otherwise it is
refused, because it stands in the model for everyone to read."""
NOT_DECLARED = "label set, vocabulary and bounds: nothing was declared"


@dataclass(frozen=True, kw_only=True)
class AssumedPublic:
    """Facts that were known without the private data. (The sampler has the number of examples.)

    ``classes`` is the label set, or the number of classes. ``vocabulary`` is a description, or the
    words themselves, of which the number and the hash are shown. ``bounds`` are ranges by name,
    such as those of a scaling, or a maximum length. ``others`` is anything else.

    >>> public = AssumedPublic(classes=["spam", "ham"], bounds={"age": (0, 120)})
    >>> list(public)
    ['the label set: 2 classes (spam, ham)', 'bounds: age from 0 to 120']
    """

    classes: Sequence[object] | int | None = None
    vocabulary: str | Sequence[str] | None = None
    bounds: Mapping[str, tuple[float, float]] | None = None
    others: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.classes, str):
            raise _refusal("a list of classes or their number", repr(self.classes))
        for name, held in (("classes", self.classes), ("vocabulary", self.vocabulary)):
            if held is not None and (held < 1 if isinstance(held, int) else len(held) == 0):
                raise _refusal(f"some {name}, or None", repr(held))
        for name, (low, high) in (self.bounds or {}).items():
            if not low <= high:
                raise _refusal(f"bounds of '{name}' in order", f"{low} and {high}")

    def __iter__(self) -> Iterator[str]:
        """Yield one sentence per fact."""
        if isinstance(self.classes, int):
            yield f"the label set: {self.classes} classes"
        elif self.classes is not None:
            names = ", ".join(str(name) for name in self.classes)
            yield f"the label set: {len(self.classes)} classes ({names})"
        if isinstance(self.vocabulary, str):
            yield f"the vocabulary: {self.vocabulary}"
        elif self.vocabulary is not None:
            digest = digest_of(self.vocabulary)
            yield f"the vocabulary: {len(self.vocabulary)} words with SHA-256 {digest}"
        for name, (low, high) in (self.bounds or {}).items():
            yield f"bounds: {name} from {low:g} to {high:g}"
        yield from declared(self.others) if self.others else ()


def declared(facts: Iterable[str]) -> tuple[str, ...]:
    """Return the facts as they stand in a result, or a sentence that there are none.

    >>> declared([])
    ('label set, vocabulary and bounds: nothing was declared',)
    """
    sentences = (facts,) if isinstance(facts, str) else tuple(facts)
    if any(not isinstance(fact, str) or not fact.strip() for fact in sentences):
        raise _refusal("facts in words", "an empty one, or something other than text")
    return sentences or (NOT_DECLARED,)


def _refusal(expected: str, found: str) -> DataError:
    return DataError(
        f"Expected {expected}, found {found}. Declare what was known without the private data: "
        "`AssumedPublic(classes=..., vocabulary=..., bounds=...)` or your own sentences."
    )


class DeclaredRead(Enum):
    """What is read, when, and why that is allowed."""

    FORM = (
        "The form of rows is checked when they come in (finite numbers, lengths, types, sound "
        "sparse rows, words and classes that the model has), and they are converted into the form "
        "that training reads. What is wrong is refused before anything is paid, and reported only "
        "to the person who runs the training. Of a dataset whose rows are read as they are drawn, "
        "the first one shows the form, if synthetic rows do not declare it."
    )
    NUMBER = (
        "Rows or users are counted, to be compared with the declared number where that is part of "
        "the guarantee, and to be drawn from. Rate, steps, noise, δ and the share of embeddings "
        "come from the declared one, or from this one where nothing is declared and it is assumed "
        "public."
    )
    ENCODING = (
        "A row is parsed, scaled and encoded by what is declared or assumed public. What becomes "
        "of a row depends on that row alone."
    )
    USERS = (
        "The rows of each user are found by their keys, so that users can be drawn whole. The keys "
        "are not stored."
    )
    PUBLIC_TOO = (
        "A row that is public as well is left out of training. Whether it is depends on that row "
        "and on public data alone, and how many there are is not revealed."
    )
    PROCESSES = (
        "With several processes, each takes its slice of rows that all of them hold, and a digest "
        "of the rows is compared between them under a secret key: processes with other rows, or "
        "with the same ones in another order, would draw an example twice."
    )
    ASSUMED_PUBLIC = (
        "Classes, levels or bounds that were not declared are read off the data and assumed to be "
        "public; the card says so. Epsilon does not cover it, and `strict` refuses it."
    )
    CHECK_OVERLAP = (
        "Held-out rows are looked for in the training table, if the operator asks for exactly that "
        "by `--check-overlap`. Nothing is trained or written then, and only they see the answer."
    )
    PAID_MEASUREMENT = (
        "A statistic is measured with noise, after its price was charged to the ledger. It is part "
        "of epsilon."
    )


_under_way: ContextVar[DeclaredRead | None] = ContextVar("declared read", default=None)


@contextmanager
def declared_read(what: DeclaredRead) -> Iterator[None]:
    """Mark a read of private rows outside of a paid step, as a block or on a whole function.

    >>> with declared_read(DeclaredRead.FORM):
    ...     read_under_way().name
    'FORM'
    """
    token = _under_way.set(what)
    try:
        yield
    finally:
        _under_way.reset(token)


def read_under_way() -> DeclaredRead | None:
    """Return the declared read that is under way, or None.

    >>> read_under_way() is None
    True
    """
    return _under_way.get()
