"""Adaptive clipping: a noisy count sets the clip norm of the next step, and is paid for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    pld,
    rdp,
)
from scipy import sparse

from adadps import (
    Budget,
    PrivateRun,
    dp_sgd,
    examples,
    fit,
    load_result,
    poisson,
    privatize,
    sparse_linear,
)
from adadps.accounting.contract import Grouping
from adadps.accounting.epsilon import calibrate_noise, epsilon_of_run
from adadps.engine.losses import cross_entropy
from adadps.engine.rules.gradients import MaterialisedGradients
from adadps.engine.rules.layered import LayeredGradients
from adadps.engine.waist import Step, Units
from adadps.errors import ContractError, OrderError, SettingError
from adadps.methods import dp_sgd_adaptive_clip
from adadps.methods.stages import (
    by_each_device,
    by_label,
    by_user,
    chain,
    clip_adaptively,
    clip_automatically,
    in_shares,
    sgd,
    train_locally,
)
from adadps.report.card import card_of, markdown_of
from adadps.report.card.checking import check
from adadps.report.html import report_of_run
from adadps.report.html.reports import noise_facts, noise_section
from adadps.training.describe import plan_of
from adadps.training.federated.task import task_of
from adadps.types import Accountant
from support.neighbouring_sums import INPUTS, Silent, rows_of_many_sizes, steps_of

PRIVACY = privatize(clip_norm=2.0, noise_multiplier=4.0)
SHARES = (1e-6, 0.01, 0.2, 0.5)


def distance(one: Silent, other: Silent) -> float:
    """How far two releases are apart, in standard deviations of the noise that was asked for.

    This is all that an observer sees: the sums of the weights, of the bias, and the count.
    """
    assert one.asked == other.asked
    squares = (
        float((total - beside).square().sum()) / deviation**2
        for total, beside, (_, deviation) in zip(one.totals, other.totals, one.asked, strict=True)
    )
    return math.sqrt(sum(squares))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("chunk", [None, 3])
def test_one_row_moves_sum_and_count_jointly_by_one_over_sigma(share, chunk):
    release = clip_adaptively(PRIVACY, share=share)
    features, targets = rows_of_many_sizes()
    _, _, everyone = steps_of(release, features, targets, chunk=chunk)
    assert [shape for shape, _ in everyone.asked][-1] == ()
    moves = []
    for left_out in range(len(features)):
        kept = torch.arange(len(features)) != left_out
        _, _, others = steps_of(release, features[kept], targets[kept], chunk=chunk)
        moves.append(distance(everyone, others))
    assert max(moves) <= 1 / 4.0 * (1 + 1e-12)
    assert max(moves) == pytest.approx(1 / 4.0)  # clipped units use all of it


@pytest.mark.parametrize("share", SHARES)
def test_one_row_of_a_labelled_group_moves_both_jointly_by_two_over_sigma(share):
    """The contract divides σ by 2 for such groups."""
    grouped = privatize(clip_norm=2.0, noise_multiplier=4.0, groups=by_label(2))
    release = clip_adaptively(grouped, share=share)
    features, targets = rows_of_many_sizes()
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    _, _, everyone = steps_of(release, features, targets, units=Units(labels, 4, 0.5))
    for left_out in range(len(features)):
        kept = torch.arange(len(features)) != left_out
        units = Units(labels[kept], 4, 0.5)
        _, _, others = steps_of(release, features[kept], targets[kept], units=units)
        assert distance(everyone, others) <= 2 / 4.0


def test_a_row_that_is_blanked_out_is_not_counted():
    """Its gradient is 0, in the sum and in the count: the relation 'zero out' costs σ, not σ/2."""
    release = clip_adaptively(PRIVACY, share=0.5)
    features, targets = rows_of_many_sizes()
    _, _, everyone = steps_of(release, features, targets)
    torch.manual_seed(1)
    bias = torch.nn.Linear(INPUTS, 2).bias.detach()
    for row in range(len(features)):
        blank, its_target = features.clone(), targets.clone()
        blank[row], its_target[row] = 0.0, bias
        _, _, others = steps_of(release, blank, its_target)
        assert distance(everyone, others) <= 1 / 4.0 * (1 + 1e-12)


def test_the_clip_of_a_step_depends_on_earlier_steps_alone():
    """Whatever the batch, gradients are clipped and noised at C of the state."""
    release = clip_adaptively(PRIVACY)
    features, targets = rows_of_many_sizes()
    _, following, _ = steps_of(release, features, targets)
    assert following[1] != 2.0
    for rows in (slice(0, 3), slice(5, 10)):
        _, _, noise = steps_of(release, features[rows], targets[rows], state=following)
        deviations = [deviation for _, deviation in noise.asked]
        expected = 4.0 * float(following[1]) / math.sqrt(0.99)
        assert deviations == pytest.approx([expected, expected, 0.5 * 4.0 / 0.1])


# --- what it costs ------------------------------------------------------------------------------


def multipliers(method) -> tuple[float, float]:
    """Noise over sensitivity, of the sum and of the count, as the mechanism asks for it."""
    features, targets = rows_of_many_sizes()
    _, _, noise = steps_of(method.release, features, targets)
    (_, of_sum), *_, (_, of_count) = noise.asked
    return of_sum / method.release.clip_norm, of_count / 0.5


@pytest.mark.parametrize("share", SHARES)
def test_epsilon_is_that_of_two_gaussian_mechanisms_on_the_same_batch(share):
    """By dp-accounting's own composition of the two, inside of one Poisson sample."""
    privacy = privatize(clip_norm=2.0, noise_multiplier=1.0)
    method = dp_sgd_adaptive_clip(privacy, lr=0.1, share=share)
    both = ComposedDpEvent([GaussianDpEvent(sigma) for sigma in multipliers(method)])
    two, one = rdp.RdpAccountant(), rdp.RdpAccountant()
    two.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.05, both), 100))
    one.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.0)), 100))
    assert two.get_epsilon(1e-5) == pytest.approx(one.get_epsilon(1e-5), rel=1e-9)
    sampler = poisson(examples=1000, expected_size=50)
    ours = epsilon_of_run(method, sampler, 100, delta=1e-5, accountant=Accountant.RDP)
    assert two.get_epsilon(1e-5) <= ours <= 1.03 * two.get_epsilon(1e-5)  # of other Rényi orders
    usual = epsilon_of_run(
        dp_sgd(privacy, lr=0.1), sampler, 100, delta=1e-5, accountant=Accountant.RDP
    )
    assert ours == usual


