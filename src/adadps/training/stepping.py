"""The mathematics of a step, without its price: gradients, the method's stages, moving weights."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples, PublicExamples
from adadps.engine.losses import Loss
from adadps.engine.noise.randomness import Randomness
from adadps.engine.objective import Objective
from adadps.engine.waist import GradientBatch, Step
from adadps.engine.weights import Weights
from adadps.methods.stages.chain import Chain
from adadps.methods.state_codec import require_like, unpack
from adadps.tensors.feature_major import lay_out_by_feature, lay_out_by_output
from adadps.tensors.sums import Params
from adadps.tensors.threads import torch_on_one_thread
from adadps.training.batches import Drawn
from adadps.training.checkpoint import Checkpoint
from adadps.training.debugging import BatchFacts
from adadps.training.kept import feature_weights_on

LITTLE_WORK = 2**24
"""So many multiplications are not worth torch's threads, which keep cores busy after them."""


class Moving:
    """Weights and states of a method, which move by per-unit gradients wherever they come from."""

    def __init__(
        self,
        model: nn.Module,
        params: Params,
        *,
        method: Chain,
        expected_size: float,
        randomness: Randomness,
    ) -> None:
        self.model, self.method, self.own_params = model, method, params
        self._expected_size, self._randomness = expected_size, randomness
        self.weights = Weights(model, params, randomness)
        self.facts: list[dict[str, float]] = []
        """Un-noised facts about batches, for debugging only."""

    def begin(self) -> None:
        """The method's state before its first step."""
        self.states = self.method.init(self.own_params)

    def prepare(self) -> None:
        """What the method asks for once its side information is paid for: nothing here."""

    def go_on(self, held: Checkpoint) -> None:
        """Take up what a checkpoint has left."""
        self.states = unpack(held.states, held.state_tensors, self.own_params)
        require_like(self.states, self.method.init(self.own_params), self.own_params)

    @property
    def feature_weights(self) -> Tensor | None:
        """Those of re-weighted features, if there are any."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def params(self) -> Params:
        """The trainable parameters with all their noise, sharing memory with the model."""
        return self.weights.published()

    def move(
        self,
        gradients: GradientBatch,
        partly_read: Collection[str],
        step: Step,
    ) -> None:
        """Through the stages, and onto the weights."""
        update, self.states = self.method.apply(gradients, self.states, step)
        self.weights.apply(update, partly_read)

    def hand_over(self) -> None:
        """Give the model its plain parameters back, with all their noise."""
        self.weights.hand_over()


class Stepper(Moving):
    """The same by gradients of examples that are here; ``chunk`` rows at once."""

    def __init__(
        self,
        objective: Objective,
        loss: Loss,
        data: Examples,
        *,
        method: Chain,
        expected_size: float,
        randomness: Randomness,
        chunk: int | None,
        debug: bool,
    ) -> None:
        self.objective, self._loss, self._data = objective, loss, data
        self._relaid = lay_out_by_feature(objective.tables_by_feature())
        super().__init__(
            objective.model,
            objective.params(),
            method=method,
            expected_size=expected_size,
            randomness=randomness,
        )
        self._chunk, self._records_facts = chunk, debug
        self._little_for_torch = self._is_little_for_torch()

    def prepare(self) -> None:
        """Change the objective as the method asks, once its side information is paid for."""
        for preparation in self.method.preparations:
            self.objective = preparation.prepare(self.objective)

    def go_on(self, held: Checkpoint) -> None:
        """Take up what a checkpoint has left; side information comes with it."""
        super().go_on(held)
        weights = feature_weights_on(held, self.device)
        if weights is not None:
            self.objective = self.objective.reparametrised(weights)
        for preparation in self.method.preparations:
            self.objective = preparation.resume(self.objective)

    @property
    def feature_weights(self) -> Tensor | None:
        """Those that every row is multiplied by."""
        return self.objective.feature_weights

    def take(self, drawn: Drawn, index: int) -> None:
        """Step number ``index`` with the examples that were drawn for it."""
        facts = BatchFacts()
        with torch_on_one_thread() if self._little_for_torch else nullcontext():
            gradients, partly_read = self._gradients(drawn)
            self.move(gradients, partly_read, self._step(index, facts))
        if self._records_facts:
            self.facts.append(self._facts_about(drawn, index, facts))

    def hand_over(self) -> None:
        """Give the model its plain parameters back, with all their noise."""
        super().hand_over()
        lay_out_by_output(self._relaid)
        self.weights = Weights(self.objective.model, self.objective.params(), self._randomness)

    def _gradients(self, drawn: Drawn) -> tuple[GradientBatch, Collection[str]]:
        """Gradients of the batch, and the names of tables of which it reads only some rows."""
        batch = self.objective.encoded(self._data.take(drawn.rows).to(self.device))
        units = drawn.units.to(self.device) if drawn.units else None
        reads = self.objective.reads(batch.features)
        params = self.weights.read(reads)
        return self.objective.per_unit(params, batch, units, self._chunk), reads.keys()

    def _step(self, index: int, facts: BatchFacts) -> Step:
        return Step(
            index=index,
            expected_size=self._expected_size,
            noise=self._randomness,
            mean_gradient=self._mean_gradient,
            watch=facts.watch if self._records_facts else _look_away,
            late=True,
        )

    def _mean_gradient(self, public: PublicExamples) -> Params:
        batch = self.objective.encoded(public.examples.to(self.device))
        params = self.weights.read(self.objective.reads(batch.features))
        return self.objective.mean_gradient(params, batch)

    def _facts_about(self, drawn: Drawn, index: int, facts: BatchFacts) -> dict[str, float]:
        found = {"step": float(index), "batch_size": float(len(drawn.rows))}
        if drawn.units is not None:
            found["units"] = float(drawn.units.count)
        if len(drawn.rows):
            batch = self._data.take(drawn.rows).to(self.device)
            outputs = self.objective.outputs(self.params, batch.features)
            found["training_loss"] = float(self._loss(outputs, batch.targets).mean())
        return {**found, **facts.of_norms(self.method.release.clip_norm)}

    def _is_little_for_torch(self) -> bool:
        """Is nearly all the work in tables that are read row by row, by loops of our own?"""
        tables = self.objective.tables()
        dense = sum(value.numel() for name, value in self.own_params.items() if name not in tables)
        return bool(tables) and dense * self._expected_size <= LITTLE_WORK


def _look_away(_name: str, _value: Tensor) -> None:
    """Nobody sees what is not noised."""
