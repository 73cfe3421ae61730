"""The methods of the image experiments: their chains, and the settings that are tried for each.

Settings are scale-free. ``clip`` is the clip norm in units of the median norm of the public images'
gradients at the start, after the method's own side information; ``length`` is how far a step can
move the weights: the learning rate times the clip norm. Learning rates fall linearly to 0. ``rate``
is a learning rate per weight, of methods that normalise their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from adadps.data.examples import PublicExamples
from adadps.engine.noise.randomness import secure
from adadps.engine.passes.validation import objective
from adadps.engine.waist import Step
from adadps.methods import paper, successors
from adadps.methods.side import AdamStatistics, RMSPropStatistics, SideSource, public, whiten
from adadps.methods.stages import (
    Chain,
    adam,
    average,
    chain,
    precondition,
    pretrain,
    privatize,
    rmsprop,
    sgd,
)
from adadps_experiments.reproduce.fitting import DeepProblem
from adadps_experiments.reproduce.images.problems import SIZES
from adadps_experiments.reproduce.results import Setting

STATISTICS_BATCH = 200
REFRESH = 25
CLIPPED_AT = 0.5
"""Clip norms of methods whose grid has something else to choose."""
DP2_DELAY, DP2_DECAY = 20, 0.9
"""DP² averages this many releases (at most half of a run), and preconditions as many steps."""
PUBLIC_BATCH, PUBLIC_EPOCHS, PUBLIC_RATE = 60, 100, 0.001


@dataclass(frozen=True)
class LinearDecay:
    """A learning rate that falls linearly to 0 after the last step."""

    start: float
    steps: int

    def __call__(self, index: int) -> float:
        """Return the rate of a step; the first is 1."""
        return self.start * max(0.0, 1 - (index - 1) / self.steps)


@dataclass(frozen=True)
class Given:
    """What a chain is built for."""

    problem: DeepProblem
    setting: Setting
    noise_multiplier: float
    steps: int
    seed: int
    batch: int
    """The expected batch size."""

    def rate(self) -> LinearDecay:
        """Return the learning rate of a method that normalises its steps."""
        return LinearDecay(self.setting["rate"], self.steps)

    def public(self, size: int = STATISTICS_BATCH) -> PublicExamples:
        """Return the public images in batches."""
        held = len(self.problem.public.targets)
        return self.problem.public_in_batches(min(size, held), self.seed)

    def clipped(self, side: SideSource | None = None) -> tuple[Any, LinearDecay]:
        """Return the stage that clips and noises, and the learning rate for the length."""
        clip_norm = self.setting.get("clip", CLIPPED_AT) * usual_norm(self.problem, side)
        stage = privatize(clip_norm=clip_norm, noise_multiplier=self.noise_multiplier)
        return stage, LinearDecay(self.setting.get("length", 1.0) / clip_norm, self.steps)


def usual_norm(problem: DeepProblem, side: SideSource | None) -> float:
    """Return the median norm of the gradients of public images at the start of training."""
    held = objective(problem.model(0), problem.loss, problem.public)
    params = held.params()
    gradients = held.of_public_rows(params, problem.public)
    if side is not None:
        step = Step(
            index=1,
            expected_size=1.0,
            noise=secure(),
            mean_gradient=lambda data: held.mean_gradient(params, data.examples),
            differentiate=lambda rows: held.of_public_rows(params, rows),
        )
        transform, _ = side.observe(side.init(params), step)
        gradients = gradients.scale(transform.scale)
    norms = torch.cat([part.norms() for part in gradients.parts()])
    return float(norms.median())


def _rms(given: Given) -> RMSPropStatistics:
    return RMSPropStatistics(decay=0.9, epsilon=given.setting["epsilon"], debias=True)


def _adam(given: Given) -> AdamStatistics:
    epsilon = given.setting["epsilon"]
    return AdamStatistics(mixing=0.9, first_decay=0.9, second_decay=0.9, epsilon=epsilon)


def _dp_sgd(given: Given) -> Chain:
    stage, rate = given.clipped()
    return paper.dp_sgd(stage, lr=rate)


def _dp_adam(given: Given) -> Chain:
    return paper.dp_adam(given.clipped()[0], lr=given.rate())


def _dp_rmsprop(given: Given) -> Chain:
    return paper.dp_rmsprop(given.clipped()[0], lr=given.rate())


def _adadps(given: Given) -> Chain:
    stage, rate = given.clipped(public(given.public(), _rms(given)))
    return paper.adadps_public(given.public(), _rms(given), stage, lr=rate)


def _adadps_adam(given: Given) -> Chain:
    stage, rate = given.clipped(public(given.public(), _rms(given)))
    return paper.adadps_public(given.public(), _adam(given), stage, lr=rate)


def _ideal(given: Given) -> Chain:
    stage, rate = given.clipped(public(given.public(), _rms(given)))
    train = given.problem.train
    return paper.ideal(train, _rms(given), stage, lr=rate, batch_size=STATISTICS_BATCH)


def _whitening(given: Given) -> Any:
    """Return the stage that whitens, to a median norm of which 1 is the share ``clip``."""
    matrices = whiten(
        given.public(len(given.problem.public.targets)),
        refresh_every=REFRESH,
        median_norm=1 / given.setting["clip"],
    )
    return precondition(matrices)


def _whitened(given: Given) -> Chain:
    stage = privatize(clip_norm=1.0, noise_multiplier=given.noise_multiplier)
    return chain(_whitening(given), stage, sgd(LinearDecay(given.setting["length"], given.steps)))


def _pretrained(given: Given) -> Any:
    return pretrain(given.public(PUBLIC_BATCH), adam(PUBLIC_RATE), epochs=PUBLIC_EPOCHS)


def _warm_whitened(given: Given) -> Chain:
    return chain(_pretrained(given), *_whitened(given).stages)


def _warm_start(given: Given) -> Chain:
    stage, rate = given.clipped()
    begin = pretrain(given.public(PUBLIC_BATCH), rmsprop(PUBLIC_RATE), epochs=10)
    return chain(begin, stage, sgd(rate))


def _dp_r_pub(given: Given) -> Chain:
    return paper.dp_r_pub(given.public(), _rms(given), given.clipped()[0], lr=given.rate())


def _dp_adam_pub(given: Given) -> Chain:
    return paper.dp_adam_pub(given.public(), _rms(given), given.clipped()[0], lr=given.rate())


def _pda_dpmd(given: Given) -> Chain:
    stage, rate = given.clipped()
    return paper.pda_dpmd(given.public(), stage, lr=rate, steps=given.steps)


def _dp2(given: Given) -> Chain:
    """Return DP², with its ε and gain in units of the noise in its averages of releases."""
    stage, rate = given.clipped()
    noise = given.noise_multiplier * stage.clip_norm / given.batch
    level = noise * ((1 - DP2_DECAY) / DP2_DELAY) ** 0.5
    return successors.dp2(
        stage,
        lr=rate,
        preconditioned_lr=rate,
        delay=min(DP2_DELAY, given.steps // 2),
        decay=DP2_DECAY,
        epsilon=level,
        gain=given.setting["gain"] * level,
    )


def _scale_then_privatize(given: Given) -> Chain:
    return successors.scale_then_privatize(given.clipped()[0], lr=given.rate())


def _adas(given: Given) -> Chain:
    side = precondition(public(given.public(), _rms(given)))
    return chain(side, average(), sgd(given.rate()))


def _sgd(given: Given) -> Chain:
    return paper.plain_sgd(given.rate())


def _plain_adam(given: Given) -> Chain:
    return paper.plain_adam(given.rate())


@dataclass(frozen=True)
class ImageMethod:
    """A method, the settings that are tried for it, and what it knows."""

    label: str
    build: Callable[[Given], Chain]
    settings: tuple[Setting, ...]
    side: str = "none"
    private: bool = True
    only_public: bool = False
    main: bool = False
    """Does it get three seeds?"""


def _grid(**values: Sequence[float]) -> tuple[Setting, ...]:
    """Return all combinations.

    >>> _grid(clip=(0.1, 0.5), length=(1.0,))
    ({'clip': 0.1, 'length': 1.0}, {'clip': 0.5, 'length': 1.0})
    """
    return tuple(dict(zip(values, each, strict=True)) for each in product(*values.values()))


CLIPS, LENGTHS = (0.1, 0.5), (0.5, 1.0, 2.0, 4.0)
BY_LENGTH = _grid(clip=CLIPS, length=LENGTHS)
BY_RATE = _grid(clip=CLIPS, rate=(0.0003, 0.001, 0.003, 0.01))
PRECONDITIONED = _grid(epsilon=(1e-6, 1e-5), length=(1.0, 2.0, 4.0, 8.0))
AFTERWARDS = _grid(epsilon=(1e-6, 1e-5), rate=(0.0001, 0.0003, 0.001, 0.003))
BY_GAIN = _grid(gain=(2.0, 8.0), length=LENGTHS)
WHITENED = _grid(clip=CLIPS, length=(2.5, 5.0, 10.0, 20.0))
RATES = _grid(rate=tuple(0.0001 * 3.0**power for power in range(8)))
SGD_RATES = _grid(rate=tuple(0.1 * 3.0**power for power in range(8)))
IMAGES = "600 public images"

IMAGE_METHODS = {
    "dp-sgd": ImageMethod("DP-SGD", _dp_sgd, BY_LENGTH, main=True),
    "dp-adam": ImageMethod("DP-Adam", _dp_adam, BY_RATE, main=True),
    "adadps": ImageMethod("AdaDPS (RMSProp)", _adadps, PRECONDITIONED, IMAGES, main=True),
    "whitened": ImageMethod("whitened", _whitened, WHITENED, IMAGES, main=True),
    "warm-whitened": ImageMethod(
        "warm start, whitened", _warm_whitened, WHITENED, IMAGES, main=True
    ),
    "adam": ImageMethod("Adam", _plain_adam, RATES, private=False, main=True),
    "dp-rmsprop": ImageMethod("DP-RMSProp", _dp_rmsprop, BY_RATE),
    "adadps-adam": ImageMethod("AdaDPS (Adam)", _adadps_adam, PRECONDITIONED, IMAGES),
    "warm-start": ImageMethod("DP-SGD, warm start", _warm_start, BY_LENGTH, IMAGES),
    "dp-r-pub": ImageMethod("DP-R-Pub", _dp_r_pub, AFTERWARDS, IMAGES),
    "dp-adam-pub": ImageMethod("DP-Adam-Pub", _dp_adam_pub, AFTERWARDS, IMAGES),
    "pda-dpmd": ImageMethod("PDA-DPMD", _pda_dpmd, BY_LENGTH, IMAGES),
    "dp2": ImageMethod("DP²", _dp2, BY_GAIN),
    "scale-then-privatize": ImageMethod(
        "scale, then privatize", _scale_then_privatize, BY_RATE
    ),
    "ideal": ImageMethod("ideal", _ideal, PRECONDITIONED, "the PRIVATE images", private=False),
    "public-only": ImageMethod(
        "Adam on the public images alone", _plain_adam, RATES, IMAGES, private=False,
        only_public=True,
    ),
    "sgd": ImageMethod("SGD", _sgd, SGD_RATES, private=False),
    "adas": ImageMethod("AdaS", _adas, AFTERWARDS, IMAGES, private=False),
}  # fmt: skip
QUICK = ("dp-sgd", "adadps", "whitened")
WAVELET_SETTINGS = {
    "dp-sgd": _grid(clip=CLIPS, length=(2.0, 4.0, 8.0, 16.0)),
    "dp-adam": _grid(clip=CLIPS, rate=(0.001, 0.003, 0.01, 0.03)),
    "adadps": _grid(epsilon=(0.01, 0.1), length=(8.0, 16.0, 32.0, 64.0)),
    "whitened": _grid(clip=CLIPS, length=(8.0, 16.0, 32.0, 64.0)),
    "adam": RATES,
    "public-only": RATES,
}
"""The methods that train a linear model on wavelet features, and what is tried for each."""
CLASSIFIER_METHODS = (
    "dp-sgd", "dp-adam", "adadps", "whitened", "warm-whitened", "adam", "dp-rmsprop",
    "adadps-adam", "public-only",
)  # fmt: skip
"""The methods that train the network on digits: those of the paper's table, and ours."""


def methods_of(experiment: str) -> dict[str, tuple[Setting, ...]]:
    """Return the methods of an experiment by name, each with the settings that are tried."""
    if SIZES[experiment].wavelets:
        return WAVELET_SETTINGS
    names = CLASSIFIER_METHODS if experiment == "mnist" else IMAGE_METHODS
    return {name: IMAGE_METHODS[name].settings for name in names}
