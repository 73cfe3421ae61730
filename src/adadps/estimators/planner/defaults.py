"""Settings that need no tuning, from public quantities alone.

Given are a declared number of examples n, a budget (ε, δ) and rows whose norm is bounded. Batches
are a fixed share q of the examples and there are T steps, so that σ follows from the budget. Two
numbers are left, and both are free of scale:

- the clip norm is a share of the norm that a gradient has at the start, which for a row x and
  cross-entropy over K classes is ‖x‖ √(1 - 1/K);
- the learning rate follows from how much noise an output may have at the end. After T steps the
  output for a row x carries noise of standard deviation lr · σ C √T / b · ‖x‖. At a given budget
  σ √T / b depends little on b and T. Less budget or fewer examples then mean shorter steps, and
  nobody has to find the rate.

Where the constants come from: docs/results/defaults.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting import DpEvent

from adadps.accounting.calibration import calibrate_noise
from adadps.accounting.epsilon import Budget
from adadps.accounting.samplers import Sampler, poisson
from adadps.errors import require, require_positive
from adadps.types import Accountant, Unit

SMALLEST_BATCH = 64
WORDS_PER_TEXT = 100
"""A declared typical length of texts, for inverse document frequencies."""


@dataclass(frozen=True)
class Rule:
    """The constants.

    ``rate`` is q, ``clip`` the share of a first gradient's norm, ``output_noise`` the noise that an
    output may have, ``longest`` the largest lr · T.
    """

    rate: float = 1 / 16
    steps: int = 400
    clip: float = 0.25
    output_noise: float = 0.6
    longest: float = 100_000.0


RULE = Rule()


@dataclass(frozen=True)
class Choice:
    """Everything that a run needs beside data and model; none of it depends on private data."""

    sampler: Sampler
    steps: int
    noise_multiplier: float
    clip_norm: float
    lr: float
    budget: Budget
    accountant: Accountant

    @property
    def epochs(self) -> float:
        """How often an example is drawn, on average."""
        return self.steps * self.sampler.expected_size / self.sampler.examples


def first_gradient(outputs: int) -> float:
    """Norm of cross-entropy's gradient by the outputs where all of K classes are as likely.

    >>> round(first_gradient(2), 3)
    0.707
    """
    return math.sqrt(1 - 1 / max(2, outputs))


def usual_size(examples: int, rule: Rule = RULE) -> int:
    """Batches by rule.

    >>> usual_size(20_000)
    1250
    """
    return min(examples, max(SMALLEST_BATCH, round(rule.rate * examples)))


def choose(
    *,
    examples: int,
    budget: Budget,
    gradient_norm: float,
    accountant: Accountant = Accountant.PLD,
    clipped_norm: float = 1.0,
    noised_norm: float = 1.0,
    batch_size: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    clip_norm: float | None = None,
    lr: float | None = None,
    noise_multiplier: float | None = None,
    unit: Unit = Unit.EXAMPLE,
    sampler: Sampler | None = None,
    rule: Rule = RULE,
    besides: tuple[DpEvent, ...] = (),
) -> Choice:
    """What is given, and the rule for the rest.

    ``gradient_norm`` is that of the loss by the outputs at the start (`first_gradient`);
    ``clipped_norm`` the norm of a typical row as the clip meets it, i.e. after D, and
    ``noised_norm`` as the noise meets it, i.e. after E in a two-sided chain. Both are 1 for rows of
    norm 1 and plain DP-SGD. A ``noise_multiplier`` that is known already saves its search; the run
    is charged for the noise it draws, whatever is given here. Where the ``unit`` is a user,
    ``examples`` and ``batch_size`` count users. ``sampler`` takes the place of a Poisson one.
    ``besides`` is what the same budget pays for before the first step.

    >>> held = choose(examples=20_000, budget=Budget(1.0, 5e-6), gradient_norm=first_gradient(2))
    >>> held.sampler.expected_size, held.steps
    (1250.0, 400)
    """
    require(examples >= 1, "examples >= 1", examples, "Declare how many there are.")
    size = float(usual_size(examples, rule) if batch_size is None else batch_size)
    if sampler is None and unit is Unit.USER:
        sampler = poisson(users=examples, expected_size=size)
    elif sampler is None:
        sampler = poisson(examples=examples, expected_size=size)
    if steps is None:
        steps = rule.steps if epochs is None else sampler.steps(epochs)
    sigma = noise_multiplier
    if sigma is None:
        sigma = calibrate_noise(
            sampler, steps, budget=budget, accountant=accountant, besides=besides
        )
    clip = rule.clip * gradient_norm * clipped_norm if clip_norm is None else clip_norm
    require_positive("clip_norm", clip)
    if lr is None:
        noise_at_rate_one = sigma * clip * math.sqrt(steps) / sampler.expected_size * noised_norm
        lr = min(rule.output_noise / noise_at_rate_one, rule.longest / steps)
    require_positive("lr", lr)
    return Choice(sampler, steps, sigma, clip, lr, budget, accountant)
