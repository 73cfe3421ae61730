"""The methods by name: their chains, and how side information scales a typical row.

The shapes of A and the learning rate of Adam were the best ones in the demo. Norms of typical rows
come from public quantities alone. Texts are drawn at random: `WORDS_PER_TEXT` words by their public
frequencies, as log(1 + count) and of norm 1, like the texts that are trained on.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.preprocessing import normalize
from torch import nn

from adadps.data.sparse_rows import sparse_linear
from adadps.errors import ModelError, SideInformationError
from adadps.estimators.planner.successors import SUCCESSORS, successor
from adadps.methods.paper import adadps, adadps_two_sided, dp_adam, dp_sgd, dp_sgd_weighted
from adadps.methods.side import Frequencies, frequency, idf
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain
from adadps.methods.stages.gradients import Privatize
from adadps.types import Method

IDF_POWER = 1.0
FLOOR, POWER_BEFORE, POWER_ON_BOTH_SIDES = 0.01, 1.0, 0.5
"""A = max(f / max f, floor)^power before the clip, and on both sides of the noise."""
ADAM_OUTPUT_NOISE = 1.2
"""lr √T ‖x‖ of Adam, whose steps have the same length whatever the noise."""


EXAMPLES_AT_HALF = 500.0
"""With this many examples per class, at ε = 1, words and embeddings have equal shares."""
LARGEST_SHARE = 0.7
WORDS_BESIDE_FITTED = 0.2
"""What words keep of their share beside vectors that were fitted to public texts."""


def embedding_share(
    examples: float, outputs: int, epsilon: float, *, half: float = EXAMPLES_AT_HALF
) -> float:
    """Return the share of a text's squared norm that its embedding gets; its words get the rest.

    Embeddings need few examples, words need many and then know more. The share depends on public
    numbers alone: a declared number of examples n, of outputs K, and ε. It is 1/(1 + n ε/(500 K)),
    where ``half`` stands for the 500, and at most 0.7.

    >>> [round(embedding_share(25_000, 2, 1.0), 2), round(embedding_share(25_000, 100, 1.0), 2)]
    [0.04, 0.67]
    """
    per_output = examples * epsilon / outputs
    return min(LARGEST_SHARE, 1 / (1 + per_output / half))


def takes_side_information(method: Method) -> bool:
    """Return whether the method reads side information."""
    return method in (Method.ADADPS, Method.ADADPS_TWO_SIDED, Method.DP_SGD_WEIGHTED)


def resolved(
    method: Method, *, informed: bool, linear: bool = True, on_devices: bool = False
) -> Method:
    """Return the method itself, or the one that ``auto`` stands for.

    Without side information (``informed``) that is DP-SGD. With it, a linear model gets weighted
    features, and any other model AdaDPS, which works on every layer. Devices of a federation are
    sent weights and D but no features, so they get two-sided AdaDPS.

    >>> resolved(Method.AUTO, informed=True).value
    'dp-sgd-weighted'
    >>> resolved(Method.AUTO, informed=True, on_devices=True).value
    'adadps-two-sided'
    """
    if method is not Method.AUTO:
        return method
    if not informed:
        return Method.DP_SGD
    if on_devices:
        return Method.ADADPS_TWO_SIDED
    return Method.DP_SGD_WEIGHTED if linear else Method.ADADPS


@dataclass(frozen=True)
class Norms:
    """Typical norms of a row: ``clipped`` is after D, ``noised`` after E in a two-sided chain.

    Both are 1 for rows of norm 1 and plain DP-SGD.
    """

    clipped: float = 1.0
    noised: float = 1.0


@dataclass(frozen=True)
class PreparedMethod:
    """A method with its side information, and the norms of typical rows under it.

    ``at`` names the parameter by which side information that weighs features is read.
    """

    method: Method
    side: Fixed | None = None
    norms: Norms = Norms()
    at: str = "weight"

    def chain(self, privacy: Privatize, lr: float, *, steps: int = 1, size: float = 1.0) -> Chain:
        """Return the stages behind the method's name.

        Some of the successors depend on the number of steps and the expected size of a batch.

        >>> from adadps.methods.stages import privatize
        >>> privacy = privatize(clip_norm=1.0, noise_multiplier=2.0)
        >>> str(PreparedMethod(Method.DP_SGD).chain(privacy, 0.1))
        'privatize(C=1, σ=2) > sgd(0.1)'
        """
        method, side = self.method, self.side
        if method in (Method.DP_SGD, Method.DP_ADAM):
            return dp_adam(privacy, lr=lr) if method is Method.DP_ADAM else dp_sgd(privacy, lr=lr)
        if method in SUCCESSORS:
            return successor(method, privacy, lr, steps=steps, size=size)
        if side is None or not takes_side_information(method):
            raise SideInformationError(
                f"Expected side information for {method.value}, found none, or a method without a "
                "chain. Give it, or use dp-sgd."
            )
        if method is Method.ADADPS:
            return adadps(side, privacy, lr=lr)
        if method is Method.ADADPS_TWO_SIDED:
            return adadps_two_sided(side, side, privacy, lr=lr)
        return dp_sgd_weighted(side, privacy, lr=lr, at=self.at)


def prepare_method(
    method: Method,
    side: Frequencies | Fixed | None,
    *,
    width: int,
    at: str | None = "weight",
) -> PreparedMethod:
    """Return a method on rows of norm 1 with ``width`` features.

    ``side`` are frequencies of the features, of which the method makes A or weights, or a fixed
    source. ``at`` is the parameter that reads the features, None if the model has none.

    >>> prepare_method(Method.DP_SGD, None, width=2).norms
    Norms(clipped=1.0, noised=1.0)
    """
    if not takes_side_information(method):
        return PreparedMethod(method)
    if at is None:
        raise SideInformationError(
            f"Expected a layer of the module that reads the {width} features, found none. Give a "
            "source that names a parameter: `adadps.side.fixed({name: (vector, axis)}, ...)`."
        )
    known = side if isinstance(side, Frequencies) else None
    if known is not None and len(known.values) != width:
        raise SideInformationError(
            f"Expected side information for the {width} features, found {len(known.values)} "
            "frequencies. Give the vectorizer that makes the features, or one frequency per "
            "feature."
        )
    source = shaped(side, method, at=at) if isinstance(side, Frequencies) else side
    if source is None or method is Method.DP_SGD_WEIGHTED:
        return PreparedMethod(method, source, at=at)
    scaled = typical_norm(source, width, known, at=at)
    return PreparedMethod(method, source, norms_for(method, scaled=scaled), at)


def shaped(frequencies: Frequencies, method: Method, *, at: str = "weight") -> Fixed:
    """Return what a method makes of frequencies: IDF weights of the features, or A by a power.

    >>> from adadps.methods.side import given_frequencies
    >>> known = given_frequencies([0.5, 0.1], source="a list", public_because="published")
    >>> shaped(known, Method.ADADPS).provenance.source
    'a list; A = max(f/f_max, 0.01)^1'
    """
    if method is Method.DP_SGD_WEIGHTED:
        return idf(frequencies, words_per_text=WORDS_PER_TEXT, power=IDF_POWER, at=at)
    power = POWER_BEFORE if method is Method.ADADPS else POWER_ON_BOTH_SIDES
    return frequency(frequencies.per_word(WORDS_PER_TEXT), floor=FLOOR, power=power, at=at)


def norms_for(
    method: Method, *, plain: float = 1.0, scaled: float = 1.0, weighted: float = 1.0
) -> Norms:
    """Return the norms of a typical row where the clip meets it, and where the noise does.

    ``plain`` is the norm of the row as it is, ``scaled`` that of x / A, and ``weighted`` that of
    x / A after it was normalised again.

    >>> norms_for(Method.ADADPS, scaled=7.0)
    Norms(clipped=7.0, noised=1.0)
    """
    if method is Method.DP_SGD_WEIGHTED:
        return Norms(weighted, weighted)
    if method is Method.ADADPS:
        return Norms(scaled, plain)
    return Norms(scaled, scaled) if method is Method.ADADPS_TWO_SIDED else Norms(plain, plain)


def adam_rate(steps: int, norm: float = 1.0) -> float:
    """Return the learning rate of Adam on noisy gradients, for rows of a typical norm.

    >>> adam_rate(400)
    0.06
    """
    return ADAM_OUTPUT_NOISE / math.sqrt(steps) / norm


def linear_layer(width: int, outputs: int, *, sparse_rows: bool = True) -> nn.Linear:
    """Return a linear layer without bias that starts at zero.

    >>> linear_layer(3, 2, sparse_rows=False)
    Linear(in_features=3, out_features=2, bias=False)
    """
    layer = (
        sparse_linear(width, outputs, bias=False)
        if sparse_rows
        else nn.Linear(width, outputs, bias=False)
    )
    nn.init.zeros_(layer.weight)
    return layer


def own_module(module: Any, width: int, outputs: int) -> nn.Module:
    """Return a copy of a module, or what a function of the numbers of inputs and outputs makes."""
    made = (
        copy.deepcopy(module)
        if isinstance(module, nn.Module)
        else module(width, outputs)
        if callable(module)
        else None
    )
    if not isinstance(made, nn.Module):
        raise ModelError(
            "Expected a torch module, or a function of the numbers of inputs and outputs that "
            f"makes one, as `module`, found {type(module).__name__}. For example: "
            "module=lambda inputs, outputs: torch.nn.Linear(inputs, outputs)."
        )
    return made


def reading_layer(model: nn.Module, width: int) -> str | None:
    """Return the name of the first parameter that has one column per feature.

    >>> reading_layer(nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)), 3)
    '0.weight'
    """
    fitting = (
        name
        for name, value in model.named_parameters()
        if value.ndim == 2 and value.shape[-1] == width
    )
    return next(fitting, None)


TYPICAL_TEXTS = 400
WORDS_PER_TEXT = 100
"""A declared typical length of texts; inverse document frequencies depend on it, too."""
Numbers = npt.NDArray[np.float64]


def typical_norm(
    side: Fixed, width: int, frequencies: Frequencies | None = None, *, at: str = "weight"
) -> float:
    """Return the median of ‖x / A‖ over typical texts x, which have norm 1.

    It is 1 where A is not one value for each of ``width`` features: nothing is known then.

    >>> from adadps.methods.side import fixed, given_frequencies
    >>> known = given_frequencies([0.9, 0.1], source="a list", public_because="published")
    >>> side = fixed({"weight": ([1.0, 0.1], 1)}, source="a book", public_because="published")
    >>> round(typical_norm(side, 2)), round(typical_norm(side, 2, known))
    (7, 5)
    """
    a = along_features(side, at)
    if a is None or len(a) != width:
        return 1.0
    return median_norm(typical_texts(width, frequencies), a)


def along_features(side: Fixed, at: str = "weight") -> Numbers | None:
    """Return A of one parameter where it is one value per feature, else None."""
    entry = side.named.get(at)
    return np.asarray(entry[0].double().numpy()) if isinstance(entry, tuple) else None


def median_norm(rows: sparse.csr_matrix, a: Numbers | None = None) -> float:
    """Return the median of ‖x‖, or of ‖x / A‖.

    >>> median_norm(sparse.csr_matrix([[3.0, 4.0]]), np.array([1.0, 0.5]))
    8.54400374531753
    """
    squares = rows.multiply(rows)
    totals = squares.sum(axis=1) if a is None else squares @ a**-2.0
    return float(np.sqrt(np.median(np.asarray(totals).ravel())))


def typical_texts(
    words: int, frequencies: Frequencies | None = None, rng: np.random.Generator | None = None
) -> sparse.csr_matrix:
    """Return rows over ``words`` words, which are equally likely without ``frequencies``.

    >>> typical_texts(50).shape
    (400, 50)
    """
    rng = np.random.default_rng(0) if rng is None else rng
    if frequencies is None:
        counts = _uniform_counts(words, rng)
    else:
        counts = _counts_by(frequencies.per_word(WORDS_PER_TEXT).values.double().numpy(), rng)
    return sparse.csr_matrix(normalize(counts.log1p()))


def _counts_by(frequencies: Numbers, rng: np.random.Generator) -> sparse.csr_matrix:
    """Draw counts of words; a frequency of zero counts as the smallest known one."""
    shares = np.maximum(frequencies, frequencies[frequencies > 0].min())
    shares = shares / shares.sum()
    few = 50  # at once: their counts are dense
    drawn = (rng.multinomial(WORDS_PER_TEXT, shares, few) for _ in range(TYPICAL_TEXTS // few))
    return sparse.csr_matrix(sparse.vstack([sparse.csr_matrix(texts) for texts in drawn]))


def _uniform_counts(words: int, rng: np.random.Generator) -> sparse.csr_matrix:
    drawn = rng.integers(words, size=(TYPICAL_TEXTS, WORDS_PER_TEXT))
    rows = np.repeat(np.arange(TYPICAL_TEXTS), WORDS_PER_TEXT)
    held = (np.ones(drawn.size, np.int64), (rows, drawn.ravel()))
    return sparse.csr_matrix(held, shape=(TYPICAL_TEXTS, words))
