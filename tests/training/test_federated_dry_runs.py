"""Devices that cannot do the task say so before anything is paid, and say nothing of their rows."""

import logging

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from adadps import Budget, PrivateRun, examples, shuffled
from adadps.accounting.ledger import MemoryLedger
from adadps.data.row_kind import RowKind
from adadps.errors import DataError, DeviceError, ModelError, SettingError
from adadps.methods.stages import by_each_device, by_user, chain, privatize, sgd, train_locally
from adadps.training.federated import Preview, Refusal, dry_run
from adadps.training.federated.dry_runs import CODE_ERRORS, refusing, require_ready
from support.broken_devices import (
    PATIENT,
    fails_on_rows,
    loader,
    mean_loss,
    misspelt,
    with_batch_norm,
)
from support.federations import (
    CLASSES,
    EVERYBODY,
    USERS,
    WIDTH,
    all_rows,
    federated,
    method,
    model,
    rows_of,
)
from support.problems import cross_entropy

MADE_UP = {
    "sparse": lambda: examples(sparse.csr_matrix((1, WIDTH)), [0]),
    "dense": lambda: examples(np.zeros((1, WIDTH), np.float32), [0]),
}


def plain(noise=None):
    """Without side information, which names the parameters of one model."""
    release = privatize(clip_norm=0.3, noise_multiplier=1.0, groups=by_user(most=9, noise=noise))
    return chain(train_locally(lr=0.7, batch_size=2), release, sgd(0.9))


def preview(weights=None, *, kind="dense", noise=None):
    sampler = EVERYBODY if noise is None else shuffled(users=USERS, expected_size=USERS)
    return federated(plain(noise), sampler, weights=weights or model(kind)).preview


def tried(weights, loss, data, asked=None, **options):
    return dry_run(asked or preview(weights()), weights(), loss, data, **options)


# --- the server's own check ---


def test_the_server_refuses_layers_that_mix_examples_before_it_pays():
    ledger = MemoryLedger(Budget(epsilon=1e3, delta=1e-3))
    with pytest.raises(ModelError, match=r"BatchNorm1d at '1'.*GroupNorm"):
        federated(plain(), EVERYBODY, weights=with_batch_norm(), ledger=ledger)
    assert ledger.entries == 0


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_the_server_checks_the_loss_on_rows_of_a_declared_kind(kind):
    ledger = MemoryLedger(Budget(epsilon=1e3, delta=1e-3))
    options = {"weights": model(kind), "ledger": ledger, "example": MADE_UP[kind]()}
    with pytest.raises(ModelError, match="a loss with one value per example"):
        federated(plain(), EVERYBODY, loss=mean_loss, **options)
    assert ledger.entries == 0
    federated(plain(), EVERYBODY, loss=cross_entropy, **options)


def test_the_server_refuses_an_example_that_does_not_fit_its_model():
    narrow = examples(np.zeros((1, 4), np.float32), [0])
    with pytest.raises(DataError, match="12 features"):
        federated(plain(), EVERYBODY, loss=cross_entropy, example=narrow)
    with pytest.raises(SettingError, match="both loss and example"):
        federated(plain(), EVERYBODY, loss=cross_entropy)
    with pytest.raises(DataError, match="found DataLoader"):
        federated(plain(), EVERYBODY, loss=cross_entropy, example=loader(0))


@pytest.mark.parametrize(
    ("weights", "loss", "data", "said"),
    [
        (with_batch_norm, cross_entropy, all_rows("dense"), "BatchNorm1d"),
        (lambda: model("dense"), mean_loss, all_rows("dense"), "one value per example"),
        (lambda: model("dense"), cross_entropy, loader(0), "found DataLoader"),
    ],
)
def test_a_simulation_in_one_process_refuses_the_same(weights, loss, data, said):
    ledger = MemoryLedger(Budget(epsilon=1e3, delta=1e-3))
    with pytest.raises((ModelError, DataError), match=said):
        PrivateRun(weights(), loss, data, method=plain(), sampler=EVERYBODY, steps=2, ledger=ledger)
    assert ledger.entries == 0


