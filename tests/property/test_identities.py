"""Identities that define AdaDPS, on random problems."""

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adadps import adadps, chain, dp_sgd, privatize, side
from adadps.data.examples import Examples, public_examples
from adadps.engine.noise.randomness import reproducible_not_private, secure
from adadps.engine.waist import Step, Units, clip_weights, reduce
from adadps.methods import adas, dp_r_pub, plain_sgd
from adadps.methods.side import RMSPropStatistics
from adadps.methods.stages import precondition, reparametrise, sgd
from adadps.tensors.sums import dense
from support.engine_checks import objective_of
from support.ground_truth import gradients_one_by_one
from support.problems import linear_dense, linear_sparse, perceptron

PROBLEM = st.sampled_from([linear_dense, linear_sparse, perceptron])
SEED = st.integers(0, 10_000)


def params_of(case):
    return {name: p.detach() for name, p in case.model.named_parameters()}


def step_with(noise, case=None, index=1, expected_size=4.0):
    params = params_of(case) if case else {}
    return Step(
        index=index,
        expected_size=expected_size,
        noise=noise,
        mean_gradient=lambda public: case.engine.mean_gradient(params, public.examples),
        differentiate=lambda rows: case.engine.per_unit(params, rows, None),
    )


def update_of(method, case, noise, batch=None):
    params = params_of(case)
    gradients = case.engine.per_unit(params, batch or case.batch, None)
    return method.apply(gradients, method.init(params), step_with(noise, case))[0]


def random_side(case, seed):
    rng = np.random.default_rng(seed)
    named = {
        name: torch.from_numpy(np.exp(rng.normal(0, 2, tuple(p.shape))))
        for name, p in params_of(case).items()
    }
    return side.fixed(named, source="random", public_because="made up")


def assert_equal(one, other, tolerance=1e-9):
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=tolerance, atol=tolerance)


def distance(one, other):
    return float(sum((dense(one[n]) - dense(other[n])).square().sum() for n in one)) ** 0.5


@settings(max_examples=30)
@given(
    problem=PROBLEM, seed=SEED, clip=st.floats(1e-3, 1e3), sigma=st.just(0.0) | st.floats(1e-3, 5)
)
def test_uniform_side_information_makes_adadps_dp_sgd(problem, seed, clip, sigma):
    case, privacy = problem(seed, 5), privatize(clip_norm=clip, noise_multiplier=sigma)
    plain = update_of(dp_sgd(privacy, lr=0.1), case, reproducible_not_private(seed))
    scaled = update_of(
        adadps(side.uniform(), privacy, lr=0.1), case, reproducible_not_private(seed)
    )
    assert_equal(scaled, plain)


@settings(max_examples=30)
@given(problem=PROBLEM, seed=SEED)
def test_without_noise_and_clip_adadps_is_adas(problem, seed):
    case = problem(seed, 5)
    source = random_side(case, seed)
    exposed = privatize(clip_norm=float("inf"), noise_multiplier=0.0)
    assert_equal(
        update_of(adadps(source, exposed, lr=0.3), case, secure()),
        update_of(adas(source, 0.3), case, secure()),
    )
    assert_equal(
        update_of(dp_sgd(exposed, lr=0.3), case, secure()),
        update_of(plain_sgd(0.3), case, secure()),
    )


@settings(max_examples=30)
@given(problem=PROBLEM, seed=SEED, clip=st.floats(1e-4, 1e4), spread=st.floats(0, 8))
def test_a_clipped_norm_is_at_most_c_under_any_d(problem, seed, clip, spread):
    case, rng = problem(seed, 4), np.random.default_rng(seed)
    params = params_of(case)
    diagonal = {
        name: torch.from_numpy(np.exp(spread * rng.normal(size=tuple(p.shape))))
        for name, p in params.items()
    }
    batch = case.engine.per_unit(params, case.batch, None).scale(diagonal)
    weights = clip_weights(batch.norms(), clip)
    for unit in range(4):
        alone = torch.zeros(4, dtype=torch.float64)
        alone[unit] = weights[unit]
        contribution = batch.weighted_sum(alone)
        zero = {name: torch.zeros_like(dense(value)) for name, value in contribution.items()}
        assert distance(contribution, zero) <= clip * (1 + 1e-9)


@settings(max_examples=30)
@given(problem=PROBLEM, seed=SEED, clip=st.floats(1e-2, 10))
def test_adding_one_example_moves_the_sum_by_at_most_c(problem, seed, clip):
    case = problem(seed, 6)
    params = params_of(case)

    def total(size):
        batch = case.engine.per_unit(params, case.batch.take(torch.arange(size)), None)
        return reduce(batch, lambda norms: clip_weights(norms, clip))

    assert distance(total(6), total(5)) <= clip * (1 + 1e-6)


