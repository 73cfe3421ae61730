"""The settings that are tried for each method on an LSTM; the methods are those of images.

As there, ``clip`` is in units of the median public norm, ``length`` is how far a step can move the
weights, and ``rate`` is a learning rate per weight. ``floor`` is what AdaDPS and its like add to
A, in units of the root mean square of the public gradient at the start.

Trials are shorter than runs, and a setting is one of a trial. In a run, ``length`` and ``rate`` are
divided by what the noise of all steps together has grown, so that the weights end as noisy as those
of the trial: by √(T/T') σ/σ' from T' steps to T, and by √(T/T') for methods that divide their
steps by the noise. All of that is public. Without noise, settings stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from adadps.data.fields import one_input
from adadps.engine.passes.validation import objective
from adadps.methods import paper
from adadps.methods.side import fixed
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain
from adadps_experiments.reproduce.fitting import DeepProblem
from adadps_experiments.reproduce.images.methods import IMAGE_METHODS, Given, ImageMethod
from adadps_experiments.reproduce.lstm.problems import PAPER, unlabelled_shares
from adadps_experiments.reproduce.results import Setting

REVIEWS = "250 public reviews"
RAREST = 1e-3
"""The least share of reviews that a word counts with, relative to the commonest one's."""


def _grid(**values: Sequence[float]) -> tuple[Setting, ...]:
    return tuple(dict(zip(values, each, strict=True)) for each in product(*values.values()))


CLIPS, FLOORS, LENGTHS = (0.1, 0.5), (0.1, 1.0), (1.0, 3.0, 9.0)
BY_LENGTH = _grid(clip=CLIPS, length=LENGTHS)
BY_RATE = _grid(clip=CLIPS, rate=(0.001, 0.003, 0.01))
BY_FLOOR = _grid(floor=FLOORS, length=(3.0, 9.0, 27.0))
AFTERWARDS = _grid(floor=FLOORS, rate=(0.0003, 0.001, 0.003))
BY_GAIN = _grid(gain=(2.0, 8.0), length=LENGTHS)
WHITENED = _grid(clip=CLIPS, length=(3.0, 9.0, 27.0))
BY_SPEED = _grid(others=(10.0, 30.0), length=(3.0, 9.0, 27.0))
RATES = _grid(rate=tuple(0.0003 * 3.0**power for power in range(6)))
SGD_RATES = _grid(rate=tuple(0.03 * 3.0**power for power in range(6)))


def _by_frequency(given: Given) -> Chain:
    side = frequencies_of_words(given.problem, given.setting["others"])
    stage, rate = given.clipped(side)
    return paper.adadps(side, stage, lr=rate)


def frequencies_of_words(problem: DeepProblem, others: float) -> Fixed:
    """Use the root of the share of unlabelled reviews with a word, and one number elsewhere.

    ``others`` is A of the layers behind the table of words, relative to that of the commonest word.
    """
    rows = one_input(problem.train.features)
    assert isinstance(rows, Tensor)
    shares = unlabelled_shares(words=rows.shape[1])
    return fixed(
        {
            name: (shares.clamp_min(RAREST).sqrt(), 0)
            if name == "embedding.weight"
            else torch.full_like(parameter, others, dtype=torch.float64)
            for name, parameter in problem.model(0).named_parameters()
        },
        source=f"2,000 of the unlabelled reviews; A = max(f/f_max, {RAREST:g})^0.5 of words, "
        f"{others:g} elsewhere",
        public_because="published without labels, none of them is trained on",
    )


ADAPTIVE = ("dp-adam", "dp-rmsprop", "scale-then-privatize")
"""The methods whose steps do not grow with the noise."""


@dataclass(frozen=True)
class Longer:
    """How much larger the noise of all steps is than in a trial, at equal settings."""

    adaptive: float = 1.0
    others: float = 1.0


