"""To which multiple the batches of a model are padded.

Rows must come out the same, bit by bit, however many others were drawn. Products keep that in
multiples of 8 rows (from 16 on), and so does arithmetic. Torch's functions such as sigmoid compute
the last numbers of a tensor by another routine than whole vectors of 16 or 32, and recurrent layers
run in blocks of 16 rows: there batches are padded to multiples of 16. In batches of 32 expected
rows, 8 saves a tenth of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adadps.engine.choice import ROWS
from adadps.engine.ghost import GhostEngine
from adadps.engine.objective import Objective

FINE = 8
"""Where every row fills whole vectors, batches are padded to this multiple."""

_EXACT = {
    "abs", "add", "clamp", "clamp_max", "clamp_min", "clone", "div", "masked_fill", "maximum",
    "minimum", "mul", "neg", "reciprocal", "relu", "rsub", "sqrt", "sub", "threshold", "where",
}  # fmt: skip
"""Functions of single numbers that every routine rounds in the same way."""


def multiple_for(held: Objective) -> int:
    """Return the multiple, from a pass over one synthetic row."""
    engine = held.engine
    blocks = any(isinstance(m, nn.RNNBase | nn.RNNCellBase) for m in held.model.modules())
    if not isinstance(engine, GhostEngine) or engine.sequence is not None or blocks:
        return ROWS
    row = held.synthetic.take(torch.arange(1))
    with torch.no_grad(), _PartOfVectors() as seen:
        engine.loss(engine.outputs(held.params(), row.features), row.targets)
    return ROWS if seen.found else FINE


class _PartOfVectors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes functions of single numbers that do not fill whole vectors in 8 rows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the operation, and look at the sizes of its results."""
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.removesuffix("_")
        if torch.Tag.pointwise in func.tags and name not in _EXACT:
            self.found |= any(
                one.is_floating_point() and one.numel() % FINE != 0
                for one in tree_leaves(made)
                if isinstance(one, Tensor)
            )
        return made
