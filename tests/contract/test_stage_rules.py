"""Every stage fulfils one contract, and only legal orders of stages can be built."""

from __future__ import annotations

import copy
import inspect
import itertools
import re
from collections.abc import Callable

import pytest
import torch
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    SelfComposedDpEvent,
)

from adadps import public_examples, stages
from adadps.engine.noise.randomness import secure
from adadps.engine.rules.gradients import LayeredGradients, MaterialisedGradients
from adadps.engine.waist import Step
from adadps.errors import ContractError, OrderError, SettingError
from adadps.methods.side import RMSPropStatistics, fixed, oracle, public
from adadps.methods.stages import (
    adagrad,
    adam,
    average,
    by_label,
    by_position,
    chain,
    cosine,
    in_advance,
    inverse_sqrt,
    mix,
    momentum,
    precondition,
    pretrain,
    privatize,
    reparametrise,
    rmsprop,
    sgd,
    train_locally,
)
from adadps.methods.stages.chain import Informed, Preparation, Release, Stage
from adadps.tensors.sums import Params
from adadps.types import Kind

TOLD = {"source": "a book", "public_because": "published"}
DATA = public_examples([[1.0, 0.0], [0.0, 2.0]], [0, 1], batch_size=1, **TOLD)
SIDE = fixed({"weight": (torch.tensor([1.0, 0.5]), 1)}, **TOLD)
RULE = RMSPropStatistics(decay=0.9, epsilon=1e-3)
PRIVACY = privatize(clip_norm=1.0, noise_multiplier=2.0)

STAGES = {
    "precondition": precondition(SIDE),
    "privatize": PRIVACY,
    "average": average(),
    "mix": mix(DATA, 0.5),
    "momentum": momentum(0.9),
    "sgd": sgd(0.1),
    "adam": adam(0.1),
    "rmsprop": rmsprop(0.1),
    "adagrad": adagrad(0.1),
}
PREPARATIONS = {
    "reparametrise": reparametrise(SIDE),
    "pretrain": pretrain(DATA, rmsprop(0.1), epochs=1),
    "train_locally": train_locally(lr=0.1, batch_size=2),
}
EVERY = {**STAGES, **PREPARATIONS}
UPDATES = ("sgd", "adam", "rmsprop", "adagrad")


def parameters() -> Params:
    return {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}


def per_unit() -> LayeredGradients:
    weight = torch.arange(24.0).reshape(4, 3, 2) - 11
    present = torch.ones(4, dtype=torch.bool)
    return LayeredGradients(
        {"weight": MaterialisedGradients(weight), "bias": MaterialisedGradients(weight[:, :, 0])},
        present,
    )


def released() -> Params:
    weight = torch.arange(6, dtype=torch.float64).reshape(3, 2) - 2
    return {"weight": weight, "bias": weight[:, 0].clone()}


class Loud:
    """Known noise: one standard deviation everywhere."""

    def release(self, total: torch.Tensor, *, standard_deviation: float) -> torch.Tensor:
        return total + standard_deviation


def step(index: int = 1) -> Step:
    gradient = {name: torch.ones_like(p) for name, p in parameters().items()}
    return Step(index=index, expected_size=4.0, noise=Loud(), mean_gradient=lambda _batch: gradient)


# --- the contract -------------------------------------------------------------------------------


def test_every_stage_of_the_package_stands_in_these_tables():
    joins = {"Chain", "Groups", "Stage", "Users", "chain"}
    groups = {"by_label", "by_position", "by_user", "in_advance"}
    noise = {"by_server", "in_shares", "by_each_device"}
    schedules = {"cosine", "inverse_sqrt"}
    assert set(EVERY) == set(stages.__all__) - joins - groups - noise - schedules


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES.keys())
def test_stages_keep_the_protocol(stage):
    assert isinstance(stage, Stage)
    assert not isinstance(stage, Preparation)