@pytest.mark.parametrize("share", SHARES)
def test_epsilon_without_sampling_is_that_of_two_gaussian_mechanisms(share):
    """The same by PLD, which composes the two releases one after the other."""
    method = dp_sgd_adaptive_clip(
        privatize(clip_norm=2.0, noise_multiplier=1.0), lr=0.1, share=share
    )
    apart, together = pld.PLDAccountant(), pld.PLDAccountant()
    for sigma in multipliers(method):
        apart.compose(SelfComposedDpEvent(GaussianDpEvent(sigma), 10))
    together.compose(SelfComposedDpEvent(GaussianDpEvent(1.0), 10))
    assert together.get_epsilon(1e-5) == pytest.approx(apart.get_epsilon(1e-5), rel=1e-3)


def run(**options):
    torch.manual_seed(0)
    rows = torch.randn(200, 4)
    return fit(
        torch.nn.Linear(4, 2),
        cross_entropy,
        examples(rows, (rows[:, 0] > 0).long()),
        method=dp_sgd_adaptive_clip(lr=0.5, quantile=0.61),  # no noisy share hits it exactly
        clip_norm=0.1,
        batch_size=20,
        steps=5,
        budget=Budget(epsilon=1.0, delta=1e-3),
        **options,
    )


def test_calibration_ledger_card_and_report_state_the_count(tmp_path):
    result = run()
    sampler = poisson(examples=200, expected_size=20)
    sigma = calibrate_noise(
        sampler,
        5,
        budget=Budget(epsilon=1.0, delta=1e-3),
        accountant=Accountant.PLD,
        grouping=Grouping.NONE,
    )
    assert result.privacy.noise_multiplier == sigma  # of sum and count together
    assert result.privacy.epsilon <= 1.0
    told = "The count is paid for: it takes 0.01 of 1/σ²"
    card = card_of(result.describe())
    assert told in card["mechanism"]["clipping"]
    assert told in markdown_of(card)
    assert "share=0.01" in card["mechanism"]["chain"]
    assert noise_facts(result) is None  # the clip norm moves, so that no one number is true
    (point,) = noise_section({"mine": result}).points
    assert "the clip norm, or the scale of the noise, changes from step to step" in point
    last = result.public_facts["clip_norm_at_end"]
    assert card["mechanism"]["clip_norm_at_end"] == last != 0.1
    assert f"0.1 at the first step, {last:.6g} after the last" in markdown_of(card)
    folder = result.save(tmp_path / "run")
    assert check(load_result(folder).describe()).agrees is True
    page = report_of_run(load_result(folder), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "The count is paid for" in page
    assert "0.1 at the first step" in page
    assert "changes from step to step" in page
    privacy = privatize(clip_norm=0.1, noise_multiplier=sigma)
    plan = plan_of(dp_sgd_adaptive_clip(privacy, lr=0.5), sampler, 5, Accountant.PLD)
    assert told in plan.prices[-1]
    assert "share=0.01" in plan.chain


def test_runs_with_other_settings_have_other_plans():
    sampler = poisson(examples=200, expected_size=20)
    hashes = {
        plan_of(
            dp_sgd_adaptive_clip(PRIVACY, lr=0.5, **other), sampler, 5, Accountant.PLD
        ).plan_hash(sampler.relation, Accountant.PLD)
        for other in ({}, {"quantile": 0.6}, {"rate": 0.3}, {"share": 0.02})
    }
    assert len(hashes) == 4


# --- what it does -------------------------------------------------------------------------------


def of_norms(norms: torch.Tensor) -> LayeredGradients:
    each = torch.zeros(len(norms), 2).double()
    each[:, 0] = norms
    return LayeredGradients(
        {"w": MaterialisedGradients(each)}, torch.ones(len(norms), dtype=torch.bool)
    )


class Normal:
    """Noise of a seed."""

    def __init__(self):
        self.draws = torch.Generator().manual_seed(0)

    def release(self, total, *, standard_deviation):
        drawn = torch.randn(total.shape, generator=self.draws, dtype=torch.float64)
        return total + standard_deviation * drawn


@pytest.mark.parametrize("start", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9])
def test_the_clip_norm_finds_the_quantile(start, quantile):
    norms = torch.linspace(0.5, 1.5, 200).double()
    privacy = privatize(clip_norm=start, noise_multiplier=1.0)
    release = clip_adaptively(privacy, quantile=quantile)
    state, noise, seen = release.init({"w": torch.zeros(2)}), Normal(), []
    for index in range(1, 401):
        step = Step(index=index, expected_size=200.0, noise=noise, mean_gradient=lambda _batch: {})
        _, state = release.apply(of_norms(norms), state, step)
        seen.append(float(state[1]))
    assert np.mean(seen[-50:]) == pytest.approx(0.5 + quantile, rel=0.05)


