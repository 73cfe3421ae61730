"""Whole pipelines on data that records every access, and what each of them declares to read.

Each takes the recording and a folder.
"""

import numpy as np
import torch
from scipy import sparse
from torch import nn

import adadps
from adadps import (
    AdaDPSClassifier,
    AdaDPSRegressor,
    accuracy,
    by_user,
    dp_sgd,
    examples,
    fit,
    fixed_size,
    on_held_out,
    poisson,
    privatize,
    public_examples,
    shuffled,
    side,
    tune,
)
from adadps.data.provenance import DeclaredRead
from adadps.methods.stages import chain, pretrain, reparametrise, sgd
from adadps.training.federated import local_update
from adadps.training.tuning import fixed_grid, highest, private_accuracy
from support.federations import EVERYBODY, USERS, federated
from support.federations import all_rows as rows_of_devices
from support.federations import method as of_devices
from support.federations import model as model_of_devices
from support.federations import rows_of as rows_of_device
from support.models import Custom
from support.problems import cross_entropy
from support.recorded_commands import (
    DECLARED,
    command,
    command_that_chooses,
    command_with_test,
)

SIZE, WIDTH, CLASSES, STEPS = 12, 5, 3, 2
ROWS = np.random.default_rng(0).normal(size=(SIZE, WIDTH)).astype(np.float32)
WORDS = np.random.default_rng(1).integers(WIDTH, size=(SIZE, 4))
LABELS = np.arange(SIZE) % CLASSES
OWNERS = np.arange(SIZE) // 3
NOISE = privatize(clip_norm=1.0, noise_multiplier=2.0)
ALL = poisson(examples=SIZE, expected_size=SIZE)


def linear():
    return nn.Linear(WIDTH, CLASSES)


def given(recording, features=ROWS, targets=LABELS, **more):
    """Examples as a user builds them, of data that is recorded from the beginning."""
    dense = recording.tensor("features", torch.from_numpy(features))
    return examples(dense, recording.tensor("targets", torch.from_numpy(targets)), **more)


def trained(data, model=None, *, method=None, sampler=ALL, **more):
    chosen = method or dp_sgd(NOISE, lr=0.1)
    more.setdefault("accountant", adadps.Accountant.RDP)
    return fit(
        model or linear(), cross_entropy, data, method=chosen, sampler=sampler, steps=STEPS, **more
    )


# --- pipelines: each takes the recording and a folder ---


def dense(recording, _):
    trained(given(recording))


def on_sparse_rows(recording, _):
    rows = examples(sparse.csr_matrix(np.maximum(ROWS, 0)), LABELS)
    trained(recording.examples(rows), adadps.sparse_linear(WIDTH, CLASSES))


def bag_of_tokens(recording, _):
    model = nn.Sequential(nn.EmbeddingBag(WIDTH, 4, mode="sum"), nn.Tanh(), nn.Linear(4, CLASSES))
    trained(given(recording, WORDS), model)


def perceptron(recording, _):
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    trained(given(recording), model, physical_batch_size=5)


def module_with_chance(recording, _):
    model = Custom(
        lambda m, x: m.head(m.drop(torch.relu(m.layer(x)))),
        layer=nn.Linear(WIDTH, 4),
        drop=nn.Dropout(0.5),
        head=nn.Linear(4, CLASSES),
    )
    trained(given(recording), model)


def batches_of_fixed_size(recording, _):
    trained(given(recording), sampler=fixed_size(examples=SIZE, expected_size=4))


def shuffled_epochs(recording, _):
    trained(given(recording), sampler=shuffled(examples=SIZE, expected_size=4))


def users(recording, _):
    data = given(recording, users=OWNERS)
    data = recording.examples(data)
    release = privatize(clip_norm=1.0, noise_multiplier=2.0, groups=by_user(most=2))
    sampler = poisson(users=4, expected_size=4)
    trained(data, method=dp_sgd(release, lr=0.1), sampler=sampler)


def beside_public_rows(recording, _):
    public = public_examples(
        ROWS[:4], LABELS[:4], source="toy", public_because="made up", batch_size=2
    )
    method = chain(pretrain(public, sgd(0.1), epochs=1), NOISE, sgd(0.1))
    trained(given(recording), method=method)


class TokensAndMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(WIDTH, 4), nn.Linear(4, CLASSES)

    def forward(self, mask, tokens):
        return {"logits": self.head((self.table(tokens) * mask.unsqueeze(-1)).sum(1))}


def several_inputs(recording, _):
    tokens, mask = torch.from_numpy(WORDS), torch.from_numpy((WORDS > 0).astype(np.float32))
    data = examples(
        {"tokens": recording.tensor("tokens", tokens), "mask": recording.tensor("mask", mask)},
        recording.tensor("targets", torch.from_numpy(LABELS)),
    )
    sampled = fit(
        TokensAndMask(), lambda outputs, targets: cross_entropy(outputs["logits"], targets), data,
        method=dp_sgd(NOISE, lr=0.1), sampler=ALL, steps=STEPS, accountant=adadps.Accountant.RDP,
    )  # fmt: skip
    assert sampled.privacy.steps == STEPS