@pytest.mark.parametrize("stage", PREPARATIONS.values(), ids=PREPARATIONS.keys())
def test_preparations_keep_the_protocol(stage):
    assert isinstance(stage, Preparation)
    assert not isinstance(stage, Stage)
    assert stage.rule == {Kind.EXAMPLES: Kind.EXAMPLES}


SIGNALS: dict[Kind, Callable[[], object]] = {
    Kind.PER_UNIT: per_unit,
    Kind.RELEASED: released,
    Kind.EXPOSED: released,
}
APPLICATIONS = [(name, kind) for name, stage in STAGES.items() for kind in stage.rule]
every_application = pytest.mark.parametrize(
    ("name", "kind"), APPLICATIONS, ids=[f"{name} on {kind.name}" for name, kind in APPLICATIONS]
)


@every_application
def test_a_stage_gives_what_its_rule_says(name, kind):
    stage = STAGES[name]
    signal, _ = stage.apply(SIGNALS[kind](), stage.init(parameters()), step())
    if stage.rule[kind] is Kind.PER_UNIT:
        assert signal.norms().shape == (4,)
    else:
        found = {name: (tuple(value.shape), value.dtype) for name, value in signal.items()}
        assert found == {"weight": ((3, 2), torch.float64), "bias": ((3,), torch.float64)}


@every_application
def test_a_stage_changes_neither_its_signal_nor_its_state(name, kind):
    stage, signal = STAGES[name], SIGNALS[kind]()
    state = stage.init(parameters())
    first, following = stage.apply(signal, state, step())
    first = copy.deepcopy(first)
    stage.apply(signal, following, step(2))
    again, _ = stage.apply(signal, state, step())
    assert_same(again, first)
    assert_same(signal, SIGNALS[kind]())


def assert_same(found: object, expected: object) -> None:
    if isinstance(found, LayeredGradients):
        ones = torch.ones(4, dtype=torch.float64)
        found, expected = found.weighted_sum(ones), expected.weighted_sum(ones)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_stages_that_read_public_data_say_where_it_came_from():
    sources = {n: s.provenance.source for n, s in EVERY.items() if isinstance(s, Informed)}
    reading = ("precondition", "mix", "reparametrise", "pretrain")
    assert sources == dict.fromkeys(reading, "a book")


def test_only_privatize_and_average_turn_units_into_a_sum():
    assert {name for name, stage in EVERY.items() if isinstance(stage, Release)} == {
        "privatize",
        "average",
    }


# --- order --------------------------------------------------------------------------------------

LETTERS = {
    "E": reparametrise(SIDE),
    "P": precondition(SIDE),
    "R": PRIVACY,
    "A": average(),
    "M": momentum(0.9),
    "U": sgd(0.1),
}
LEGAL = re.compile("E*P*[RA][PM]*U")
"""examples, per-unit gradients, one release, post-processing, one update."""


def is_built(word: tuple[str, ...]) -> bool:
    try:
        chain(*(LETTERS[letter] for letter in word))
    except OrderError:
        return False
    return True


@pytest.mark.parametrize("length", range(6))
def test_a_chain_is_built_if_and_only_if_its_order_is_legal(length):
    words = itertools.product(LETTERS, repeat=length)
    wrong = [w for w in words if is_built(w) != bool(LEGAL.fullmatch("".join(w)))]
    assert wrong == []


@pytest.mark.parametrize("name", ["mix", "momentum", "precondition"])
@pytest.mark.parametrize("release", ["privatize", "average"])
@pytest.mark.parametrize("update", UPDATES)
def test_post_processing_stands_between_release_and_update(name, release, update):
    built = chain(EVERY[release], EVERY[name], EVERY[update])
    assert built.stages == (EVERY[release], EVERY[name], EVERY[update])


def test_two_sided_preconditioning_is_legal():
    chain(precondition(SIDE), PRIVACY, precondition(SIDE), sgd(0.1))


