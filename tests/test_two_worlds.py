"""Whole pipelines on D and on D plus one row (or one replaced, or one user more).

Noise is off and chance is fixed: everything that leaves has to be the same in both worlds, but for
weights (`two_worlds.py` says how that is compared). Of weights one step is looked at: with noise
off they differ by no more than the clip allows. `ADADPS_WORLDS=20` tries 20 times as many.
"""

import csv
import io
import logging
import random
import shutil
import sqlite3
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import sparse
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

import adadps
from adadps import (
    Accountant,
    AdaDPSClassifier,
    AdaDPSRegressor,
    Budget,
    Checkpoints,
    DataError,
    DiskLedger,
    MemoryLedger,
    PrivateRun,
    Relation,
    by_user,
    dp_adam,
    dp_sgd,
    examples,
    fit,
    fixed_grid,
    fixed_size,
    highest,
    load_result,
    on_held_out,
    on_public,
    poisson,
    private_accuracy,
    privatize,
    public_examples,
    shuffled,
    tune,
)
from adadps.cli import app
from adadps.commands import console as consoles
from adadps.drawing import Drawing
from adadps.federated import local_update
from adadps.noise import grid
from adadps.result import save_tensors
from adadps.stages import by_label, chain, pretrain, sgd, train_locally
from adadps.stages.privatize import Privatize
from adadps.table_model import targets as table_targets
from federations import federated
from models import Custom
from problems import cross_entropy
from two_worlds import PROFILE, THE_ONE, differences, distance, left_by, metrics

WIDTH, CLASSES = 4, 3
CLIP, SIGMA = 0.5, 0.75


def tried(count):
    """This many examples, the same in every run; many more for `make torture`.

    With a count of 0 there are more only then, beside those that are written down.
    """
    quick = PROFILE == 1 and not count
    return settings(
        max_examples=max(1, count) * PROFILE,
        deadline=None,
        # runs are too slow to be made smaller after a failure
        phases=[Phase.explicit] if quick else [Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


# --- models, and rows for them ---


class Remembers(nn.Module):
    """Keeps what it has seen: in a buffer, and as an attribute."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.last = None

    def forward(self, x):
        self.seen = x.detach()[0].clone()
        self.last = x.detach().clone()
        return self.layer(x)


class Gated(nn.Module):
    """Uses a weight behind its layer's back, for rows that open a gate."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        gate = (x[:, :1] > OPEN / 2).to(x.dtype)
        return self.layer(x) + gate * functional.linear(
            -2 * OPEN * torch.tanh(x), self.layer.weight
        )


def with_dropout():
    return Custom(
        lambda m, x: m.head(m.drop(torch.tanh(m.layer(x)))),
        layer=nn.Linear(WIDTH, 3),
        drop=nn.Dropout(0.5),
        head=nn.Linear(3, CLASSES),
    )


def bag():
    return nn.Sequential(nn.EmbeddingBag(6, 3, mode="sum"), nn.Tanh(), nn.Linear(3, CLASSES))


def perceptron():
    return nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, CLASSES))


OPEN = 6e3
NUMBERS = st.sampled_from([0.0, 0.5, -1.0, 2.0, 1e-30, -7e4, OPEN, 3e30])
DENSE = st.lists(NUMBERS, min_size=WIDTH, max_size=WIDTH)
COUNTS = st.lists(st.sampled_from([0.0, 0.0, 1.0, 0.25]), min_size=WIDTH, max_size=WIDTH)
TOKENS = st.lists(st.integers(0, 5), min_size=3, max_size=3)


def as_dense(rows):
    return np.array(rows, np.float32)


def as_sparse(rows):
    return sparse.csr_matrix(np.array(rows, np.float32))


def as_tokens(rows):
    return np.array(rows, np.int64)


@dataclass(frozen=True)
class Kind:
    """A model, and rows that it reads."""

    model: Callable[[], nn.Module]
    rows: Any
    features: Callable[[Any], Any]


