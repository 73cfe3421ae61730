"""Statistics of public gradients: the recurrences of Algorithm 1, and the batches behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from adadps.data.examples import PublicExamples
from adadps.engine.chunked import ChunkedGradients
from adadps.engine.noise.randomness import secure
from adadps.engine.waist import Step
from adadps.errors import DataError, SettingError
from adadps.methods.side import (
    AdaGradStatistics,
    AdamStatistics,
    RMSPropStatistics,
    SideSource,
    Transform,
    public,
)
from adadps.methods.stages import chain, mix, precondition, privatize, sgd
from adadps.tensors.sums import Params
from support.surveys import RMSPROP, gradient_on, parameters, step, survey

GRADIENTS = [[0.5, -2.0, 0.0], [1.0, 0.25, 0.0], [-0.5, 4.0, 0.0], [2.0, -1.0, 0.0]]


def observed(source: SideSource, gradients: Sequence[Sequence[float]]) -> Iterator[Transform]:
    """The transforms of a source that sees ``gradients``, one a step."""
    state = source.init({"w": torch.zeros(3)})
    for index, gradient in enumerate(gradients, start=1):
        seen = {"w": torch.tensor(gradient, dtype=torch.float64)}
        transform, state = source.observe(state, step(index, lambda _batch, seen=seen: seen))
        yield transform


def a_at_each_step(source: SideSource) -> np.ndarray:
    return np.stack([(1 / seen.scale["w"]).numpy() for seen in observed(source, GRADIENTS)])


def divisor(second: float, epsilon: float, inside: bool) -> float:
    return math.sqrt(second + epsilon) if inside else math.sqrt(second) + epsilon


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("debias", [False, True], ids=["biased", "debiased"])
def test_rmsprop_recurrence(inside, debias):
    rule = RMSPropStatistics(decay=0.9, epsilon=1e-2, epsilon_inside_root=inside, debias=debias)
    second, expected = [0.0] * 3, []
    for t, gradient in enumerate(GRADIENTS, start=1):
        second = [0.9 * v + 0.1 * g**2 for v, g in zip(second, gradient, strict=True)]
        correction = 1 - 0.9**t if debias else 1
        expected.append([divisor(v / correction, 1e-2, inside) for v in second])
    np.testing.assert_allclose(a_at_each_step(public(survey(), rule)), expected, rtol=1e-12)


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_rmsprop_with_schedules(inside):
    rule = RMSPropStatistics(
        decay=lambda t: 1 - 1 / t, epsilon=lambda t: 0.1 / math.sqrt(t), epsilon_inside_root=inside
    )
    expected = []
    for t in range(1, 5):  # with decay 1 - 1/t, v is the plain mean of the squares so far
        second = [sum(g[k] ** 2 for g in GRADIENTS[:t]) / t for k in range(3)]
        expected.append([divisor(v, 0.1 / math.sqrt(t), inside) for v in second])
    np.testing.assert_allclose(a_at_each_step(public(survey(), rule)), expected, rtol=1e-12)


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_adagrad_recurrence(inside):
    rule = AdaGradStatistics(epsilon=lambda t: 0.1 / t, epsilon_inside_root=inside)
    expected = []
    for t in range(1, 5):
        second = [sum(g[k] ** 2 for g in GRADIENTS[:t]) for k in range(3)]
        expected.append([divisor(v, 0.1 / t, inside) for v in second])
    np.testing.assert_allclose(a_at_each_step(public(survey(), rule)), expected, rtol=1e-12)


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_adam_recurrence(inside):
    rule = AdamStatistics(
        mixing=lambda t: 1 - 0.1 / t,
        first_decay=0.8,
        second_decay=0.9,
        epsilon=1e-2,
        epsilon_inside_root=inside,
    )
    first, second = [0.0] * 3, [0.0] * 3
    found = observed(public(survey(), rule), GRADIENTS)
    for t, (gradient, seen) in enumerate(zip(GRADIENTS, found, strict=True), start=1):
        first = [0.8 * m + 0.2 * g for m, g in zip(first, gradient, strict=True)]
        second = [0.9 * v + 0.1 * g**2 for v, g in zip(second, gradient, strict=True)]
        a = [divisor(v / (1 - 0.9**t), 1e-2, inside) for v in second]
        assert (1 / seen.scale["w"]).tolist() == pytest.approx(a, rel=1e-12)
        assert seen.mean["w"].tolist() == pytest.approx([m / (1 - 0.8**t) for m in first])
        assert seen.beta == pytest.approx(1 - 0.1 / t)


DECAYS = {"constant": 0.9, "growing": lambda t: 1 - 1 / (t + 1)}


@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS.keys())
def test_the_debiased_average_of_a_constant_gradient_is_that_gradient(decay):
    rule = AdamStatistics(mixing=0.5, first_decay=decay, second_decay=decay, epsilon=1e-12)
    for seen in observed(public(survey(), rule), [[0.5, -2.0, 3.0]] * 4):
        assert (1 / seen.scale["w"]).tolist() == pytest.approx([0.5, 2.0, 3.0])
        assert seen.mean["w"].tolist() == pytest.approx([0.5, -2.0, 3.0])


def test_statistics_move_only_at_refreshes():
    rule = RMSPropStatistics(decay=0.9, epsilon=1e-2, debias=True)
    often = a_at_each_step(public(survey(), rule, refresh_every=2))
    first, third = np.asarray(GRADIENTS[0]), np.asarray(GRADIENTS[2])
    after_one = np.abs(first) + 1e-2
    after_two = np.sqrt((0.09 * first**2 + 0.1 * third**2) / (1 - 0.9**2)) + 1e-2
    expected = [after_one, after_one, after_two, after_two]
    np.testing.assert_allclose(often, expected, rtol=1e-12)


def test_public_gradients_are_computed_only_at_refreshes():
    asked: list[int] = []
    source = public(survey(), RMSPROP, refresh_every=3)
    state = source.init(parameters())
    for index in range(1, 8):

        def counted(batch: PublicExamples, index: int = index) -> Params:
            asked.append(index)
            return gradient_on(batch)

        _, state = source.observe(state, step(index, counted))
    assert asked == [1, 4, 7]


@pytest.mark.parametrize(
    "rule",
    [
        RMSPropStatistics(decay=0.9, epsilon=0.0),
        RMSPropStatistics(decay=1.0, epsilon=1e-3),
        RMSPropStatistics(decay=-0.1, epsilon=1e-3),
        AdaGradStatistics(epsilon=lambda t: -t),
        AdamStatistics(mixing=0.9, first_decay=1.0, second_decay=0.9, epsilon=1e-3),
    ],
    ids=["no epsilon", "decay 1", "decay below 0", "negative epsilon", "first decay 1"],
)
def test_statistics_out_of_range_are_refused(rule):
    source = public(survey(), rule)
    with pytest.raises(SettingError):
        source.observe(source.init(parameters()), step())


def test_refreshing_less_than_never_is_refused():
    with pytest.raises(SettingError, match="refresh_every"):
        public(survey(), RMSPROP, refresh_every=0)


# --- public batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 4])
def test_public_batches_have_a_size_of_their_own(size):
    seen: list[int] = []

    def counted(batch: PublicExamples) -> Params:
        seen.append(len(batch.examples))
        return gradient_on(batch)

    source = public(survey(batch_size=size), RMSPROP)
    source.observe(source.init(parameters()), step(1, counted))
    assert seen == [size]


def drawn_rows(data: PublicExamples, index: int) -> list[float]:
    """The first feature of each drawn row: it tells which row it was."""
    return data.batch(index).examples.features[:, 0].tolist()


def test_public_batches_depend_on_seed_and_step_alone():
    draws = [drawn_rows(survey(), t) for t in range(1, 21)]
    assert draws == [drawn_rows(survey(), t) for t in range(1, 21)]
    assert draws != [drawn_rows(survey(seed=1), t) for t in range(1, 21)]
    assert len({tuple(sorted(rows)) for rows in draws}) > 1


def test_public_batches_are_drawn_without_replacement():
    assert all(len(set(drawn_rows(survey(batch_size=3), t))) == 3 for t in range(1, 21))


@pytest.mark.parametrize("size", [0, 5])
def test_a_public_batch_larger_than_the_data_or_empty_is_refused(size):
    with pytest.raises(DataError, match="between 1 and the 4"):
        survey(batch_size=size)


def gradients_asked_for(mixed: PublicExamples, preconditioned: PublicExamples) -> int:
    """How many public gradients one step of a chain with two public stages computes."""
    method = chain(
        privatize(clip_norm=1.0, noise_multiplier=0.0),
        mix(mixed, 0.5),
        precondition(public(preconditioned, RMSPROP)),
        sgd(1.0),
    )
    asked: list[PublicExamples] = []

    def counted(batch: PublicExamples) -> Params:
        asked.append(batch)
        return gradient_on(batch)

    now = Step(index=1, expected_size=8.0, noise=secure(), mean_gradient=counted)
    method.apply(ChunkedGradients(()), method.init(parameters()), now)
    return len(asked)


def test_two_stages_with_the_same_public_data_share_one_gradient_a_step():
    shared = survey()
    assert gradients_asked_for(shared, shared) == 1
    assert gradients_asked_for(survey(), survey(seed=1)) == 2


def test_a_shared_public_gradient_is_the_same_one():
    now, shared = step(), survey()
    assert now.public_gradient(shared) is now.public_gradient(shared)


def test_the_next_step_computes_the_public_gradient_afresh():
    shared = survey()
    first, second = (step(t).public_gradient(shared)["head.bias"] for t in (1, 2))
    torch.testing.assert_close(first, gradient_on(shared.batch(1))["head.bias"])
    torch.testing.assert_close(second, gradient_on(shared.batch(2))["head.bias"])
    assert drawn_rows(shared, 1) != drawn_rows(shared, 2)
