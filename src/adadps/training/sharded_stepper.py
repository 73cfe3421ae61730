"""Steps of a model of which each process holds a shard (`adadps.engine.shards.model`).

The step is that of `adadps.training.stepper`, with three differences. All processes run the same
number of physical batches, the missing ones on synthetic rows alone, because each pass gathers
weights. Clipped sums are dealt out as the weights are: stages after the clip, their states and the
weights see the rows that this process holds. And so does the noise, from a stream of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from adadps.data.examples import Examples, PublicExamples
from adadps.data.provenance import digest_of
from adadps.data.sparse_rows import SparseRows
from adadps.engine.choice import ROWS
from adadps.engine.chunked import ChunkedGradients, pieces_of
from adadps.engine.group import Meeting
from adadps.engine.losses import Loss
from adadps.engine.passes.validation import objective, public_gradients
from adadps.engine.shards.choice import engine_of_shards
from adadps.engine.shards.model import ShardedModel
from adadps.engine.shards.scale import MappedInShards
from adadps.engine.waist import GradientBatch, Units
from adadps.errors import DataError
from adadps.methods.side.whitening import Whitening
from adadps.methods.stages.chain import Chain
from adadps.report.result import require_shapes
from adadps.tensors.sums import Params, dense, is_wide
from adadps.training.calibration import require_parts
from adadps.training.checkpoint import RECORDS, Checkpoint, pack
from adadps.training.saved_checkpoint import require_like, unpack
from adadps.training.sharded_methods import maps_in_shards, reads_whole, require_rows
from adadps.training.stepper import DataStepper, DrawnRows


class ShardedStepper(DataStepper):
    """Steps by the gradients of examples in this process, on shards of the weights."""

    def __init__(
        self, sharded: ShardedModel, loss: Loss, data: Examples, *, chunk: int | None
    ) -> None:
        super().__init__(sharded.model, loss, data, chunk=chunk, debug=False)
        self._sharded, self._shards = sharded, sharded.group

    def require_fit(self, method: Chain) -> None:
        """Refuse what cannot be trained in shards, and a model or loss that cannot be trained."""
        require_rows(method)
        self._maps_in_shards = any(map(maps_in_shards, method.steps))
        require_parts(method, self._data)
        if isinstance(self._data.features, SparseRows):
            raise DataError(
                "Expected dense rows or tokens for a model that is sharded, found sparse rows, "
                "whose tables are read row by row. Give tokens to nn.Embedding, or leave "
                "`fully_shard` out: sums and noise of sparse rows are small."
            )

        def choose(_twin: Any, loss: Loss, probe: Examples) -> Any:
            return engine_of_shards(self._sharded, loss, probe)

        with self._sharded.passing():
            twin = self._sharded.twin
            self.objective = objective(twin, self._loss, self._data, choose=choose)
            for reader, public in method.public_readers:
                gradients = public_gradients(self.objective, public.examples)
                if isinstance(reader, Whitening):
                    reader.require_layers(gradients, self.objective.of_no_rows())

    def require_same_model(self) -> None:
        """The same, of shards: what torch has gathered to run the model has other parameters."""
        self._sharded.reshard()
        super().require_same_model()

    # --- a step ---

    def take(self, drawn: DrawnRows, index: int) -> None:
        """Take step number ``index``; torch's own hooks gather moved weights anew after it."""
        with self._sharded.passing():
            super().take(drawn, index)
        self._sharded.reshard()

    def _gradients(self, drawn: DrawnRows) -> tuple[GradientBatch, Collection[str]]:
        """Gradients of the batch in as many pieces as any process has."""
        batch = self.objective.encoded(self._data.take(drawn.rows).to(self.device))
        units = drawn.units.to(self.device) if drawn.units else None
        params = self.objective.params()
        chunk = self._chunk or self.objective.engine.most_at_once(params)
        pieces = _pieces(batch, units, max(1, chunk - chunk % min(ROWS, chunk)))
        told = self._shards.gather(Meeting.PIECES, [len(pieces), len(batch)])
        missing = max(count for count, _ in told) - len(pieces)
        pieces += [_nothing_of(batch, units)] * missing
        rows = sum(size for _, size in told)
        each = (partial(self._piece, params, part, own, rows) for part, own in pieces)
        return ChunkedGradients(tuple(each)), ()

    def _piece(
        self, params: Params, part: Examples, units: Units | None, rows: int
    ) -> GradientBatch:
        """Differentiate one physical batch; ``rows`` are those of the batches of all processes."""
        with self._sharded.passing():
            at_once = len(part) + ROWS
            found: Any = self.objective.per_unit(params, part, units, at_once)
        found = found if self._single is None else found.in_single(self._single, rows)
        if self._maps_in_shards:
            found = MappedInShards.of(found, self._shards)
        gradients: GradientBatch = found
        return gradients

    def _mean_gradient(self, public: PublicExamples) -> Params:
        """The mean gradient of public rows, of which this process holds its shard."""
        batch = self.objective.encoded(public.examples.to(self.device))
        weights = torch.full((len(batch),), 1 / len(batch), dtype=torch.float64)
        total: Params = {}
        start = 0
        for part in self.objective.of_public_rows(self.objective.params(), batch).parts():
            count = len(part.norms())
            sums = part.weighted_sum(weights[start : start + count].to(self.device))
            start += count
            for name, summed in sums.items():
                own = self._shards.own(self._shards.forms[name], dense(summed))
                total[name] = total[name].add_(own) if name in total else own
        return total

    def _of_public_rows(self, public: Examples) -> GradientBatch:
        batch = self.objective.encoded(public.to(self.device))
        return self.objective.of_public_rows(self.objective.params(), batch)

    @property
    def _parts(self) -> int:
        return 1  # the processes say how many rows all of them have drawn

    def _trained(self) -> Params:
        return self._sharded.trained

    def _most_rounding_charge(self) -> float:
        wide = any(is_wide(value) for value in self.whole_form.values())
        return self._single.charge if wide and self._single is not None else 0.0

    # --- weights and states ---

    def initialise(self) -> None:
        """Set the method's state before its first step, mostly of what this process holds."""
        self.states = self._first_states()

    def _first_states(self) -> tuple[Any, ...]:
        whole, own = self.whole_form, self.own_params
        return tuple(
            stage.init(whole if reads_whole(stage) else own) for stage in self.method.steps
        )

    def resume(self, held: Checkpoint) -> None:
        """Restore the shards of the method's state from a checkpoint."""
        self._has_moved = held.taken > 0
        states = unpack(held.states, held.state_tensors, self.own_params)
        self.states = tuple(
            state if reads_whole(stage) else self._each(state, self._own_part)
            for stage, state in zip(self.method.steps, states, strict=True)
        )
        for stage, state, first in zip(
            self.method.steps, self.states, self._first_states(), strict=True
        ):
            require_like(state, first, self.whole_form if reads_whole(stage) else self.own_params)

    @property
    def params(self) -> Params:
        """The whole weights, gathered; all processes have to ask for them."""
        return {name: self._whole(name, own) for name, own in self.own_params.items()}

    @property
    def whole_form(self) -> Params:
        """Tensors with the shapes of the whole parameters, which take no memory."""
        return self._sharded.whole_form

    @property
    def evaluated_params(self) -> Params:
        """Parameters that are gathered while their modules run."""
        return self.objective.params()

    @property
    def common_states(self) -> Any:
        """The states that all processes hold alike: side information of whole layers."""
        steps = zip(self.method.steps, self.states, strict=True)
        return [state for stage, state in steps if reads_whole(stage)]

    def digest(self) -> str:
        """Hash how the weights are dealt out: each row is in one process alone."""
        return digest_of([str(form) for form in self._shards.forms.values()])

    def frozen_part(self, assumed_public: Iterable[str]) -> str:
        """Hash what the run may not change; frozen parameters are gathered one by one."""

        def parts() -> Iterator[Tensor | str]:
            for name, shard in self._sharded.shards.items():
                if name not in self._shards.trained:
                    yield from (name, self._whole(name, shard))
            for name, buffer in self.model.named_buffers():
                yield from (name, buffer)
            yield from assumed_public

        return digest_of(parts())

    def load(self, held: Checkpoint) -> None:
        """Take over the shards of a checkpoint's weights."""
        require_shapes(held.params, self.whole_form)
        for name, own in self.own_params.items():
            own.copy_(self._shards.own(self._shards.forms[name], held.params[name]))

    def packed(self) -> tuple[Params, Any, Params]:
        """Gather weights and states for a checkpoint, in the first process alone."""
        states = tuple(
            state if reads_whole(stage) else self._each(state, self._whole_part)
            for stage, state in zip(self.method.steps, self.states, strict=True)
        )
        return self._for_the_first(), *pack(states, self.own_params)

    def hand_over(self) -> None:
        """Leave the shards in the model, where they are."""
        self._sharded.reshard()

    def _for_the_first(self) -> Params:
        return {name: self._kept(name, own) for name, own in self.own_params.items()}

    def _kept(self, name: str, own: Tensor) -> Tensor:
        whole = self._whole(name, own)
        return whole if self._shards.is_first else whole.new_empty(0)

    def _whole(self, name: str, own: Tensor) -> Tensor:
        return self._shards.whole(self._shards.forms[name], own)

    def _whole_part(self, name: str, value: Tensor) -> Tensor:
        """A tensor of the state of a parameter: one for each entry, or for the parameter."""
        return self._kept(name, value) if value.shape == self.own_params[name].shape else value

    def _own_part(self, name: str, value: Tensor) -> Tensor:
        form = self._shards.forms[name]
        return self._shards.own(form, value) if tuple(value.shape) == form.shape else value

    def _each(self, state: Any, change: Callable[[str, Tensor], Tensor], name: str = "") -> Any:
        """The state with other tensors for parameters, which stand behind their names."""
        if state is self.own_params:
            return state
        if isinstance(state, Mapping):
            return {
                key: self._each(value, change, key if key in self.own_params else name)
                for key, value in state.items()
            }
        if type(state) is tuple:
            return tuple(self._each(value, change, name) for value in state)
        if type(state).__name__ in RECORDS:
            parts = {item.name: getattr(state, item.name) for item in fields(state)}
            return replace(state, **{n: self._each(v, change, name) for n, v in parts.items()})
        return change(name, state) if name and isinstance(state, Tensor) else state


def _pieces(
    batch: Examples, units: Units | None, chunk: int
) -> list[tuple[Examples, Units | None]]:
    if len(batch) <= chunk:
        return [(batch, units)]
    parts = pieces_of(batch.targets, units, chunk)
    return [(batch.take(rows), own) for rows, own in parts]


def _nothing_of(batch: Examples, units: Units | None) -> tuple[Examples, Units | None]:
    """A piece without rows, which will be padded."""
    none = torch.arange(0, device=batch.targets.device)
    if units is None:
        return batch.take(none), None
    return batch.take(none), Units(units.labels[none], 0, units.weight)
