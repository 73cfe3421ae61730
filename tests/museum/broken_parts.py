"""Parts of the library with exactly one thing broken; each keeps the claim of the intact part.

`adadps.audit` audits trainers built from them (`exhibits.py`). Never train with one of these.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from adadps.accounting.contract import Grouping
from adadps.accounting.groups import Groups
from adadps.accounting.samplers import Poisson, shuffled
from adadps.engine.noise.normals import Normals
from adadps.engine.noise.randomness import Randomness
from adadps.engine.waist import reduce, zeros_like
from adadps.methods.stages.gradients import Privatize
from adadps.tensors.sums import dense


@dataclass(frozen=True)
class NoNoise(Privatize):
    def apply(self, signal, state, step):
        return Privatize(self.clip_norm, 0.0, self.groups).apply(signal, state, step)


@dataclass(frozen=True)
class HalfTheNoise(Privatize):
    def apply(self, signal, state, step):
        half = Privatize(self.clip_norm, self.noise_multiplier / 2, self.groups)
        return half.apply(signal, state, step)


@dataclass(frozen=True)
class ClipIgnored(Privatize):
    def _weights(self, norms, _step):
        return torch.ones_like(norms)


@dataclass(frozen=True)
class ClippedAfterSumming(Privatize):
    def apply(self, signal, state, step):
        total = reduce(signal, torch.ones_like) or zeros_like(state)
        summed = {name: dense(value) for name, value in total.items()}
        norm = torch.sqrt(sum(value.square().sum() for value in summed.values()))
        share, deviation = min(1.0, self.clip_norm / norm), self.noise_multiplier * self.clip_norm
        released = {n: step.release(share * v, deviation) for n, v in summed.items()}
        return {name: value / step.expected_size for name, value in released.items()}, state


@dataclass(frozen=True)
class MeanOverTheDrawnBatch(Privatize):
    def apply(self, signal, state, step):
        drawn = sum(len(part.norms()) for part in signal.parts())
        released, state = super().apply(signal, state, step)
        factor = step.expected_size / max(1, drawn)
        return {name: value * factor for name, value in released.items()}, state


class GroupsChargedAsC(Groups):
    """Groups by label, whose clipped gradient can be reversed, charged like single examples."""

    def __init__(self, size):
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "grouping", Grouping.NONE)


class GroupsByPosition(Groups):
    """Neighbours in the batch form a group; charged like groups by label."""

    def __init__(self, size):
        super().__init__(size, Grouping.LABELLED)

    def labels(self, drawn, *_others):
        labels = np.arange(len(drawn)) // self.size
        return drawn, labels, int(labels.max()) + 1


class ShuffledChargedAsPoisson(Poisson):
    def batches(self, size, rng) -> Iterator[np.ndarray]:
        return shuffled(examples=self.examples, expected_size=1).batches(size, rng)


class NoiseReused(Randomness):
    """Every step adds the same noise; batches are drawn correctly."""

    def __init__(self):
        super().__init__((int.from_bytes(os.urandom(16)), os.urandom(32)), None)
        self._key = os.urandom(32)

    def _own(self):
        streams = super()._own()
        streams.noise = Normals(self._key)
        return streams


class SameSeed(Randomness):
    """A secret seed that was stored and used for a second run."""

    def __init__(self, seed):
        super().__init__(seed, None)

    @staticmethod
    def secret():
        return int.from_bytes(os.urandom(16)), os.urandom(32)