@settings(max_examples=30)
@given(problem=PROBLEM, seed=SEED, clip=st.floats(1e-2, 10))
def test_adding_one_example_to_a_labelled_group_moves_the_sum_by_at_most_2c(problem, seed, clip):
    case = problem(seed, 7)
    params, labels = params_of(case), np.random.default_rng(seed).integers(3, size=7)

    def total(size):
        units = Units(torch.from_numpy(labels[:size]), 3, 1 / 2)
        batch = case.engine.per_unit(params, case.batch.take(torch.arange(size)), units)
        return reduce(batch, lambda norms: clip_weights(norms, clip))

    assert distance(total(7), total(6)) <= 2 * clip * (1 + 1e-6)


@settings(max_examples=30)
@given(problem=PROBLEM, seed=SEED, clip=st.floats(1e-2, 10), spread=st.floats(0, 5))
def test_adding_one_user_moves_the_sum_by_at_most_c_under_any_d(problem, seed, clip, spread):
    """This holds for any number of rows of this user and of others."""
    case, rng = problem(seed, 9), np.random.default_rng(seed)
    params, users = params_of(case), torch.from_numpy(np.sort(rng.integers(4, size=9)))
    diagonal = {
        name: torch.from_numpy(np.exp(spread * rng.normal(size=tuple(p.shape))))
        for name, p in params.items()
    }

    def total(kept):
        units = Units(users[kept], 4, None)
        batch = case.engine.per_unit(params, case.batch.take(kept), units).scale(diagonal)
        return reduce(batch, lambda norms: clip_weights(norms, clip))

    everybody = total(torch.arange(9))
    for user in users.unique():
        kept = torch.nonzero(users != user).squeeze(1)
        others = total(kept) if len(kept) else {n: torch.zeros_like(p) for n, p in params.items()}
        assert distance(everybody, others) <= clip * (1 + 1e-6)


def test_a_labelled_group_can_move_by_almost_2c():
    """The factor 2 is needed: the clipped gradient of a group can be reversed."""
    case = linear_sparse(0, 1)
    params, first = params_of(case), case.batch
    outputs = case.engine.outputs(params, first.features)
    opposite = outputs + 3 * (outputs - first.targets)  # its gradient is -3 times the first one's
    both = Examples(first.features.take(torch.tensor([0, 0])), torch.cat([first.targets, opposite]))
    units, clip = Units(torch.tensor([0, 0]), 1, 1.0), 1e-6

    def clipped(batch):
        return reduce(batch, lambda norms: clip_weights(norms, clip))

    alone = clipped(case.engine.per_unit(params, first, None))
    together = clipped(case.engine.per_unit(params, both, units))
    assert distance(alone, together) > 1.99 * clip


@settings(max_examples=30)
@given(problem=PROBLEM, seed=SEED)
def test_swapping_precondition_and_privatize_changes_the_result(problem, seed):
    case = problem(seed, 5)
    source, privacy = random_side(case, seed), privatize(clip_norm=0.01, noise_multiplier=1.0)
    before = update_of(
        chain(precondition(source), privacy, sgd(1.0)), case, reproducible_not_private(1)
    )
    after = update_of(
        chain(privacy, precondition(source), sgd(1.0)), case, reproducible_not_private(1)
    )
    assert distance(before, after) > 1e-6


@settings(max_examples=30)
@given(seed=SEED, power=st.floats(0.1, 1.0))
def test_the_third_door_is_dp_sgd_on_weighted_normalised_rows(seed, power):
    case, rng = linear_dense(seed, 5), np.random.default_rng(seed)
    frequencies = side.given_frequencies(
        rng.random(5) + 0.01, source="made up", public_because="made up"
    )
    source = side.frequency(frequencies, floor=0.01, power=power)
    weights = source.init(params_of(case)).scale["weight"].squeeze(0)
    weighted = case.batch.features.double() * weights
    rows = (weighted / weighted.norm(dim=1, keepdim=True)).float()
    held = reparametrise(source).prepare(objective_of(case))
    prepared = held.prepare(case.batch.features)
    torch.testing.assert_close(prepared, rows, rtol=1e-4, atol=1e-5)
    assert torch.allclose(prepared.norm(dim=1), torch.ones(5), atol=1e-5)
    direct = case.engine.per_unit(params_of(case), Examples(rows, case.batch.targets), None)
    through = held.per_unit(params_of(case), case.batch, None)
    torch.testing.assert_close(direct.norms(), through.norms(), rtol=1e-4, atol=1e-5)


