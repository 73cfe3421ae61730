"""The museum: broken trainers, the data that reveals their faults, and their intact twins.

Every exhibit has few steps, large batches and a large δ, at which a few thousand runs can tell a
sum that moves by 2C from one that moves by C. An exhibit and its twin are audited alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from adadps import (
    Accountant,
    Relation,
    adadps,
    dp_sgd,
    epsilon_of_run,
    examples,
    poisson,
    privatize,
    shuffled,
)
from adadps.audit import (
    Neighbours,
    PrivacyClaim,
    Released,
    audit_repeated,
    observers_along,
    trainer_of,
)
from adadps.audit.repeated import Observer, Trainer, flat_weights
from adadps.audit.worst_case import WIDTH, pull, worst_case, zero_linear
from adadps.engine.losses import squared_error
from adadps.engine.noise.randomness import secure
from adadps.methods.side import fixed
from adadps.methods.stages import by_label
from museum.broken_parts import (
    ClipIgnored,
    ClippedAfterSumming,
    GroupsByPosition,
    GroupsChargedAsC,
    HalfTheNoise,
    MeanOverTheDrawnBatch,
    NoiseReused,
    NoNoise,
    SameSeed,
    ShuffledChargedAsPoisson,
)
from museum.late_exhibits import CONFIDENCE, LATE_EXHIBITS, LateExhibit

DELTA, SIGMA, LR = 0.25, 0.8, 0.5
FEW, MANY = 400, 2400
"""Numbers of runs: few reveal an error of several C, many an error by a factor of two."""

ADD = Relation.ADD_OR_REMOVE_ONE


@dataclass(frozen=True)
class Exhibit:
    what: str
    broken: Trainer
    intact: Trainer
    neighbours: Neighbours
    observers: Mapping[str, Observer]
    runs: int

    def audited(self, trainer, factor=1):
        return audit_repeated(
            trainer,
            self.neighbours,
            observers=self.observers,
            runs=factor * self.runs,
            confidence=CONFIDENCE,
            settings={"trainer": self.what},
            progress=False,
        )


def library(
    privacy=None,
    *,
    count=2,
    rate=1.0,
    steps=1,
    randomness: Callable = secure,
    method=None,
    make_model=zero_linear,
    delta=None,
) -> Trainer:
    """The library with some part of it replaced."""
    chosen = method or dp_sgd(privacy, lr=LR)

    def train(data):
        once = trainer_of(
            make_model,
            squared_error,
            method=chosen,
            sampler=poisson(examples=count, expected_size=rate * count),
            steps=steps,
            delta=delta or min(DELTA, 1 / count),
            randomness=randomness(),
        )
        return once(data)

    return train


def intact_stage(factor=1, **changed):
    return privatize(clip_norm=1.0, noise_multiplier=factor * SIGMA, **changed)


INTACT = library(intact_stage())
"""The library as it is, in the setting of the simplest exhibits."""


def replaced_stage(what, stage, runs):
    """Return an exhibit in which another stage takes the place of `privatize`."""
    broken = library(stage(1.0, SIGMA, None))
    return Exhibit(what, broken, INTACT, worst_case(ADD), observers_along(pull()), runs)


# --- groups ---


def by_size(sizes):
    """Rows on one feature, with gradients proportional to these sizes at w = 0."""
    features = np.zeros((len(sizes), WIDTH), np.float32)
    features[:, 0] = 1
    return examples(features, -torch.tensor(sizes))


def groups_charged_as_c():
    """With less noise, the claim of the intact twin would be too large to be refuted."""
    broken, intact = (
        library(intact_stage(1.125, groups=groups)) for groups in (GroupsChargedAsC(2), by_label(2))
    )
    seen = observers_along(pull())
    return Exhibit("groups charged as C", broken, intact, worst_case(ADD), seen, MANY)


def groups_by_position():
    """Signs alternate and sizes halve, so that every group has the sign of its first row."""
    others = [(-1.0) ** i * 2.0 ** (16 - i) for i in range(16)]
    pair = Neighbours(by_size([-(2.0**17), *others]), by_size(others))
    broken, intact = (
        library(intact_stage(2, groups=groups), count=17)
        for groups in (GroupsByPosition(2), by_label(2))
    )
    return Exhibit("groups by position", broken, intact, pair, observers_along(-pull()), FEW)


# --- sampling ---

EPOCH, SMALL_SIGMA, SHUFFLED_DELTA, SHUFFLED_RUNS = 100, 0.7, 0.01, 4000


def one_row_per_step(sampler) -> Trainer:
    """DP-SGD in one weight for one epoch, in plain numpy for speed; charged by the sampler.

    All examples pull down by C; the worst-case one pulls up, and a row that is zeroed out does not
    pull. A batch that contains it stands out at one step, whichever that is.
    """
    chosen = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=SMALL_SIGMA), lr=LR)
    accountant = Accountant.PLD
    epsilon = epsilon_of_run(chosen, sampler, EPOCH, delta=SHUFFLED_DELTA, accountant=accountant)
    claim = PrivacyClaim(epsilon, SHUFFLED_DELTA, sampler.relation.value)
    rng = secure().generator

    def train(data):
        pulls, batches = data.targets.numpy().clip(-1, 1), sampler.batches(len(data), rng)
        sums = np.array([pulls[next(batches)].sum() for _ in range(EPOCH)])
        steps = sums + SMALL_SIGMA * rng.standard_normal(EPOCH)
        return Released(claim, np.concatenate([[0.0], np.cumsum(steps)])[:, None])

    return train


def shuffled_charged_as_poisson():
    declared = {"examples": EPOCH, "expected_size": 1}
    rows = [examples(np.zeros((EPOCH, 1), np.float32), one_up(first)) for first in (1.0, 0.0)]
    return Exhibit(
        "shuffled but accounted as Poisson",
        one_row_per_step(ShuffledChargedAsPoisson(relation=Relation.ZERO_OUT, **declared)),
        one_row_per_step(shuffled(**declared)),
        Neighbours(*rows),
        {"largest step": lambda released: float(released.moves.max())},
        SHUFFLED_RUNS,
    )


def one_up(first):
    targets = -torch.ones(EPOCH)
    targets[0] = first
    return targets


# --- noise ---


def noise_reused():
    setting = {"privacy": intact_stage(1.25), "rate": 0.5, "steps": 4}
    return Exhibit(
        "noise reused",
        library(randomness=NoiseReused, **setting),
        library(**setting),
        worst_case(ADD, opposing=0),
        observers_along(pull()),
        FEW,
    )


def resumed(make_randomness) -> Trainer:
    """Two steps, with an interruption between them; claims what two fresh steps cost."""
    chosen, sampler = dp_sgd(intact_stage(2), lr=LR), poisson(examples=2, expected_size=2)
    accountant = Accountant.PLD
    epsilon = epsilon_of_run(chosen, sampler, 2, delta=DELTA, accountant=accountant)

    def train(data):
        model, make = zero_linear(), make_randomness()
        path = [flat_weights({"weight": model.weight})]
        for _ in range(2):
            part = trainer_of(
                lambda: model,
                squared_error,
                method=chosen,
                sampler=sampler,
                steps=1,
                delta=DELTA,
                randomness=make(),
            )
            path.append(part(data).weights[-1])
        return Released(PrivacyClaim(epsilon, DELTA, sampler.relation.value), np.stack(path))

    return train


def same_seed_again():
    seed = SameSeed.secret()
    return lambda: SameSeed(seed)


def resumed_with_the_same_seed():
    """The gradient of the example changes with the weights; noise and batch are repeated."""
    nothing = examples(torch.zeros(1, WIDTH), torch.zeros(1))
    row = torch.zeros(2, WIDTH)
    row[0, 0] = 1.0
    return Exhibit(
        "resumed with the same seed",
        resumed(same_seed_again),
        resumed(lambda: secure),
        Neighbours(examples(row, torch.tensor([0.25, 0.0])), nothing),
        observers_along(pull()),
        FEW,
    )


# --- side information ---


def scales_of(data):
    """Root mean squared gradient at w = 0, feature by feature."""
    gradients = data.features * data.targets[:, None]
    return gradients.double().square().mean(0).sqrt() + 1e-3


def with_scales(choose) -> Trainer:
    """AdaDPS with an A that is declared public."""

    def train(data):
        named = {"weight": (choose(data), 1)}
        side = fixed(named, source="a statistic", public_because="somebody says so")
        return library(method=adadps(side, intact_stage(), lr=LR), count=9)(data)

    return train


def statistics_from_private_data():
    """One example makes the first feature look frequent, and so moves all others' gradients."""
    features = torch.zeros(9, WIDTH)
    features[:, :2] = 1.0
    features[0, 1] = 0.0
    targets = torch.full((9,), 500.0)
    targets[0] = -1e6
    others = examples(features[1:], targets[1:])
    return Exhibit(
        "public statistics from private data",
        with_scales(scales_of),
        with_scales(lambda _data: scales_of(others)),
        Neighbours(examples(features, targets), others),
        observers_along(pull()),
        FEW,
    )


