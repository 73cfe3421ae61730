"""Runs on D and on D plus one row (or one replaced, or one user more).

Noise is off and chance is fixed: everything that leaves has to be the same in both worlds, but for
weights (`two_worlds.py` says how that is compared). Of weights one step is looked at: with noise
off they differ by no more than the clip allows. `ADADPS_WORLDS=20` tries 20 times as many.
"""

import random

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import adadps
from adadps import (
    Accountant,
    Budget,
    DiskLedger,
    Relation,
    by_user,
    dp_sgd,
    examples,
    fit,
    poisson,
    privatize,
    public_examples,
)
from adadps.engine.noise.randomness import grid
from adadps.methods.stages import chain, pretrain, sgd, train_locally
from adadps.training.federated import local_update
from support.federations import federated
from support.problems import cross_entropy
from support.two_worlds import THE_ONE, distance, left_by
from support.two_worlds_problems import (
    CLASSES,
    CLIP,
    KINDS,
    OPEN,
    PLAIN,
    SAMPLERS,
    SIGMA,
    TOKENS,
    WIDTH,
    Data,
    as_dense,
    as_sparse,
    both,
    data_for,
    one_step,
    relation_of,
    same,
    tried,
    with_dropout,
)
from support.two_worlds_runs import OPTIONS, run_of

ENDINGS = {"remembers": "ModelError"}
"""A model that writes into itself is refused in both worlds; all others end well."""


@pytest.mark.parametrize("name", KINDS)
def test_a_run_leaves_the_same_in_both_worlds(name):
    kind = KINDS[name]

    @tried(3)
    @given(data_for(kind), OPTIONS)
    def leaves_the_same(data, options):
        pipeline, relation = run_of(kind, options, data.size)
        one, _ = same(both(pipeline, data, relation), ENDINGS.get(name, "well"))
        assert one.weights or name in ENDINGS, "weights were compared"

    leaves_the_same()


def test_chance_inside_a_model_is_not_that_of_a_known_seed():
    """Whoever knows the seed of torch, numpy and random learns nothing about what was dropped."""

    def pipeline(world, seed):
        torch.manual_seed(1)
        model, rows = with_dropout(), as_dense(PLAIN.rows)
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        fit(
            model, cross_entropy, examples(rows, PLAIN.labels), steps=2, accountant=Accountant.RDP,
            method=dp_sgd(privatize(clip_norm=CLIP, noise_multiplier=SIGMA), lr=0.5),
            sampler=SAMPLERS["all"](4),
        )  # fmt: skip
        world.take(model)

    one, other = (left_by(pipeline, seed) for seed in (1, 2))
    assert one.ended == "well"
    assert distance(one, other) == 0


# --- what weights may differ by, in one step ---


GATES = Data(
    [[0.0] * WIDTH, [0.0] * WIDTH, *[[OPEN, 1.0, -1.0, 1.0]] * 6],
    [0, 1, *[0, 1, 2] * 2], 0, [OPEN, 0.0, 0.0, 0.0], 0,
)  # fmt: skip
"""The gate is shut for the first two rows of one world, and open for one of the first two of the
other: whoever chooses an engine by those chooses for everybody."""
ALONE = [name for name in KINDS if name not in ("with dropout", "remembers")]


def typical(kind):
    """Rows of the kind that all count, the one more included."""
    row = [1, 2, 3] if kind.rows is TOKENS else [1.0, 0.25, 0.0, 1.0]
    return Data([row[::-1]] * 4, [0, 1, 2, 0], 1, row, 1)


@pytest.mark.parametrize("name", ALONE)
def test_one_step_moves_by_the_clip_and_no_further(name):
    """Without its noise, a released sum differs by C (2C for a replacement), and by its grid."""
    kind = KINDS[name]
    chunk = st.sampled_from([None, 1, 2])

    @tried(4)
    @given(data_for(kind), st.sampled_from(list(SAMPLERS)), chunk)
    @example(GATES if name == "gated" else typical(kind), "all", None)
    def moves(data, sampler_name, physical_batch_size):
        sampler = SAMPLERS[sampler_name](data.size)
        pipeline = one_step(kind, sampler, physical_batch_size=physical_batch_size)
        relation = relation_of(sampler)
        one, other = same(both(pipeline, data, relation))
        assert one.weights, "weights were compared"
        entries = sum(value.numel() for value in one.weights)
        most = CLIP if relation is Relation.ADD_OR_REMOVE_ONE else 2 * CLIP
        width = grid(SIGMA * CLIP)
        assert distance(one, other) * sampler.expected_size <= most + 1.5 * width * entries**0.5

    moves()


@tried(6)
@given(data_for(KINDS["linear, sparse"], least=2, most=3), st.sampled_from([1.0, 1e-3]))
def test_words_of_others_do_not_move_in_a_bit(data, lr):
    """Also where the other world has an empty batch, and whatever the scale of the weights."""
    sampler = poisson(examples=1000, expected_size=0.1)  # nobody but the one more is drawn
    one, other = same(both(one_step(KINDS["linear, sparse"], sampler, lr), data))
    untouched = torch.tensor(data.odd) == 0
    assert torch.equal(one.weights[0][:, untouched], other.weights[0][:, untouched])