def test_the_clip_norm_stays_within_bounds():
    """Batches that are all clipped, or never, do not drive it out of the range of float64."""
    for norm, bound in ((1e-30, 2e-6), (1e30, 2e6)):
        release = clip_adaptively(privatize(clip_norm=2.0, noise_multiplier=0.0), rate=50.0)
        state = release.init({"w": torch.zeros(2)})
        for index in range(1, 10):
            step = Step(
                index=index, expected_size=4.0, noise=Normal(), mean_gradient=lambda _batch: {}
            )
            _, state = release.apply(of_norms(torch.full((4,), norm).double()), state, step)
        assert float(state[1]) == pytest.approx(bound)


def test_noise_may_wait_while_the_clip_norm_moves():
    method = dp_sgd_adaptive_clip(PRIVACY, lr=0.1)
    assert method.allows_late_noise
    words = sparse.random(60, 30, density=0.1, format="csr", random_state=0, dtype=np.float32)
    held = PrivateRun(
        sparse_linear(30, 3),
        cross_entropy,
        examples(words, np.arange(60) % 3),
        method=method,
        sampler=poisson(examples=60, expected_size=5),
        steps=6,
        debug=True,
    )
    for batch in held.batches():
        held.step(batch)
    assert all(torch.isfinite(value).all() for value in held.params.values())


