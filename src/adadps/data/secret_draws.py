"""Secret states for the default generators of torch, numpy and Python.

Whatever draws while private rows are seen (dropout, a transform with chance) must not draw from a
seed that others may know.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch

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
        give_secret_defaults(secret)
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


def give_secret_defaults(secret: Bytes) -> None:
    """Give the default generators of the CPU secret states, where `secret_generators` holds."""
    torch.set_rng_state(_twister_state(secret(4 * _WORDS)))
    _NUMPY.set_bit_generator(np.random.PCG64(int.from_bytes(secret(16))))
    random.setstate((3, (*_words(secret(4 * _WORDS)).tolist(), _WORDS), None))


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


# --- generators that a dataset or its transforms hold ---

_DEEPEST, _MOST, FEW = 12, 1000, 16
"""Objects are followed to this depth, and containers to this many entries, or a few in haste."""


def generators_in(held: Any, most: int = _MOST) -> list[Any]:
    """Return the generators of torch, numpy and Python that an object holds or its methods name.

    Of a container, the first ``most`` entries are looked at.

    >>> class Noisy:
    ...     transforms = [random.Random(0)]
    >>> len(generators_in(Noisy()))
    1
    """
    found: list[Any] = []
    seen: dict[int, Any] = {}
    waiting = [(held, 0)]
    while waiting:
        one, depth = waiting.pop()
        if id(one) in seen or isinstance(one, _WITHOUT) or depth > _DEEPEST:
            continue
        seen[id(one)] = one
        if isinstance(one, _GENERATORS):
            found.append(one)
            continue
        waiting += [(part, depth + 1) for part in _parts_of(one, most)]
    return found


_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_WITHOUT = (
    *(str, bytes, int, float, complex, type(None), torch.Tensor, np.ndarray),
    types.ModuleType,
)


def _parts_of(held: Any, most: int) -> list[Any]:
    if isinstance(held, Mapping | list | tuple | set | frozenset):
        return [*islice(held.values() if isinstance(held, Mapping) else held, most)]
    if isinstance(held, functools.partial | types.MethodType | types.BuiltinMethodType):
        names = ("func", "args", "keywords", "__self__", "__func__")
        return [getattr(held, name, None) for name in names]
    if isinstance(held, types.FunctionType):
        cells = [cell.cell_contents for cell in held.__closure__ or () if _is_full(cell)]
        return [*cells, held.__defaults__, held.__kwdefaults__, *_globals_of(held)]
    if isinstance(held, staticmethod | classmethod | property):
        return [held.fget if isinstance(held, property) else held.__func__]
    if isinstance(held, type):
        return [] if _is_of_library(held.__module__) else [*vars(held).values(), *held.__bases__]
    slots = (name for kind in type(held).__mro__ for name in _slots(kind))
    own = getattr(held, "__dict__", {}).values()
    return [*own, type(held), *(getattr(held, s, None) for s in slots)]


def _globals_of(function: types.FunctionType) -> list[Any]:
    """What the code of a function reads from its module: generators, and what may hold some."""
    if _is_of_library(function.__module__ or ""):
        return []
    names = _names_in(function.__code__)
    found: list[Any] = []
    for value in (function.__globals__.get(name) for name in names):
        if isinstance(value, types.ModuleType):
            parts = (vars(value).get(name) for name in names)
            found += [part for part in parts if isinstance(part, _GENERATORS)]
        elif (
            not isinstance(value, types.FunctionType | type)
            or value.__module__ == function.__module__
        ):
            found.append(value)
    return found


@lru_cache(maxsize=10_000)
def _names_in(code: types.CodeType) -> frozenset[str]:
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return frozenset(code.co_names).union(*map(_names_in, inner))


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in ("torch", "builtins", "numpy", "random", "typing")


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _slots(kind: type) -> tuple[str, ...]:
    names = vars(kind).get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)


def give_secret_state(generator: Any, secret: Bytes) -> None:
    """Give a generator a state from the secure source; a source of the system needs none."""
    if isinstance(generator, torch.Generator):
        if generator.device.type == "cpu":
            generator.set_state(_twister_state(secret(4 * _WORDS)))
        else:
            generator.manual_seed(int.from_bytes(secret(7)))
    elif isinstance(generator, random.SystemRandom):
        return
    elif isinstance(generator, random.Random):
        generator.setstate((3, (*_words(secret(4 * _WORDS)).tolist(), _WORDS), None))
    else:
        bits = getattr(generator, "bit_generator", None) or generator._bit_generator
        bits.state = type(bits)(int.from_bytes(secret(32))).state
