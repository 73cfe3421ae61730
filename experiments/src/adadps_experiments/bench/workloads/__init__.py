"""What is trained: synthetic data with a fixed seed, a model, and a loss per example.

Sizes are fields of the dataclasses: ``replace(workload, ...)`` makes a smaller workload.
"""

from __future__ import annotations

from importlib.util import find_spec

from adadps_experiments.bench.workloads.base import SEED, SyntheticData, Workload, tokens_for
from adadps_experiments.bench.workloads.rows_and_images import (
    Autoencoder,
    ImageClassifier,
    SparseLogisticRegression,
)
from adadps_experiments.bench.workloads.texts import (
    Conv1dClassifier,
    EmbeddingBagClassifier,
    GruClassifier,
    LstmClassifier,
    TransformerClassifier,
)
from adadps_experiments.bench.workloads.transformers import BertClassifier, LoraClassifier

__all__ = [
    "SEED",
    "WORKLOADS",
    "Autoencoder",
    "EmbeddingBagClassifier",
    "ImageClassifier",
    "SparseLogisticRegression",
    "SyntheticData",
    "TransformerClassifier",
    "Workload",
    "tokens_for",
]

_WORKLOADS: tuple[Workload, ...] = (
    SparseLogisticRegression(
        "logreg-10k", examples=246_092, batch=64, features=10_000, classes=500
    ),
    SparseLogisticRegression(
        "logreg-10k-50", examples=246_092, batch=64, features=10_000, classes=50
    ),
    SparseLogisticRegression(
        "logreg-1m-50", examples=246_092, batch=64, features=1_000_000, classes=50
    ),
    Autoencoder("autoencoder-64", examples=60_000, batch=64),
    Autoencoder("autoencoder-256", examples=60_000, batch=256),
    EmbeddingBagClassifier("embedding-bag", examples=100_000, batch=256),
    LstmClassifier("lstm", examples=25_000, batch=64),
    GruClassifier("gru", examples=25_000, batch=64),
    TransformerClassifier("transformer", examples=25_000, batch=32),
    Conv1dClassifier("conv1d-text", examples=25_000, batch=64),
    ImageClassifier("cnn", examples=60_000, batch=256),
)
_OF_HUGGING_FACE: tuple[Workload, ...] = (
    BertClassifier("bert-tiny", examples=25_000, batch=32),
    LoraClassifier("lora", examples=25_000, batch=32),
)
_ALL = _WORKLOADS + (_OF_HUGGING_FACE if find_spec("transformers") and find_spec("peft") else ())
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
"""All workloads by the name that `adadps bench --workload` takes."""
