"""Odd arrays, tensors and sparse matrices for `examples`, `public_examples` and `SparseRows`."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from adadps import examples, public_examples
from adadps.data.examples import as_features
from adadps.data.sparse_rows import SparseRows
from adadps.methods.side import corpus_frequencies, given_frequencies
from fuzz.law import ending_of
from fuzz.mutation import odd_value, text

Random = random.Random
_NUMPY = (
    "f8",
    "f4",
    "f2",
    "i8",
    "i4",
    "u1",
    "u2",
    "u8",
    "?",
    "c8",
    "O",
    "U3",
    "S3",
    "M8[s]",
    "V4",
    "g",
)
_TORCH = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip


def arrays(rng: Random, folder: Path) -> None:
    """One call with odd arguments."""
    features, targets = _anything(rng), _anything(rng)
    if rng.random() < 0.5 and hasattr(features, "shape") and len(features.shape):
        targets = [0] * features.shape[0]
    kind = rng.randrange(6)
    if kind <= 1:
        ending_of(lambda: examples(features, targets))
    elif kind == 2:
        ending_of(
            lambda: public_examples(
                features,
                targets,
                source=text(rng),
                public_because=rng.choice(("printed", text(rng))),
                batch_size=rng.choice((0, 1, 2, -1, 10**6)),
                seed=rng.choice((0, 1, -1, 2**70)),
            ).batch(rng.choice((1, 2)))
        )
    elif kind == 3:
        made = ending_of(lambda: as_features(_rows(rng)))
        if isinstance(made.value, SparseRows):
            made.value.to_dense()
            made.value.squared_lengths()
    elif kind == 4:
        ending_of(lambda: given_frequencies(features, source="a", public_because="b"))
    else:
        ending_of(lambda: corpus_frequencies(features, source="a", public_because="b"))


def _anything(rng: Random) -> Any:
    kind = rng.randrange(8)
    if kind == 0:
        return odd_value(rng)
    if kind == 1:
        return [[rng.random() for _ in range(rng.choice((2, 2, 3)))] for _ in range(3)]
    if kind == 2:
        return [rng.choice((0, 1, 1.5, "x", None, [], float("nan"))) for _ in range(3)]
    if kind in (3, 4):
        return _array(rng)
    if kind == 5:
        return _tensor(rng)
    return _scipy(rng) if kind == 6 else _rows(rng)


def _shape(rng: Random) -> tuple[int, ...]:
    return tuple(rng.choice((0, 1, 2, 3, 3)) for _ in range(rng.choice((0, 1, 2, 2, 3))))


def _array(rng: Random) -> Any:
    made = np.zeros(_shape(rng), dtype=rng.choice(_NUMPY))
    if made.size and made.dtype.kind == "f":
        made.flat[0] = rng.choice((np.nan, np.inf, 1.0, 1e30 if made.dtype.itemsize > 2 else 9.0))
    if rng.random() < 0.2 and made.ndim:
        return made[::-1].T
    return made.astype(made.dtype.newbyteorder()) if rng.random() < 0.1 else made


def _tensor(rng: Random) -> Any:
    made = torch.zeros(_shape(rng)).to(rng.choice(_TORCH))
    drawn = rng.random()
    if drawn < 0.1 and made.is_floating_point():
        return made.requires_grad_()
    if drawn < 0.2:
        return made.to("meta")
    if drawn < 0.5 and made.ndim == 2 and made.dtype in _TORCH[:2]:
        with warnings.catch_warnings():  # torch has something to say about CSR
            warnings.simplefilter("ignore")
            return made.to_sparse_csr() if rng.random() < 0.5 else made.to_sparse()
    return made


def _scipy(rng: Random) -> Any:
    form = rng.choice(("csr", "csc", "coo", "lil", "dok", "bsr", "dia"))
    shape = (rng.choice((1, 3, 3)), rng.choice((1, 2, 5)))
    made = sparse.random(*shape, density=0.5, format=form, rng=rng.randrange(2**31))
    if form == "csr" and rng.random() < 0.1:
        return made.astype(complex)
    if form == "csr" and made.nnz and rng.random() < 0.5:
        place = rng.randrange(made.nnz)
        made.indices[place] = rng.choice((-1, 7, 2**31 - 1, 0))
    if form == "csr" and rng.random() < 0.3:
        made.indptr[rng.randrange(len(made.indptr))] = rng.choice((-1, 0, 2, 99))
    if form in ("csr", "csc", "coo") and made.data.size and rng.random() < 0.3:
        made.data[0] = rng.choice((np.nan, np.inf, 1e300))
    return made


def _rows(rng: Random) -> SparseRows:
    def whole(length: int, highest: int) -> torch.Tensor:
        numbers = [rng.randint(0, highest) for _ in range(length)]
        if rng.random() < 0.3 and numbers:
            numbers[rng.randrange(length)] = rng.choice((-1, 10**6, 2**62))
        return torch.tensor(numbers).to(rng.choice((torch.int64,) * 4 + (torch.int32,)))

    entries = rng.randrange(5)
    offsets = whole(rng.randrange(4), entries)
    if rng.random() < 0.7:
        offsets = torch.tensor([0, *sorted(rng.randint(0, entries) for _ in range(2)), entries])
    values = torch.rand(rng.choice((entries, entries, entries + 1)))
    if rng.random() < 0.2:
        values = values.to(rng.choice(_TORCH[:8]))
    width: Any = rng.choice((0, 3, 3, 5, -1, 10**3, 2.5))
    return SparseRows(offsets, whole(entries, 2), values, width)