ILLEGAL = {
    "sgd > privatize": ((sgd(0.1), PRIVACY), "`sgd(0.1)` first", "Add `privatize(...)`"),
    "privatize > privatize": (
        (PRIVACY, PRIVACY, sgd(0.1)),
        "`privatize(C=1, σ=2)` after `privatize(C=1, σ=2)`",
        "remove it",
    ),
    "precondition > sgd": (
        (precondition(SIDE), sgd(0.1)),
        "`sgd(0.1)` after `precondition(a book)`",
        "Add `privatize(...)` or `average()`",
    ),
    "mix > privatize": (
        (mix(DATA, 0.5), PRIVACY, sgd(0.1)),
        "`mix(a book)` first",
        "Add `privatize(...)` or `average()`",
    ),
    "momentum > privatize": (
        (momentum(0.9), PRIVACY, sgd(0.1)),
        "`momentum(0.9)` first",
        "Add `privatize(...)` or `average()`",
    ),
    "average > privatize": (
        (average(), PRIVACY, sgd(0.1)),
        "`privatize(C=1, σ=2)` after `average()`",
        "remove it",
    ),
    "privatize > average": (
        (PRIVACY, average(), sgd(0.1)),
        "`average()` after `privatize(C=1, σ=2)`",
        "remove it",
    ),
    "update not last": (
        (PRIVACY, sgd(0.1), momentum(0.9)),
        "`momentum(0.9)` after `sgd(0.1)`",
        "The update must come last",
    ),
    "two updates": (
        (PRIVACY, sgd(0.1), adam(0.2)),
        "`adam(0.2)` after `sgd(0.1)`",
        "The update must come last",
    ),
    "reparametrise after privatize": (
        (PRIVACY, reparametrise(SIDE), sgd(0.1)),
        "`reparametrise(a book)` after `privatize(C=1, σ=2)`",
        "move it before `privatize(...)`",
    ),
    "reparametrise after precondition": (
        (precondition(SIDE), reparametrise(SIDE), PRIVACY, sgd(0.1)),
        "`reparametrise(a book)` after `precondition(a book)`",
        "move it",
    ),
    "reparametrise after sgd": (
        (PRIVACY, sgd(0.1), reparametrise(SIDE)),
        "`reparametrise(a book)` after `sgd(0.1)`",
        "move it",
    ),
    "pretrain after privatize": (
        (PRIVACY, PREPARATIONS["pretrain"], sgd(0.1)),
        "`pretrain(a book, 1 epochs)` after `privatize(C=1, σ=2)`",
        "move it before `privatize(...)`",
    ),
    "no update": ((PRIVACY,), "found released (privatized) gradients", "Add `sgd(...)`"),
    "no release": ((precondition(SIDE),), "found per-unit gradients", "Add `sgd(...)`"),
    "empty": ((), "found examples", "Add `sgd(...)`"),
}


@pytest.mark.parametrize(("wrong", "culprit", "cure"), ILLEGAL.values(), ids=ILLEGAL.keys())
def test_a_wrong_order_is_refused_with_the_culprit_and_a_cure(wrong, culprit, cure):
    with pytest.raises(OrderError) as refused:
        chain(*wrong)
    assert culprit in str(refused.value)
    assert cure.lower() in str(refused.value).lower()


@pytest.mark.parametrize("name", sorted(STAGES.keys() - set(UPDATES)))
def test_pretraining_with_a_stage_that_is_no_update_is_refused(name):
    with pytest.raises(OrderError, match="update"):
        pretrain(DATA, STAGES[name], epochs=1)


# --- what a chain states about itself -------------------------------------------------------------


def test_a_chain_reads_like_its_order():
    method = chain(
        reparametrise(SIDE),
        precondition(SIDE),
        privatize(clip_norm=0.5, noise_multiplier=1.25),
        mix(DATA, cosine(10)),
        momentum(0.9),
        adam(inverse_sqrt(0.1)),
    )
    assert str(method) == (
        "reparametrise(a book) > precondition(a book) > privatize(C=0.5, σ=1.25) > "
        "mix(a book) > momentum(0.9) > adam(0.1/√t)"
    )


