"""Refuse passes with side effects, found on synthetic rows before anything is paid.

A pass must not write into the model or retain a tensor, because that would leave without noise, and
it must not draw from a generator whose seed others may know.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adadps.data.examples import Examples
from adadps.data.secret_draws import secret_generators
from adadps.engine.losses import Loss
from adadps.engine.passes.model_state import ModelState, SameState, described
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
        before = {
            name: (p, p.detach().clone())
            for name, p in model.named_parameters()
            if not getattr(type(p), "comes_and_goes", False)  # what is written there is lost
        }
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
    with made, SameState(model, loss)():  # as in every pass: an LSTM, say, retains its weights
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
