"""Synthetic rows, on which models are tried, and the side effects that a pass must not have.

Every check of a model before training (of its shapes, engine, loss, layout) runs on synthetic rows
of the shape and type of the private ones: no private row is read outside a step that is paid for.
Batches are padded with them, too, so that neither an empty batch nor a small one takes a path of
its own. Only the form of the data enters: types, the shape of one row, the width of sparse rows,
and the sizes of the model's tables of words.

A pass must not write into the model or retain a tensor, because that would leave without noise, and
it must not draw from a generator whose seed others may know. Dropout and other draws inside a model
follow positions in the batch: if somebody knew the generator's seed, one added row would shift the
draws of all others, and their clipped sum by far more than C. So during a pass the default
generators of torch, numpy and Python have states from the run's own secure source (all bits of
them: `manual_seed` would set 32), and afterwards the states that they had before.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adadps.data.examples import Examples, Features
from adadps.data.sparse_rows import SparseRows
from adadps.engine.losses import Loss
from adadps.engine.passes.model_state import ModelState, described, same_state
from adadps.engine.rules.sequence import LayerSequence
from adadps.errors import ModelError

_CURE = (
    "what it records about private rows would leave with the model, without noise. Remove that "
    "assignment; a lazy layer or running statistics can be initialised on public or made-up rows "
    "first, and then frozen."
)


def _lazy_part(model: nn.Module) -> str | None:
    """The name of a module whose parameters wait for a first batch, or None."""
    lazy = (n for n, p in model.named_parameters() if isinstance(p, nn.UninitializedParameter))
    found = next(lazy, None)
    return None if found is None else found.rpartition(".")[0]


def forward(model: nn.Module, features: Features) -> Any:
    """Return whatever the model returns for these rows."""
    rows = features.to_dense() if isinstance(features, SparseRows) else features
    dtype = next(model.parameters()).dtype
    return model(rows.to(dtype) if rows.is_floating_point() else rows)


def require_no_writes(
    model: nn.Module, loss: Loss, synthetic: Examples, run: Callable[[], Tensor]
) -> None:
    """Refuse a model that a pass changes, or that draws from its own generator.

    ``run`` is a pass of the model on the synthetic rows.
    """
    state = ModelState(model, loss)
    state.require_no_generator()
    written = _lazy_part(model)
    if written is None and LayerSequence.of(model) is None:
        before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
        with torch.no_grad():
            _require_secret_draws(loss, synthetic, run)
        written = state.written()
        after = dict(model.named_parameters())
        for name, (parameter, value) in before.items():
            if after.get(name) is not parameter or not torch.equal(parameter, value):
                parameter.data.copy_(value)
                written = name.rpartition(".")[0]
    if written is not None:
        raise ModelError(
            "Expected a forward pass that leaves the model as it is, found one that writes into "
            f"{described(written)}: {_CURE}"
        )


def _require_secret_draws(loss: Loss, synthetic: Examples, run: Callable[[], Tensor]) -> None:
    """Refuse draws from other generators than the default ones, and seeds set in a pass.

    After two passes that began in different states, the states must differ.
    """
    ends = []
    for begin in (b"one", b"two"):
        secret = _bytes_from(begin)
        with secret_generators(secret, synthetic.targets.device), _RefuseGenerators():
            outputs = run()
            _ignoring_errors(loss, outputs, synthetic.targets)
            ends.append((torch.get_rng_state(), np.random.get_state(legacy=False)["state"],
                         random.getstate()))  # fmt: skip
    (one, of_numpy, of_python), (other, numpys, pythons) = ends
    if torch.equal(one, other) or of_numpy == numpys or of_python == pythons:
        raise ModelError(
            "Expected a model that does not seed generators, found one that sets a seed in its "
            "forward pass: its draws would be predictable. Remove `manual_seed` and similar calls."
        )


def _ignoring_errors(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Run the loss for its draws; other errors are found by the checks of losses, later."""
    try:
        loss(outputs, targets)
    except ModelError:
        raise
    except Exception:
        return


def _bytes_from(begin: bytes) -> Callable[[int], bytes]:
    draws = np.random.Generator(np.random.PCG64(int.from_bytes(begin)))
    return draws.bytes


class _RefuseGenerators(TorchFunctionMode):
    """Refuses draws from a generator that is passed in: its state is not secret."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look for a generator among the arguments."""
        given = [*args, *(kwargs or {}).values()]
        if any(isinstance(one, torch.Generator) for one in given):
            raise ModelError(
                "Expected a model that draws from torch's default generator, which is secret while "
                "private rows are seen, found a draw from its own generator. Remove `generator=`."
            )
        return func(*args, **(kwargs or {}))


def require_no_retained_tensors(model: nn.Module, loss: Loss, run: Callable[[], None]) -> None:
    """Refuse a model that retains a tensor of a pass in a place that cannot be restored.

    Tensors from its first pass, such as a table of positions, do not count: it has run before.
    """
    if LayerSequence.of(model) is not None:
        return
    made = _CreatedTensors()
    with made, same_state(model, loss):  # as in every pass: an LSTM, say, retains its weights
        run()
    if any(True for _ in made.alive()):
        gc.collect()
    if any(True for _ in made.alive()):
        raise ModelError(
            "Expected a forward pass that retains no tensor, found one that writes into a hook, a "
            f"function, a global variable or an object of its own: {_CURE}"
        )