@pytest.mark.parametrize("stage", EVERY.values(), ids=EVERY.keys())
def test_no_stage_shows_its_memory_address(stage):
    assert re.fullmatch(r"[a-z_]+\(.*\)", str(stage))
    assert " at 0x" not in str(stage)


def test_preparations_and_steps_are_told_apart():
    method = chain(*PREPARATIONS.values(), PRIVACY, sgd(0.1))
    assert method.preparations == tuple(PREPARATIONS.values())
    assert method.steps == (PRIVACY, sgd(0.1))
    assert method.release is PRIVACY
    reads = (PREPARATIONS["reparametrise"], PREPARATIONS["pretrain"])
    assert method.informed == reads, "local training without side information reads none"


def with_side(event: object) -> object:
    return precondition(fixed({"weight": (torch.ones(2), 1)}, event=event, **TOLD))


PRIVATE = {
    "dp-sgd": (PRIVACY, sgd(0.1)),
    "adadps": (precondition(SIDE), PRIVACY, sgd(0.1)),
    "public data everywhere": (
        *PREPARATIONS.values(),
        precondition(public(DATA, RULE)),
        PRIVACY,
        mix(DATA, 0.5),
        sgd(0.1),
    ),
    "side information that was paid for": (with_side(GaussianDpEvent(1.0)), PRIVACY, sgd(0.1)),
}


@pytest.mark.parametrize("method", PRIVATE.values(), ids=PRIVATE.keys())
def test_a_private_chain_has_no_exposures(method):
    assert chain(*method).exposures == ()


ORACLE = oracle(DATA.examples, RULE, batch_size=1)
HIDDEN = ComposedDpEvent([GaussianDpEvent(1.0), SelfComposedDpEvent(NonPrivateDpEvent(), 2)])
EXPOSED = {
    "average": ((average(), sgd(0.1)), "average() adds no noise"),
    "no noise": (
        (privatize(clip_norm=1.0, noise_multiplier=0.0), sgd(0.1)),
        "privatize(C=1, σ=0) adds no noise",
    ),
    "no clip": (
        (privatize(clip_norm=float("inf"), noise_multiplier=0.0), sgd(0.1)),
        "privatize(C=inf, σ=0)",
    ),
    "oracle before": ((precondition(ORACLE), PRIVACY, sgd(0.1)), "reads private data"),
    "oracle after": ((PRIVACY, precondition(ORACLE), sgd(0.1)), "reads private data"),
    "oracle in features": ((reparametrise(ORACLE), PRIVACY, sgd(0.1)), "reads private data"),
    "side event": ((with_side(NonPrivateDpEvent()), PRIVACY, sgd(0.1)), "reads private data"),
    "side event inside others": ((with_side(HIDDEN), PRIVACY, sgd(0.1)), "reads private data"),
}


@pytest.mark.parametrize(("method", "reason"), EXPOSED.values(), ids=EXPOSED.keys())
def test_hazard_24_a_chain_that_is_not_private_says_why(method, reason):
    assert len(found := chain(*method).exposures) == 1
    assert reason in found[0]


def test_every_exposure_is_named():
    method = chain(precondition(ORACLE), average(), precondition(ORACLE), sgd(0.1))
    assert len(method.exposures) == 3


# --- settings of single stages ------------------------------------------------------------------

