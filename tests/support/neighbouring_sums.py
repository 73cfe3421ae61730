"""What a release makes of a batch without its noise, for tests of sensitivity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adadps import examples
from adadps.engine.passes.validation import objective
from adadps.engine.waist import Step, Units
from adadps.methods.stages.gradients import Privatize

INPUTS, OUTPUTS = 3, 2
UNSOUND = 8


class Silent:
    """No noise at all, and a record of what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[int, ...], float]] = []
        self.totals: list[Tensor] = []

    def release(self, total: Tensor, *, standard_deviation: float) -> Tensor:
        self.asked.append((tuple(total.shape), standard_deviation))
        self.totals.append(total.detach().clone())
        return total


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().sum(1)


def rows_of_many_sizes(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Gradients of norms from 0 to 1e12, and one, of row `UNSOUND`, that is not finite."""
    draws = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([0.0, 1e-9, 1e-3, 0.1, 0.5, 1.0, 1.0, 3.0, 1e3, 1e6]).unsqueeze(1)
    features = torch.randn(len(sizes), INPUTS, generator=draws) * sizes
    targets = torch.randn(len(sizes), OUTPUTS, generator=draws) * sizes
    features[UNSOUND], targets[UNSOUND] = 3e38, torch.tensor([3.4e38, -3.4e38])
    return features, targets


def steps_of(
    release: Privatize,
    features: Tensor,
    targets: Tensor,
    *,
    units: Units | None = None,
    chunk: int | None = None,
    state: object = None,
) -> tuple[Tensor, object, Silent]:
    """Return the sum of a batch without its noise, the next state, and what was noised."""
    torch.manual_seed(1)
    model = nn.Linear(INPUTS, OUTPUTS)
    held = objective(model, squared, examples(features, targets))
    params, noise = held.params(), Silent()
    step = Step(index=1, expected_size=4.0, noise=noise, mean_gradient=lambda _batch: {})
    gradients = held.per_unit(params, examples(features, targets), units, chunk)
    state = release.init(params) if state is None else state
    released, following = release.apply(gradients, state, step)
    size = release.groups.expected_units(4.0) if release.groups else 4.0
    total = torch.cat([released[name].flatten() * size for name in params])
    return total, following, noise