class _CreatedTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every tensor that is created meanwhile, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the operation, and record its results."""
        found = func(*args, **(kwargs or {}))
        self._made += [weakref.ref(one) for one in tree_leaves(found) if isinstance(one, Tensor)]
        return found

    def alive(self) -> Iterator[Tensor]:
        """Yield the tensors that still exist."""
        return (one for made in self._made if (one := made()) is not None)


Bytes = Callable[[int], bytes]
"""Returns this many bytes from a secure source."""

_NUMPY: Any = np.random

_WORDS = 624
"""State words of the Mersenne twister of torch and Python."""


@contextmanager
def secret_generators(secret: Bytes, device: torch.device) -> Iterator[None]:
    """Give the default generators secret states, and restore their states afterwards."""
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    numpys_own, of_numpy = _NUMPY.get_bit_generator(), _NUMPY.get_state(legacy=False)
    accelerator = None if device.type == "cpu" else torch.get_device_module(device)
    of_device = accelerator.get_rng_state(device) if accelerator else None
    try:
        torch.set_rng_state(_twister_state(secret(4 * _WORDS)))
        _NUMPY.set_bit_generator(np.random.PCG64(int.from_bytes(secret(16))))
        words = _words(secret(4 * _WORDS)).tolist()
        random.setstate((3, (*words, _WORDS), None))
        if accelerator:
            accelerator.set_rng_state(_secret_seed(of_device, secret), device)
        yield
    finally:
        torch.set_rng_state(of_torch)
        _NUMPY.set_bit_generator(numpys_own)
        _NUMPY.set_state(of_numpy)
        random.setstate(of_python)
        if accelerator:
            accelerator.set_rng_state(of_device, device)


def _words(held: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.frombuffer(held, dtype=np.uint32)


def _twister_state(held: bytes) -> torch.Tensor:
    """A state of torch's generator with these words, all of which are mixed at the next draw."""
    state = _fresh_state().clone()
    whole = state.numpy()
    start = _words_start()
    whole[start : start + 8 * _WORDS] = _words(held).astype(np.uint64).view(np.uint8)
    return state


@cache
def _fresh_state() -> torch.Tensor:
    """The state of a generator that has drawn nothing: its next draw mixes all words first."""
    return torch.Generator().get_state()


@cache
def _words_start() -> int:
    """Where the words begin, found by their content: the first is the seed, as in MT19937."""
    seed = 0x2B7E1516
    state = torch.Generator().manual_seed(seed).get_state().numpy()
    expected, words = [], seed
    for index in range(1, 5):
        expected.append(words)
        words = (1812433253 * (words ^ (words >> 30)) + index) & 0xFFFFFFFF
    found = state.tobytes().find(np.array(expected, np.uint64).tobytes())
    if found < 0:
        raise RuntimeError(
            "Expected the Mersenne twister as torch's generator on the CPU, found another one. "
            "Install a version of torch that this package allows."
        )
    return found


def _secret_seed(like: Any, secret: Bytes) -> torch.Tensor:
    """The state of an accelerator's counter-based generator, which begins with its 64-bit seed."""
    state: torch.Tensor = like.clone()
    state.view(torch.uint8)[:8] = torch.frombuffer(bytearray(secret(8)), dtype=torch.uint8)
    return state


ROWS = 16
"""The number of synthetic rows, and the multiple to which batches are padded.

A matrix product with very few rows is computed by another routine than one with many, and some
routines treat the rows beyond a multiple of four differently, too: the last bit of a row would then
tell how many others were drawn. In multiples of 16, rows are bit-equal
(`tests/contract/test_padding.py`).
"""

_WORDS_PER_ROW = 8


def synthetic_like(data: Examples, model: nn.Module) -> Examples:
    """Return `ROWS` synthetic examples: those given with the data, or made up here."""
    if data.synthetic is not None:
        return data.synthetic.take(torch.arange(ROWS) % len(data.synthetic))
    generator = torch.Generator().manual_seed(0)
    device = data.targets.device
    return Examples(
        _features(data.features, model, generator).to(device),
        _targets(data.targets, generator).to(device),
    )


def _features(like: Features, model: nn.Module, generator: torch.Generator) -> Features:
    if isinstance(like, SparseRows):
        return _sparse(like.width, like.values.dtype, generator)
    shape = (ROWS, *like.shape[1:])
    if not like.is_floating_point():
        highest = 2 if like.dtype is torch.bool else _fewest_words(model)
        return torch.randint(highest, shape, generator=generator).to(like.dtype)
    # Half of them positive, for models that take logarithms or roots.
    values = torch.rand(shape, generator=generator)
    values[ROWS // 2 :] = torch.randn((ROWS - ROWS // 2, *shape[1:]), generator=generator)
    return values.to(like.dtype)


def _targets(like: Tensor, generator: torch.Generator) -> Tensor:
    """Values in [0, 1), or alternating 0 and 1, which nearly every loss accepts."""
    shape = (ROWS, *like.shape[1:])
    if like.is_floating_point():
        return torch.rand(shape, generator=generator).to(like.dtype)
    alternating = torch.arange(ROWS) % 2
    return alternating.view(-1, *[1] * (len(shape) - 1)).expand(shape).contiguous().to(like.dtype)


def _sparse(width: int, dtype: torch.dtype, generator: torch.Generator) -> SparseRows:
    """Rows of a few distinct columns with positive values."""
    count = min(_WORDS_PER_ROW, width)
    first = torch.randint(max(1, width), (ROWS, 1), generator=generator)
    columns = ((first + torch.arange(count)) % max(1, width)).sort(1).values
    values = torch.rand(ROWS * count, generator=generator).add_(0.1)
    offsets = torch.arange(ROWS + 1) * count
    return SparseRows(offsets, columns.flatten(), values.to(dtype), width)


def _fewest_words(model: nn.Module) -> int:
    """Integers below this fit every table of words; without a table they are 0 and 1."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    return min((table.num_embeddings for table in tables), default=2)
