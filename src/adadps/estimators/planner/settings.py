"""Settings that need no tuning, from public quantities alone.

The rule knows a declared number of examples n, a budget (ε, δ), and rows of bounded norm. Batches
are a fixed share q of the examples and there are T steps, so σ follows from the budget. Two
settings are left, and both are free of scale:

- the clip norm is a share of the norm that a gradient has at the start, which for a row x and
  cross-entropy over K classes is ‖x‖ √(1 - 1/K);
- the learning rate follows from how much noise an output may have at the end. After T steps the
  output for a row x carries noise of standard deviation lr · σ C √T / b · ‖x‖. At a given budget
  σ √T / b depends little on b and T. A smaller budget or fewer examples then mean shorter steps,
  and the learning rate need not be searched for.

Where the constants come from: docs/results/defaults.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, calibrate_noise
from adadps.accounting.samplers import Sampler, poisson
from adadps.errors import require, require_positive
from adadps.estimators.planner.methods import Norms
from adadps.types import Accountant, Unit

SMALLEST_BATCH = 64


@dataclass(frozen=True)
class DefaultRule:
    """The constants of the rule.

    ``rate`` is q, ``clip`` the share of the first gradient's norm, ``output_noise`` the noise that
    an output may have, ``longest`` the largest lr · T.
    """

    rate: float = 1 / 16
    steps: int = 400
    clip: float = 0.25
    output_noise: float = 0.6
    longest: float = 100_000.0


RULE = DefaultRule()


@dataclass(frozen=True, kw_only=True)
class GivenSettings:
    """Settings that the caller fixes; the rule chooses those that are None."""

    batch_size: float | None = None
    steps: int | None = None
    epochs: float | None = None
    clip_norm: float | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "clip_norm", "lr"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))


@dataclass(frozen=True)
class Settings:
    """The settings of a run; none of them depends on private data.

    ``local_lr`` is the learning rate on the devices of a federation.
    """

    sampler: Sampler
    steps: int
    noise_multiplier: float
    clip_norm: float
    lr: float
    budget: Budget
    accountant: Accountant
    local_lr: float | None = None

    @property
    def epochs(self) -> float:
        """Return how often an example is drawn, on average."""
        return self.steps * self.sampler.expected_size / self.sampler.examples


def first_gradient(outputs: int) -> float:
    """Return the norm of cross-entropy's gradient by K outputs that are all alike.

    >>> round(first_gradient(2), 3)
    0.707
    """
    return math.sqrt(1 - 1 / max(2, outputs))


def default_batch_size(examples: int, rule: DefaultRule = RULE) -> int:
    """Return the expected batch size by the rule.

    >>> default_batch_size(20_000)
    1250
    """
    return min(examples, max(SMALLEST_BATCH, round(rule.rate * examples)))


def choose_settings(
    *,
    examples: int,
    budget: Budget,
    gradient_norm: float,
    accountant: Accountant = Accountant.PLD,
    norms: Norms = Norms(),  # noqa: B008  (frozen)
    given: GivenSettings = GivenSettings(),  # noqa: B008  (frozen)
    unit: Unit = Unit.EXAMPLE,
    sampler: Sampler | None = None,
    rule: DefaultRule = RULE,
    besides: tuple[DpEvent, ...] = (),
) -> Settings:
    """Return the settings that are ``given``, and the rule's for the rest.

    ``gradient_norm`` is the norm of the loss's gradient by the outputs at the start (see
    `first_gradient`), and ``norms`` are those of a typical row. Where the ``unit`` is a user,
    ``examples`` and the batch size count users. ``sampler`` replaces the Poisson sampler.
    ``besides`` is what the same budget pays for before the first step.

    >>> budget = Budget(1.0, 5e-6)
    >>> held = choose_settings(examples=20_000, budget=budget, gradient_norm=first_gradient(2))
    >>> held.sampler.expected_size, held.steps
    (1250.0, 400)
    """
    require(examples >= 1, "examples >= 1", examples, "Declare how many there are.")
    if sampler is None:
        wanted = given.batch_size
        size = float(default_batch_size(examples, rule) if wanted is None else wanted)
        if unit is Unit.USER:
            sampler = poisson(users=examples, expected_size=size)
        else:
            sampler = poisson(examples=examples, expected_size=size)
    steps = given.steps
    if steps is None:
        steps = rule.steps if given.epochs is None else sampler.steps(given.epochs)
    sigma = calibrate_noise(sampler, steps, budget=budget, accountant=accountant, besides=besides)
    clip_norm = given.clip_norm
    if clip_norm is None:
        clip_norm = rule.clip * gradient_norm * norms.clipped
    require_positive("clip_norm", clip_norm)
    lr = given.lr
    if lr is None:
        noise_at_rate_one = sigma * clip_norm * math.sqrt(steps) / sampler.expected_size
        lr = min(rule.output_noise / (noise_at_rate_one * norms.noised), rule.longest / steps)
    require_positive("lr", lr)
    return Settings(sampler, steps, sigma, clip_norm, lr, budget, accountant)