def test_debugging_counts_what_was_clipped_at_the_current_norm():
    """Nothing is clipped at the first norm, 1e-3; with a large rate all is, or nothing."""
    rows = torch.randn(50, 4)
    privacy = privatize(clip_norm=1e-3, noise_multiplier=0.0)
    result = fit(
        torch.nn.Linear(4, 2),
        cross_entropy,
        examples(rows, (rows[:, 0] > 0).long()),
        method=dp_sgd_adaptive_clip(privacy, lr=0.0001, rate=40.0),
        sampler=poisson(examples=50, expected_size=50),
        steps=2,
        debug=True,
    )
    first, second = result.debug
    assert (first["clipped_fraction"], second["clipped_fraction"]) == (1.0, 0.0)
    assert first["clip_norm"] == 1e-3 < second["clip_norm"]


def test_users_are_counted_as_one():
    rows, users = torch.randn(60, 4), torch.arange(60) % 12
    privacy = privatize(clip_norm=0.5, noise_multiplier=3.0, groups=by_user(most=3))
    result = fit(
        torch.nn.Linear(4, 2),
        cross_entropy,
        examples(rows, (rows[:, 0] > 0).long(), users=users),
        method=dp_sgd_adaptive_clip(privacy, lr=0.5),
        sampler=poisson(users=12, expected_size=4),
        steps=3,
    )
    assert result.privacy.unit == "user"
    assert 0 < result.privacy.epsilon < float("inf")


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [in_shares(minimum=2), by_each_device()])
def test_devices_that_add_noise_clip_at_a_fixed_norm(place):
    privacy = privatize(clip_norm=1.0, noise_multiplier=3.0, groups=by_user(most=3, noise=place))
    with pytest.raises(ContractError, match="devices clip at a fixed norm"):
        clip_adaptively(privacy)


def test_only_the_server_of_a_federation_clips():
    privacy = privatize(clip_norm=1.0, noise_multiplier=3.0, groups=by_user(most=3))
    method = chain(train_locally(lr=0.1, batch_size=4), clip_adaptively(privacy), sgd(1.0))
    assert task_of(method).clip_norm == float("inf")


@pytest.mark.parametrize(
    "wrong",
    [
        {"quantile": 0.0},
        {"quantile": 1.0},
        {"rate": 0.0},
        {"rate": float("inf")},
        {"share": 0.0},
        {"share": 0.6},
        {"share": float("nan")},
    ],
)
def test_settings_outside_their_range_are_refused(wrong):
    with pytest.raises(SettingError):
        clip_adaptively(PRIVACY, **wrong)


def test_other_starts_are_refused():
    with pytest.raises(ContractError, match="one rule"):
        clip_adaptively(clip_automatically(PRIVACY))
    with pytest.raises(SettingError, match="finite clip_norm"):
        clip_adaptively(privatize(clip_norm=float("inf"), noise_multiplier=0.0))
    release = clip_adaptively(privatize())
    step = Step(index=1, expected_size=4.0, noise=Normal(), mean_gradient=lambda _batch: {})
    with pytest.raises(OrderError, match="before the first step"):
        release.apply(of_norms(torch.ones(2)), release.init({}), step)


@pytest.mark.parametrize("rule", [clip_adaptively, clip_automatically])
def test_differences_of_local_training_are_clipped_by_either_rule(rule):
    rows, users = torch.randn(60, 4), torch.arange(60) % 12
    privacy = privatize(clip_norm=0.5, noise_multiplier=3.0, groups=by_user(most=3))
    result = fit(
        torch.nn.Linear(4, 2),
        cross_entropy,
        examples(rows, (rows[:, 0] > 0).long(), users=users),
        method=chain(train_locally(lr=0.1, batch_size=2), rule(privacy), sgd(1.0)),
        sampler=poisson(users=12, expected_size=4),
        steps=3,
    )
    assert 0 < result.privacy.epsilon < float("inf")
