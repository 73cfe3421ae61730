"""Vectors of texts, as every source gives them, and those that are made of vectors of tokens.

A text is the sum of the vectors of its tokens (its direction is that of their mean). They are read
from a matrix in safetensors and a ``tokenizer.json``, as in folders of model2vec and in the wheel
of wordllama, whose vectors are taken unless told otherwise. Nothing here uses the network. The
other sources are in `adadps.methods.side.vector_sources`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from adadps.data.provenance import digest_of
from adadps.errors import DataError, SideInformationError

NAMES = ("embedding.weight", "embeddings")
"""What sentence-transformers and model2vec call the matrix of vectors."""
LARGEST = 1e30
"""Sums of larger numbers could be infinite."""
INSTALL_WORDLLAMA = 'pip install --force-reinstall "wordllama>=0.4,<0.5"'

Matrix = npt.NDArray[np.float32]
Function = Callable[[Sequence[str]], Any]
Finder = Callable[[Sequence[str]], Sequence[Sequence[int]]]


@dataclass(frozen=True, eq=False)
class Vectors:
    """A matrix of vectors, and a finder of the rows that belong to each text."""

    matrix: Matrix
    find: Finder
    digest: str
    kind: str

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """Return the sum of the vectors of each text.

        Each row of a product of a sparse matrix is computed alone and in the same order, so that
        a text has the same vector, bit by bit, whatever the other texts are.
        """
        found = self.find(texts)
        ends = np.cumsum([0, *map(len, found)])
        places = np.concatenate([np.asarray(row, dtype=np.int64) for row in found])
        counts = sparse.csr_matrix(
            (np.ones(len(places), dtype=np.float32), places, ends),
            shape=(len(found), len(self.matrix)),
        )
        counts.sum_duplicates()
        return np.asarray(counts @ self.matrix, dtype=np.float32)

    @property
    def size(self) -> str:
        """How many vectors there are, and how wide, for people."""
        return f"{len(self.matrix):,} {self.kind} × {self.matrix.shape[1]}"


@dataclass(frozen=True, eq=False)
class _Tokens:
    """Finds the tokens of a tokenizer, except for the unknown one."""

    tokenizer: Any
    unknown: int | None

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        whole = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        encoded = self.tokenizer.encode_batch_fast(whole, add_special_tokens=False)
        if self.unknown is None:
            return [one.ids for one in encoded]
        return [[token for token in one.ids if token != self.unknown] for one in encoded]


def token_vectors(matrix: Tensor, tokenizer: Any, place: object, identity: str) -> Vectors:
    """Return vectors of a tokenizer's tokens; its unknown token has none.

    ``identity`` stands for the tokenizer in the digest.
    """
    held = _sound(matrix, place)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if not 0 <= largest < len(held):
        raise DataError(
            f"Expected a vector for each token in {place}, found {len(held)} vectors and "
            f"{largest + 1} tokens. Use the tokenizer that belongs to these vectors."
        )
    find = _Tokens(tokenizer, _unknown_token(tokenizer, place))
    return Vectors(held, find, digest_of([torch.from_numpy(held), identity]), "tokens")


def _unknown_token(tokenizer: Any, place: object) -> int | None:
    if hasattr(tokenizer.model, "unk_token"):
        token = tokenizer.model.unk_token
        found: int | None = None if token is None else tokenizer.token_to_id(token)
        if token is not None and found is None:  # encoding an unknown word would fail later
            raise DataError(
                f"Expected a tokenizer of {place} with its own unknown token, found that "
                f"{token[:40]!r} is not in its vocabulary. Copy the tokenizer of these vectors "
                "again."
            )
    else:  # the kind of model called Unigram has a number
        found = json.loads(tokenizer.to_str())["model"].get("unk_id")
    return found


def read_token_vectors(vectors: Path, tokenizer: Path) -> Vectors:
    """Read a safetensors file and the tokenizer that belongs to it."""
    from tokenizers import Tokenizer

    matrix = _read_matrix(vectors)
    require_file(tokenizer, "a tokenizer")
    try:
        text = tokenizer.read_text(encoding="utf-8")
        held = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises plain exceptions
        raise DataError(
            f"Expected a tokenizer in {tokenizer}, found something else ({error}). Copy the "
            "tokenizer.json of these vectors there."
        ) from error
    return token_vectors(matrix, held, vectors, text)


def _read_matrix(path: Path) -> Tensor:
    """Read the one matrix, and if model2vec has compressed it, undo that."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    require_file(path, "vectors")
    try:
        held: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"Expected a safetensors file in {path}, found something else ({error}). Download it "
            "again."
        ) from error
    named = [held[name] for name in NAMES if name in held]
    floating = [one for one in held.values() if one.ndim == 2 and one.is_floating_point()]
    candidates = named or floating
    if len(candidates) != 1 or candidates[0].ndim != 2:
        shapes = ", ".join(f"{name} {tuple(one.shape)}" for name, one in held.items()) or "nothing"
        raise DataError(
            f"Expected exactly one matrix of floating numbers in {path}, or one that is called "
            f"{' or '.join(NAMES)}, found {shapes[:200]}. Save the vectors of tokens alone."
        )
    return expanded(candidates[0], held.get("mapping"), held.get("weights"), path)


