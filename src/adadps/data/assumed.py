"""What is assumed to be public about private data: said by the caller, and shown in the result.

The library cannot know whether a label set or a vocabulary was read off the private data. It asks,
and passes the answer on to whoever reads the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from adadps.data.provenance import digest_of
from adadps.errors import DataError

RARE = 3
"""A class or level that is read off the data must not be that of one or two people: it is refused,
because it stands in the model for everyone to read."""
NOT_DECLARED = "label set, vocabulary and bounds: nothing was declared"


@dataclass(frozen=True, kw_only=True)
class AssumedPublic:
    """Facts that were known without the private data. (The number of examples is the sampler's.)

    ``classes`` is the label set, or how many there are. ``vocabulary`` is a description, or the
    words themselves, of which number and hash are shown. ``bounds`` are ranges by name, such as
    those of a scaling, or a maximum length. ``others`` is anything else.

    >>> known = AssumedPublic(classes=["spam", "ham"], bounds={"age": (0, 120)})
    >>> list(known)
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
        """One sentence a fact."""
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
    """The facts as they stand in a result; where there are none, that is said.

    >>> declared([])
    ('label set, vocabulary and bounds: nothing was declared',)
    """
    sentences = (facts,) if isinstance(facts, str) else tuple(facts)
    if any(not isinstance(fact, str) or not fact.strip() for fact in sentences):
        raise _refusal("facts in words", "an empty one, or something else than text")
    return sentences or (NOT_DECLARED,)


def _refusal(expected: str, found: str) -> DataError:
    return DataError(
        f"Expected {expected}, found {found}. Say what was known without looking at private data: "
        "`AssumedPublic(classes=..., vocabulary=..., bounds=...)` or sentences of your own."
    )
