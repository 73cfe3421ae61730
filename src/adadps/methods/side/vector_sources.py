"""Where public vectors of texts come from: installed packages, files, and functions.

Each source ends in a `Found`: a function from texts to rows, its width, what it is, and a digest by
which other vectors are noticed. Nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adadps.data.provenance import digest_of
from adadps.errors import SideInformationError
from adadps.methods.side.vector_files import (
    Vectors,
    expanded,
    read_token_vectors,
    read_word_vectors,
    token_vectors,
)

Function = Callable[[Sequence[str]], Any]

PROBES = (
    "The film was wonderful, and I would watch it again.",
    "A terrible book; I want my money back!",
    "How do I sort a list of numbers in Python?",
    "The patient has a fever and a dry cough.",
    "Prices rose by 3.5 percent in March.",
    "Der Zug nach München fährt um acht Uhr ab.",
    "今日はいい天気ですね。",
    "ok",
)
"""Public texts, by whose vectors a function is recognised."""
PROJECTIONS, DECIMALS = 4, 2
"""So few and coarse numbers per probe are hashed that rounding on another machine changes none."""
TOLERANCE = 1e-3
"""The vector of a text may differ by this much if other texts are embedded with it (rounding)."""
INSTALL_WORDLLAMA = 'pip install --force-reinstall "wordllama>=0.4,<0.5"'


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


def of_path(path: Path) -> Found:
    """Read a text file of vectors, or a safetensors file or folder with its tokenizer."""
    if path.is_dir():
        held = read_token_vectors(path / "model.safetensors", path / "tokenizer.json")
    elif not path.exists():
        raise SideInformationError(
            f"Expected 'wordllama', 'model2vec:NAME', 'sentence-transformers:NAME', a file of "
            f"vectors or a function, found '{path}', which does not exist. Correct the path."
        )
    elif path.suffix == ".safetensors":
        held = read_token_vectors(path, path.with_name("tokenizer.json"))
    else:
        held = read_word_vectors(path)
    return Found.vectors(held, f"vectors in {path.name}")


def of_model2vec(name: str) -> Found:
    """Take the vectors of a model2vec model that is on this machine."""
    package = _imported("model2vec", "model2vec")
    try:
        folder = name if Path(name).is_dir() else _cached_folder(name)
        model = package.StaticModel.from_pretrained(folder)
        parts = [
            None if part is None else torch.from_numpy(np.ascontiguousarray(part))
            for part in (model.embedding, model.token_mapping, model.weights)
        ]
    except Exception as error:
        raise _not_here("model2vec", name, f"StaticModel.from_pretrained('{name}')") from error
    matrix = expanded(parts[0], parts[1], parts[2], name)  # type: ignore[arg-type]
    words = json.dumps(sorted(model.tokenizer.get_vocab().items()))
    return Found.vectors(token_vectors(matrix, model.tokenizer, name, words), f"model2vec {name}")


def _cached_folder(name: str) -> str:
    hub = _imported("huggingface_hub", "model2vec")  # which needs it
    return str(hub.snapshot_download(name, local_files_only=True))


@dataclass(frozen=True, eq=False)
class _Encoder:
    """The one method of a sentence-transformers model that is needed."""

    model: Any

    def __call__(self, texts: Sequence[str]) -> Any:
        return self.model.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)


def of_sentence_transformers(name: str) -> Found:
    """Take a sentence-transformers model that is on this machine; it cuts long texts."""
    package = _imported("sentence_transformers", "sentence-transformers")
    try:
        model = package.SentenceTransformer(name, local_files_only=True)
    except Exception as error:
        call = f"SentenceTransformer('{name}')"
        raise _not_here("sentence-transformers", name, call) from error
    embed = _Encoder(model)
    weights = sorted(model.state_dict().items())
    words = json.dumps(sorted(model.tokenizer.get_vocab().items()))
    digest = digest_of([*(part for pair in weights for part in pair), words])
    width = probed(embed, f"sentence-transformers:{name}").shape[1]
    return Found(embed, width, f"sentence-transformers {name}: width {width}", digest)


def of_function(function: Function, name: str) -> Found:
    """Take a function, and recognise it by its rounded outputs for a few public texts."""
    rows = probed(function, name)
    directions = np.cos(np.outer(np.arange(1, rows.shape[1] + 1), np.arange(1, PROJECTIONS + 1)))
    coarse = np.round(rows @ directions, DECIMALS) + 0.0  # no negative zeros
    digest = digest_of([f"width {rows.shape[1]}", torch.from_numpy(coarse)])
    what = f"the function {name}, width {rows.shape[1]}"
    return Found(function, rows.shape[1], f"{what} (digest of {len(PROBES)} outputs)", digest)


def probed(function: Function, name: str) -> npt.NDArray[np.float64]:
    """Return the unit vectors of the probes; refuse a function that mixes texts.

    If a text's vector depends on other texts, a change of one person's text changes the features of
    others, and clipping bounds nobody's influence any more.
    """
    together = unit(numbers(function(list(PROBES)), len(PROBES), None, name))
    apart = [function([text]) for text in reversed(PROBES)]
    alone = np.vstack([unit(numbers(rows, 1, together.shape[1], name)) for rows in apart[::-1]])
    if (difference := float(np.abs(together - alone).max())) > TOLERANCE:
        raise SideInformationError(
            f"Expected vectors from {name} that depend on their own text alone, found one that "
            f"changes by {difference:.2g} if other texts are embedded with it. Use a function with "
            "fixed, public vectors; one that is fitted on its input is not private."
        )
    return together


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


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise SideInformationError(
            f"Expected the package {package}, found none ({error}). Install it: "
            f'pip install "adadps[{package}]"'
        ) from error


def _not_here(package: str, name: str, call: str) -> SideInformationError:
    module = package.replace("-", "_")
    return SideInformationError(
        f"Expected a model of {package} in a local folder or in the local cache, found none that "
        f"can be read as '{name}'. adadps downloads nothing: where there is a network, run "
        f'python -c "from {module} import *; {call}" once, or give the path of its folder.'
    )
