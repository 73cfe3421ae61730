"""What moves in a run: the weights, and the states of the method's stages.

One private step, from batch to weights
---------------------------------------

`Run.batches` has paid for the step and `Batches` has drawn its rows. Then, in `DataStepper.take`:

1.  *Read.* The rows are taken from the data, and the weights they need are brought up to date
    (`Weights.read`): a table of words whose noise was left for later gets it now, for these rows.
2.  *Differentiate.* The objective's engine gives per-example gradients g_i as a `GradientBatch`:
    it answers "norms?" and "weighted sum?", and never stores the g_i (`adadps.engine.waist`).
3.  *Precondition*, if the method does so before the clip: g_i becomes D ∘ g_i, by a note on the
    batch and no work (`Precondition.apply`).
4.  *Clip.* `Privatize.apply` asks for the norms, weighs each example by min(1, C/‖D ∘ g_i‖) and
    asks for one sum, S = Σ_i w_i D ∘ g_i. Adding or removing one example moves S by at most C.
    Several processes add up their sums here (`Group.sum`), before any noise.
5.  *Noise.* It attaches N(0, σ²C²) to S and divides by the public expected batch size b. The pair
    (S, σC) travels on as `NoisySum`: stages after it may only multiply it by a number. A stage that
    has to see values (Adam, momentum, a preconditioner after the noise) gets them drawn at once.
6.  *Update.* The last stage turns the released gradient into what is added to the weights.
7.  *Weights.* `Weights.apply` draws the noise in float64 from the run's secret generator, adds it
    to the sum on the public grid, and adds the result to the weights; for tables of which the batch
    reads a few rows, it leaves the noise of all other rows for when they are next read
    (`adadps.engine.noise.late`), which changes nothing in distribution.

Nothing else about the batch leaves this file, unless ``debug`` marks the run as not private.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from adadps.accounting.groups import Groups
from adadps.accounting.samplers import Rows, Sampler
from adadps.data.examples import Examples, PublicExamples, private_rows
from adadps.data.sparse_rows import lay_out_by_feature, lay_out_by_output
from adadps.data.users import UserRows
from adadps.engine.group import ALONE, Group
from adadps.engine.losses import Loss
from adadps.engine.noise.late_parameter import LateParameter, make_plain
from adadps.engine.noise.randomness import Randomness
from adadps.engine.objective import ModelForm
from adadps.engine.passes.validation import objective, public_gradients
from adadps.engine.waist import GradientBatch, Step, Units, Weights
from adadps.errors import ContractError, DataError
from adadps.methods.side.whitening import Whitening
from adadps.methods.stages.chain import Chain, Stage
from adadps.methods.stages.clipping import AutomaticClip
from adadps.methods.stages.users import Users
from adadps.tensors.loops import torch_on_one_thread
from adadps.tensors.sums import Params, SinglePrecision, is_wide
from adadps.training.calibration import require_parts
from adadps.training.checkpoint import Checkpoint, HeldWhole
from adadps.training.debugging import BatchFacts
from adadps.training.saved_checkpoint import require_like, unpack

LITTLE_WORK = 2**24
"""Fewer multiplications than this are not worth torch's threads, which spin after their work."""


@dataclass(frozen=True)
class Batch:
    """A drawn batch. Its content stays inside the run that drew it."""

    run: str
    index: int
    life: str = ""
    """Identifies the process that drew it: a resumed run draws another batch of the same index."""


@dataclass(frozen=True)
class DrawnRows:
    """The rows of a batch, and the groups or users that are clipped as one, if any."""

    batch: Batch
    rows: Tensor
    units: Units | None


