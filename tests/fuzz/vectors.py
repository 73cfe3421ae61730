"""Spoiled files of public vectors: as text, as safetensors with a tokenizer, and as fitted ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from adadps.files import parse_json
from adadps.methods.side import embeddings, embeddings_from_texts
from adadps.methods.side.fitted import describe_fitted, load_fitted, save_fitted
from fuzz import seeds
from fuzz.law import ending_of
from fuzz.mutation import spoiled, spoiled_json, text
from support.vectors import save_model

WriteSpoiled = Callable[[random.Random, Path, dict[str, bytes]], None]
_TEXTS = (
    b"film 1 0 0\ngood 0 2 0\nbad 0 0 -4\n",
    b"2 3\nfilm 1 0 0\ngood 0 2e-3 0\n",
    "émile 1.5\n. . . 2\n".encode(),
)


@cache
def _folders() -> tuple[dict[str, bytes], dict[str, bytes], dict[str, Any]]:
    """A folder as model2vec writes it, fitted vectors, and the description of the latter."""
    folder = save_model(seeds.workshop() / "vectors")
    tokens = {file.name: file.read_bytes() for file in folder.iterdir()}
    corpus = [f"{seeds.WORDS[n % 3]} and {seeds.WORDS[n % 5]}" for n in range(1000)]
    fitted = embeddings_from_texts(corpus, source="a book", public_because="printed", width=3)
    file = seeds.workshop() / "fitted.safetensors"
    save_fitted(fitted, file)
    return tokens, {file.name: file.read_bytes()}, describe_fitted(fitted)


def read(rng: random.Random, folder: Path, write_spoiled: WriteSpoiled) -> None:
    """Read one spoiled source of vectors, and embed odd texts by whatever could be read."""
    tokens, fitted, described = _folders()
    kind = rng.randrange(3)
    if kind == 0:
        file = folder / rng.choice(("v.txt", "v.vec", "v.txt.gz", "v.safetensors"))
        file.write_bytes(spoiled(rng, rng.choice(_TEXTS), _TEXTS))
        held = ending_of(lambda: embeddings(file, public_because="made up")).value
    elif kind == 1:
        write_spoiled(rng, folder, tokens)
        held = ending_of(lambda: embeddings(folder, public_because="made up")).value
    else:
        write_spoiled(rng, folder, fitted)
        (name,) = fitted
        if rng.random() < 0.3:
            written = spoiled_json(rng, described)
            described = ending_of(lambda: parse_json(written)).value
        held = ending_of(lambda: load_fitted(described, folder / name)).value
    if held is not None:
        ending_of(lambda: held(["good film", text(rng), ""]))