KINDS = {
    "linear": Kind(lambda: nn.Linear(WIDTH, CLASSES), DENSE, as_dense),
    "linear, sparse": Kind(lambda: adadps.sparse_linear(WIDTH, CLASSES), COUNTS, as_sparse),
    "embedding bag": Kind(bag, TOKENS, as_tokens),
    "perceptron": Kind(perceptron, DENSE, as_dense),
    "perceptron, sparse": Kind(perceptron, COUNTS, as_sparse),
    "with dropout": Kind(with_dropout, DENSE, as_dense),
    "remembers": Kind(Remembers, DENSE, as_dense),
    "gated": Kind(Gated, DENSE, as_dense),
}


@dataclass(frozen=True)
class Data:
    """Rows with labels, and how the two worlds differ."""

    rows: list[Any]
    labels: list[int]
    place: int
    odd: Any
    odd_label: int

    @property
    def size(self):
        return len(self.rows)

    def world(self, relation, *, other):
        """Rows, labels and names of one world; the ``other`` has one row more, or another."""
        rows, labels, names = list(self.rows), list(self.labels), list(range(self.size))
        if other and relation is Relation.ADD_OR_REMOVE_ONE:
            rows.insert(self.place, self.odd)
            labels.insert(self.place, self.odd_label)
            names.insert(self.place, THE_ONE)
        elif other:
            rows[self.place], labels[self.place] = self.odd, self.odd_label
        return rows, labels, names


@st.composite
def data_for(draw, kind, least=3, most=5):
    size = draw(st.integers(least, most))
    label = st.integers(0, CLASSES - 1)
    return Data(
        draw(st.lists(kind.rows, min_size=size, max_size=size)),
        draw(st.lists(label, min_size=size, max_size=size)),
        draw(st.integers(0, size - 1)),
        draw(kind.rows),
        draw(label),
    )


def both(pipeline, data, relation=Relation.ADD_OR_REMOVE_ONE):
    """What the pipeline leaves in either world."""
    found = []
    for other in (False, True):
        rows, labels, names = data.world(relation, other=other)
        found.append(left_by(pipeline, (rows, labels), names))
    return found


def same(worlds, ending="well"):
    """Both worlds left the same, and ended as they should."""
    one, other = worlds
    assert differences(one, other) == []
    assert one.ended.startswith(ending)
    return worlds


# --- fit and PrivateRun ---

SAMPLERS = {
    "all": lambda n: poisson(examples=n, expected_size=n),
    "some": lambda n: poisson(examples=n, expected_size=1),
    "fixed size": lambda n: fixed_size(examples=n, expected_size=2),
    "shuffled": lambda n: shuffled(examples=n, expected_size=2),
}


def relation_of(sampler):
    """Zero out is shown as a replacement: what leaves may not depend on that one row anyway."""
    added = sampler.relation is Relation.ADD_OR_REMOVE_ONE
    return sampler.relation if added else Relation.REPLACE_ONE


@dataclass(frozen=True)
class Options:
    """Of a run by `PrivateRun`."""

    sampler: str
    method: str
    checkpoints: bool
    ledger: str
    physical_batch_size: int | None
    grouped: bool
    steps: int

    def chain(self, release):
        if self.method == "dp_adam":
            return dp_adam(release, lr=0.1)
        return chain(release, sgd(0.5, weight_decay=0.1 if self.method == "decay" else 0.0))


OPTIONS = st.builds(
    Options,
    sampler=st.sampled_from(list(SAMPLERS)),
    method=st.sampled_from(["dp_sgd", "dp_adam", "decay"]),
    checkpoints=st.booleans(),
    ledger=st.sampled_from(["memory", "disk"]),
    physical_batch_size=st.sampled_from([None, 1, 2]),
    grouped=st.booleans(),
    steps=st.integers(1, 3),
)


