"""Several processes as one run: who they are, which rows each holds, and what all must share.

Under ``torchrun``, or after `torch.distributed.init_process_group`, `fit` and `PrivateRun` train on
all processes together, and have to be called in all of them with the same arguments. Each process
takes the rows rank, rank + world, ... of the data that it is given, which must be the same data in
every process; or it brings rows of its own, as a `Shard`. See docs/processes.md.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from adadps.accounting.ledger import Ledger
from adadps.accounting.ledger.terms import code_version
from adadps.accounting.samplers import Poisson, Sampler
from adadps.data.examples import Examples, tensors_of
from adadps.data.provenance import DeclaredRead, declared_read, digest_of
from adadps.engine.group import ALONE, Group, Meeting, ProcessGroup
from adadps.engine.shards.group import ShardedGroup
from adadps.engine.shards.model import ShardedModel, sharded_model
from adadps.errors import ContractError, DataError, ModelError, SideInformationError
from adadps.methods.side.source import MeasuredSource
from adadps.methods.stages.chain import Chain, ReplacesGradients
from adadps.methods.stages.users import Users
from adadps.training.calibration import Wanted
from adadps.training.payment import PaymentTerms
from adadps.training.progress import silent
from adadps.training.shared_ledger import SharedLedger


@dataclass(frozen=True)
class Shard:
    """Rows that this process alone holds, in place of a slice of data that all of them hold.

    No row may be in the shards of two processes: it would be drawn, and clipped, twice.
    """

    examples: Examples = field(repr=False)


# --- the processes ---

_controls: list[tuple[Any, Any]] = []
"""The process group of torch that was seen last, and our own beside it."""


def current_group() -> Group:
    """Return the processes that train together; `ALONE` without torchrun and torch.distributed."""
    if number_of_processes() == 1:
        _require_joined()
        return ALONE
    if not dist.is_initialized():
        _begin()
    world = dist.group.WORLD
    if not _controls or _controls[0][0] is not world:
        _controls[:] = [(world, dist.new_group(backend="gloo"))]
    return ProcessGroup(_controls[0][1])


def sharded_over(model: nn.Module, group: Group) -> ShardedModel | None:
    """Return a model that `fully_shard` has sharded, with its group; None for any other model."""
    if not any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        return None
    control = None if group.is_alone else _controls[0][1]
    return sharded_model(model, group, partial(ShardedGroup, control))


def number_of_processes() -> int:
    """Return how many processes train together: those of torch.distributed, or of torchrun."""
    if not dist.is_available():
        return 1
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1")) if dist.is_torchelastic_launched() else 1


def _require_joined() -> None:
    """Refuse one of several processes that somebody has started and that know nothing of another.

    Each would train on all rows, and state an epsilon that leaves out what the others release.
    """
    world = os.environ.get("WORLD_SIZE", "1")
    if "RANK" not in os.environ or world == "1" or not dist.is_available():
        return
    if not dist.is_initialized():
        raise ContractError(
            f"Expected processes that have joined, found RANK and WORLD_SIZE={world} in the "
            "environment and no group. Start them with torchrun, or call "
            "`torch.distributed.init_process_group` first; for a run of one process, unset both."
        )


def _begin() -> None:
    """Join the processes that torchrun has started.

    After a restart the store of torchrun still holds the addresses of processes that are gone: each
    attempt has keys of its own.
    """
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    there = os.environ
    rank, world = int(there["RANK"]), int(there["WORLD_SIZE"])
    hosted = there.get("TORCHELASTIC_USE_AGENT_STORE", "True") == "True"
    store = TCPStore(
        there["MASTER_ADDR"], int(there["MASTER_PORT"]), is_master=rank == 0 and not hosted
    )
    attempt = there.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=PrefixStore(f"adadps_attempt_{attempt}", store),
        rank=rank,
        world_size=world,
    )
    atexit.register(_end)  # threads of gloo that outlive the interpreter abort the process


def _end() -> None:
    _controls.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def require_alone(what: str) -> None:
    """Refuse what several processes cannot do together yet."""
    count = number_of_processes()
    if count > 1:
        raise ContractError(
            f"Expected one process for {what}, found {count}. Several processes train one model "
            "together (`fit`, `PrivateRun`, estimators, `adadps train`): start this without "
            "torchrun."
        )


@contextmanager
def first_speaks(group: Group) -> Iterator[None]:
    """Keep warnings and bars to the first process."""
    if group.is_first:
        yield
        return
    with warnings.catch_warnings(), silent():
        warnings.simplefilter("ignore")
        yield


Told = TypeVar("Told")


def told_by_first(
    group: Group,
    make: Callable[[], Told],
    encode: Callable[[Told], Any],
    decode: Callable[[Any], Told],
) -> Told:
    """Let the first process make something, and return it in all; it is sent as JSON."""
    if group.is_alone:
        return make()
    return decode(group.tell(Meeting.WORD, lambda: encode(make())))


@contextmanager
def opened_for_all(
    group: Group, make: Callable[[], AbstractContextManager[Ledger]]
) -> Iterator[Ledger]:
    """Open a ledger in the first process, from which all are paid."""
    with ExitStack() as opened:
        if group.is_alone:
            yield opened.enter_context(make())
        else:
            yield SharedLedger(group, lambda: opened.enter_context(make()))


def own_ledger(ledger: Ledger) -> Ledger | None:
    """Return the ledger itself, which only the first of several processes has."""
    return ledger.own if isinstance(ledger, SharedLedger) else ledger


# --- the rows of each ---


def part_of(data: Examples | Shard, group: Group) -> Examples:
    """Return the rows of this process: its own, or its slice of what all of them hold.

    The rows of a user are on one process, so that they can be drawn and clipped as one.
    """
    if isinstance(data, Shard):
        return data.examples
    if group.is_alone or not isinstance(data, Examples):
        return data
    with declared_read(DeclaredRead.PROCESSES):
        if data.users is None:
            rows = torch.arange(group.rank, len(data), group.size)
        else:
            rows = torch.nonzero(data.users % group.size == group.rank).squeeze(1)
        return data.part(rows)


# --- what all must share ---


def require_possible(
    group: Group,
    model: nn.Module,
    method: Chain,
    sampler: Sampler,
    data: Examples | Shard,
    *,
    debug: bool,
) -> None:
    """Refuse what several processes cannot do without another guarantee, or cannot do yet."""
    if group.is_alone:
        return
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ModelError(
            "Expected the model itself with several processes, found one that "
            "DistributedDataParallel wraps. Give the plain model: every process holds all of it, "
            "and sums are exchanged by the run; or call `fully_shard` on it."
        )
    if not isinstance(sampler, Poisson):
        raise ContractError(
            f"Expected Poisson sampling with several processes, found {sampler.sampling.value}. "
            "Independent draws of the processes are one Poisson draw over all examples, but not "
            "one draw of a fixed size, and not one shuffle. Give `batch_size=` or `poisson(...)`."
        )
    by_user = isinstance(method.release.groups, Users)
    if method.release.groups and not by_user:
        raise ContractError(
            f"Expected examples or users that are clipped alone, found {method.release.groups}: a "
            "group would have to be added up over processes before it is clipped. Leave `groups` "
            "out, or train in one process."
        )
    if by_user and isinstance(data, Shard):
        raise DataError(
            "Expected all rows in every process where users are protected, found a shard: a user "
            "with rows in two shards would count twice. Give the same `examples(..., users=...)` "
            "in every process; each takes the rows of some of the users."
        )
    if debug:
        raise ContractError(
            "Expected `debug=False` with several processes, found `debug=True`: each would record "
            "its own rows alone. Debug in one process."
        )
    if any(isinstance(getattr(stage, "side", None), MeasuredSource) for stage in method.informed):
        raise SideInformationError(
            "Expected public side information with several processes, found a measurement on "
            "private rows, which each process would repeat with other noise. Train in one process, "
            "or use public statistics."
        )
    if any(isinstance(stage, ReplacesGradients) for stage in method.stages):
        raise ContractError(
            "Expected gradients with several processes, found local training. Train in one process."
        )


def require_same(group: Group, facts: Callable[[], Mapping[str, str]]) -> None:
    """Compare facts between all processes, and say which one differs in what."""
    if group.is_alone:
        return
    told = group.gather(Meeting.FACTS, dict(facts()))
    for rank, found in enumerate(told):
        for name in sorted(told[0].keys() | found.keys()):
            expected, other = told[0].get(name, "nothing"), found.get(name, "nothing")
            if expected != other:
                raise ContractError(
                    f"Expected the same {name} in all {group.size} processes, found "
                    f"{expected[:200]} in process 0 and {other[:200]} in process {rank}. Start "
                    "every process with the same script, arguments and files, and seed what is "
                    "random in it, such as a split of the data. Rows that only one process holds "
                    "are given as a `Shard`."
                )


def joined_terms(
    group: Group,
    wanted: Wanted,
    terms: PaymentTerms,
    model: nn.Module,
    loss: Any,
    data: Examples | Shard,
    others: Mapping[str, Any],
) -> PaymentTerms:
    """Compare what the processes were asked for, and give them one ledger in place of several."""
    if group.is_alone:
        return terms
    if isinstance(data, Shard) and wanted.examples is None and wanted.sampler is None:
        raise DataError(
            "Expected the declared number of examples of all shards together, found none. Give "
            "`examples=...`, a public number."
        )
    key = group.tell_bytes(Meeting.KEY, lambda: os.urandom(32))
    require_same(group, lambda: _settings(wanted, terms, model, loss, data, others, key))
    ledger = terms.ledger
    if ledger is None or isinstance(ledger, SharedLedger):
        return terms
    return replace(terms, ledger=SharedLedger(group, lambda: ledger))


def _settings(
    wanted: Wanted,
    terms: PaymentTerms,
    model: nn.Module,
    loss: Any,
    data: Examples | Shard,
    others: Mapping[str, Any],
    key: bytes,
) -> dict[str, str]:
    """Return what was asked for, in words and digests; those of private rows have a secret key."""
    held = data.examples if isinstance(data, Shard) else data
    named = [*model.named_parameters(), *model.named_buffers()]
    form = [(n, tuple(t.shape), t.dtype, t.requires_grad) for n, t in named]
    facts = {
        "version of adadps": code_version(),
        "version of torch": torch.__version__,
        "parameters and buffers": digest_of([str(form)]),
        "loss": getattr(loss, "__qualname__", type(loss).__qualname__),
        "kind of data": type(data).__name__,
        "form of the data": str([(tuple(t.shape[1:]), t.dtype) for t in _tensors(held)]),
        **{item.name: str(getattr(wanted, item.name)) for item in fields(wanted)},
        **{
            name: str(getattr(terms, name))
            for name in ("budget", "delta", "accountant", "measured")
        },
        "kind of ledger": type(terms.ledger).__name__,
        **{name: str(value) for name, value in others.items()},
    }
    if not isinstance(data, Shard):
        facts["data"] = _fingerprint(held, key)
    return facts


def _tensors(data: Examples) -> list[Tensor]:
    return [*tensors_of(data.features), data.targets]


@declared_read(DeclaredRead.PROCESSES)
def _fingerprint(data: Examples, key: bytes) -> str:
    """A keyed digest of all rows in their order, or of what a dataset says about its order."""
    users = [] if data.users is None else [data.users]
    parts: list[Tensor | str] = [str(len(data)), *_tensors(data), *users]
    held = getattr(data, "dataset", None)
    while held is not None:  # a random split has its rows in `indices`
        parts += [type(held).__qualname__, str(list(getattr(held, "indices", ())))]
        parts += [text for _, text in sorted(_lists_in(held).items())]
        held = getattr(held, "dataset", None)
    return hashlib.blake2b(digest_of(parts).encode(), key=key, digest_size=16).hexdigest()


def _lists_in(dataset: object) -> dict[str, str]:
    """The lists of names and numbers that a dataset holds, as of its files, and its fingerprint."""
    found = {}
    for name, value in vars(dataset).items() if hasattr(dataset, "__dict__") else ():
        plain = isinstance(value, list | tuple) and all(
            isinstance(one, str | int | float | PurePath) for one in value
        )
        if plain or (name == "_fingerprint" and isinstance(value, str)):
            found[name] = f"{name}: {value}"
    return found


def take_over_model(model: nn.Module, group: Group) -> None:
    """Give all processes the weights and buffers with which the first one begins."""
    if group.is_alone:
        return
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    # Of what is sharded, every process has its own part.
    held = {name: tensor for name, tensor in named.items() if not hasattr(tensor, "device_mesh")}
    told = group.first({name: tensor.detach() for name, tensor in held.items()})
    with torch.no_grad():
        for name, tensor in held.items():
            tensor.copy_(told[name])


def digest_of_states(states: Any) -> str:
    """Hash all tensors and numbers of method states."""
    parts: list[Tensor | str] = []

    def walk(held: Any) -> None:
        if isinstance(held, Tensor):
            parts.append(held)
        elif isinstance(held, Mapping):
            for name, value in held.items():
                parts.append(str(name))
                walk(value)
        elif isinstance(held, list | tuple):
            for value in held:
                walk(value)
        elif is_dataclass(held) and not isinstance(held, type):
            for item in fields(held):
                walk(getattr(held, item.name))
        elif isinstance(held, int | float | str | None):
            parts.append(str(held))

    walk(states)
    return digest_of(parts)