class Batches:
    """Draws one batch after another."""

    def __init__(
        self,
        data: Examples,
        *,
        method: Chain,
        sampler: Sampler,
        units: Sampler,
        randomness: Randomness,
    ) -> None:
        self._groups = method.release.groups
        self._sampler, self._randomness = sampler, randomness
        self._is_private = private_rows(data, method.public_rows)
        self._all_private = bool(self._is_private.all())
        self._users: UserRows | None = None
        if isinstance(self._groups, Users) and data.users is not None:
            self._users = UserRows(data.users, self._is_private)
        self._batches = self._begin(len(data), units)

    def next(self, batch: Batch) -> DrawnRows:
        """Draw the rows of a batch; there may be none."""
        drawn: Rows = next(self._batches)
        units, rng = None, self._randomness.generator
        if isinstance(self._groups, Users):
            assert self._users is not None  # a method by user has asked for them
            drawn, units = self._groups.expand(drawn, self._users, rng)
            return DrawnRows(batch, torch.from_numpy(drawn), units)
        if self._groups:
            size = self._sampler.expected_size
            drawn, labels, count = self._groups.labels(drawn, size, rng)
            units = Units(torch.from_numpy(labels), count, 1 / self._groups.size)
        rows = torch.from_numpy(drawn)
        if self._all_private:
            return DrawnRows(batch, rows, units)
        kept = self._is_private[rows]
        return DrawnRows(batch, rows[kept], units.take(kept) if units else None)

    def _begin(self, size: int, units: Sampler) -> Iterator[Rows]:
        """Check the number of units against the declared one, and start the sampler."""
        if self._users is not None:
            size = self._users.count
        elif isinstance(self._groups, Groups) and units is not self._sampler:
            if size != self._sampler.examples:
                raise DataError(
                    f"Expected the {self._sampler.examples} declared examples for groups fixed in "
                    f"advance, found {size}. Declare the true number."
                )
            size //= self._groups.size
        units.require_declared(size)
        return units.batches(size, self._randomness.generator)


class Drawn(Protocol):
    """What was drawn for a batch; its content stays inside the run."""

    @property
    def batch(self) -> Batch:
        """The batch it was drawn for."""


