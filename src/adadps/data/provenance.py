"""Where a public thing came from, and why it may be used without privacy cost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.errors import SideInformationError


@dataclass(frozen=True)
class Provenance:
    """Source of side information and the reason why it is not sensitive.

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
                    "is only free of privacy cost if it is public: say where it comes from and why."
                )

    def describe(self) -> dict[str, str | None]:
        """The provenance as it stands on the privacy card."""
        return {
            "source": self.source,
            "public_because": self.public_because,
            "digest": self.digest,
        }


PIECE = 2**20
"""How many numbers are hashed at once: a large tensor is not copied whole."""


def digest_of(parts: Iterable[Tensor | str]) -> str:
    """SHA-256 of *public* tensors and texts. Never call it on private data.

    >>> digest_of(["a public word list"])[:8]
    'c1f34e89'
    """
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            sha.update(str((part.dtype, tuple(part.shape))).encode())
            for some in _pieces(part.detach()):
                line = some.cpu().contiguous().reshape(-1)
                if line.stride(0) != 1:  # a single number may have any stride, and be contiguous
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
