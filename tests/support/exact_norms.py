"""Norms of per-example gradients without rounding: rational numbers, or 64-bit mantissas.

Gradients are built from the same a, b, D and M that a leaf holds. D is the product of the factors
of the leaf's map, and M its offset: what was rounded before it came there is public, and the same
for norms and sums.
"""

from fractions import Fraction

import numpy as np

from adadps.engine.rules.gradients import MaterialisedGradients, TiedGradients
from adadps.engine.rules.outer import Outer, OverTime
from adadps.engine.rules.sparse import SparseOuter, TokenRows
from adadps.engine.rules.tied import TiedTable


def rational(tensor):
    """Entries as fractions: all that follows is exact."""
    values = [Fraction(value) for value in tensor.double().flatten().tolist()]
    return np.array(values, dtype=object).reshape(tuple(tensor.shape))


def extended(tensor):
    """Entries with at least the 64-bit mantissa of x87: for large shapes without cancellation."""
    return np.asarray(tensor.double().numpy(), dtype=np.longdouble)


def gradients(leaf, numbers):
    """The gradient of every example, (examples, *shape)."""
    if isinstance(leaf, MaterialisedGradients):
        return numbers(leaf.gradients)
    if isinstance(leaf, TiedGradients | TiedTable):
        return sum(gradients(use, numbers) for use in leaf.uses)
    b = numbers(leaf.output_gradients)
    if isinstance(leaf, TokenRows):
        found = b[:, 0, None] * np.zeros((leaf.words, 1), dtype=int)
        for example, words in enumerate(leaf.tokens.tolist()):
            for position, word in enumerate(words):
                found[example, word] = found[example, word] + b[example, position]
        return found
    if isinstance(leaf, SparseOuter):
        a = numbers(leaf.inputs.to_dense())
        found = a[:, :, None] * b[:, None, :]
        return found if leaf.axis == 0 else np.swapaxes(found, 1, 2)
    a = numbers(leaf.inputs)
    if isinstance(leaf, Outer):
        return b[:, :, None] * a[:, None, :]
    assert isinstance(leaf, OverTime)
    return sum(b[:, t, :, None] * a[:, t, None, :] for t in range(a.shape[1]))


def squares(leaf, leaf_map, numbers):
    """‖D ∘ g_i + M‖² for every example."""
    found = gradients(leaf, numbers)
    for factor in leaf_map.factors:
        found = found * numbers(factor)
    if leaf_map.offset is not None:
        found = found + numbers(leaf_map.offset)
    return [(one * one).sum() for one in found]


def raised(computed, numbers, slack):
    """Computed squares as the same kind of number, each with some slack."""
    return [value * (1 + slack) for value in numbers(computed)]