def run_of(kind, options, size):
    """A private run of any kind, from examples to what it tells."""
    sampler = SAMPLERS[options.sampler](size)
    grouped = options.grouped and sampler.relation is Relation.ADD_OR_REMOVE_ONE
    release = privatize(
        clip_norm=CLIP, noise_multiplier=SIGMA, groups=by_label(size=2) if grouped else None
    )

    method = options.chain(release)

    def pipeline(world, given):
        rows, labels = given
        data = examples(kind.features(rows), labels)
        torch.manual_seed(1)
        model = kind.model()
        ledger = DiskLedger(world.folder / "paid") if options.ledger == "disk" else MemoryLedger()
        run = PrivateRun(
            model,
            cross_entropy,
            data,
            method=method,
            sampler=sampler,
            steps=options.steps,
            accountant=Accountant.RDP,
            ledger=ledger,
            physical_batch_size=options.physical_batch_size,
            checkpoints=Checkpoints(world.folder / "kept", 1) if options.checkpoints else None,
        )
        held_out = on_held_out("test", kind.features([rows[0]]), labels[:1], **metrics())
        for batch in run.batches():
            world.tell(batch)
            world.look()
            run.step(batch)
            run.evaluate(held_out)
        world.tell(data, run.history, run.taken, run.epsilon(), run.ledger.entries)
        result = run.result()
        result.save(world.folder / "result")
        world.take(model)
        world.tell(result.privacy, result.describe())

    return pipeline, relation_of(sampler)


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


def one_step(kind, sampler, lr=1.0, **more):
    """The weights after a step; with noise off, one more row adds its clipped part, no more."""
    release = privatize(clip_norm=CLIP, noise_multiplier=SIGMA)

    def pipeline(world, given):
        rows, labels = given
        torch.manual_seed(1)
        model = kind.model()
        fit(
            model,
            cross_entropy,
            examples(kind.features(rows), labels),
            method=dp_sgd(release, lr=lr),
            sampler=sampler,
            steps=1,
            accountant=Accountant.RDP,
            **more,
        )
        world.take(model)

    return pipeline


GATES = Data(
    [[0.0] * WIDTH, [0.0] * WIDTH, *[[OPEN, 1.0, -1.0, 1.0]] * 6],
    [0, 1, *[0, 1, 2] * 2], 0, [OPEN, 0.0, 0.0, 0.0], 0,
)  # fmt: skip
"""The gate is shut for the first two rows of one world, and open for one of the first two of the
other: whoever chooses an engine by those chooses for everybody."""
ALONE = [name for name in KINDS if name not in ("with dropout", "remembers")]


def typical(kind):
    """Rows of the kind that all count, the one more included."""
    row = [1, 2, 3] if kind.features is as_tokens else [1.0, 0.25, 0.0, 1.0]
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


# --- estimators ---


def estimated(make, features):
    """Fit, fit on, and look at all that an estimator shows."""

    def pipeline(world, given):
        rows, labels = given
        model = make(world.folder / "paid")
        model.fit(features(rows), np.array(labels))
        model.partial_fit(features(rows), np.array(labels))
        world.tell(model, sorted(vars(model)), model.privacy_, model.epsilon_, model.delta_)
        world.tell(model.result_.describe(), model.n_features_in_, model.ledger_.entries)
        world.take_weights(model.result_.params)
        model.result_.save(world.folder / "result")

    return pipeline


SMALL = {"epsilon": 5, "epsilon_per_run": 2, "delta": 0.01, "batch_size": 3, "epochs": 1}


def classifier(**more):
    def make(ledger):
        return AdaDPSClassifier(
            **SMALL, classes=range(CLASSES), examples=6, strict=True, ledger=ledger, **more
        )

    return make


def regressor(ledger):
    return AdaDPSRegressor(
        **SMALL, bounds=(0, 2), feature_bounds=(-3, 3), examples=6, strict=True, ledger=ledger
    )


ESTIMATORS = {
    "classifier, dense": (classifier(feature_bounds=(-3, 3)), DENSE, as_dense),
    "classifier, sparse": (classifier(), COUNTS, as_sparse),
    "classifier, module": (
        classifier(module=lambda *_: perceptron(), clip_norm=1.0, lr=0.1), COUNTS, as_dense,
    ),
    "regressor": (regressor, DENSE, as_dense),
}  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_leaves_the_same_in_both_worlds(name):
    make, rows, features = ESTIMATORS[name]

    @tried(2)
    @given(data_for(Kind(nn.Identity, rows, features), least=6, most=6))
    def leaves_the_same(data):
        same(both(estimated(make, features), data))

    leaves_the_same()


