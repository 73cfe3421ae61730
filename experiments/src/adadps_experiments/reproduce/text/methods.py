"""The methods of the tables on text problems.

A setting is scale-free (see `adadps_experiments.reproduce.text.problem`): ``clip`` is in typical
norms of what is clipped, ``length`` is how far one of 1,000 steps may move an output. Twice the
steps need half the rate (1/√2 of it for adaptive updates of noisy gradients), which is why settings
found on shortened runs hold for full ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from adadps.methods import paper as methods
from adadps.methods.side import (
    AdamStatistics,
    Frequencies,
    RMSPropStatistics,
    fixed,
    frequency,
    public,
)
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain, chain, precondition, pretrain, privatize, rmsprop, sgd
from adadps.methods.stages.gradients import Privatize
from adadps_experiments.reproduce.results import Setting
from adadps_experiments.reproduce.text import grids
from adadps_experiments.reproduce.text.corpus import Array
from adadps_experiments.reproduce.text.problem import STEPS_PER_LENGTH, TextProblem

Build = Callable[[Setting, TextProblem, float, int], Chain]

DECAY = 0.9


@dataclass(frozen=True)
class TextMethod:
    """A method of a table; ``{words}`` in ``side`` stands for the data set's word statistics."""

    name: str
    label: str
    side: str
    build: Build
    grid: grids.Grid
    private: bool = True
    uses_public: bool = False
    only_public: bool = False


def _privacy(setting: Setting, norm: float, sigma: float) -> Privatize:
    return privatize(clip_norm=setting["clip"] * norm, noise_multiplier=sigma)


def _rate(setting: Setting, steps: int, divisor: float) -> float:
    return setting["length"] * STEPS_PER_LENGTH / steps / divisor


def _noisy_adaptive_rate(setting: Setting, steps: int, problem: TextProblem) -> float:
    return setting["length"] * math.sqrt(STEPS_PER_LENGTH / steps) / problem.total()


def _shape(setting: Setting, known: Frequencies) -> Fixed:
    return frequency(known, floor=setting["floor"], power=setting["power"])


def _scale(side: Fixed) -> Array:
    entry = side.named["weight"]
    values = entry[0] if isinstance(entry, tuple) else entry
    return np.asarray(1 / values.numpy())