def of_dataset(**more):
    """Rows that are read as they are drawn; with declared form, none is read before."""

    def pipeline(recording, folder):
        data = examples(recording.dataset(ROWS, LABELS), **more)
        trained(data, checkpoints=folder / "kept").save(folder / "result")

    return pipeline


def measured_frequencies(recording, _):
    counts = recording.tensor("features", torch.from_numpy((ROWS > 0).astype(np.float32)))
    known = side.noisy_frequencies(
        counts, clip_norm=1.0, noise_multiplier=5.0, floor=0.1, source="the rows"
    )
    trained(given(recording), method=adadps.adadps(known, NOISE, lr=0.1))


def kept_and_resumed(recording, folder):
    data = given(recording)
    for steps in (1, None):
        run = adadps.PrivateRun(
            linear(),
            cross_entropy,
            data,
            method=dp_sgd(NOISE, lr=0.1),
            sampler=ALL,
            steps=STEPS,
            accountant=adadps.Accountant.RDP,
            checkpoints=adadps.Checkpoints(folder / "kept", every=1),
        )
        for batch in run.batches():
            run.step(batch)
            if steps == batch.index:
                run.keep()
                break
    run.result().save(folder / "result")


def measured_on_held_out_rows(recording, folder):
    held_out = on_held_out("test", ROWS + 1, LABELS, every=1, accuracy=accuracy)
    trained(given(recording), evaluate=[held_out]).save(folder / "result")


def tuned(recording, _):
    data = given(recording)
    pilot = adadps.on_public("pilot", ROWS, LABELS, accuracy=accuracy)
    tune(
        lambda setting: (linear(), dp_sgd(NOISE, lr=setting["lr"])),
        cross_entropy,
        data,
        grid={"lr": [0.1, 0.2]},
        score=highest(pilot, "accuracy"),
        selection=fixed_grid(),
        sampler=ALL,
        steps=STEPS,
        accountant=adadps.Accountant.RDP,
    )


def tuned_by_a_private_score(recording, _):
    """The rows behind the score are recorded, and those that are trained on are not."""
    score = private_accuracy(
        "training rows",
        recording.tensor("features", torch.from_numpy(ROWS)),
        recording.tensor("targets", torch.from_numpy(LABELS)),
        examples=SIZE,
        noise_multiplier=9.0,
    )
    tune(
        lambda setting: (linear(), dp_sgd(NOISE, lr=setting["lr"])),
        cross_entropy,
        examples(ROWS, LABELS),
        grid={"lr": [0.1]},
        score=score,
        selection=fixed_grid(),
        sampler=ALL,
        steps=STEPS,
        accountant=adadps.Accountant.RDP,
    )


def weighted_by_measured_frequencies(recording, _):
    """The rows whose words are counted are recorded, and those that are trained on are not."""
    counts = recording.tensor("features", torch.from_numpy((ROWS > 0).astype(np.float32)))
    known = side.noisy_frequencies(
        counts, clip_norm=1.0, noise_multiplier=5.0, floor=0.1, source="the rows"
    )
    trained(examples(ROWS, LABELS), method=chain(reparametrise(known), NOISE, sgd(0.1)))


def federation_simulated(recording, _):
    data = recording.examples(rows_of_devices("dense"))
    fit(
        model_of_devices("dense"),
        cross_entropy,
        data,
        method=of_devices(),
        sampler=EVERYBODY,
        steps=STEPS,
        accountant=adadps.Accountant.RDP,
    )


def federation_of_devices(recording, _):
    devices = {user: recording.examples(rows_of_device(user, "dense")) for user in range(USERS)}
    run = federated(
        of_devices(), EVERYBODY, rounds=STEPS, weights=model_of_devices("dense"),
        accountant=adadps.Accountant.RDP,
    )  # fmt: skip
    for batch in run.batches():
        for node in run.cohort(batch, devices):
            copy = model_of_devices("dense")
            copy.load_state_dict({name: value.clone() for name, value in run.params.items()})
            answer = local_update(run.task, copy, cross_entropy, devices[node], scale=run.scale)
            run.answer(batch, node, answer)
        run.step(batch)


def estimator(kind, **options):
    def pipeline(recording, folder):
        X, y = (ROWS, LABELS) if kind is AdaDPSClassifier else (ROWS, ROWS[:, 0])
        X, y = (np.concatenate([one] * options.get("copies", 1)) for one in (X, y))
        X = sparse.csr_matrix(np.maximum(X, 0)) if options.get("sparse_rows") else X
        ours = ("sparse_rows", "copies")
        given = {name: value for name, value in options.items() if name not in ours}
        paid = folder / "ledger"  # by RDP, soon done
        usual = {"epsilon": 3, "delta": 0.001, "batch_size": 4, "epochs": 1, "ledger": paid}
        model = kind(**{**usual, **given})
        model.fit(X, y)
        model.partial_fit(X, y) if options.get("epsilon_per_run") else None
        model.result_.save(folder / "result")

    return pipeline


