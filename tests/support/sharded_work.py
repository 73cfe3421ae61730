"""What the processes of a `support.team.Team` do with models that `fully_shard` has sharded."""

from itertools import pairwise

import numpy as np
import torch
from torch import nn

from adadps import (
    Checkpoints,
    PrivateRun,
    accuracy,
    adadps,
    by_user,
    chain,
    dp_adam,
    dp_sgd,
    examples,
    fit,
    on_public,
    poisson,
    privatize,
    side,
)
from adadps.engine.losses import cross_entropy, squared_error
from adadps.engine.noise.randomness import Randomness
from adadps.engine.shards.gathering import GatheredBundle
from adadps.engine.shards.group import ShardedGroup
from adadps.methods import dp_r_pub, whitened
from adadps.methods.stages import update_with
from adadps.training.processes import current_group
from adadps.types import Accountant
from support import team_work as work
from support.team_work import CLASSES, DENSE, LABELS, PUBLIC, ROWS, TOKENS, Last, rank, weights_of


class Attentive(nn.Module):
    """A Transformer over words, with places that are a parameter of the model itself."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.places = nn.Parameter(torch.randn(6, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens):
        return self.head(self.layers(self.words(tokens) + self.places).mean(1))


def lstm_problem():
    model = Last()
    return model, [model.words, model.lstm], cross_entropy, (TOKENS, LABELS)


def transformer_problem():
    model = Attentive()
    return model, [*model.layers.layers], cross_entropy, (TOKENS, LABELS)


def autoencoder_problem():
    widths = (5, 9, 3, 9, 5)
    layers = [nn.Linear(*pair) for pair in pairwise(widths)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))
    return model, layers, squared_error, (DENSE, DENSE)


def classifier_problem():
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, CLASSES))
    return model, [model[0]], cross_entropy, (DENSE, LABELS)


class Places(nn.Module):
    """Gives out a view of its weights."""

    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.randn(9, 8))

    def forward(self, embedded):
        return self.places[: embedded.shape[-2]]


class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(20, 8), Places(), nn.Linear(8, CLASSES)

    def forward(self, tokens):
        embedded = self.words(tokens)
        return self.head(torch.tanh(embedded + self.places(embedded)).mean(1))


def view_problem():
    model = Placed()
    return model, [model.places], cross_entropy, (TOKENS, LABELS)


def frozen_problem():
    model, parts, loss, data = classifier_problem()
    model[0].requires_grad_(False)
    return model, parts, loss, data


PROBLEMS = {
    "LSTM": lstm_problem,
    "Transformer": transformer_problem,
    "autoencoder": autoencoder_problem,
    "classifier": classifier_problem,
    "a frozen layer": frozen_problem,
    "a view of weights": view_problem,
}
KNOWN = side.fixed(
    {"0.weight": (torch.tensor([1.0, 0.5, 2.0, 1.0, 0.1]), 1)},
    source="a table",
    public_because="made up",
)
RMS = side.public(PUBLIC, side.RMSPropStatistics(decay=0.9, epsilon=0.1))
SHIFTED = side.public(
    PUBLIC, side.AdamStatistics(mixing=0.7, first_decay=0.5, second_decay=0.9, epsilon=0.1)
)
METHODS = {
    "dp_sgd": lambda noise: dp_sgd(noise, lr=0.5),
    "dp_adam": lambda noise: dp_adam(noise, lr=0.1),
    "adadps": lambda noise: adadps(KNOWN, noise, lr=0.5),
    "whitened": lambda noise: whitened(PUBLIC, noise, lr=0.5),
    "dp_r_pub": lambda noise: dp_r_pub(
        PUBLIC, side.RMSPropStatistics(decay=0.9, epsilon=0.1), noise, lr=0.1
    ),
    "adadps by gradients": lambda noise: adadps(RMS, noise, lr=0.1),
    "adadps_adam": lambda noise: adadps(SHIFTED, noise, lr=0.1),
    "update_with": lambda noise: chain(noise, update_with(torch.optim.AdamW, lr=0.05)),
}


def run_of(name, method="dp_sgd", *, sigma=0.0, share=1.0, steps=4, sharded=True, **options):
    """Each process makes the same model, and keeps its shard of it."""
    torch.manual_seed(0)
    model, parts, loss, data = PROBLEMS[name]()
    if sharded and not current_group().is_alone:
        declare(model, parts)
    noise = privatize(clip_norm=0.5, noise_multiplier=sigma)
    options.setdefault("sampler", poisson(examples=ROWS, expected_size=share * ROWS))
    options["method"] = METHODS[method](noise) if isinstance(method, str) else method
    options.setdefault("data", examples(*data))
    return PrivateRun(model, loss, steps=steps, accountant=Accountant.RDP, **options)


def declare(model, parts):
    from torch.distributed.fsdp import fully_shard

    for part in parts:
        fully_shard(part)
    fully_shard(model)


def trained(name, method="dp_sgd", **options):
    return weights_of(work.finished(run_of(name, method, **options)))


def after_many_steps(name, steps):
    return trained(name, "dp_adam", steps=steps)


def of_few_rows():
    return trained("autoencoder", sigma=0.5, share=0.3, steps=10)


def all_trained():
    """Every model by one method, and one model by every method."""
    by_model = {name: trained(name) for name in PROBLEMS}
    by_method = {method: trained("classifier", method) for method in METHODS}
    return by_model | by_method


def in_small_pieces():
    """Physical batches of 16: the processes draw other numbers of them."""
    run = run_of("Transformer", sigma=0.01, share=0.6, physical_batch_size=16, steps=6)
    pieces, usual = [], run._stepper._gradients

    def noted(drawn):
        found = usual(drawn)
        pieces.append((len(drawn.rows), len(found[0].pieces)))
        return found

    run._stepper._gradients = noted
    return weights_of(work.finished(run)), pieces


def in_pieces_of_all():
    return trained("LSTM", physical_batch_size=16)


def empty_batches():
    return trained("classifier", sigma=0.01, share=0.01, steps=6)


def of_users():
    data = examples(DENSE, LABELS, users=np.arange(ROWS) % 17)
    method = dp_sgd(privatize(clip_norm=0.5, noise_multiplier=0.0, groups=by_user(most=6)), lr=0.1)
    return trained(
        "classifier", method=method, data=data, sampler=poisson(users=17, expected_size=17),
        physical_batch_size=16,
    )  # fmt: skip


# --- memory ---


def held_at_rest(method):
    """Numbers of weights and of states that a process holds, and the most that is gathered."""
    most, usual = [0], GatheredBundle.gather
    run = run_of("Transformer", method, sigma=1.0, share=0.5)
    bundles = run._stepper._sharded._gathered

    def noted(bundle):
        usual(bundle)
        most[0] = max(most[0], _numbers(b for b in bundles if b._is_gathered))

    GatheredBundle.gather = noted
    try:
        work.finished(run)
    finally:
        GatheredBundle.gather = usual
    model, states = run._stepper.model, run._stepper.states
    held = {t.untyped_storage()._cdata: t.untyped_storage().size() for t in _tensors_of(states)}
    sizes = [_numbers([bundle]) for bundle in bundles]
    return {
        "weights": sum(p.to_local().numel() for p in model.parameters()),
        "states": sum(held.values()),
        "gathered": most[0],
        "bundles": dict(zip([bundle.name for bundle in bundles], sizes, strict=True)),
        "after": sum(w.untyped_storage().size() for bundle in bundles for w in bundle._whole),
    }


def _numbers(bundles):
    return sum(whole.numel() for bundle in bundles for whole in bundle._whole)


def _tensors_of(state):
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors_of(value)
    elif isinstance(state, tuple):
        for value in state:
            yield from _tensors_of(value)


# --- noise ---

ROWS_OF_NOISE, WIDTH = 3, 2000


def noise_run(steps, method=None):
    model = nn.Sequential(nn.Linear(WIDTH, ROWS_OF_NOISE, bias=False))
    nn.init.zeros_(model[0].weight)
    current_group()
    declare(model, [])
    return PrivateRun(
        model,
        squared_error,
        examples(torch.zeros(40, WIDTH), torch.zeros(40, ROWS_OF_NOISE)),
        method=method or dp_sgd(privatize(clip_norm=0.5, noise_multiplier=1.5), lr=2.0),
        sampler=poisson(examples=40, expected_size=10),
        steps=steps,
        accountant=Accountant.RDP,
    )


def released_noise(steps):
    """Noise alone, in units of lr σ C / b, row by row; the first process holds two of three."""
    found = work.finished(noise_run(steps)).params["0.weight"]
    return found.double() / (2.0 * 1.5 * 0.5 / 10)


def of_one_key():
    """A broken group: all processes draw from the stream of the shared key."""
    usual, ShardedGroup.noise_key = ShardedGroup.noise_key, lambda _group, shared: shared
    try:
        return released_noise(1)
    finally:
        ShardedGroup.noise_key = usual


def missing_in_the_second(draws):
    """A broken process: it draws the noise of its shard, or not even that, and adds none."""
    usual = Randomness.release_into

    def silent(randomness, changes, **given):
        if draws:
            usual(randomness, [(w.clone(), t) for w, t in changes], **given)
        for weights, total in changes:
            weights.add_((given["factor"] * total).to(weights.dtype))

    if rank() == 1:
        Randomness.release_into = silent
    try:
        return released_noise(3)
    finally:
        Randomness.release_into = usual


# --- runs ---


def first_steps(folder, take, name="Transformer", method="dp_adam", steps=12, sharded=True):
    """Take some steps, and end as if the process had been killed after a checkpoint."""
    run = run_of(
        name, method, steps=steps, sharded=sharded,
        checkpoints=Checkpoints(folder, every=4),
    )  # fmt: skip
    begun_at = run.taken
    for batch in run.batches():
        run.step(batch)
        if batch.index == take:
            break
    run.keep()
    return begun_at, weights_of(run.result())


def fitted():
    """`fit` with evaluations; then the user's own model, through the hooks of torch."""
    torch.manual_seed(0)
    model, parts, loss, data = transformer_problem()
    current_group()
    declare(model, parts)
    result = fit(
        model,
        loss,
        examples(*data),
        method=METHODS["dp_sgd"](privatize(clip_norm=0.5, noise_multiplier=1.0)),
        sampler=poisson(examples=ROWS, expected_size=30),
        steps=4,
        accountant=Accountant.RDP,
        evaluate=[on_public("some", *data, every=2, accuracy=accuracy)],
    )
    with torch.no_grad():
        outputs = model(torch.as_tensor(TOKENS))
    plain = Attentive()
    plain.load_state_dict(result.params)
    with torch.no_grad():
        expected = plain(torch.as_tensor(TOKENS))
    history = [(entry.step, entry.value) for entry in result.history]
    return history, bool(torch.allclose(outputs, expected, atol=1e-5)), weights_of(result)


def read_between_steps():
    """The user runs the model between two steps: what torch has gathered for that is freed."""
    run = run_of("classifier", sigma=1.0, steps=3)
    same = []
    for batch in run.batches():
        run.step(batch)
        params = {name: value.clone() for name, value in run.params.items()}
        with torch.no_grad():
            outputs = run._stepper.model(torch.from_numpy(DENSE))
        plain = classifier_problem()[0]
        plain.load_state_dict(params)
        with torch.no_grad():
            same.append(bool(torch.allclose(outputs, plain(torch.from_numpy(DENSE)), atol=1e-5)))
    return same


def one_fails(where):
    """An error in the second process, within a pass: while the first one gathers weights."""
    run = run_of("Transformer", sigma=1.0, share=0.3, steps=8)
    usual, calls = run._stepper.objective.engine.by_example.gradients, []

    def breaks(*given):
        calls.append(1)
        if len(calls) == 3:
            raise {"outside": OSError, "inside": RuntimeError}[where]("row 17 of the table")
        return usual(*given)

    if rank() == 1:
        run._stepper.objective.engine.by_example.gradients = breaks
    work.finished(run)