@settings(max_examples=10)
@given(seed=SEED)
def test_public_statistics_enter_before_or_after_the_noise(seed):
    case = linear_dense(seed, 5)
    public = public_examples(
        case.batch.features,
        case.batch.targets,
        source="made up",
        public_because="made up",
        batch_size=3,
    )
    rule = RMSPropStatistics(decay=0.9, epsilon=1e-3)
    exposed = privatize(clip_norm=1e9, noise_multiplier=0.0)
    after = update_of(dp_r_pub(public, rule, exposed, lr=0.1), case, secure())
    before = update_of(adadps(side.public(public, rule), exposed, lr=0.1), case, secure())
    assume(distance(before, {n: torch.zeros_like(v) for n, v in before.items()}) > 0)
    assert_equal(before, after, 1e-6)  # without clipping and noise, both places are equivalent


def made_up(features, targets):
    told = {"source": "made up", "public_because": "made up"}
    return public_examples(features, targets, batch_size=len(features), **told)


LAYERED = st.sampled_from([linear_dense, perceptron])


@settings(max_examples=20)
@given(
    problem=LAYERED, seed=SEED, clip=st.floats(1e-3, 1e3), sigma=st.just(0.0) | st.floats(0.1, 5)
)
def test_whitening_by_the_identity_is_dp_sgd(problem, seed, clip, sigma):
    """Its matrices are the identity to the power of almost 0, whatever the moments are."""
    case, others = problem(seed, 5), problem(seed + 1, 7).batch
    privacy = privatize(clip_norm=clip, noise_multiplier=sigma)
    public = made_up(others.features, others.targets)
    plain = update_of(dp_sgd(privacy, lr=0.1), case, reproducible_not_private(seed))
    white = chain(precondition(side.whiten(public, exponent=1e-12)), privacy, sgd(0.1))
    assert_equal(update_of(white, case, reproducible_not_private(seed)), plain, 1e-5)


@settings(max_examples=20)
@given(
    seed=SEED,
    sizes=st.lists(st.floats(0.1, 10), min_size=5, max_size=5),
    damping=st.floats(0.01, 1),
    clip=st.floats(1e-2, 10),
    sigma=st.just(0.0) | st.floats(0.1, 5),
)
def test_whitening_by_a_diagonal_is_adadps_with_one_number_per_feature(
    seed, sizes, damping, clip, sigma
):
    """Public rows along the axes have diagonal second moments."""
    case = linear_dense(seed, 5, bias=False)
    privacy = privatize(clip_norm=clip, noise_multiplier=sigma)
    public = made_up(torch.diag(torch.tensor(sizes)), torch.zeros(5, dtype=torch.int64))
    white = chain(precondition(side.whiten(public, damping=damping)), privacy, sgd(0.1))
    moments = torch.tensor(sizes).double().square() / 5
    diagonal = (moments / moments.mean() + damping).sqrt()
    told = {"source": "made up", "public_because": "made up"}
    by_feature = adadps(side.fixed({"weight": (diagonal, 1)}, **told), privacy, lr=0.1)
    found, wanted = (
        update_of(method, case, reproducible_not_private(seed)) for method in (white, by_feature)
    )
    scale = max(1.0, float(dense(wanted["weight"]).abs().max()))
    assert_equal(found, wanted, 2e-5 * scale)


@settings(max_examples=20)
@given(problem=LAYERED, seed=SEED, outputs=st.booleans(), damping=st.floats(0.01, 1))
def test_whitened_norms_are_those_of_one_example_at_a_time(problem, seed, outputs, damping):
    case, others = problem(seed, 5), problem(seed + 1, 7).batch
    source = side.whiten(made_up(others.features, others.targets), outputs=outputs, damping=damping)
    found, _ = source.observe(source.init(params_of(case)), step_with(secure(), case))
    private = case.engine.per_unit(params_of(case), case.batch, None)
    norms = private.whiten(found.inputs, found.outputs).scale(found.scale).norms()
    for norm, each in zip(
        norms, gradients_one_by_one(case.model, case.loss, case.batch), strict=True
    ):
        squares = 0.0
        for name, matrix in found.inputs.items():
            bias = name.removesuffix("weight") + "bias"
            turned = torch.cat([each[name], each[bias].unsqueeze(1)], 1) @ matrix.double()
            if outputs:
                turned = found.outputs[name].double() @ turned
            squares += float(turned.square().sum())
        assert 2 * len(found.inputs) == len(each), "every layer has a matrix"
        torch.testing.assert_close(float(norm), squares**0.5, rtol=1e-4, atol=1e-6)
