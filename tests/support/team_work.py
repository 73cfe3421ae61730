"""What the processes of a `support.team.Team` do in tests; alone, a process does the same."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from torch import nn

from adadps import (
    Checkpoints,
    DiskLedger,
    PrivateRun,
    accuracy,
    adadps,
    by_user,
    chain,
    dp_adam,
    dp_sgd,
    examples,
    fit,
    fixed_size,
    on_public,
    poisson,
    privatize,
    public_examples,
    shuffled,
    side,
)
from adadps.accounting.epsilon import Budget
from adadps.engine.group import ProcessGroup
from adadps.engine.losses import cross_entropy, squared_error
from adadps.engine.noise.randomness import Randomness
from adadps.methods import pda_dpmd, whitened
from adadps.methods.stages import by_label, clip_adaptively, sgd
from adadps.tensors.sums import dense
from adadps.training.processes import Shard, current_group
from adadps.training.stepper import Batch
from adadps.types import Accountant

ROWS, WORDS, CLASSES = 90, 40, 3
RNG = np.random.default_rng(5)
COUNTS = sparse.random(
    ROWS, WORDS, density=0.1, format="csr", random_state=np.random.default_rng(7), dtype=np.float32
)
LABELS = RNG.integers(CLASSES, size=ROWS)
DENSE = RNG.normal(size=(ROWS, 5)).astype(np.float32)
TOKENS = RNG.integers(0, 20, size=(ROWS, 6))
RARE = side.frequency(
    side.given_frequencies(np.arange(1, WORDS + 1), source="a table", public_because="made up"),
    floor=0.01,
    power=0.5,
)
PUBLIC = public_examples(
    np.random.default_rng(8).normal(size=(30, 5)).astype(np.float32),
    np.arange(30) % CLASSES,
    source="a sketch",
    public_because="made up",
    batch_size=30,
)


def rank():
    return int(os.environ.get("RANK", "0"))


class Last(nn.Module):
    """An LSTM over words, and a linear layer on its last output."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, tokens):
        return self.head(self.lstm(self.words(tokens))[0][:, -1])


def dense_problem():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, CLASSES)), (DENSE, LABELS)


def sparse_problem():
    return nn.Linear(WORDS, CLASSES), (COUNTS, LABELS)


def lstm_problem():
    return Last(), (TOKENS, LABELS)


def noise(sigma):
    return privatize(clip_norm=0.5, noise_multiplier=sigma)


PROBLEMS = {
    "dense": (dense_problem, lambda sigma: dp_sgd(noise(sigma), lr=0.5)),
    "dense by Adam": (dense_problem, lambda sigma: dp_adam(noise(sigma), lr=0.1)),
    "sparse, late": (sparse_problem, lambda sigma: adadps(RARE, noise(sigma), lr=0.5)),
    "sparse, decayed": (
        sparse_problem,
        lambda sigma: chain(noise(sigma), sgd(0.5, weight_decay=0.01)),
    ),
    "clipped adaptively": (
        dense_problem,
        lambda sigma: chain(clip_adaptively(noise(sigma)), sgd(0.5)),
    ),
    "LSTM": (lstm_problem, lambda sigma: dp_sgd(noise(sigma), lr=0.5)),
    "whitened": (dense_problem, lambda sigma: whitened(PUBLIC, noise(sigma), lr=0.5)),
    "mixed with public gradients": (
        dense_problem,
        lambda sigma: pda_dpmd(PUBLIC, noise(sigma), lr=0.5, steps=6),
    ),
}


def run_of(name, *, sigma, share=1.0, steps=6, **options):
    """Each process begins with other weights: those of the first one count."""
    torch.manual_seed(rank())
    problem, method = PROBLEMS[name]
    model, data = problem()
    options.setdefault("sampler", poisson(examples=ROWS, expected_size=share * ROWS))
    options.setdefault("method", method(sigma))
    options.setdefault("accountant", Accountant.RDP)
    options.setdefault("data", examples(*data))
    return PrivateRun(model, cross_entropy, steps=steps, **options)