# --- floating point ---

PARTS = 256
"""The number of equal entries of the example's gradient, C / 16 each."""


def in_float32(data) -> Released:
    """DP-SGD in torch, as it is often written: noise in float32 and no grid."""
    gradients = -data.features * data.targets[:, None]
    shares = (1.0 / gradients.norm(dim=1).clamp_min(1e-30)).clamp_max(1.0)
    noisy = (shares[:, None] * gradients).sum(0) + SIGMA * torch.randn(PARTS)
    weights = torch.stack([torch.zeros(PARTS), -noisy]).double().numpy()
    return Released(claim_of_the_library(), weights)


@cache
def claim_of_the_library():
    return INTACT(worst_case(ADD).without).claim


def impossible_entries(released) -> float:
    """Count the entries whose low bits no float32 noise could have produced from the gradient."""
    seen = -released.moves[-1].astype(np.float32)
    part = np.float32(-1 / 16)
    noise = seen - part
    candidates = (noise, np.nextafter(noise, np.float32(9)), np.nextafter(noise, np.float32(-9)))
    return float((~np.any([part + z == seen for z in candidates], axis=0)).sum())


def float32_noise():
    rows, targets = torch.zeros(2, PARTS), torch.full((2,), 100.0)
    rows[0] = 1.0
    pair = Neighbours(examples(rows, targets), examples(rows[1:], targets[1:]))
    method = dp_sgd(intact_stage(), lr=2.0)
    intact = library(method=method, make_model=lambda: zero_linear(PARTS))
    seen = {"impossible entries": impossible_entries}
    return Exhibit("float32 noise without a grid", in_float32, intact, pair, seen, FEW)


EXHIBITS: dict[str, Callable[[], Exhibit | LateExhibit]] = {
    "no noise": lambda: replaced_stage("no noise", NoNoise, FEW),
    "half the noise": lambda: replaced_stage("half the noise", HalfTheNoise, MANY),
    "noise reused": noise_reused,
    "clipping after summing": lambda: replaced_stage(
        "clipping after summing", ClippedAfterSumming, MANY
    ),
    "clip ignored": lambda: replaced_stage("clip ignored", ClipIgnored, FEW),
    "groups charged as C": groups_charged_as_c,
    "groups by position": groups_by_position,
    "shuffled but accounted as Poisson": shuffled_charged_as_poisson,
    "mean over the drawn batch": lambda: replaced_stage(
        "mean over the drawn batch", MeanOverTheDrawnBatch, FEW
    ),
    "public statistics from private data": statistics_from_private_data,
    "float32 noise without a grid": float32_noise,
    "resumed with the same seed": resumed_with_the_same_seed,
    **LATE_EXHIBITS,
}