def corpus(recording, _):
    """An estimator with a public corpus, whose rows are left out."""
    known = side.corpus_frequencies(
        sparse.csr_matrix(np.maximum(ROWS[:4], 0)), source="a corpus", public_because="printed"
    )
    X = sparse.csr_matrix(np.maximum(ROWS, 0))
    declared = {"classes": range(CLASSES), "examples": SIZE, "strict": True}
    AdaDPSClassifier(
        epsilon=3, accountant="rdp", side=known, batch_size=4, epochs=1, **declared
    ).fit(X, LABELS)


Read = DeclaredRead
PIPELINES = {
    "fit, linear": (dense, {Read.FORM}),
    "fit, sparse rows": (on_sparse_rows, {Read.FORM}),
    "fit, bag of tokens": (bag_of_tokens, {Read.FORM}),
    "fit, perceptron in pieces": (perceptron, {Read.FORM}),
    "fit, module with chance": (module_with_chance, {Read.FORM}),
    "fit, fixed size": (batches_of_fixed_size, {Read.FORM}),
    "fit, shuffled": (shuffled_epochs, {Read.FORM}),
    "fit, users": (users, {Read.FORM, Read.USERS, Read.NUMBER}),
    "fit, public rows": (beside_public_rows, {Read.FORM, Read.PUBLIC_TOO}),
    "fit, several inputs": (several_inputs, {Read.FORM}),
    "fit, dataset": (of_dataset(), {Read.FORM}),
    "fit, dataset of declared form": (of_dataset(synthetic=(ROWS[:3] + 1, LABELS[:3])), set()),
    "fit, noisy frequencies": (measured_frequencies, {Read.FORM, Read.PAID_MEASUREMENT}),
    "PrivateRun, kept and resumed": (kept_and_resumed, {Read.FORM}),
    "fit, held-out rows": (measured_on_held_out_rows, {Read.FORM}),
    "tune": (tuned, {Read.FORM}),
    "federation, simulated": (federation_simulated, {Read.FORM, Read.USERS, Read.NUMBER}),
    "federation of devices": (federation_of_devices, set()),
    "classifier, all declared": (
        estimator(
            AdaDPSClassifier, classes=range(CLASSES), examples=SIZE, feature_bounds=(-3, 3),
            strict=True,
        ),
        {Read.FORM, Read.ENCODING},
    ),
    "classifier, sparse, read off": (
        estimator(AdaDPSClassifier, sparse_rows=True),
        {Read.FORM, Read.ENCODING, Read.ASSUMED_PUBLIC},
    ),
    "classifier, in parts": (
        estimator(
            AdaDPSClassifier, classes=range(CLASSES), feature_bounds=(-3, 3), epsilon_per_run=1
        ),
        {Read.FORM, Read.ENCODING},
    ),
    "classifier, public corpus": (
        corpus,
        {Read.FORM, Read.ENCODING, Read.PUBLIC_TOO},
    ),
    "regressor, all declared": (
        estimator(
            AdaDPSRegressor, bounds=(-3, 3), feature_bounds=(-3, 3), examples=SIZE, strict=True
        ),
        {Read.FORM, Read.ENCODING},
    ),
    "regressor, read off": (
        estimator(AdaDPSRegressor),
        {Read.FORM, Read.ENCODING, Read.ASSUMED_PUBLIC},
    ),
    "classifier, paid for": (
        estimator(
            AdaDPSClassifier, classes="paid", feature_bounds="paid", examples=240, strict=True,
            copies=20, epsilon=60, delta=1e-3,
        ),
        {Read.FORM, Read.ENCODING, Read.PAID_MEASUREMENT},
    ),
    "regressor, paid for": (
        estimator(
            AdaDPSRegressor, bounds="paid", feature_bounds="paid", examples=240, strict=True,
            copies=20, epsilon=60, delta=1e-3,
        ),
        {Read.FORM, Read.ENCODING, Read.PAID_MEASUREMENT},
    ),
    "train, paid for": (
        command("train", "--numeric", "age", "--categorical", "ward", "--rare", "other",
                "--examples", 40, "--strict", "--epsilon", 40),
        {Read.FORM, Read.ENCODING, Read.PAID_MEASUREMENT},
    ),
    "train, all declared": (
        command("train", *DECLARED, "--examples", 40, "--strict"),
        {Read.FORM, Read.ENCODING},
    ),
    "train, read off": (
        command("train", "--numeric", "age", "--categorical", "ward"),
        {Read.FORM, Read.ENCODING, Read.ASSUMED_PUBLIC, Read.NUMBER},
    ),
    "train, features chosen": (
        command_that_chooses,
        {Read.FORM, Read.ENCODING, Read.PAID_MEASUREMENT},
    ),
    "train, users": (
        command("train", *DECLARED, "--user", "who", "--users", 8, "--strict"),
        {Read.FORM, Read.ENCODING, Read.USERS, Read.NUMBER},
    ),
    "train, held-out rows": (
        command_with_test,
        {Read.FORM, Read.ENCODING},
    ),
    "federate": (
        command("federate", *DECLARED, "--user", "who", "--users", 8, "--rounds", 3, "--cohort", 4),
        {Read.FORM, Read.ENCODING, Read.USERS, Read.NUMBER},
    ),
}  # fmt: skip