def expanded(
    matrix: Tensor, mapping: Tensor | None, weights: Tensor | None, place: object
) -> Tensor:
    """Return one vector per token, where tokens share rows (mapping) or have weights."""
    try:
        rows = matrix.float() if mapping is None else matrix.float()[mapping.long()]
        return rows if weights is None else rows * weights.float()[:, None]
    except (IndexError, RuntimeError) as error:
        raise DataError(
            f"Expected a mapping and weights that fit the vectors of {place}, found others "
            f"({error}). Download the model again."
        ) from error


def _sound(matrix: Tensor, place: object) -> Matrix:
    """Return the matrix in float32; refuse one that is empty, or not finite."""
    held = matrix.detach().cpu().to(torch.float32).contiguous()
    if held.ndim != 2 or 0 in held.shape:
        raise DataError(
            f"Expected vectors in {place}, found shape {tuple(held.shape)}. Give one row per token."
        )
    low, high = held.aminmax()
    if not (float(low) >= -LARGEST and float(high) <= LARGEST):  # NaN is neither
        raise DataError(
            f"Expected finite vectors in {place}, at most {LARGEST:g}, found others. Download them "
            "again."
        )
    found = np.asarray(held.numpy())
    require_not_zero(found, place)
    return found


def require_not_zero(matrix: Matrix, place: object) -> None:
    """Refuse vectors that are all zero: every text would be the same, and nothing would say so."""
    if not matrix.any():
        raise DataError(
            f"Expected vectors that tell texts apart in {place}, found zeros alone. Download or "
            "save them again."
        )


def require_file(path: Path, what: str) -> None:
    """Refuse a path at which there is no file."""
    if not path.is_file():
        raise DataError(
            f"Expected {what} in {path}, found no such file. Give the path of a file that exists."
        )


@cache
def of_wordllama() -> Found:
    """Read the files within the installed wheel; its own loader would look in the network."""
    try:
        package = distribution("wordllama")
        home = Path(str(package.locate_file("wordllama")))
        held = read_token_vectors(
            home / "weights" / "l2_supercat_256.safetensors",
            home / "tokenizers" / "l2_supercat_tokenizer_config.json",
        )
    except (PackageNotFoundError, ValueError) as error:
        raise SideInformationError(
            f"Expected the vectors of the package wordllama, found none ({error}). Install them: "
            f"{INSTALL_WORDLLAMA}"
        ) from error
    return Found.vectors(held, f"wordllama {package.version}, l2_supercat_256")


# --- what every source gives ---


@dataclass(frozen=True, eq=False)
class Found:
    """A function from texts to rows, with its width, what it is, and a digest."""

    embed: Function
    width: int
    source: str
    digest: str

    @classmethod
    def vectors(cls, held: Vectors, what: str) -> Found:
        """Return vectors of tokens or words, which are added up in each text."""
        return cls(held, held.matrix.shape[1], f"{what}: {held.size}", held.digest)


def numbers(
    rows: Any, count: int, width: int | None, name: str = "the function"
) -> npt.NDArray[np.floating[Any]]:
    """Return what a function of texts gave as an array; refuse any that are not vectors."""
    if isinstance(rows, torch.Tensor):
        rows = rows.detach().cpu()
        rows = rows.float().numpy() if rows.is_floating_point() else rows.numpy()
    try:
        held = np.asarray(rows)
    except ValueError:  # rows of different lengths
        held = np.asarray(None)
    shape = (count, width if width is not None else "width")
    fits = held.ndim == 2 and held.shape[0] == count and held.shape[1] >= 1
    if not fits or (width is not None and held.shape[1] != width):
        raise SideInformationError(
            f"Expected vectors of shape {shape} for {count} texts from {name}, found shape "
            f"{held.shape} of {type(rows).__name__}. Return a dense array with one row per text, "
            "always of the same width."
        )
    if not np.issubdtype(held.dtype, np.floating) or not np.isfinite(held).all():
        raise SideInformationError(
            f"Expected finite floating numbers from {name}, found {held.dtype} or some that are "
            "not finite. Return zeros for texts that have no vector, and convert to floats."
        )
    return held


def unit(rows: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Return the rows divided by their L2 norms; zeros stay zeros.

    >>> unit(np.array([[3e200, 4e200], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    wide = rows.astype(np.float64)
    peak = np.abs(wide).max(axis=1, keepdims=True)
    wide /= np.where(peak > 0, peak, 1.0)  # squares neither overflow nor vanish
    norms = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    return wide / np.where(norms > 0, norms, 1.0)
