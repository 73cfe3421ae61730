"""The mathematics of a step, without its price: gradients, the method's stages, moving weights."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext

import torch
from torch import Tensor

from adadps.checkpoint import Checkpoint
from adadps.data.examples import Examples, PublicExamples, take
from adadps.debugging import BatchFacts
from adadps.drawing import Drawn
from adadps.gradients.chunked import ChunkedGradients
from adadps.gradients.loss import Loss
from adadps.gradients.objective import Objective
from adadps.gradients.waist import GradientBatch
from adadps.kept import feature_weights_on
from adadps.layout import lay_out_by_feature, lay_out_by_output
from adadps.noise import Randomness
from adadps.stages.chain import Chain
from adadps.states import require_like, unpack
from adadps.threads import torch_alone
from adadps.types import Params, Step
from adadps.weights import Weights

LITTLE_WORK = 2**24
"""So many multiplications are not worth torch's threads, which keep cores busy after them."""


class Stepper:
    """Weights and states of a method that move batch by batch; ``chunk`` rows at once."""

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
        self.objective, self.method = objective, method
        self._loss, self._data = loss, data
        self._expected_size, self._chunk, self._randomness = expected_size, chunk, randomness
        self._relaid = lay_out_by_feature(objective.tables_by_feature(data.features))
        self.own_params = objective.params()
        self._little_for_torch = self._is_little_for_torch()
        self.weights = Weights(objective.model, self.own_params, randomness)
        self._records_facts = debug
        self.facts: list[dict[str, float]] = []
        """Un-noised facts about batches, for debugging only."""

    def begin(self) -> None:
        """The method's state before its first step."""
        self.states = self.method.init(self.own_params)

    def prepare(self) -> None:
        """Change the objective as the method asks, once its side information is paid for."""
        for preparation in self.method.preparations:
            self.objective = preparation.prepare(self.objective)

    def go_on(self, held: Checkpoint) -> None:
        """Take up what a checkpoint has left; side information comes with it."""
        self.states = unpack(held.states, held.state_tensors, self.own_params)
        require_like(self.states, self.method.init(self.own_params), self.own_params)
        weights = feature_weights_on(held, self.device)
        if weights is not None:
            self.objective = self.objective.reparametrised(weights)
        for preparation in self.method.preparations:
            self.objective = preparation.resume(self.objective)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.objective.model.parameters()).device

    @property
    def params(self) -> Params:
        """The trainable parameters with all their noise, sharing memory with the model."""
        return self.weights.read()

    def take(self, drawn: Drawn, index: int) -> None:
        """Step number ``index`` with the examples that were drawn for it."""
        facts = BatchFacts()
        with torch_alone() if self._little_for_torch else nullcontext():
            gradients, partly_read = self._gradients(drawn)
            update, self.states = self.method.apply(
                gradients, self.states, self._step(index, facts)
            )
            self.weights.apply(update, partly_read)
        if self._records_facts:
            self.facts.append(self._facts_about(drawn, index, facts))

    def hand_over(self) -> None:
        """Give the model its plain parameters back, with all their noise."""
        self.weights.hand_over()
        lay_out_by_output(self._relaid)
        self.weights = Weights(self.objective.model, self.objective.params(), self._randomness)

    def _gradients(self, drawn: Drawn) -> tuple[GradientBatch, Collection[str]]:
        """Gradients of the batch, and the names of tables of which it reads only some rows."""
        if len(drawn.rows) == 0:
            return ChunkedGradients(()), ()
        batch = self._data.take(drawn.rows).to(self.device)
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
        batch = public.examples.to(self.device)
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
        tables = self.objective.reads(take(self._data.features, torch.arange(1)))
        dense = sum(value.numel() for name, value in self.own_params.items() if name not in tables)
        return bool(tables) and dense * self._expected_size <= LITTLE_WORK


def _look_away(_name: str, _value: Tensor) -> None:
    """Nobody sees what is not noised."""
