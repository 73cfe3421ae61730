"""Every stage fulfils one contract, and only legal orders of stages can be built."""

from __future__ import annotations

import copy
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

from adadps import stages
from adadps.engine.rules.layered import LayeredGradients
from adadps.engine.waist import Update
from adadps.errors import OrderError
from adadps.methods.side import fixed, oracle, public
from adadps.methods.stages import (
    adam,
    average,
    average_weights,
    chain,
    cosine,
    inverse_sqrt,
    mix,
    momentum,
    precondition,
    pretrain,
    privatize,
    reparametrise,
    sgd,
)
from adadps.methods.stages.chain import Informed, Preparation, Release, Stage
from adadps.types import Kind
from support.stage_signals import (
    DATA,
    EVERY,
    PREPARATIONS,
    PRIVACY,
    RULE,
    SIDE,
    STAGES,
    TOLD,
    UPDATES,
    parameters,
    per_unit,
    released,
    step,
)

# --- the contract -------------------------------------------------------------------------------


def test_every_stage_of_the_package_stands_in_these_tables():
    joins = {"Chain", "Groups", "Stage", "Users", "chain"}
    groups = {"by_label", "by_position", "by_user", "in_advance"}
    noise = {"by_server", "in_shares", "by_each_device"}
    schedules = {"alternate", "cosine", "inverse_sqrt"}
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
    Kind.UPDATE: lambda: Update(released()),
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
    reading = ("precondition", "mix", "unscale", "reparametrise", "pretrain")
    assert sources == dict.fromkeys(reading, "a book")


def test_only_releases_turn_units_into_a_sum():
    assert {name for name, stage in EVERY.items() if isinstance(stage, Release)} == {
        "privatize",
        "clip_adaptively",
        "clip_automatically",
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
    "W": average_weights(0.9),
}
LEGAL = re.compile("E*P*[RA][PM]*UW?")
"""examples, per-unit gradients, one release, post-processing, one update, and an average."""


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
    "update_with > privatize": (
        (EVERY["update_with"], PRIVACY),
        "`update_with(AdamW, lr=0.1)` first",
        "Add `privatize(...)` or `average()`",
    ),
    "averages before the update": (
        (PRIVACY, average_weights(0.9), sgd(0.1)),
        "`average_weights(0.9)` after `privatize(C=1, σ=2)`",
        "Move it behind the update",
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
