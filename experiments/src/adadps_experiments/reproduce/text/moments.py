"""Noisy second moments (figure "moment_estimation"): how well DP-Adam estimates a coordinate.

Logistic regression on IMDB reviews, trained by DP-Adam. Two second moments are tracked for each
word: that of the noisy gradient, which DP-Adam divides by, and that of the same clipped gradient
before the noise. A private run never releases the second one: this figure is *not private*, and is
made on a published data set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import sparse
from scipy.stats import spearmanr

from adadps_experiments.reproduce.results import Row
from adadps_experiments.reproduce.text.corpora import corpus
from adadps_experiments.reproduce.text.corpus import Array
from adadps_experiments.reproduce.text.jobs import SIZES
from adadps_experiments.reproduce.text.recipes import PAPER

TITLE = "Second moments in DP-Adam (not private: clean moments are shown)"
COLUMNS = {"noise multiplier": "noise_multiplier", "rank correlation": "mean", "paper": "paper"}
BETAS, EPSILON, RATE, STEPS, CLIP = (0.9, 0.999), 1e-8, 0.5, 300, 0.03
NOISE = (1.0, 0.3, 0.1)


@dataclass(frozen=True)
class MomentEstimate:
    """Second moments of all coordinates after one run."""

    noise_multiplier: float
    clean: Array
    noisy: Array

    @property
    def rank_correlation(self) -> float:
        """Return how well the noisy moments order the words: 1 as the clean ones do, 0 not."""
        return float(spearmanr(self.clean, self.noisy).statistic)


def estimates() -> list[MomentEstimate]:
    """Run DP-Adam once per noise multiplier."""
    held, size = corpus("imdb"), SIZES["imdb"]
    features = PAPER(held.train.counts, held.idf)
    signs = np.where(held.train.targets == 1, 1.0, -1.0)
    return [track_moments(features, signs, size.batch, sigma) for sigma in NOISE]


def track_moments(
    features: sparse.csr_matrix, signs: Array, batch: int, sigma: float
) -> MomentEstimate:
    """Train by DP-Adam on binary logistic regression and track both moments."""
    rng = np.random.default_rng(0)  # a figure that can be repeated, and is not private anyway
    count, words = features.shape
    weights, first, noisy, clean = (np.zeros(words) for _ in range(4))
    (beta1, beta2), norms = BETAS, np.sqrt(np.asarray(features.multiply(features).sum(1)).ravel())
    for step in range(1, STEPS + 1):
        rows = np.flatnonzero(rng.random(count) < batch / count)
        part = features[rows]
        slope = -signs[rows] / (1 + np.exp(signs[rows] * (part @ weights)))
        slope *= np.minimum(1, CLIP / np.maximum(np.abs(slope) * norms[rows], 1e-30))
        plain = np.asarray(part.T @ slope) / batch
        released = plain + rng.normal(0, sigma * CLIP / batch, words)
        first = beta1 * first + (1 - beta1) * released
        noisy = beta2 * noisy + (1 - beta2) * released**2
        clean = beta2 * clean + (1 - beta2) * plain**2
        weights -= (
            RATE * (first / (1 - beta1**step)) / (np.sqrt(noisy / (1 - beta2**step)) + EPSILON)
        )
    correction = 1 - beta2**STEPS
    return MomentEstimate(sigma, clean / correction, noisy / correction)


def rows_of(found: list[MomentEstimate]) -> list[Row]:
    """Return one row per noise multiplier: the rank correlation of clean and noisy moments."""
    return [
        {
            "experiment": "moments",
            "dataset": "imdb",
            "method": "dp-adam",
            "side": "none",
            "metric": "rank correlation of clean and noisy second moments (training texts)",
            "mean": one.rank_correlation,
            "std": 0.0,
            "seeds": 1,
            "epsilon_pld": None,
            "epsilon_rdp": None,
            "delta": None,
            "paper": None,
            "settings": {
                "noise_multiplier": one.noise_multiplier,
                "clip_norm": CLIP,
                "lr": RATE,
                "steps": STEPS,
                "features": str(PAPER),
                "not_private": "clean moments of private gradients are shown",
            },
        }
        for one in found
    ]


def figure_of(found: list[MomentEstimate]) -> bytes:
    """Draw the clean moments in decreasing order, with the noisy estimate of each word, as PNG."""
    import io

    figure = Figure(figsize=(4.4 * len(found), 3.6), layout="constrained")
    axes: Any = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axis, one in zip(axes, found, strict=True):
        order = np.argsort(-one.clean)
        axis.plot(one.noisy[order], ".", markersize=1, color="#f58518", label="DP-Adam's estimate")
        axis.plot(one.clean[order], color="#4c78a8", linewidth=2, label="without noise")
        axis.set_yscale("log")
        axis.set_ylim(max(one.clean.max() * 1e-8, 1e-16), one.clean.max() * 10)
        axis.set(
            title=f"σ = {one.noise_multiplier:g}, rank correlation {one.rank_correlation:.2f}",
            xlabel="words, by their second moment",
        )
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("second moment of the gradient")
    axes[0].legend(frameon=False, markerscale=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