def finished(run):
    for batch in run.batches():
        run.step(batch)
    return run.result()


def weights_of(result):
    return {name: value.clone() for name, value in result.params.items()}


def trained(name, sigma, share, steps=6):
    """The weights, how much noise was drawn, and what the run says of its price."""
    run = run_of(name, sigma=sigma, share=share, steps=steps)
    result = finished(run)
    charges = [entry["count"] for entry in result.privacy.charges]
    return weights_of(result), run.randomness.position, result.privacy.epsilon, charges


def all_trained(sigma, share, steps=6):
    return {name: trained(name, sigma, share, steps) for name in PROBLEMS}


def most_rows_in_single():
    """The largest batch that this process adds up in float32: nobody knows those of the others."""
    return run_of("dense", sigma=1.0)._stepper._single.most_rows


# --- noise ---

WIDE = 3000


def released_noise(steps, late):
    """Changes of weights by batches without a gradient: noise alone, in units of lr σ C / b."""
    run = noise_run(steps, late)
    before = {name: value.clone() for name, value in run.params.items()}
    after = finished(run).params
    parts = [(after[name] - before[name]).double().flatten() for name in before]
    return torch.cat(parts) / (2.0 * 1.5 * 0.5 / 10)


def noise_run(steps, late):
    model = nn.Linear(WIDE // 3, 3, bias=False)
    nn.init.zeros_(model.weight)
    rows = sparse.csr_matrix((40, WIDE // 3)) if late else torch.zeros(40, WIDE // 3)
    method = dp_sgd(privatize(clip_norm=0.5, noise_multiplier=1.5), lr=2.0)
    return PrivateRun(
        model,
        squared_error,
        examples(rows, torch.zeros(40, 3)),
        method=method,
        sampler=poisson(examples=40, expected_size=10),
        steps=steps,
        accountant=Accountant.RDP,
    )


def noise_of_every_process(steps):
    """A broken group: each process adds its share of the noise to what it sends, and none after."""
    usual = ProcessGroup.sum

    def noisy(group, sums):
        spread = 1.5 * 0.5 / group.size
        return usual(group, {n: dense(v) + spread * torch.randn(v.shape) for n, v in sums.items()})

    torch.seed()
    ProcessGroup.sum = noisy
    silent, Randomness.release_into = Randomness.release_into, _without_noise
    try:
        return released_noise(steps, late=False)
    finally:
        ProcessGroup.sum, Randomness.release_into = usual, silent


def _without_noise(_randomness, changes, *, standard_deviation, factor):
    for weights, total in changes:
        weights.add_((factor * total).to(weights.dtype))


def noise_missing_in_the_second(draws):
    """A broken process: it draws the noise, or does not even draw it, and does not add it."""
    usual = Randomness.release_into

    def silent(randomness, changes, **given):
        if draws:
            usual(randomness, [(w.clone(), t) for w, t in changes], **given)
        _without_noise(randomness, changes, **given)

    if rank() == 1:
        Randomness.release_into = silent
    try:
        return weights_of(finished(run_of("dense", sigma=1.0, share=0.3)))
    finally:
        Randomness.release_into = usual


def settled_in_one_process():
    """A broken group: each process settles only the rows that its own batch reads."""
    usual, ProcessGroup.union = ProcessGroup.union, lambda _group, rows: rows
    try:
        return weights_of(finished(run_of("sparse, late", sigma=1.0, share=0.3, steps=20)))
    finally:
        ProcessGroup.union = usual


def own_noise():
    """A broken process: it makes a key of its own."""
    usual, Randomness.shared_by = Randomness.shared_by, lambda own, _group: own
    try:
        return weights_of(finished(run_of("dense", sigma=1.0, share=0.3)))
    finally:
        Randomness.shared_by = usual


# --- batches ---


def drawn_rows(times, share):
    """How often each row of the whole data was drawn by this process, and the batch sizes."""
    run = run_of("dense", sigma=1.0, share=share)
    own = range(rank(), ROWS, current_group().size)
    counts, sizes = np.zeros(ROWS), []
    for index in range(times):
        rows = run._stepper.batches.next(Batch("test", index)).rows.numpy()
        sizes.append(len(rows))
        counts[[own[row] for row in rows]] += 1
    return counts, sizes


def users_of_each():
    users = np.arange(ROWS) % 17
    method = dp_sgd(privatize(clip_norm=0.5, noise_multiplier=1.0, groups=by_user(most=2)), lr=0.1)
    data = examples(DENSE, LABELS, users=users)
    sampler = poisson(users=17, expected_size=17)
    run = run_of("dense", sigma=1.0, method=method, data=data, sampler=sampler)
    held = set(run._stepper._data.users.tolist())
    return held, weights_of(finished(run))


def uneven(sizes, share=1.0, sigma=0.0):
    """Shards of these sizes, one after another; they may be empty."""
    starts = np.cumsum([0, *sizes])
    here = slice(starts[rank()], starts[rank() + 1])
    whole = examples(DENSE, LABELS)
    data = Shard(whole.take(torch.arange(here.start, here.stop)))
    return weights_of(finished(run_of("dense", sigma=sigma, share=share, data=data)))


def of_a_dataset():
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(DENSE), torch.from_numpy(LABELS))
    data = examples(pairs)
    return weights_of(finished(run_of("dense", sigma=0.0, data=data)))


# --- ledgers and checkpoints ---


def paid_on(path, steps):
    ledger = DiskLedger(path) if rank() == 0 else None
    given = ledger or DiskLedger(Path(path).with_suffix(f".{rank()}"))
    run = run_of("sparse, late", sigma=2.0, share=0.3, steps=steps, ledger=given)
    result = finished(run)
    return result.privacy.epsilon, result.privacy.charges, run.ledger.identity


def first_steps(folder, take, steps):
    """Take some steps, and end as if the process had been killed after a checkpoint."""
    run = run_of(
        "sparse, late", sigma=2.0, share=0.3, steps=steps, checkpoints=Checkpoints(folder, every=5)
    )
    begun_at = run.taken
    for batch in run.batches():
        run.step(batch)
        if batch.index == take:
            break
    run.keep()
    return begun_at, weights_of(run.result()), run.result().privacy.steps_paid


def fitted(folder, steps):
    """`fit` from its checkpoint to the end, with an evaluation."""
    torch.manual_seed(rank())
    result = fit(
        nn.Linear(WORDS, CLASSES),
        cross_entropy,
        examples(COUNTS, LABELS),
        method=PROBLEMS["sparse, late"][1](2.0),
        sampler=poisson(examples=ROWS, expected_size=0.3 * ROWS),
        steps=steps,
        checkpoints=Checkpoints(folder, every=5),
        accountant=Accountant.RDP,
        evaluate=[on_public("some", COUNTS, LABELS, every=4, accuracy=accuracy)],
    )
    history = [(entry.step, entry.value) for entry in result.history]
    return weights_of(result), result.privacy.steps_paid, history


def beyond_the_budget():
    run_of("dense", sigma=1.0, share=1.0, steps=50, budget=Budget(0.1, 1e-5), must_fit=True)


# --- refusals ---


def refused(how):
    """Ask for something that several processes cannot do."""
    fit_of_users = privatize(clip_norm=1.0, noise_multiplier=1.0, groups=by_user(most=1))
    by_labels = privatize(clip_norm=1.0, noise_multiplier=1.0, groups=by_label(2))
    counted = side.noisy_frequencies(
        COUNTS, clip_norm=1.0, noise_multiplier=5.0, floor=0.1, source="the rows"
    )
    ways = {
        "a shuffle": {"sampler": shuffled(examples=ROWS, expected_size=30)},
        "a fixed size": {"sampler": fixed_size(examples=ROWS, expected_size=30)},
        "groups": {"method": dp_sgd(by_labels, lr=1.0)},
        "debugging": {"debug": True},
        "a measurement": {
            "method": adadps(counted, noise(1.0), lr=1.0),
            "data": examples(COUNTS, LABELS),
        },
        "users in shards": {
            "method": dp_sgd(fit_of_users, lr=1.0),
            "data": Shard(examples(DENSE, LABELS, users=np.arange(ROWS))),
            "sampler": poisson(users=ROWS, expected_size=30),
        },
    }
    run_of("dense", sigma=1.0, **ways[how])


def other_in_the_second(what):
    """Let the second process begin with something else than the first."""
    other = rank() == 1
    order = np.random.default_rng(rank()).permutation(ROWS) if what == "data" else np.arange(ROWS)
    options = {
        "method": dp_sgd(noise(1.0), lr=0.4 if other and what == "method" else 0.5),
        "steps": 7 if other and what == "steps" else 6,
        "data": examples(DENSE[order], LABELS[order]),
    }
    if what == "side information":
        known = np.arange(1, 6) + (rank() if other else 0) * np.array([0, 1, 0, 0, 0])
        held = side.frequency(
            side.given_frequencies(known, source="a table", public_because="made up"), floor=0.01
        )
        options["method"] = adadps(held, noise(1.0), lr=0.5)
        torch.manual_seed(0)
        return PrivateRun(
            nn.Linear(5, CLASSES, bias=False),
            cross_entropy,
            examples(DENSE, LABELS),
            method=options["method"],
            sampler=poisson(examples=ROWS, expected_size=30),
            steps=3,
        )
    return run_of("dense", sigma=1.0, **options)


def a_shard_without_a_number():
    torch.manual_seed(0)
    data = Shard(examples(DENSE, LABELS))
    method = dp_sgd(noise(1.0), lr=0.5)
    PrivateRun(nn.Linear(5, CLASSES), cross_entropy, data, method=method, batch_size=10, steps=3)


def the_first_alone(does):
    """Two steps; then the first process reads or evaluates the model, and the other does not."""
    run = run_of("sparse, late", sigma=1.0, share=0.3, steps=8)
    for batch in run.batches():
        run.step(batch)
        if batch.index == 2 and rank() == 0:
            if does == "reads":
                run._stepper.model.weight.sum()
            elif does == "publishes":
                _ = run.params
            else:
                run.evaluate(on_public("some", COUNTS, LABELS, accuracy=accuracy))


def together_then_alone():
    """All publish the weights; then each may read the model alone, until the next step."""
    run = run_of("sparse, late", sigma=1.0, share=0.3, steps=4)
    for batch in run.batches():
        run.step(batch)
        published = run.params
        if rank() == 0:
            assert torch.equal(run._stepper.model.weight.detach(), published["weight"])
    return weights_of(run.result())


def one_process_fails():
    """An error in the second process, in its third step."""
    run = run_of("dense", sigma=1.0, share=0.3, steps=8)
    if rank() == 1:
        usual = run._stepper._data.take
        calls = []

        def breaks(rows):
            calls.append(rows)
            if len(calls) == 3:
                raise OSError("row 17 of the private table")
            return usual(rows)

        object.__setattr__(run._stepper._data, "take", breaks)
    with suppress(StopIteration):
        finished(run)


def long_run(folder):
    """More steps than a test waits for."""
    stored = Checkpoints(folder, every=10)
    finished(run_of("dense", sigma=5.0, share=0.3, steps=100_000, checkpoints=stored))


def bytes_of_a_step(name, share):
    """How many bytes a step gives to collective operations, on average."""
    run = run_of(name, sigma=1.0, share=share, steps=10)
    finished(run)
    return run.group.bytes_sent / 10