# --- tune ---


def trials(setting):
    release = privatize(clip_norm=CLIP, noise_multiplier=4.0)
    return nn.Linear(WIDTH, CLASSES), dp_sgd(release, lr=setting["lr"])


def tuned_by_a_public_score(world, given):
    rows, labels = given
    merits = iter([0.2, 0.9])
    pilot = on_public("pilot", as_dense([[1.0] * WIDTH]), [0], merit=lambda *_: next(merits))
    world_of_trials(world, rows, labels, {"lr": [0.1, 0.2]}, highest(pilot, "merit"))


def tuned_by_a_private_score(world, given):
    rows, labels = given
    score = private_accuracy(
        "training rows", as_dense(rows), labels, examples=4, noise_multiplier=9.0
    )
    world_of_trials(world, rows, labels, {"lr": [0.1]}, score)


def world_of_trials(world, rows, labels, grid_of_rates, score):
    found = tune(
        trials,
        cross_entropy,
        examples(as_dense(rows), labels),
        grid=grid_of_rates,
        score=score,
        selection=fixed_grid(),
        sampler=poisson(examples=4, expected_size=4),
        steps=2,
        accountant=Accountant.RDP,
        ledger=DiskLedger(world.folder / "paid"),
    )
    told = found.result.describe()
    told["privacy"]["tuning"]["score"] = "from weights"
    for trial in told["privacy"]["tuning"]["table"]:
        trial["score"] = "from weights"
    world.tell(told)
    world.take_weights(found.result.params)


@pytest.mark.parametrize("pipeline", [tuned_by_a_public_score, tuned_by_a_private_score])
def test_a_tuning_leaves_the_same_in_both_worlds(pipeline):
    @tried(2)
    @given(data_for(KINDS["linear"], least=4, most=4))
    def leaves_the_same(data):
        same(both(pipeline, data))

    leaves_the_same()


# --- commands ---

HEADER = ["who", "text", "age", "ward", "label"]
ROW = st.tuples(
    st.sampled_from(["u1", "u2", "u3"]),
    st.sampled_from(["good time", "bad day", "zzzz", "the " * 60, "naïve 😀, 'so'", 'a "b"\nc']),
    st.sampled_from(["20", "18.5", "-7", "1e9", "99"]),
    st.sampled_from(["a", "b", "elsewhere"]),
    st.sampled_from(["y", "n"]),
).map(list)
COLUMNS = ("--text", "text", "--label", "label", "--words", 60)
DECLARED = ("--numeric", "age=18,100", "--categorical", "ward=a,b,other", "--classes", "y,n")


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return path


