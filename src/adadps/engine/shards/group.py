"""What processes tell one another when each holds a shard of every weight.

The rows of a parameter are dealt out as `torch.distributed.fsdp.fully_shard` does it: each process
has the next ⌈rows / processes⌉ of them, and the last ones may have fewer, or none. Weights are
gathered bundle by bundle (`ShardedGroup.gathered`), and of a sum each process gets the rows that it
holds (`ShardedGroup.sum_of`): nobody has the sum of the whole model. The noise of a row is drawn by
the process that holds it, from a stream of its own (`ShardedGroup.noise_key`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from adadps.engine.group import Meeting, ProcessGroup
from adadps.errors import AdadpsError
from adadps.tensors.sums import Params, Sum, Sums, dense

if TYPE_CHECKING:
    from adadps.engine.rules.gradients import LeafMap


@dataclass(frozen=True)
class Form:
    """A parameter: its name, its whole shape, and the first row of each process, and of nobody."""

    name: str
    shape: tuple[int, ...]
    bounds: tuple[int, ...]

    @classmethod
    def over(cls, name: str, shape: Sequence[int], processes: int) -> Form:
        """Deal out the rows.

        >>> Form.over("bias", (5,), 4).bounds
        (0, 2, 4, 5, 5)
        """
        each = -(-shape[0] // processes)
        bounds = (min(rank * each, shape[0]) for rank in range(processes + 1))
        return cls(name, tuple(shape), tuple(bounds))

    def rows(self, rank: int) -> slice:
        """Return the rows that a process holds."""
        return slice(self.bounds[rank], self.bounds[rank + 1])

    def shape_of(self, rank: int) -> tuple[int, ...]:
        """Return the shape of what a process holds."""
        return (self.bounds[rank + 1] - self.bounds[rank], *self.shape[1:])


@dataclass(frozen=True)
class Bundle:
    """Parameters that are gathered together: those of one call of ``fully_shard``."""

    name: str
    forms: tuple[Form, ...]


class Mapped(dict[str, Sum]):
    """Sums that are mapped, entry by entry, once they were dealt out.

    ``map_of`` gives the map of the rows of a parameter that this process holds; ``count`` is the
    sum of the weights in this process, which multiplies a shift.
    """

    def __init__(self, sums: Sums, map_of: Callable[[str], LeafMap], count: float) -> None:
        super().__init__(sums)
        self.map_of, self.count = map_of, count


_NOTHING_TO_NOISE = -1
"""What a process says of its noise that holds no row: there are more processes than rows."""


class ShardedGroup(ProcessGroup):
    """Processes that hold shards of all parameters in ``bundles``; ``trained`` names some."""

    is_sharded = True

    def __init__(self, control: Any, bundles: Sequence[Bundle], trained: Iterable[str]) -> None:
        super().__init__(control)
        self.forms = {form.name: form for bundle in bundles for form in bundle.forms}
        self._bundles = bundles
        self.trained = [name for name in self.forms if name in set(trained)]
        self._ended: AdadpsError | None = None
        self.together = self._all_or_none

    def _entries_of(self, rank: int) -> int:
        return sum(prod(self.forms[name].shape_of(rank)) for name in self.trained)

    def follows(self, position: Callable[[], int]) -> None:
        """Compare how often each process has drawn the noise of its shard, if it has one."""
        own = self._entries_of(self.rank)
        super().follows(lambda: position() // own if own else _NOTHING_TO_NOISE)

    def noise_key(self, shared: bytes) -> bytes:
        """Return the key of this process's stream: another one in each process, at every start."""
        salt = self.rank.to_bytes(8)
        return hashlib.blake2b(shared, digest_size=32, salt=salt, person=b"a shard").digest()

    # --- shards and wholes ---

    def gathered(self, bundle: Bundle, shards: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return, by process, the shards of a bundle's parameters as bytes."""
        self._meet(Meeting.GATHER, form=bundle.name)
        line = torch.cat([_as_bytes(shard) for shard in shards])
        self.bytes_sent += line.nbytes
        widths = [shard.element_size() for shard in shards]
        sizes = [
            [prod(f.shape_of(rank)) * width for f, width in zip(bundle.forms, widths, strict=True)]
            for rank in range(self.size)
        ]
        heard = self._gathered(line, [sum(one) for one in sizes])
        return [list(torch.split(one, own)) for one, own in zip(heard, sizes, strict=True)]

    def whole(self, form: Form, shard: Tensor) -> Tensor:
        """Return a whole tensor that is dealt out like a parameter, on the CPU, in all of them."""
        parts = self.gathered(Bundle(form.name, (form,)), [shard.detach().cpu()])
        return torch.cat([part for (part,) in parts]).view(shard.dtype).view(form.shape)

    def own(self, form: Form, whole: Tensor) -> Tensor:
        """Return a copy of the rows that this process holds."""
        return whole[form.rows(self.rank)].clone(memory_format=torch.contiguous_format)

    def sum_of(self, parts: Iterable[Sums]) -> Sums:
        """Add up sums over all processes, bundle by bundle; each gets the rows that it holds.

        Every process has the same number of parts. A part is reduced before the next one is made,
        so that no process ever holds more than one bundle's whole sum.
        """
        total: Params = {}
        for part in parts:
            for bundle in self._bundles:
                forms = [form for form in bundle.forms if form.name in part]
                if forms:
                    own, count = self._scattered(bundle, forms, part)
                    for name, summed in own.items():
                        mapped = _mapped(part, name, summed, count)
                        total[name] = total[name].add_(mapped) if name in total else mapped
        return {name: total[name] for name in self.trained}

    def _scattered(
        self, bundle: Bundle, forms: Sequence[Form], part: Sums
    ) -> tuple[dict[str, Tensor], float]:
        """The own rows of a bundle's sums over all processes, and their weight: one reduction."""
        self._meet(Meeting.SUM, form=[bundle.name, *(form.name for form in forms)])
        wholes = [dense(part[form.name]).double() for form in forms]
        count = wholes[0].new_tensor([part.count if isinstance(part, Mapped) else 0.0])
        pairs = list(zip(forms, wholes, strict=True))
        lines = [
            torch.cat([count, *(whole[form.rows(rank)].reshape(-1) for form, whole in pairs)])
            for rank in range(self.size)
        ]
        longest = max(map(len, lines))
        lines = [torch.nn.functional.pad(line, (0, longest - len(line))) for line in lines]
        del wholes, pairs
        self.bytes_sent += sum(line.nbytes for line in lines)
        own = torch.empty_like(lines[self.rank])
        control = self._control if own.device.type == "cpu" else None
        self._send(lambda: dist.reduce_scatter(own, lines, group=control))
        found, start = {}, 1
        for form in forms:
            shape = form.shape_of(self.rank)
            found[form.name] = own[start : start + prod(shape)].view(shape).clone()
            start += prod(shape)
        return found, float(own[0])

    # --- meetings ---

    def _require_same_place(self, places: Sequence[Sequence[int]]) -> None:
        drawn = [times for _, _, times, _ in places if times != _NOTHING_TO_NOISE]
        super()._require_same_place(
            [
                (what, met, drawn[0] if times == _NOTHING_TO_NOISE else times, form)
                for what, met, times, form in places
            ]
        )

    def _meet(
        self,
        what: Meeting,
        length: int = 0,
        *,
        form: Any = None,
        error: BaseException | None = None,
    ) -> list[int]:
        """Meet, but not once the others have ended: nobody would come.

        Weights are gathered within passes of the model, whose errors are caught in several places.
        """
        if self._ended is not None:
            raise self._ended
        try:
            return super()._meet(what, length, form=form, error=error)
        except AdadpsError as failure:
            self._ended = failure
            raise

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Report an error at the next meeting; what another process has reported comes first."""
        with self._together():
            try:
                yield
            except Exception:
                if self._ended is None:
                    raise
                raise self._ended from None


def _mapped(part: Sums, name: str, summed: Tensor, count: float) -> Tensor:
    """The own rows of a sum, mapped if they have to be."""
    if not isinstance(part, Mapped):
        return summed
    return dense(part.map_of(name).apply_to_sum(summed, count))


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