@dataclass(frozen=True)
class LstmMethod:
    """A method of the images with the settings that are tried on an LSTM."""

    name: str
    settings: tuple[Setting, ...]
    of_words: ImageMethod | None = None
    """A method that the images do not have, because it needs words that are trained."""

    @property
    def label(self) -> str:
        """Return what it is called in tables."""
        return "Adam on the public reviews alone" if self.only_public else self._known.label

    @property
    def side(self) -> str:
        """Return what it knows."""
        if self.name == "ideal":
            return "the PRIVATE reviews"
        if self.of_words:
            return self.of_words.side
        return "none" if self._known.side == "none" else REVIEWS

    @property
    def private(self) -> bool:
        """Return whether it pays for what it learns from private reviews."""
        return self._known.private

    @property
    def noisy(self) -> bool:
        """Return whether noise is added."""
        return self.private or self.name == "ideal"

    @property
    def only_public(self) -> bool:
        """Return whether it sees no private review at all."""
        return self._known.only_public

    @property
    def main(self) -> bool:
        """Return whether it gets three seeds."""
        return self._known.main

    @property
    def _known(self) -> ImageMethod:
        return self.of_words or IMAGE_METHODS[self.name]

    def for_run(self, setting: Setting, longer: Longer) -> Setting:
        """Return the setting of a trial for a run that is longer.

        >>> LSTM_METHODS["dp-sgd"].for_run({"clip": 0.5, "length": 3.0}, Longer(2.0, 3.0))
        {'clip': 0.5, 'length': 1.0}
        """
        factor = longer.adaptive if self.name in ADAPTIVE else longer.others
        moving = ("length", "rate")
        return {
            name: value / factor if name in moving else value for name, value in setting.items()
        }

    def build(self, given: Given) -> Chain:
        """Return the chain of a setting."""
        return self._known.build(in_units_of_gradients(given))


def in_units_of_gradients(given: Given) -> Given:
    """Return the same with ``epsilon``, the floor of A, in the place of ``floor``."""
    setting = dict(given.setting)
    if "floor" in setting:
        setting["epsilon"] = setting.pop("floor") * usual_coordinate(given.problem)
    return replace(given, setting=setting)


def usual_coordinate(problem: DeepProblem) -> float:
    """Return the root mean square of the public gradient at the start of training."""
    held = objective(problem.model(0), problem.loss, problem.public)
    gradient = held.mean_gradient(held.params(), problem.public)
    return float(torch.cat([part.flatten() for part in gradient.values()]).square().mean().sqrt())


LSTM_METHODS = {
    method.name: method
    for method in (
        LstmMethod("dp-sgd", BY_LENGTH),
        LstmMethod("whitened", WHITENED),
        LstmMethod("dp-adam", BY_RATE),
        LstmMethod("adadps", BY_FLOOR),
        LstmMethod("warm-whitened", WHITENED),
        LstmMethod("adam", RATES),
        LstmMethod("public-only", RATES),
        LstmMethod("dp-rmsprop", BY_RATE),
        LstmMethod("adadps-adam", BY_FLOOR),
        LstmMethod("warm-start", BY_LENGTH),
        LstmMethod("dp-r-pub", AFTERWARDS),
        LstmMethod("dp-adam-pub", AFTERWARDS),
        LstmMethod("pda-dpmd", BY_LENGTH),
        LstmMethod("dp2", BY_GAIN),
        LstmMethod("scale-then-privatize", BY_RATE),
        LstmMethod(
            "adadps-frequencies",
            BY_SPEED,
            ImageMethod(
                "AdaDPS (frequencies)",
                _by_frequency,
                BY_SPEED,
                "2,000 unlabelled reviews",
                main=True,
            ),
        ),
        LstmMethod("ideal", BY_FLOOR),
        LstmMethod("sgd", SGD_RATES),
        LstmMethod("adas", AFTERWARDS),
    )
}


def methods_of(experiment: str) -> dict[str, LstmMethod]:
    """Return the methods that can train a model: frozen words need no frequencies."""
    return {
        name: method
        for name, method in LSTM_METHODS.items()
        if experiment == PAPER or method.of_words is None
    }


QUICK = ("dp-sgd", "dp-adam", "whitened")