def _dp_sgd(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    privacy = _privacy(setting, given.norm(), sigma)
    return methods.dp_sgd(privacy, lr=_rate(setting, steps, given.norm() * privacy.clip_norm))


def _dp_adam(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    privacy = _privacy(setting, given.norm(), sigma)
    return methods.dp_adam(privacy, lr=_noisy_adaptive_rate(setting, steps, given))


def _dp_rmsprop(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    privacy = _privacy(setting, given.norm(), sigma)
    return methods.dp_rmsprop(privacy, lr=_noisy_adaptive_rate(setting, steps, given))


def _before_the_clip(
    side: Fixed, setting: Setting, given: TextProblem, sigma: float, steps: int
) -> Chain:
    privacy = _privacy(setting, given.norm(_scale(side)), sigma)
    return methods.adadps(side, privacy, lr=_rate(setting, steps, given.norm() * privacy.clip_norm))


def _adadps(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    side = _shape(setting, given.corpus.frequencies)
    return _before_the_clip(side, setting, given, sigma, steps)


def _adadps_word_list(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    assert given.corpus.other_frequencies is not None
    side = _shape(setting, given.corpus.other_frequencies)
    return _before_the_clip(side, setting, given, sigma, steps)


def _adadps_tfidf(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    """Return AdaDPS with A proportional to public TF-IDF, or inversely if ``power`` < 0."""
    scores = given.corpus.tfidf
    relative = np.maximum(scores / scores.max(), setting["floor"]) ** setting["power"]
    origin = given.corpus.frequencies.provenance
    side = fixed(
        {"weight": (torch.from_numpy(relative / relative.max()), 1)},
        source=f"{origin.source}; A = max(TF-IDF, {setting['floor']:g})^{setting['power']:g}",
        public_because=origin.public_because,
        event=given.corpus.frequencies.event,
        rows=given.corpus.frequencies.rows,
    )
    return _before_the_clip(side, setting, given, sigma, steps)


def _two_sided(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    side = _shape(setting, given.corpus.frequencies)
    norm = given.norm(_scale(side))
    privacy = _privacy(setting, norm, sigma)
    rate = _rate(setting, steps, norm * privacy.clip_norm)
    return methods.adadps_two_sided(side, side, privacy, lr=rate)


def _after_the_noise(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    side = _shape(setting, given.corpus.frequencies)
    privacy = _privacy(setting, given.norm(), sigma)
    rate = _rate(setting, steps, given.norm(_scale(side)) * privacy.clip_norm)
    return chain(privacy, precondition(side), sgd(rate))


def _weighted(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    side = _shape(setting, given.corpus.frequencies)
    privacy = _privacy(setting, 1.0, sigma)
    return methods.dp_sgd_weighted(side, privacy, lr=_rate(setting, steps, privacy.clip_norm))


def _floor(setting: Setting, given: TextProblem) -> float:
    return setting["floor"] * given.norm()


def _rmsprop_rule(setting: Setting, given: TextProblem) -> RMSPropStatistics:
    return RMSPropStatistics(decay=DECAY, epsilon=_floor(setting, given), debias=True)


def _adadps_public(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    rule = _rmsprop_rule(setting, given)
    privacy = _privacy(setting, given.norm() / _floor(setting, given), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    return methods.adadps_public(given.public, rule, privacy, lr=rate)


def _adadps_public_adam(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    floor = _floor(setting, given)
    rule = AdamStatistics(mixing=0.9, first_decay=DECAY, second_decay=DECAY, epsilon=floor)
    privacy = _privacy(setting, given.norm() / floor, sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    return methods.adadps_public(given.public, rule, privacy, lr=rate)


def _dp_r_pub(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    rule, privacy = _rmsprop_rule(setting, given), _privacy(setting, given.norm(), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm) * _floor(setting, given)
    return methods.dp_r_pub(given.public, rule, privacy, lr=rate)


def _dp_adam_pub(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    rule, privacy = _rmsprop_rule(setting, given), _privacy(setting, given.norm(), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm) * _floor(setting, given)
    return methods.dp_adam_pub(given.public, rule, privacy, lr=rate)


def _pda_dpmd(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    privacy = _privacy(setting, given.norm(), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    return methods.pda_dpmd(given.public, privacy, lr=rate, steps=steps)


def _warm_start(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    privacy = _privacy(setting, given.norm(), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    return methods.warm_start(
        given.public, privacy, lr=rate, public_lr=setting["public_length"] / given.total()
    )


def _warm_adadps(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    """Return AdaDPS with public word frequencies after a warm start on public examples."""
    side = _shape(setting, given.corpus.frequencies)
    privacy = _privacy(setting, given.norm(_scale(side)), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    start = pretrain(given.public, rmsprop(setting["public_length"] / given.total()), epochs=10)
    return chain(start, precondition(side), privacy, sgd(rate))


def _ideal(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:
    rule = _rmsprop_rule(setting, given)
    privacy = _privacy(setting, given.norm() / _floor(setting, given), sigma)
    rate = _rate(setting, steps, given.norm() * privacy.clip_norm)
    return methods.ideal(given.train, rule, privacy, lr=rate, batch_size=256)


def _sgd(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:  # noqa: ARG001
    return methods.plain_sgd(setting["length"] / given.norm() ** 2)


def _adam(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:  # noqa: ARG001
    return methods.plain_adam(setting["length"] / given.total())


def _adas(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:  # noqa: ARG001
    side = _shape(setting, given.corpus.frequencies)
    rate = setting["length"] / (given.norm() * given.norm(_scale(side)))
    return methods.adas(side, rate)


def _adas_public(setting: Setting, given: TextProblem, sigma: float, steps: int) -> Chain:  # noqa: ARG001
    rule = _rmsprop_rule(setting, given)
    rate = setting["length"] * _floor(setting, given) / given.norm() ** 2
    return methods.adas(public(given.public, rule), rate)


_WORDS, _PUBLIC = "{words}", "public examples"
TEXT_METHODS = {
    method.name: method
    for method in (
        TextMethod("dp-sgd", "DP-SGD", "none", _dp_sgd, grids.clip_and_length),
        TextMethod("dp-adam", "DP-Adam", "none", _dp_adam, grids.noisy_adaptive),
        TextMethod("dp-rmsprop", "DP-RMSProp", "none", _dp_rmsprop, grids.noisy_adaptive),
        TextMethod("adadps", "AdaDPS, before the clip", _WORDS, _adadps, grids.shapes),
        TextMethod(
            "adadps-wordfreq",
            "AdaDPS, before the clip",
            "word list of general English",
            _adadps_word_list,
            grids.shapes,
        ),
        TextMethod(
            "adadps-tfidf", "AdaDPS, TF-IDF", "public TF-IDF", _adadps_tfidf, grids.directions
        ),
        TextMethod(
            "after-the-noise",
            "DP-SGD, scaled after the noise",
            _WORDS,
            _after_the_noise,
            grids.shapes,
        ),
        TextMethod("adadps-two-sided", "AdaDPS, two-sided", _WORDS, _two_sided, grids.shapes),
        TextMethod("dp-sgd-weighted", "DP-SGD, weighted features", _WORDS, _weighted, grids.shapes),
        TextMethod(
            "adadps-public",
            "AdaDPS (RMSProp)",
            _PUBLIC,
            _adadps_public,
            grids.floors,
            uses_public=True,
        ),
        TextMethod(
            "adadps-public-adam",
            "AdaDPS (Adam)",
            _PUBLIC,
            _adadps_public_adam,
            grids.floors,
            uses_public=True,
        ),
        TextMethod("dp-r-pub", "DP-R-Pub", _PUBLIC, _dp_r_pub, grids.floors, uses_public=True),
        TextMethod(
            "dp-adam-pub", "DP-Adam-Pub", _PUBLIC, _dp_adam_pub, grids.floors, uses_public=True
        ),
        TextMethod(
            "pda-dpmd", "PDA-DPMD", _PUBLIC, _pda_dpmd, grids.clip_and_length, uses_public=True
        ),
        TextMethod(
            "warm-start", "DP-SGD, warm start", _PUBLIC, _warm_start, grids.starts, uses_public=True
        ),
        TextMethod(
            "adadps-warm-start",
            "AdaDPS, before the clip, warm start",
            f"{_WORDS} and {_PUBLIC}",
            _warm_adadps,
            grids.starts_and_shape,
            uses_public=True,
        ),
        TextMethod("ideal", "ideal (not private)", "private gradients", _ideal, grids.floors),
        TextMethod("sgd", "SGD, no privacy", "none", _sgd, grids.long_rates, private=False),
        TextMethod("adam", "Adam, no privacy", "none", _adam, grids.rates, private=False),
        TextMethod(
            "adas", "AdaS, no privacy", _WORDS, _adas, grids.shapes_and_rates, private=False
        ),
        TextMethod(
            "adas-public",
            "AdaS, no privacy",
            _PUBLIC,
            _adas_public,
            grids.floors_and_rates,
            private=False,
            uses_public=True,
        ),
        TextMethod(
            "public-only",
            "public data only",
            _PUBLIC,
            _adam,
            grids.rates,
            private=False,
            uses_public=True,
            only_public=True,
        ),
    )
}
