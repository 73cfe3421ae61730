"""The methods of the tables on text problems, each with a grid of twelve settings.

A setting is free of scale (see `adadps.reproduce.problem`): ``clip`` is in typical norms of what is
clipped, ``length`` is what a step may move the outputs by if there were 1,000 steps. Twice the steps
then need half the rate (for adaptive updates of noisy gradients, 1/√2 of it), which is why settings
found on shortened runs hold for whole ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from adadps import methods
from adadps.reproduce.corpora import Array
from adadps.reproduce.problem import STEPS_OF_A_LENGTH, Problem
from adadps.reproduce.rows import Setting
from adadps.side import (
    AdamStatistics,
    Frequencies,
    RMSPropStatistics,
    fixed,
    frequency,
    public,
)
from adadps.side.fixed import Fixed
from adadps.stages import Chain, chain, precondition, pretrain, privatize, rmsprop, sgd
from adadps.stages.privatize import Privatize

Build = Callable[[Setting, Problem, float, int], Chain]
Grid = Callable[[tuple[float, ...]], list[Setting]]

SHAPES = ((0.03, 0.5), (0.01, 0.5), (0.01, 1.0))
"""Floor and power of A = max(f/f_max, floor)^power."""
FLOORS = (1e-4, 1e-3, 1e-2)
"""What is added to the root of the public second moment, in typical norms."""
DECAY = 0.9


@dataclass(frozen=True)
class Contender:
    """One line of a table."""

    name: str
    label: str
    side: str
    build: Build
    grid: Grid
    private: bool = True
    uses_public: bool = False
    only_public: bool = False


def _privacy(setting: Setting, norm: float, sigma: float) -> Privatize:
    return privatize(clip_norm=setting["clip"] * norm, noise_multiplier=sigma)


def _rate(setting: Setting, steps: int, divisor: float) -> float:
    return setting["length"] * STEPS_OF_A_LENGTH / steps / divisor


def _noisy_adaptive_rate(setting: Setting, steps: int, problem: Problem) -> float:
    return setting["length"] * math.sqrt(STEPS_OF_A_LENGTH / steps) / problem.total()


def _shape(setting: Setting, known: Frequencies) -> Fixed:
    return frequency(known, floor=setting["floor"], power=setting["power"])


def _scale(side: Fixed) -> Array:
    entry = side.named["weight"]
    values = entry[0] if isinstance(entry, tuple) else entry
    return np.asarray(1 / values.numpy())


def _dp_sgd(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    privacy = _privacy(setting, given.norm(), sigma)
    return methods.dp_sgd(privacy, _rate(setting, steps, given.norm() * privacy.clip_norm))


def _dp_adam(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    privacy = _privacy(setting, given.norm(), sigma)
    return methods.dp_adam(privacy, _noisy_adaptive_rate(setting, steps, given))


def _dp_rmsprop(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    privacy = _privacy(setting, given.norm(), sigma)
    return methods.dp_rmsprop(privacy, _noisy_adaptive_rate(setting, steps, given))


def _before_the_clip(
    side: Fixed, setting: Setting, given: Problem, sigma: float, steps: int
) -> Chain:
    privacy = _privacy(setting, given.norm(_scale(side)), sigma)
    return methods.adadps(side, privacy, _rate(setting, steps, given.norm() * privacy.clip_norm))


def _adadps(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    side = _shape(setting, given.corpus.frequencies)
    return _before_the_clip(side, setting, given, sigma, steps)


def _adadps_word_list(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    assert given.corpus.other_frequencies is not None
    side = _shape(setting, given.corpus.other_frequencies)
    return _before_the_clip(side, setting, given, sigma, steps)


def _adadps_tfidf(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    """A proportional to public TF-IDF, or inversely if ``power`` is negative."""
    scores = given.corpus.tfidf
    relative = np.maximum(scores / scores.max(), setting["floor"]) ** setting["power"]
    origin = given.corpus.frequencies.provenance
    side = fixed(
        {"weight": (torch.from_numpy(relative / relative.max()), 1)},
        source=f"{origin.source}; A = max(TF-IDF, {setting['floor']:g})^{setting['power']:g}",
        public_because=origin.public_because,
        rows=given.corpus.frequencies.rows,
    )
    return _before_the_clip(side, setting, given, sigma, steps)


def _two_sided(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    side = _shape(setting, given.corpus.frequencies)
    norm = given.norm(_scale(side))
    privacy = _privacy(setting, norm, sigma)
    rate = _rate(setting, steps, norm * privacy.clip_norm)
    return methods.adadps_two_sided(side, side, privacy, rate)


def _weighted(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    side = _shape(setting, given.corpus.frequencies)
    privacy = _privacy(setting, 1.0, sigma)
    return methods.dp_sgd_weighted(side, privacy, _rate(setting, steps, privacy.clip_norm))


def _rmsprop_rule(setting: Setting, given: Problem) -> RMSPropStatistics:
    floor = setting["floor"] * given.norm()
    return RMSPropStatistics(decay=DECAY, epsilon=floor, debias=True)


def _adadps_public(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    rule = _rmsprop_rule(setting, given)
    privacy = _privacy(setting, given.norm() / float(rule.epsilon), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    return methods.adadps_public(given.public, rule, privacy, rate)


def _adadps_public_adam(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    floor = setting["floor"] * given.norm()
    rule = AdamStatistics(mixing=0.9, first_decay=DECAY, second_decay=DECAY, epsilon=floor)
    privacy = _privacy(setting, given.norm() / floor, sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    return methods.adadps_public(given.public, rule, privacy, rate)


def _dp_r_pub(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    rule, privacy = _rmsprop_rule(setting, given), _privacy(setting, given.norm(), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm) * float(rule.epsilon)
    return methods.dp_r_pub(given.public, rule, privacy, rate)


def _dp_adam_pub(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    rule, privacy = _rmsprop_rule(setting, given), _privacy(setting, given.norm(), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm) * float(rule.epsilon)
    return methods.dp_adam_pub(given.public, rule, privacy, rate)


def _pda_dpmd(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    privacy = _privacy(setting, given.norm(), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    return methods.pda_dpmd(given.public, privacy, rate, steps=steps)


def _warm_start(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    privacy = _privacy(setting, given.norm(), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    return methods.warm_start(
        given.public, privacy, rate, public_lr=setting["public_length"] / given.total()
    )


def _warm_adadps(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    """Public examples for the start, public word frequencies before the clip."""
    side = _shape(setting, given.corpus.frequencies)
    privacy = _privacy(setting, given.norm(_scale(side)), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    start = pretrain(given.public, rmsprop(setting["public_length"] / given.total()), epochs=10)
    return chain(start, precondition(side), privacy, sgd(rate))


def _ideal(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:
    rule = _rmsprop_rule(setting, given)
    privacy = _privacy(setting, given.norm() / float(rule.epsilon), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    return methods.ideal(given.train, rule, privacy, rate, batch_size=256)


def _sgd(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:  # noqa: ARG001
    return methods.plain_sgd(setting["length"] / given.norm() ** 2)


def _adam(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:  # noqa: ARG001
    return methods.plain_adam(setting["length"] / given.total())


def _adas(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:  # noqa: ARG001
    side = _shape(setting, given.corpus.frequencies)
    rate = setting["length"] / (given.norm() * given.norm(_scale(side)))
    return methods.adas(side, rate)


def _adas_public(setting: Setting, given: Problem, sigma: float, steps: int) -> Chain:  # noqa: ARG001
    rule = _rmsprop_rule(setting, given)
    rate = setting["length"] * float(rule.epsilon) / given.norm() ** 2
    return methods.adas(public(given.public, rule), rate)


def _clip_and_length(lengths: tuple[float, ...]) -> list[Setting]:
    return [{"clip": c, "length": s} for c, s in product((0.25, 0.5, 1.0), lengths)]


def _noisy_adaptive(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    rates = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
    return [{"clip": c, "length": s} for c, s in product((0.25, 0.75), rates)]


def _shapes(lengths: tuple[float, ...]) -> list[Setting]:
    return [
        {"clip": 0.5, "length": s, "floor": floor, "power": power}
        for (floor, power), s in product(SHAPES, lengths)
    ]


def _directions(lengths: tuple[float, ...]) -> list[Setting]:
    """Both readings of the paper: A proportional to TF-IDF, and inversely proportional."""
    return [
        {"clip": 0.5, "length": s, "floor": floor, "power": power}
        for (floor, power), s in product(((0.01, 1.0), (0.01, 0.5), (0.01, -0.5)), lengths)
    ]


def _floors(lengths: tuple[float, ...]) -> list[Setting]:
    return [{"clip": 0.25, "length": s, "floor": f} for f, s in product(FLOORS, lengths)]


def _starts(lengths: tuple[float, ...]) -> list[Setting]:
    return [
        {"clip": 0.5, "length": s, "public_length": start}
        for start, s in product((0.03, 0.1, 0.3), lengths)
    ]


def _starts_and_shape(lengths: tuple[float, ...]) -> list[Setting]:
    return [{**one, "floor": 0.01, "power": 0.5} for one in _starts(lengths)]


def _rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    return [{"length": 0.002 * 2.0**power} for power in range(12)]


def _long_rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    return [{"length": 0.25 * 2.0**power} for power in range(12)]


def _shapes_and_rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    return [
        {"length": 2.0 * 4.0**power, "floor": floor, "power": shape}
        for (floor, shape), power in product(SHAPES, range(4))
    ]


def _floors_and_rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    return [
        {"length": 0.5 * 4.0**power, "floor": floor} for floor, power in product(FLOORS, range(4))
    ]


_WORDS, _PUBLIC = "public word frequencies", "public examples"
CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("dp-sgd", "DP-SGD", "none", _dp_sgd, _clip_and_length),
        Contender("dp-adam", "DP-Adam", "none", _dp_adam, _noisy_adaptive),
        Contender("dp-rmsprop", "DP-RMSProp", "none", _dp_rmsprop, _noisy_adaptive),
        Contender("adadps", "AdaDPS, before the clip", _WORDS, _adadps, _shapes),
        Contender(
            "adadps-wordfreq",
            "AdaDPS, before the clip",
            "word list of general English",
            _adadps_word_list,
            _shapes,
        ),
        Contender("adadps-tfidf", "AdaDPS, TF-IDF", "public TF-IDF", _adadps_tfidf, _directions),
        Contender("adadps-two-sided", "AdaDPS, two-sided", _WORDS, _two_sided, _shapes),
        Contender("dp-sgd-weighted", "DP-SGD, weighted features", _WORDS, _weighted, _shapes),
        Contender(
            "adadps-public",
            "AdaDPS (RMSProp)",
            _PUBLIC,
            _adadps_public,
            _floors,
            uses_public=True,
        ),
        Contender(
            "adadps-public-adam",
            "AdaDPS (Adam)",
            _PUBLIC,
            _adadps_public_adam,
            _floors,
            uses_public=True,
        ),
        Contender("dp-r-pub", "DP-R-Pub", _PUBLIC, _dp_r_pub, _floors, uses_public=True),
        Contender("dp-adam-pub", "DP-Adam-Pub", _PUBLIC, _dp_adam_pub, _floors, uses_public=True),
        Contender("pda-dpmd", "PDA-DPMD", _PUBLIC, _pda_dpmd, _clip_and_length, uses_public=True),
        Contender(
            "warm-start", "DP-SGD, warm start", _PUBLIC, _warm_start, _starts, uses_public=True
        ),
        Contender(
            "adadps-warm-start",
            "AdaDPS, before the clip, warm start",
            f"{_WORDS} and {_PUBLIC}",
            _warm_adadps,
            _starts_and_shape,
            uses_public=True,
        ),
        Contender("ideal", "ideal (not private)", "private gradients", _ideal, _floors),
        Contender("sgd", "SGD, no privacy", "none", _sgd, _long_rates, private=False),
        Contender("adam", "Adam, no privacy", "none", _adam, _rates, private=False),
        Contender("adas", "AdaS, no privacy", _WORDS, _adas, _shapes_and_rates, private=False),
        Contender(
            "adas-public",
            "AdaS, no privacy",
            _PUBLIC,
            _adas_public,
            _floors_and_rates,
            private=False,
            uses_public=True,
        ),
        Contender(
            "public-only",
            "public data only",
            _PUBLIC,
            _adam,
            _rates,
            private=False,
            uses_public=True,
            only_public=True,
        ),
    )
}