class Stepper(HeldWhole):
    """Weights and method states that move by per-unit gradients, wherever those come from."""

    weights: Weights
    states: tuple[Any, ...]
    own_params: Params

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.group: Group = ALONE
        self.settings: dict[str, Any] = {}
        self._has_moved = False
        self.facts: list[dict[str, float]] = []
        """Un-noised facts about batches, for debugging only."""

    @abstractmethod
    def require_fit(self, method: Chain) -> None:
        """Refuse what does not fit the method, before anything is paid for or drawn."""

    @abstractmethod
    def begin(
        self, method: Chain, sampler: Sampler, units: Sampler, randomness: Randomness
    ) -> None:
        """Prepare to draw batches and to move the weights."""

    @abstractmethod
    def draw(self, batch: Batch) -> Drawn:
        """Draw what a step is about."""

    @abstractmethod
    def take(self, drawn: Any, index: int) -> None:
        """Take step number ``index``."""

    def _hold(self, params: Params, method: Chain, randomness: Randomness) -> None:
        self.method, self.own_params, self._randomness = method, params, randomness
        self.weights = Weights(self.model, params, randomness, self.group)
        clipping = getattr(method.release, "clipping", None)
        if clipping is not None:
            self.settings["clipping"] = clipping
        if method.averaging is not None:
            self.settings["weights"] = f"averaged: {method.averaging}"

    def initialise(self) -> None:
        """Set the method's state before its first step."""
        self.states = self.method.init(self.own_params)

    def require_same_model(self) -> None:
        """Refuse a model whose layers, hooks, modes or trainable parameters were changed."""

    def prepare(self) -> None:
        """Do what the method asks for once its side information is paid for."""

    def resume(self, held: Checkpoint) -> None:
        """Restore the method's state from a checkpoint."""
        self._has_moved = held.taken > 0
        self.states = unpack(held.states, held.state_tensors, self.own_params)
        require_like(self.states, self.method.init(self.own_params), self.own_params)

    @property
    def feature_weights(self) -> Tensor | None:
        """The weights of re-weighted features, if there are any."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def params(self) -> Params:
        """The trainable parameters with all their noise, sharing memory with the model."""
        return self.weights.published()

    @property
    def given_params(self) -> Params:
        """The weights that evaluations and results show: averaged ones, if the method averages."""
        stage = self.method.averaging
        if stage is None or not self._has_moved:
            return self.params
        return stage.averaged(self.states[self.method.steps.index(cast(Stage, stage))])

    def move(self, gradients: GradientBatch, partly_read: Collection[str], step: Step) -> None:
        """Clip, noise and update: pass the gradients through the stages, then move the weights."""
        update, self.states = self.method.apply(gradients, self.states, step)
        self.weights.apply(update, partly_read)
        self._has_moved = True

    def hand_over(self) -> None:
        """Give the model its plain parameters back, with all their noise, or averaged."""
        given = self.given_params if self.method.averaging else {}
        self.weights.hand_over()
        for name, value in given.items():
            self.own_params[name].copy_(value)


class DataStepper(Stepper):
    """Steps by the gradients of examples in this process, ``chunk`` rows at once."""

    def __init__(
        self, model: nn.Module, loss: Loss, data: Examples, *, chunk: int | None, debug: bool
    ) -> None:
        super().__init__(model)
        self._loss, self._data, self._chunk, self._debug = loss, data, chunk, debug
        self.settings = {"physical_batch_size": chunk}

    def require_fit(self, method: Chain) -> None:
        """Refuse data that does not fit the method, and a model or loss that cannot be trained."""
        require_parts(method, self._data)
        self.objective = objective(self.model, self._loss, self._data)
        for reader, public in method.public_readers:
            gradients = public_gradients(self.objective, public.examples)
            if isinstance(reader, Whitening):
                reader.require_layers(gradients, self.objective.of_no_rows())

    def begin(
        self, method: Chain, sampler: Sampler, units: Sampler, randomness: Randomness
    ) -> None:
        """Lay out the weights for quick reads, and prepare to draw batches."""
        self.objective = self.objective.drawing_from(randomness, quotes_errors=self._debug)
        self._relaid = lay_out_by_feature(self.objective.tables_by_feature())
        self._hold(self._trained(), method, randomness)
        self._expected_size = sampler.expected_size
        clip_norm = method.release.clip_norm
        single = SinglePrecision.for_batches(sampler.expected_size, clip_norm)
        self._single = single and single.shared_by(self._parts)
        self.settings["most_rounding_charge"] = self._most_rounding_charge()
        self._little_for_torch = self._is_little_for_torch()
        self._form = ModelForm(self.model)
        self._data = self._data.leaving_out(method.public_rows)
        self.batches = Batches(
            self._data, method=method, sampler=sampler, units=units, randomness=randomness
        )

    def require_same_model(self) -> None:
        """Refuse a model whose layers, hooks, modes or trainable parameters were changed."""
        self._form.require_same()

    def _trained(self) -> Params:
        """The weights that the updates move."""
        return self.objective.params()

    @property
    def _parts(self) -> int:
        """How many batches, each measured alone, make up the batch of a step."""
        return self.group.size

    def prepare(self) -> None:
        """Change the objective as the method asks, once its side information is paid for."""
        for preparation in self.method.preparations:
            self.objective = preparation.prepare(self.objective)
        if self.method.preparations:
            self._take_over_prepared()

    def _take_over_prepared(self) -> None:
        """Give all processes the weights, of the model and of features, that the first one has."""
        if self.group.is_alone:
            return
        for name, value in self.group.first(self.own_params).items():
            self.own_params[name].copy_(value)
        weights = self.objective.feature_weights
        if weights is not None:
            told = self.group.first({"features": weights})["features"]
            self.objective = replace(self.objective, feature_weights=told)

    def resume(self, held: Checkpoint) -> None:
        """Restore the method's state and its side information from a checkpoint."""
        super().resume(held)
        weights = held.feature_weights_on(self.device)
        if weights is not None:
            self.objective = self.objective.reparametrised(weights)
        for preparation in self.method.preparations:
            self.objective = preparation.resume(self.objective)

    @property
    def feature_weights(self) -> Tensor | None:
        """The weights that every row is multiplied by."""
        return self.objective.feature_weights

    def draw(self, batch: Batch) -> DrawnRows:
        """Draw the rows of a batch."""
        return self.batches.next(batch)

    def take(self, drawn: DrawnRows, index: int) -> None:
        """Take step number ``index`` with the examples that were drawn for it."""
        facts = BatchFacts() if self._debug else None
        threads = torch_on_one_thread() if self._little_for_torch else nullcontext()
        with threads, _without_autocast(self.device):
            gradients, partly_read = self._gradients(drawn)
            self.move(gradients, partly_read, self._step(index, facts))
        if facts is not None:
            self.facts.append(self._facts_about(drawn, index, facts))

    def hand_over(self) -> None:
        """Give the model its plain parameters back, with all their noise."""
        super().hand_over()
        lay_out_by_output(self._relaid)
        params = self.objective.params()
        self.weights = Weights(self.objective.model, params, self._randomness, self.group)

    def _gradients(self, drawn: DrawnRows) -> tuple[GradientBatch, Collection[str]]:
        """Gradients of the batch, and the names of tables of which it reads only some rows."""
        batch = self.objective.encoded(self._data.take(drawn.rows).to(self.device))
        units = drawn.units.to(self.device) if drawn.units else None
        reads = self.objective.reads(batch.features)
        params = self.weights.read(reads)
        gradients = self.objective.per_unit(params, batch, units, self._chunk, self._single)
        return gradients, reads.keys()

    def _step(self, index: int, facts: BatchFacts | None) -> Step:
        return Step(
            index=index,
            expected_size=self._expected_size,
            noise=self._randomness,
            mean_gradient=self._mean_gradient,
            differentiate=self._of_public_rows,
            watch=facts.watch if facts is not None else _ignore,
            late=True,
            group=self.group,
        )

    def _mean_gradient(self, public: PublicExamples) -> Params:
        batch = self.objective.encoded(public.examples.to(self.device))
        params = self.weights.read(self.objective.reads(batch.features))
        return self.group.first(self.objective.mean_gradient(params, batch))

    def _of_public_rows(self, public: Examples) -> GradientBatch:
        batch = self.objective.encoded(public.to(self.device))
        params = self.weights.read(self.objective.reads(batch.features))
        return self.objective.of_public_rows(params, batch)

    def _facts_about(self, drawn: DrawnRows, index: int, facts: BatchFacts) -> dict[str, float]:
        found = {"step": float(index), "batch_size": float(len(drawn.rows))}
        if drawn.units is not None:
            found["units"] = float(drawn.units.count)
        if len(drawn.rows):
            batch = self._data.take(drawn.rows).to(self.device)
            if batch.absent is not None:
                batch = self.objective.encoded(batch)
            losses = self._loss(self.objective.outputs(self.params, batch.features), batch.targets)
            if batch.absent is not None:
                found["unreadable"] = float(batch.absent.sum())
                losses = losses[~batch.absent]
            found["training_loss"] = float(losses.mean())
        release = self.method.release
        normalises = isinstance(release, AutomaticClip)
        return {**found, **facts.of_norms(None if normalises else release.clip_norm)}

    def _most_rounding_charge(self) -> float:
        """The share of the clip norm that may be given up because wide layers add up in float32."""
        wide = any(is_wide(value) for value in self.own_params.values())
        return self._single.charge if wide and self._single is not None else 0.0

    def _is_little_for_torch(self) -> bool:
        """Is nearly all the work in tables that are read row by row, by our own loops?"""
        tables = self.objective.tables()
        dense = sum(value.numel() for name, value in self.own_params.items() if name not in tables)
        return bool(tables) and dense * self._expected_size <= LITTLE_WORK


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Full precision, whatever the caller's own loop is in; models may switch it on inside."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def _ignore(_name: str, _value: Tensor) -> None:
    """Outside of debugging nothing that is not noised is recorded."""


_LATEST: WeakKeyDictionary[nn.Module, ModelLock] = WeakKeyDictionary()


class ModelLock:
    """The right to change a model, until another run takes it.

    >>> layer = nn.Linear(2, 1)
    >>> first = ModelLock(layer)
    >>> first.require_valid()
    >>> second = ModelLock(layer)
    >>> first.require_valid()
    Traceback (most recent call last):
    adadps.errors.ContractError: Expected one run at a time on a model, ...
    """

    def __init__(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            if isinstance(parameter, LateParameter):
                make_plain(parameter)  # left over from an abandoned run
        self._model = model
        _LATEST[model] = self

    def require_valid(self) -> None:
        """Refuse to continue if another run has begun on the model."""
        if _LATEST.get(self._model) is not self:
            raise ContractError(
                "Expected one run at a time on a model, found that another run has begun on it. "
                "Finish one before the next, or train a copy of the model."
            )
