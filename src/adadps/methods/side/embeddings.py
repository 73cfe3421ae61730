"""Public vectors of texts: features that were learned on public text, before training.

Words that mean much the same have vectors that point in much the same direction, so that a private
model learns from fewer examples. That costs no privacy as long as the vectors are public: they are
side information, with a provenance and a digest. The vector of a text depends on that text and on
public vectors alone.

`embeddings` takes the vectors of the package wordllama unless told otherwise; nothing is
downloaded. `Embeddings.describe` is what a saved model keeps of them, and `embeddings_described`
finds the same vectors again, or refuses others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adadps.data.provenance import Provenance
from adadps.errors import AdadpsError, DataError, SideInformationError
from adadps.methods.side.vector_sources import (
    of_function,
    of_model2vec,
    of_path,
    of_sentence_transformers,
)
from adadps.methods.side.vectors import Found, Function, numbers, of_wordllama, unit

Source = str | Path | Function

CHUNK = 1000
"""This many texts are embedded at once, so that little memory is needed."""
WORDLLAMA_BECAUSE = (
    "published vectors that anyone can download, derived from text of the public web and chosen "
    "without the private data; some dispute that text on the web is public in the sense of the "
    "people who wrote it"
)
WORDLLAMA_TRAINED_ON = (
    "token embeddings of published language models of the LLaMA 2 family (which have a licence of "
    "their own), refined on public pairs of sentences; the package does not list its data"
)
_MOVED = "give their `source` (`adadps predict --embeddings SOURCE`)"
_PACKAGES = {"model2vec": of_model2vec, "sentence-transformers": of_sentence_transformers}


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Public vectors of texts, with their provenance; `embeddings` finds them.

    ``name`` and ``place`` say how to find them again.

    >>> vectors = embeddings()
    >>> rows = vectors(["a good film", "a great movie", "the train is late", ""])
    >>> rows.shape, bool(rows[0] @ rows[1] > rows[0] @ rows[2]), bool(rows[3].any())
    ((4, 256), True, False)
    """

    name: str
    place: str
    width: int
    provenance: Provenance
    licence: str | None
    trained_on: str | None
    embed: Function = field(repr=False)

    def __call__(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return one row of norm 1 per text, or zeros if it is blank or has no known token."""
        held = _checked(texts)
        rows = np.empty((len(held), self.width), dtype=np.float32)
        for start in range(0, len(held), CHUNK):
            some = held[start : start + CHUNK]
            found = unit(numbers(self.embed(some), len(some), self.width, self.place or self.name))
            found[[not text.strip() for text in some]] = 0
            rows[start : start + len(some)] = found
        return rows

    def __deepcopy__(self, memo: dict[int, Any]) -> Embeddings:
        """Return the same vectors: nothing about them can change, and they are large."""
        return self

    def describe(self) -> dict[str, Any]:
        """Return where the vectors come from, as JSON can hold it.

        >>> described = embeddings().describe()
        >>> described["name"], described["width"], described["licence"]
        ('wordllama', 256, 'MIT')
        """
        return {
            "name": self.name,
            "place": self.place,
            "width": self.width,
            **self.provenance.describe(),
            "licence": self.licence,
            "trained_on": self.trained_on,
        }


def embeddings(
    source: Source = "wordllama",
    *,
    public_because: str | None = None,
    licence: str | None = None,
    trained_on: str | None = None,
) -> Embeddings:
    """Return public vectors of texts; nothing is downloaded.

    ``source`` is one of

    - ``"wordllama"``: vectors of 32,000 tokens, 256 numbers each, from the installed package;
    - the path of a text file in the format of word2vec or GloVe (also ``.gz``);
    - the path of a ``.safetensors`` file with a ``tokenizer.json`` beside it, or of a folder with
      ``model.safetensors`` and ``tokenizer.json``, as model2vec writes it;
    - ``"model2vec:NAME"`` or ``"sentence-transformers:NAME"``: a model in a local folder or in the
      local cache of that package;
    - a function from texts to an array with one row per text, each from its own text alone.

    All but wordllama need ``public_because``: why anyone may know the vectors. The result states
    it, and nobody can check it for you. Vectors that were trained on the private data are *not*
    public.

    >>> lengths = lambda texts: [[float(len(text)), 1.0] for text in texts]
    >>> made_up = embeddings(lengths, public_because="made up")
    >>> made_up.name, made_up(["abc", "defg"]).shape
    ('function', (2, 2))
    """
    name, place = _name_and_place(source)
    if name == "wordllama":
        public_because = WORDLLAMA_BECAUSE if public_because is None else public_because
        licence, trained_on = licence or "MIT", trained_on or WORDLLAMA_TRAINED_ON
    if not isinstance(public_because, str) or not public_because.strip():
        raise SideInformationError(
            f"Expected a reason why the vectors of {place or name} are public, found none. Give "
            "`public_because` to `adadps.side.embeddings`: it is stated in the result."
        )
    found = _found(name, place, source)
    facts = f"licence: {licence or 'not stated'}; trained on: {trained_on or 'not stated'}"
    origin = Provenance(f"{found.source}; {facts}", public_because, found.digest)
    return Embeddings(name, place, found.width, origin, licence, trained_on, found.embed)


def embeddings_described(described: Mapping[str, Any], source: Source | None = None) -> Embeddings:
    """Return the vectors that `Embeddings.describe` has described, and refuse others.

    ``source`` says where they are now, if they are somewhere else. Functions are not saved with a
    model, so a function has to be given.

    >>> embeddings_described(embeddings().describe()).width
    256
    """
    _require_description(described)
    expected = f"the vectors '{_called(described['source'])}' with SHA-256 {described['digest']}"
    moved, source = source, _source_of(described, expected) if source is None else source
    try:
        found = embeddings(
            source,
            public_because=described["public_because"],
            licence=described["licence"],
            trained_on=described["trained_on"],
        )
    except AdadpsError as error:
        raise SideInformationError(
            f"Expected {expected}, found none. {error} If they are somewhere else now, {_MOVED}."
        ) from error
    digest = found.provenance.digest
    if (digest, found.width) != (described["digest"], described["width"]):
        raise SideInformationError(
            f"Expected {expected} and width {described['width']}, found "
            f"'{_called(found.provenance.source)}' with SHA-256 {digest} and width {found.width}. "
            f"A model reads the vectors it was trained on and no others: {_cure(described, moved)}"
        )
    return found


def _name_and_place(source: Source) -> tuple[str, str]:
    if callable(source):
        known = source if hasattr(source, "__qualname__") else type(source)
        return "function", f"{known.__module__}.{known.__qualname__}"
    if not isinstance(source, str | Path) or not str(source).strip():
        raise SideInformationError(
            "Expected 'wordllama', 'model2vec:NAME', 'sentence-transformers:NAME', the path of a "
            f"file of vectors or a function as source of embeddings, found {source!r}. Give one."
        )
    if source == "wordllama":
        return "wordllama", ""
    package, _, model = str(source).partition(":")
    if isinstance(source, str) and package in _PACKAGES and model:
        return package, model
    return "file", str(source)


def _found(name: str, place: str, source: Source) -> Found:
    if callable(source):
        return of_function(source, place)
    if name == "wordllama":
        return of_wordllama()
    return _PACKAGES[name](place) if name in _PACKAGES else of_path(Path(place))


def _checked(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str) or not hasattr(texts, "__iter__"):
        raise DataError(
            "Expected a list of texts, found one text or something else. Give one text per "
            "example, in a list."
        )
    held = list(texts)
    if not held or not all(isinstance(text, str) for text in held):
        raise DataError(
            "Expected at least one text and nothing else, found none or a missing value. Check "
            "the file, and fill empty texts with ''."
        )
    return held


def _require_description(described: Mapping[str, Any]) -> None:
    texts = ("name", "place", "source", "public_because", "digest")
    fits = (
        isinstance(described, Mapping)
        and all(isinstance(described.get(key), str) for key in texts)
        and isinstance(described.get("width"), int)
        and all(
            key in described and isinstance(described[key], str | None)
            for key in ("licence", "trained_on")
        )
        and described["name"] in {"wordllama", "file", "function", *_PACKAGES}
    )
    if not fits:
        raise DataError(
            "Expected a description of embeddings as `Embeddings.describe` writes it, found "
            f"{str(described)[:200]}. Save the model again."
        )


def _source_of(described: Mapping[str, Any], expected: str) -> Source:
    name, place = str(described["name"]), str(described["place"])
    if name == "function":
        raise SideInformationError(
            f"Expected {expected}, found none: functions are not saved. Give the function as "
            "`source`."
        )
    if name in _PACKAGES:
        return f"{name}:{place}"
    return Path(place) if name == "file" else name


def _called(source: str) -> str:
    """Return the source without its licence and what it was trained on, which are as declared."""
    return source.partition("; licence: ")[0]


def _cure(described: Mapping[str, Any], given: Source | None) -> str:
    if described["name"] == "wordllama" and given not in (None, "wordllama"):
        return "leave `source` (`--embeddings`) out, or train the model again."
    if described["name"] == "wordllama":
        version = str(described["source"]).partition(",")[0].replace("wordllama ", "wordllama==")
        return f'pip install "{version}", or train the model again.'
    if described["name"] == "function":
        return "give the same function, or train the model again."
    return f"put them back at {described['place']}, train again, or {_MOVED}."