def test_a_row_that_is_public_as_well_moves_nothing():
    """It is left out, and nobody sees it: here even the weights are the same."""
    kind = KINDS["linear"]

    @tried(6)
    @given(data_for(kind))
    def stays(data):
        public = public_examples(
            as_dense([data.odd, [9.0] * WIDTH]), [data.odd_label, 0],
            source="a list", public_because="printed", batch_size=1,
        )  # fmt: skip
        method = chain(
            pretrain(public, sgd(0.1), epochs=1),
            privatize(clip_norm=CLIP, noise_multiplier=SIGMA),
            sgd(0.5),
        )

        def pipeline(world, given):
            rows, labels = given
            torch.manual_seed(1)
            model = kind.model()
            result = fit(
                model, cross_entropy, examples(as_dense(rows), labels), method=method, steps=2,
                sampler=SAMPLERS["all"](data.size), accountant=Accountant.RDP,
            )  # fmt: skip
            world.take(model)
            result.save(world.folder / "result")

        one, other = same(both(pipeline, data))
        assert distance(one, other) == 0

    stays()


# --- one user more ---


@st.composite
def owned(draw):
    """Rows of some users, and rows of one more."""
    kind = KINDS["linear, sparse"]
    data = draw(data_for(kind, least=4, most=6))
    owners = draw(st.lists(st.integers(0, 3), min_size=data.size, max_size=data.size))
    more = draw(st.lists(kind.rows, min_size=1, max_size=3))
    return data, [f"u{owner}" for owner in owners], more


def with_one_user_more(pipeline, data, owners, more):
    """Both worlds; the user's rows stand at one place."""
    found = []
    for rows_of_one in ([], more):
        place, count = data.place, len(rows_of_one)
        rows = [*data.rows[:place], *rows_of_one, *data.rows[place:]]
        labels = [*data.labels[:place], *[data.odd_label] * count, *data.labels[place:]]
        whose = [*owners[:place], *[THE_ONE] * count, *owners[place:]]
        found.append(left_by(pipeline, (rows, labels, whose), list(dict.fromkeys(whose))))
    return found


@tried(8)
@given(owned(), st.integers(1, 3), st.sampled_from([1, 4]))
def test_a_user_more_leaves_the_same(problem, most, expected):
    groups = by_user(most=most)
    release = privatize(clip_norm=CLIP, noise_multiplier=SIGMA, groups=groups)

    def pipeline(world, given):
        rows, labels, whose = given
        data = examples(as_sparse(rows), labels, users=whose)
        model = adadps.sparse_linear(WIDTH, CLASSES)
        ledger = DiskLedger(world.folder / "paid", budget=Budget(50.0, 1e-3))
        result = fit(
            model,
            cross_entropy,
            data,
            method=dp_sgd(release, lr=0.5),
            sampler=poisson(users=4, expected_size=expected),
            steps=2,
            accountant=Accountant.RDP,
            ledger=ledger,
            checkpoints=world.folder / "kept",
        )
        world.tell(data)
        world.take(model)
        result.save(world.folder / "result")

    same(with_one_user_more(pipeline, *problem))


@tried(4)
@given(owned())
def test_a_device_more_leaves_the_same(problem):
    """A federation in which one more device is there: the server's run tells nothing of it."""

    def pipeline(world, given):
        rows, labels, whose = given
        users = list(dict.fromkeys(whose))
        rows, labels = as_sparse(rows), np.array(labels)
        torch.manual_seed(1)
        model = adadps.sparse_linear(WIDTH, CLASSES)
        run = federated(
            DEVICES,
            poisson(users=8, expected_size=8),
            rounds=2,
            weights=model,
            ledger=DiskLedger(world.folder / "paid"),
            accountant=Accountant.RDP,
            checkpoints=world.folder / "kept",
        )
        for batch in run.batches():
            for node in run.cohort(batch, range(len(users))):
                with torch.random.fork_rng(devices=[]):  # of another machine
                    copy = adadps.sparse_linear(WIDTH, CLASSES)
                copy.load_state_dict({name: one.clone() for name, one in run.params.items()})
                own = [place for place, user in enumerate(whose) if user == users[node]]
                data = examples(rows[own], labels[own])
                run.answer(batch, node, local_update(run.task, copy, cross_entropy, data))
            world.tell(batch)
            world.look()
            run.step(batch)
        world.take(model)
        world.tell(run.discarded, run.epsilon())
        run.result().save(world.folder / "result")

    same(with_one_user_more(pipeline, *problem))


DEVICES = chain(
    train_locally(lr=0.5, batch_size=2, epochs=1),
    privatize(clip_norm=CLIP, noise_multiplier=SIGMA, groups=by_user(most=5)),
    sgd(0.9),
)
