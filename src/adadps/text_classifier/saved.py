"""A trained classifier in a folder: weights, statement, and what turns a text into features."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy import sparse

from adadps.data.strict_json import parse_json
from adadps.data.text import BagOfWords
from adadps.errors import DataError
from adadps.layout import sparse_linear
from adadps.result import Result, load_result

FORMAT = 1
MODEL_FILE = "model.json"
_KIND = "linear text classifier"


@dataclass(frozen=True)
class TextModel:
    """Public facts that turn texts into features, and outputs into classes.

    ``text_column`` is where the texts stood when it was trained.
    """

    classes: tuple[str, ...]
    vocabulary: tuple[str, ...]
    text_column: str
    dampened: bool = True

    def __post_init__(self) -> None:
        names = {"classes": self.classes, "vocabulary": self.vocabulary}
        for what, held in names.items():
            if not all(isinstance(name, str) and name.strip() for name in held):
                raise DataError(f"Expected texts as {what}, found something else. Name them.")
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise DataError(
                f"Expected at least two different classes, found {len(set(self.classes))}. Name "
                "the classes."
            )
        if not isinstance(self.text_column, str) or not isinstance(self.dampened, bool):
            raise DataError(
                "Expected a column's name and whether counts are dampened, found something else. "
                "Give a text and true or false."
            )
        BagOfWords(self.vocabulary)

    def features(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """One row a text; each depends on its own text alone."""
        return BagOfWords(self.vocabulary, self.dampened)(texts)

    def layer(self) -> torch.nn.Linear:
        """The layer before training: all zeros, and no bias, which would take half of a gradient.

        >>> TextModel(("ham", "spam"), ("prize",), "text").layer().weight.shape
        torch.Size([2, 1])
        """
        layer = sparse_linear(len(self.vocabulary), len(self.classes), bias=False)
        torch.nn.init.zeros_(layer.weight)
        return layer

    @property
    def in_words(self) -> str:
        """The model in a line."""
        counts = "log(1 + count)" if self.dampened else "counts"
        return (
            f"linear without bias, {len(self.vocabulary)} words x {len(self.classes)} classes, "
            f"{counts}, L2-normalised per text"
        )

    def describe(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "format": FORMAT,
            "kind": _KIND,
            "text_column": self.text_column,
            "dampened": self.dampened,
            "classes": list(self.classes),
            "vocabulary": list(self.vocabulary),
        }


@dataclass(frozen=True)
class Classifier:
    """A model with its trained weights."""

    model: TextModel
    result: Result

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The class of each text."""
        outputs = self.result.outputs(self.model.layer(), self.model.features(texts))
        return [self.model.classes[place] for place in outputs.argmax(1).tolist()]


def save_classifier(model: TextModel, result: Result, draft: Path) -> None:
    """Write the files of a classifier into ``draft``, a folder that is renamed when all is well."""
    inner = result.save(draft / "result")
    for file in inner.iterdir():
        os.replace(file, draft / file.name)
    inner.rmdir()
    text = json.dumps(model.describe(), indent=1, allow_nan=False, ensure_ascii=False)
    (draft / MODEL_FILE).write_text(text + "\n", encoding="utf-8")


def load_classifier(folder: str | Path) -> Classifier:
    """Read a saved classifier; nothing in it is executed."""
    source = Path(folder)
    try:
        held = parse_json((source / MODEL_FILE).read_text(encoding="utf-8"))
        model = _model_of(held)
    except (OSError, ValueError) as error:  # our own errors, encodings, names with a NUL byte
        raise DataError(
            f"Expected a classifier of `adadps train` in {source}, found something else ({error}) "
            "Check the path, or train again."
        ) from error
    result = load_result(source)
    _require_fit(model, result, source)
    return Classifier(model, result)


def _model_of(held: Any) -> TextModel:
    if not isinstance(held, dict) or (held.get("format"), held.get("kind")) != (FORMAT, _KIND):
        raise DataError(
            f"Expected a {_KIND} of format {FORMAT}, found another. Read it with the version of "
            "adadps that wrote it."
        )
    classes, vocabulary = held.get("classes"), held.get("vocabulary")
    if not isinstance(classes, list) or not isinstance(vocabulary, list):
        raise DataError("Expected lists of classes and words, found something else.")
    dampened: Any = held.get("dampened")
    return TextModel(tuple(classes), tuple(vocabulary), held.get("text_column", ""), dampened)


def _require_fit(model: TextModel, result: Result, source: Path) -> None:
    """Compare shapes before anything of that size is made."""
    expected = (len(model.classes), len(model.vocabulary))
    weight = result.params.get("weight")
    weights = result.feature_weights
    fits = len(result.params) == 1 and weight is not None and tuple(weight.shape) == expected
    fits = fits and (weights is None or tuple(weights.shape) == expected[1:])
    if not fits or not all(
        value.is_floating_point() and bool(torch.isfinite(value).all())
        for value in (weight, weights)
        if value is not None
    ):
        raise DataError(
            f"Expected finite weights of {expected[0]} classes and {expected[1]} words in {source},"
            " found others. Restore the folder as it was written, or train again."
        )
