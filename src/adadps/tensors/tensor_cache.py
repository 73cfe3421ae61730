"""What is known about tensors: computed once, and forgotten when they change or go."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

from torch import Tensor

Answer = TypeVar("Answer")


class Known(Generic[Answer]):
    """One answer for each tensor, as long as nobody writes to it.

    >>> import torch
    >>> known, tensor = Known[str](), torch.ones(2)
    >>> known.keep(tensor, "all ones")
    'all ones'
    >>> known.of(tensor), known.of(tensor.mul_(2))
    ('all ones', None)
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Tensor], int, Answer]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def of(self, tensor: Tensor) -> Answer | None:
        """The answer for ``tensor`` as it is now, if there is one."""
        held = self._held.get(id(tensor))
        if held is None or held[0]() is not tensor or held[1] != tensor._version:
            return None
        return held[2]

    def keep(self, tensor: Tensor, answer: Answer) -> Answer:
        """Remember ``answer``, and return it."""
        key = id(tensor)
        forget = weakref.ref(tensor, lambda _: self._held.pop(key, None))
        self._held[key] = (forget, tensor._version, answer)
        return answer