# --- a device's dry run ---


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_device_that_can_do_the_task_is_ready(kind, is_read):
    own = rows_of(0, kind)
    data = (lambda: own) if is_read else own
    assert tried(lambda: model(kind), cross_entropy, data) is None


@pytest.mark.parametrize(
    ("targets", "outputs", "loss"),
    [
        (torch.zeros(2), 1, lambda out, t: (out.squeeze(1) - t) ** 2),
        (torch.zeros(2, 3), 3, lambda out, t: ((out - t) ** 2).mean(1)),
        (
            torch.zeros(2, 3),
            3,
            lambda out, t: nn.functional.binary_cross_entropy(
                out.sigmoid(), t, reduction="none"
            ).mean(1),
        ),
    ],
)
def test_targets_of_other_kinds_are_made_up_too(targets, outputs, loss):
    data = examples(torch.zeros(2, WIDTH), targets)
    assert tried(lambda: nn.Linear(WIDTH, outputs), loss, data) is None


def test_words_by_number_are_made_up_too():
    def tokens():
        return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, CLASSES))

    data = examples(torch.ones(2, 5, dtype=torch.int64), [0, 1])
    assert tried(tokens, cross_entropy, data) is None


def frozen():
    held = model("dense")
    held.bias.requires_grad_(False)
    return held


def dense():
    return model("dense")


ROWS = rows_of(0, "dense")
NARROW = examples(torch.zeros(2, 5), [0, 1])


@pytest.mark.parametrize(
    ("of_server", "weights", "loss", "data", "said"),
    [
        (with_batch_norm, with_batch_norm, cross_entropy, ROWS, "BatchNorm1d at '1'"),
        (dense, dense, mean_loss, ROWS, "one value per example"),
        (dense, dense, cross_entropy, loader(0), "found DataLoader"),
        (dense, dense, cross_entropy, lambda: loader(0), "found DataLoader"),
        (dense, dense, cross_entropy, lambda: None, "found NoneType"),
        (dense, dense, cross_entropy, NARROW, "rows of 12 features for the first layer, found 5"),
        (dense, frozen, cross_entropy, ROWS, "requires_grad of bias"),
        (dense, lambda: nn.Linear(WIDTH, 4), cross_entropy, ROWS, "requires_grad of bias, weight"),
    ],
)
def test_a_device_that_cannot_do_the_task_says_why(of_server, weights, loss, data, said):
    """In our own words, which count from a single device."""
    asked = Preview.of(of_server(), preview().task)
    found = dry_run(asked, weights(), loss, data)
    assert said in found.text
    assert not found.while_reading
    with pytest.raises(DeviceError, match="No round was paid"):
        require_ready({1: found, 2: None})


def test_a_misspelt_key_is_told_by_its_class():
    found = tried(lambda: model("dense"), cross_entropy, misspelt(3))
    assert found == Refusal("KeyError", while_reading=True)
    with pytest.raises(DeviceError, match=r"2 of 2 cannot: KeyError \(2 nodes: 1, 2\)"):
        require_ready({1: found, 2: found})


def test_an_exception_of_a_model_or_a_loss_is_told_by_its_class():
    """Its text may quote anything that the code has at hand."""

    class Odd(nn.Linear):
        def forward(self, _features):
            raise ZeroDivisionError(PATIENT)

    found = tried(lambda: Odd(WIDTH, CLASSES), cross_entropy, rows_of(0, "dense"))
    assert found == Refusal("ZeroDivisionError")


def test_a_ledger_of_the_device_without_noise_of_devices_is_refused_unpaid():
    own = MemoryLedger(Budget(epsilon=1e3, delta=1e-3))
    data, weights = rows_of(0, "dense"), lambda: model("dense")
    assert (
        "an answer without noise fits no budget"
        in tried(weights, cross_entropy, data, ledger=own).text
    )
    asked = preview(noise=by_each_device())
    assert tried(weights, cross_entropy, data, asked, ledger=own) is None
    assert own.entries == 0


# --- nothing of its rows ---