def invoked(world, *lines):
    """Commands one after the other, as on a terminal: what is said to people is heard as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_targets, "accuracy", metrics()["accuracy"])
        patch.setattr(table_targets.Targets, "_absolute_error", lambda *_: 0.5)
        for line in lines:
            heard = io.StringIO()
            patch.setattr(consoles, "err", Console(file=heard, force_terminal=True, width=120))
            done = CliRunner().invoke(app, [str(part) for part in line])
            world.tell(done.exit_code, done.stdout, done.stderr, heard.getvalue())
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception


def command(name, *more, test=False, public=False):
    """A command on a private table, and whatever looks at the model afterwards."""

    def pipeline(world, given):
        rows, as_json = given
        place = world.folder.with_name(world.folder.name + "-input")
        place.mkdir(exist_ok=True)
        line = [name, write(place / "private.csv", rows), *COLUMNS, "--epsilon", 4, *more]
        if test:
            line += ["--test", write(place / "test.csv", TESTED)]
        if public:
            line += ["--public", write(place / "public.csv", TESTED), "--public-because", "it is"]
        model, paid = world.folder / "model", world.folder / "paid"
        places = ["--out", model, "--ledger", paid, "--ledger-budget", 99]
        invoked(
            world,
            [*line, *places, *(["--json"] if as_json else [])],
            ["card", model],
            ["card", model, "--check", "--json"],
            ["report", model, "--out", world.folder / "page.html"],
            ["ledger", "show", paid],
        )
        shutil.rmtree(place)
        world.take_weights(load_result(model).params if model.exists() else {})

    return pipeline


KNOWN = [
    [f"u{row % 3}", text, str(20 + row), ward, label]
    for row, (text, ward, label) in enumerate(
        [("good time", "a", "y"), ("bad day", "b", "n"), ("a long day", "a", "n")] * 4
    )
]
TESTED = [["v1", "good time", "21", "a", "y"], ["v2", "bad day", "44", "b", "y"],
          ["v3", "the " * 60, "99", "a", "n"], ["v4", "zzzz", "20", "b", "n"]]  # fmt: skip

EXAMPLES = ("--examples", 12, "--strict", "--batch-size", 3, "--epochs", 1)
OF_USERS = ("--user", "who", "--users", 3, "--strict", "--batch-size", 2, "--epochs", 2)
ROUNDS = ("--user", "who", "--users", 3, "--strict", "--cohort", 2, "--rounds", 2)
REGRESSION = ("--label", "age", "--regression", "--label-bounds", "18,100")
PAID = (
    *("--numeric", "age=18,100", "--categorical", "ward", "--classes", "y,n"),
    *("--rare", "other", "--epsilon", 40),  # enough that the threshold is far from all counts
)
COMMANDS = {
    "train": command("train", *DECLARED, *EXAMPLES),
    "train, adadps": command("train", *DECLARED, *EXAMPLES, "--method", "adadps"),
    "train, held-out rows": command("train", *DECLARED, *EXAMPLES, test=True),
    "train, paid levels": command("train", *PAID, *EXAMPLES),
    "train, regression": command("train", *REGRESSION, *EXAMPLES, test=True),
    "train, public texts": command("train", "--classes", "y,n", *EXAMPLES, public=True),
}
USER_COMMANDS = {
    "train, users": command("train", *DECLARED, *OF_USERS),
    "train, users, held-out rows": command("train", *DECLARED, *OF_USERS, test=True),
    "federate": command("federate", *DECLARED, *ROUNDS),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_the_same_with_one_row_more(name):
    pipeline = COMMANDS[name]

    @tried(name == "train")
    @given(ROW, st.integers(0, len(KNOWN)), st.just(False))
    @example(["u1", *TESTED[0][1:]], len(KNOWN), True)
    def leaves_the_same(row, place, as_json):
        more, names = [*KNOWN[:place], row, *KNOWN[place:]], list(range(len(KNOWN)))
        named = [*names[:place], THE_ONE, *names[place:]]
        one = left_by(pipeline, (KNOWN, as_json), names)
        other = left_by(pipeline, (more, as_json), named)
        same((one, other))
        assert one.told[0] == "0", one.told[2]

    leaves_the_same()


@pytest.mark.parametrize("name", USER_COMMANDS)
def test_a_command_leaves_the_same_with_one_user_more(name):
    pipeline = USER_COMMANDS[name]

    @tried(name == "federate")
    @given(st.lists(ROW, min_size=1, max_size=3), st.just(False))
    @example([TESTED[0]], True)
    def leaves_the_same(rows, as_json):
        whose = TESTED[0][0]
        more = [*KNOWN, *([whose, *rest] for _, *rest in rows)]
        names = list(dict.fromkeys(row[0] for row in KNOWN))
        one = left_by(pipeline, (KNOWN, as_json), names)
        other = left_by(pipeline, (more, as_json), [*names, THE_ONE])
        same((one, other))
        assert one.told[0] == "0", one.told[2]

    leaves_the_same()


WRONG = {
    "a label": ["u1", "good time", "20", "a", "maybe"],
    "a number": ["u1", "good time", "many", "a", "y"],
    "an empty cell": ["u1", "good time", "20", "a", ""],
}


@pytest.mark.parametrize("row", WRONG.values(), ids=WRONG)
def test_a_wrong_row_is_refused_in_the_same_words(row):
    """It is an error of the table, said to whoever runs the training; one row more says no more."""
    pipeline = command("train", *DECLARED, *EXAMPLES)
    wrong = [*KNOWN[:3], row, *KNOWN[3:]]
    worlds = [left_by(pipeline, (rows, False)) for rows in (wrong, [*wrong, KNOWN[0]])]
    one, _ = same(worlds)
    assert one.told[0] == "1"
    assert "line 5" in one.told[2] + one.told[3]


# --- the comparison notices what it should ---


def honest(world, given):
    rows, labels = given
    run_of(KINDS["linear"], Options("all", "dp_sgd", True, "disk", None, False, 2), 4)[0](
        world, (rows, labels)
    )


def prints(world, given):
    honest(world, given)
    print(f"{len(given[0])} rows")


def warns(world, given):
    honest(world, given)
    warnings.warn(f"{sum(given[1])}", stacklevel=1)


def logs(world, given):
    honest(world, given)
    logging.getLogger("adadps").warning("%d rows", len(given[0]))


def refuses(world, given):
    honest(world, given)
    if len(given[0]) > 4:
        raise DataError("Expected four rows, found more.")


def writes(world, given):
    honest(world, given)
    (world.folder / "result" / "cache.bin").write_bytes(bytes(len(given[0])))


def leaves_a_larger_file_of_weights(world, given):
    honest(world, given)
    tensors = {"weight": torch.zeros(len(given[0]))}
    save_tensors(tensors, world.folder / "result" / "more.safetensors")


def draws(world, given):
    honest(world, given)
    torch.rand(len(given[0]))


def charges(world, given):
    honest(world, given)
    with closing(sqlite3.connect(world.folder / "paid")) as ledger:
        ledger.execute(f"UPDATE terms SET most_planned_count = {len(given[0])}")
        ledger.commit()


def keeps(world, given):
    honest(world, given)
    model = nn.Linear(2, 1)
    model.register_buffer("seen", torch.tensor(len(given[0])))
    world.take(model)


LEAKS = {
    prints: "console",
    warns: "warned",
    logs: "logged",
    refuses: "ended",
    writes: "files, result/cache.bin",
    leaves_a_larger_file_of_weights: "files, result/more.safetensors",
    draws: "generators, torch",
    charges: "files, paid",
    keeps: "told",
}
PLAIN = Data([[0.5, -1.0, 2.0, 0.0]] * 4, [0, 1, 2, 0], 1, [2.0, 2.0, 0.0, 1.0], 1)


def test_the_same_world_twice_leaves_the_same():
    rows, labels, names = PLAIN.world(Relation.ADD_OR_REMOVE_ONE, other=True)
    one, other = (left_by(honest, (rows, labels), names) for _ in range(2))
    same((one, other))
    assert distance(one, other) == 0
    assert {name.split("/")[0] for name in one.files} >= {"paid", "result", "kept"}


def test_the_one_row_more_has_its_part_in_the_weights():
    assert distance(*same(both(honest, PLAIN))) > 0


@pytest.mark.parametrize(("pipeline", "where"), LEAKS.items(), ids=[one.__name__ for one in LEAKS])
def test_a_planted_leak_is_noticed(pipeline, where):
    found = differences(*both(pipeline, PLAIN))
    assert [one for one in found if one.startswith(where)]


def test_a_batch_that_says_how_many_are_in_it_is_noticed(monkeypatch):
    drawn = Drawing.next

    def says(self, batch):
        found = drawn(self, batch)
        print(len(found.rows))
        return found

    monkeypatch.setattr(Drawing, "next", says)
    assert differences(*both(honest, PLAIN))


def test_a_step_beyond_the_clip_is_noticed(monkeypatch):
    stage = sys.modules[Privatize.__module__]
    monkeypatch.setattr(stage, "clip_weights", lambda norms, _: torch.ones_like(norms))
    pipeline = one_step(KINDS["linear"], SAMPLERS["all"](4))
    assert distance(*both(pipeline, PLAIN)) * 4 > 1.2 * CLIP
