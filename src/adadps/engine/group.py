"""Processes that train one model together, and what they tell one another.

Each process holds a part of the examples and a replica of the weights. A step needs three things
of the others: the sum of what all have clipped (`Group.sum`), the rows of tables that any of them
reads (`Group.union`), and the word of the first process, which alone pays (`Group.tell`). Noise is
not sent: all replicas draw the same from one secret key, so that it is added once
(`adadps.engine.noise.randomness.Randomness.shared_by`).

*In lockstep.* Every exchange begins with a meeting: each process says what it is about to exchange,
how many meetings it has had, and how much noise it has drawn. If they differ, or if one of them has
failed, all processes stop with the same error. Otherwise one of them would wait for ever, or add
noise that the others do not add.

`ALONE` is the group of a process without others. It exchanges nothing and changes nothing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import Enum
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from adadps.errors import AdadpsError, ContractError
from adadps.tensors.sums import Params, RowSparse, Sums, dense


class Meeting(Enum):
    """What processes meet for."""

    FAILURE = "report an error"
    FACTS = "compare the settings of the run"
    KEY = "share the key of the noise"
    WORD = "wait for the word of the first process"
    LEDGER = "open the ledger"
    PAYMENT = "pay for a step"
    CHECKPOINT = "read the checkpoint"
    READ = "read rows of a table"
    GATHER = "gather the weights of a layer"
    PIECES = "agree on the number of physical batches"
    SUM = "add up clipped gradients"
    TENSORS = "take over tensors of the first process"
    WEIGHTS = "compare the weights"
    EVALUATION = "evaluate the model"
    END = "end the run"


MEETINGS = tuple(Meeting)
_KNOWN = "_adadps_known_to_all"


class Group:
    """A process that trains alone: the base of `ProcessGroup`, with nobody to talk to."""

    rank, size = 0, 1
    is_alone = True
    """Is there no other process?"""
    is_first = True
    """Is this the process that pays, writes and speaks?"""
    is_sharded = False
    """Does each process hold other rows of the weights (`ShardedGroup`)?"""
    together: Callable[[], AbstractContextManager[None]] = nullcontext
    """Within it, an error in one process ends the work of all with the same error."""

    def follows(self, position: Callable[[], int]) -> None:
        """Compare this number at every meeting: how much noise was drawn."""

    def sum(self, sums: Sums) -> Sums:
        """Return the sums over all processes, bit for bit the same in each."""
        return sums

    def sum_of(self, parts: Iterable[Sums]) -> Sums:
        """Add up parts over all processes; each gets the rows that it holds."""
        raise NotImplementedError(f"{type(self).__name__} does not hold shards")

    def noise_key(self, shared: bytes) -> bytes:
        """Return the key of this process's noise: the shared one, where all hold all weights."""
        return shared

    def union(self, rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the rows of each table that any process names, in the same order in each."""
        return rows

    def first(self, tensors: Params) -> Params:
        """Return the first process's values of tensors that all processes have."""
        return tensors

    def tell(self, what: Meeting, word: Callable[[], Any]) -> Any:
        """Let the first process call ``word``, and return its result (plain JSON) in all."""
        del what
        return word()

    def tell_bytes(self, what: Meeting, word: Callable[[], bytes]) -> bytes:
        """The same for bytes."""
        del what
        return word()

    def gather(self, what: Meeting, said: Any) -> list[Any]:
        """Return what each process says (plain JSON), by rank."""
        del what
        return [said]

    def any(self, said: bool) -> bool:
        """Does any process say so?"""
        return any(self.gather(Meeting.WORD, said))


ALONE = Group()


class ProcessGroup(Group):
    """The processes of torch.distributed; ``control`` is a gloo group of all of them."""

    def __init__(self, control: Any) -> None:
        self._control = control
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_alone, self.is_first = False, self.rank == 0
        self.together = self._together
        self._position: Callable[[], int] = lambda: 0
        self._met = 0
        self.bytes_sent = 0
        """What this process has given to collective operations, of sums and of row numbers."""

    def follows(self, position: Callable[[], int]) -> None:
        """Compare this number at every meeting from now on."""
        self._position = position

    def sum(self, sums: Sums) -> Sums:
        """Add up over all processes in float64, with one reduction.

        Of a table that is touched in some rows, the rows that any process touches are sent.
        """
        form = [
            (name, isinstance(leaf, RowSparse), list(leaf.shape)) for name, leaf in sums.items()
        ]
        sparse = {n: leaf for n, leaf in sums.items() if isinstance(leaf, RowSparse)}
        touched = self._all_rows(
            Meeting.SUM, {name: leaf.rows for name, leaf in sparse.items()}, form
        )
        leaves = {
            name: _on_rows(leaf, touched[name]) if isinstance(leaf, RowSparse) else dense(leaf)
            for name, leaf in sums.items()
        }
        line = torch.cat([leaf.double().reshape(-1) for leaf in leaves.values()])
        self._reduce(line)
        total: Sums = {}
        start = 0
        for name, leaf in leaves.items():
            part = line[start : start + leaf.numel()].view(leaf.shape)
            start += leaf.numel()
            if name in sparse:
                like = sparse[name]
                rows = touched[name].to(part.device)
                # A copy: rows may wait for their noise, and the whole line would wait with them.
                total[name] = RowSparse(rows, part.clone(), like.shape, like.axis)
            elif leaf.is_contiguous():
                total[name] = part
            else:  # as the weights lie, so that noise is added along their memory
                total[name] = torch.empty_like(leaf, dtype=torch.float64).copy_(part)
        return total

    def union(self, rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Gather row numbers, and return those that occur, in ascending order."""
        return self._all_rows(Meeting.READ, rows, sorted(rows))

    def first(self, tensors: Params) -> Params:
        """Send the tensors of the first process to the others."""
        form = [(n, list(t.shape), str(t.dtype)) for n, t in tensors.items()]
        self._meet(Meeting.TENSORS, form=form)
        found = {}
        for name, tensor in tensors.items():
            held = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            if held.numel():  # as bytes, whatever the type
                line = held.view(-1).view(torch.uint8)
                self._send(partial(dist.broadcast, line, 0, group=self._control))
            found[name] = torch.empty_like(tensor.detach()).copy_(held)
        return found

    def tell(self, what: Meeting, word: Callable[[], Any]) -> Any:
        """Send the word of the first process; None is sent without a message of its own."""

        def encoded() -> bytes:
            found = word()
            return b"" if found is None else json.dumps(found).encode()

        told = self.tell_bytes(what, encoded)
        return json.loads(told) if told else None

    def tell_bytes(self, what: Meeting, word: Callable[[], bytes]) -> bytes:
        """Send bytes of the first process to the others."""
        said = word() if self.is_first else b""
        length = self._meet(what, len(said))[0]
        if not length:
            return b""
        held = _as_tensor(said) if self.is_first else torch.empty(length, dtype=torch.uint8)
        self._send(lambda: dist.broadcast(held, 0, group=self._control))
        return held.numpy().tobytes()

    def gather(self, what: Meeting, said: Any) -> list[Any]:
        """Send what each process says to all others."""
        message = _as_tensor(json.dumps(said).encode())
        lengths = self._meet(what, len(message))
        return [json.loads(held.numpy().tobytes()) for held in self._gathered(message, lengths)]

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Report an error of this process at the next meeting of the others."""
        try:
            yield
        except BaseException as error:
            if not getattr(error, _KNOWN, False):
                setattr(error, _KNOWN, True)
                with suppress(ContractError):  # the others have ended, or fail as well
                    self._meet(Meeting.FAILURE, error=error)
            raise

    def _meet(
        self,
        what: Meeting,
        length: int = 0,
        *,
        form: Any = None,
        error: BaseException | None = None,
    ) -> list[int]:
        """Exchange where each process is; return the lengths of messages, or stop them all."""
        message = b"" if error is None else _in_words(error)
        checked = zlib.crc32(json.dumps(form).encode())
        place = [MEETINGS.index(what), self._met, self._position(), checked]
        said = torch.tensor([len(message), length, *place])
        heard = [torch.empty_like(said) for _ in range(self.size)]
        self._send(lambda: dist.all_gather(heard, said, group=self._control))
        self._met += 1
        of_all = [one.tolist() for one in heard]
        failures = [one[0] for one in of_all]
        if any(failures):
            texts = self._gathered(_as_tensor(message), failures)
            rank = next(rank for rank, size in enumerate(failures) if size)
            raise _from_words(texts[rank].numpy().tobytes(), rank)
        self._require_same_place([one[2:] for one in of_all])
        return [one[1] for one in of_all]

    def _require_same_place(self, places: Sequence[Sequence[int]]) -> None:
        other = next((rank for rank, place in enumerate(places) if place != places[0]), None)
        if other is None:
            return
        mine, its = places[0], places[other]
        if mine[:2] != its[:2]:
            found = (
                f"that process 0 is about to {MEETINGS[mine[0]].value} (exchange {mine[1]}) and "
                f"process {other} to {MEETINGS[its[0]].value} (exchange {its[1]})"
            )
        elif mine[2] != its[2]:
            found = (
                f"that process 0 has drawn {mine[2]} numbers of noise and process {other} {its[2]}"
            )
        else:
            found = f"tensors or tables of other forms in process {other} than in process 0"
        raise _known(
            ContractError(
                f"Expected all processes to do the same, found {found}. Whatever reads or moves "
                "the model (`run.params`, `run.evaluate`, `run.result`, a step) has to be called "
                "in every process, not only in the first."
            )
        )

    def _all_rows(self, what: Meeting, rows: Mapping[str, Tensor], form: Any) -> dict[str, Tensor]:
        """The rows that any process has, of each table; they come as one line of numbers."""
        names = sorted(rows)
        held = [rows[name].cpu().long() + (place << 40) for place, name in enumerate(names)]
        line = torch.cat(held) if held else torch.empty(0, dtype=torch.int64)
        lengths = self._meet(what, len(line), form=form)
        self.bytes_sent += line.nbytes
        every = torch.unique(torch.cat(self._gathered(line, lengths)))
        bounds = torch.searchsorted(every, torch.arange(len(names) + 1) << 40).tolist()
        return {
            name: every[bounds[place] : bounds[place + 1]] - (place << 40)
            for place, name in enumerate(names)
        }

    def _gathered(self, line: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """The lines of all processes, which may have other lengths."""
        longest = max(lengths)
        if longest == 0:
            return [line[:0] for _ in lengths]
        padded = line.new_zeros(longest)
        padded[: len(line)] = line
        heard = [torch.empty_like(padded) for _ in lengths]
        self._send(lambda: dist.all_gather(heard, padded, group=self._control))
        return [one[:length] for one, length in zip(heard, lengths, strict=True)]

    def _reduce(self, line: Tensor) -> None:
        """Add up in place, where the tensor is if its device has a backend of its own."""
        self.bytes_sent += line.nbytes
        if line.device.type == "cpu":
            self._send(lambda: dist.all_reduce(line, group=self._control))
        else:
            self._send(lambda: dist.all_reduce(line))

    def _send(self, exchange: Callable[[], object]) -> None:
        try:
            exchange()
        except RuntimeError as error:  # gloo's word for a connection that is gone
            raise _known(
                ContractError(
                    f"Expected all {self.size} processes to continue, found that one has ended or "
                    f"does not answer ({type(error).__name__}). Start them again, with checkpoints "
                    "to resume from the last one; what was paid stays paid."
                )
            ) from error


def _on_rows(leaf: RowSparse, rows: Tensor) -> Tensor:
    """The slices of a sum at ``rows``, which include its own; zeros elsewhere."""
    values = leaf.values
    found = values.new_zeros(len(rows), *values.shape[1:], dtype=torch.float64)
    found[torch.searchsorted(rows, leaf.rows.cpu()).to(values.device)] = values.double()
    return found


def _as_tensor(message: bytes) -> Tensor:
    return (
        torch.frombuffer(bytearray(message), dtype=torch.uint8)
        if message
        else torch.empty(0, dtype=torch.uint8)
    )


def _known(error: ContractError) -> ContractError:
    """Mark an error that every process raises by itself."""
    setattr(error, _KNOWN, True)
    return error


def _in_words(error: BaseException) -> bytes:
    """Type and text of an error; other errors than ours might quote private values."""
    text = str(error) if isinstance(error, AdadpsError) else ""
    return json.dumps([type(error).__name__, text]).encode()


def _from_words(message: bytes, rank: int) -> AdadpsError:
    kind, text = json.loads(message)
    ours = {one.__name__: one for one in AdadpsError.__subclasses__()}
    error: AdadpsError
    if kind in ours and ours[kind].__module__ == AdadpsError.__module__:
        error = ours[kind](text)
        error.add_note(f"Process {rank} of the group has raised this error first.")
    else:
        error = ContractError(
            f"Expected all processes to continue, found that process {rank} has ended with "
            f"{kind}. Its own output says why; what was paid stays paid."
        )
    setattr(error, _KNOWN, True)
    return error


def refuse_read_alone(group: Group) -> None:
    """Refuse, in all processes, a read of weights that would draw noise in this one alone."""
    with group.together():
        raise ContractError(
            "Expected all processes to read the weights together, found one that reads a table "
            "whose rows wait for noise: it would add noise that the others do not add. Call "
            "`run.params` (or `run.result()`) in every process; until the next step, each may then "
            "read the model."
        )