OUT_OF_RANGE: dict[str, Callable[[], object]] = {
    "clip norm 0": lambda: privatize(clip_norm=0.0, noise_multiplier=1.0),
    "negative clip norm": lambda: privatize(clip_norm=-1.0, noise_multiplier=1.0),
    "clip norm NaN": lambda: privatize(clip_norm=float("nan"), noise_multiplier=1.0),
    "noise without clip": lambda: privatize(clip_norm=float("inf"), noise_multiplier=1.0),
    "negative noise": lambda: privatize(clip_norm=1.0, noise_multiplier=-1.0),
    "infinite noise": lambda: privatize(clip_norm=1.0, noise_multiplier=float("inf")),
    "noise NaN": lambda: privatize(clip_norm=1.0, noise_multiplier=float("nan")),
    "learning rate 0": lambda: sgd(0.0),
    "negative schedule": lambda: sgd(lambda t: -t),
    "infinite learning rate": lambda: adam(float("inf")),
    "adam beta 1": lambda: adam(0.1, betas=(0.9, 1.0)),
    "rmsprop decay 1": lambda: rmsprop(0.1, decay=1.0),
    "adagrad epsilon 0": lambda: adagrad(0.1, epsilon=0.0),
    "momentum 1": lambda: momentum(1.0),
    "no epochs": lambda: pretrain(DATA, rmsprop(0.1), epochs=0),
    "empty groups": lambda: by_label(0),
    "cosine over no steps": lambda: cosine(0),
}


@pytest.mark.parametrize("build", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE.keys())
def test_settings_out_of_range_are_refused(build):
    with pytest.raises(SettingError, match=r"Expected .* found"):
        build()


@pytest.mark.parametrize("beta", [-0.1, 1.1])
def test_a_share_of_private_gradient_outside_of_0_and_1_is_refused(beta):
    with pytest.raises(SettingError, match="beta"):
        mix(DATA, beta).apply(released(), None, step())


def test_privacy_parameters_have_no_silent_default():
    """Left out, they are open: such a chain is not private, and cannot be applied."""
    given = inspect.signature(privatize).parameters
    for name in ("clip_norm", "noise_multiplier"):
        assert given[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert given[name].default is None
    for stage in (privatize(), privatize(clip_norm=1.0), privatize(noise_multiplier=1.0)):
        method = chain(stage, sgd(0.1))
        assert method.is_open
        assert "no clip norm or no noise yet" in method.exposures[0]
        with pytest.raises(OrderError, match="before the first step"):
            method.apply(None, method.init({}), step())


# --- groups -------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [by_label, in_advance])
def test_privatize_takes_groups(build):
    groups = build(4)
    method = chain(privatize(clip_norm=1.0, noise_multiplier=1.0, groups=groups), sgd(0.1))
    assert method.release.groups is groups
    assert "of 4" in str(method)


def test_no_other_stage_takes_groups():
    takes = {
        name for name in EVERY if "groups" in inspect.signature(getattr(stages, name)).parameters
    }
    assert takes == {"privatize", "average"}


def test_an_average_has_no_groups():
    assert chain(average(), sgd(0.1)).release.groups is None


def test_hazard_03_groups_by_position_are_refused():
    with pytest.raises(ContractError, match="by_label"):
        by_position(4)


def test_a_sum_of_groups_is_divided_by_the_expected_number_of_groups():
    grouped = privatize(clip_norm=100.0, noise_multiplier=0.0, groups=by_label(2))
    alone = privatize(clip_norm=100.0, noise_multiplier=0.0)
    of_groups, _ = grouped.apply(per_unit(), grouped.init(parameters()), step())
    of_each, _ = alone.apply(per_unit(), alone.init(parameters()), step())
    torch.testing.assert_close(of_groups["weight"], 2 * of_each["weight"])


def test_noise_is_asked_for_at_sigma_times_c():
    quiet = privatize(clip_norm=0.5, noise_multiplier=0.0)
    noisy = privatize(clip_norm=0.5, noise_multiplier=3.0)
    without, _ = quiet.apply(per_unit(), quiet.init(parameters()), step())
    found, _ = noisy.apply(per_unit(), noisy.init(parameters()), step())
    torch.testing.assert_close(found["bias"], without["bias"] + 3.0 * 0.5 / 4.0)


def test_noise_from_the_operating_system_differs_each_time():
    now = Step(index=1, expected_size=4.0, noise=secure(), mean_gradient=lambda _batch: {})
    first, second = (PRIVACY.apply(per_unit(), {}, now)[0]["weight"] for _ in range(2))
    assert not torch.equal(first, second)