@pytest.mark.parametrize("noise", [None, by_each_device()])
@pytest.mark.parametrize("problem", [OSError, ValueError, DataError, RuntimeError])
def test_rows_that_cannot_be_read_do_not_show(problem, noise):
    asked = preview(noise=noise)
    data = fails_on_rows(problem)
    assert tried(lambda: model("dense"), cross_entropy, data, asked) is None


@pytest.mark.parametrize("problem", CODE_ERRORS)
def test_what_rows_might_have_raised_does_not_count_where_a_device_is_ready(problem):
    found = tried(lambda: model("dense"), cross_entropy, fails_on_rows(problem))
    assert found == Refusal(problem.__name__, while_reading=True), "its class alone"
    require_ready({1: found, 2: None})
    assert refusing({1: found, 2: None}) == {}


@pytest.mark.parametrize("loss", [cross_entropy, mean_loss])
def test_a_refusal_is_the_same_whatever_the_rows_are(loss):
    """Rows, others of the same kind, broken ones; unread ones by the kind that is declared."""
    wild = examples(1e30 * torch.ones(3, WIDTH), [17, -5, 99])
    asked = Preview.of(model("dense"), preview().task, RowKind.of(MADE_UP["dense"]()))
    rows = [rows_of(0, "dense"), rows_of(1, "dense"), wild, fails_on_rows(OSError)]
    found = {dry_run(asked, model("dense"), loss, data) for data in rows}
    assert len(found) == 1


def test_a_dry_run_reads_no_value_of_the_rows():
    """A tensor without memory has a kind and a shape, and nothing else to read."""
    own = rows_of(0, "dense")
    object.__setattr__(own, "features", own.features.to("meta"))
    object.__setattr__(own, "targets", own.targets.to("meta"))
    assert tried(lambda: model("dense"), cross_entropy, own) is None


def test_tracebacks_stay_in_the_log_of_the_device(caplog):
    with caplog.at_level(logging.ERROR, logger="adadps.device"):
        tried(lambda: model("dense"), cross_entropy, fails_on_rows(KeyError))
        tried(lambda: model("dense"), cross_entropy, fails_on_rows(OSError))
    assert caplog.text.count("Traceback") == 2
    assert caplog.text.count(PATIENT) == 2


# --- what the server makes of it ---


def test_texts_of_devices_are_cut_and_shown_on_one_line():
    """A device may be anybody's."""
    wild = {node: Refusal(f"{node}\n\x1b[31m" + 10_000 * "x") for node in range(20)}
    with pytest.raises(DeviceError) as raised:
        require_ready(wild)
    text = str(raised.value)
    assert len(text) < 5_000
    assert text.isprintable()
    assert "20 of 20 cannot" in text
    assert "and 15 other texts" in text


def test_silence_of_all_at_the_dry_run_is_refused():
    with pytest.raises(DeviceError, match="found none of 5"):
        require_ready({}, asked=5)
    require_ready({}, asked=0)
    require_ready({3: None}, asked=5)


def test_a_run_is_not_begun_where_devices_refuse():
    ledger = MemoryLedger(Budget(epsilon=1e3, delta=1e-3))
    run = federated(method(), EVERYBODY, ledger=ledger)
    answers = {
        node: dry_run(run.preview, model(), mean_loss, rows_of(node)) for node in range(USERS)
    }
    with pytest.raises(DeviceError, match=r"5 of 5 cannot: Expected a loss with one value"):
        run.require_ready(answers)
    assert ledger.entries == 0
    run.require_ready(
        {node: dry_run(run.preview, model(), cross_entropy, rows_of(node)) for node in range(3)}
    )


def test_kinds_travel():
    for data in (rows_of(0), rows_of(0, "dense"), examples(torch.zeros(1, 2, 3), torch.ones(1, 4))):
        kind = RowKind.of(data)
        assert RowKind.from_settings(kind.as_settings()) == kind
        assert RowKind.of(kind.no_examples()) == kind
        assert len(kind.no_examples()) == 0
    with pytest.raises(SettingError, match="one of"):
        RowKind.from_settings({**kind.as_settings(), "dtype": "complex64"})
    with pytest.raises(SettingError, match="the settings"):
        RowKind.from_settings({**kind.as_settings(), "more": "1"})
