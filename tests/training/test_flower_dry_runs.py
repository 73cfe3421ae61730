"""On Flower: devices that would fail at every round are heard before the first payment."""

import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'adadps[federated]'")

import torch
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from torch import nn

from adadps import Budget, Checkpoints, poisson, shuffled
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import DataError, DeviceError, SettingError
from adadps.methods.stages import by_each_device, by_server
from adadps.training.federated.flower import AdaDPSStrategy, node_setting, train_on_device
from adadps.training.federated.records import preview_question, read_preview, read_readiness
from support.broken_devices import PATIENT, fails_on_rows, loader, mean_loss, misspelt
from support.federations import EVERYBODY, USERS, federated, method, model, rows_of
from support.flower_grid import NODES, Nodes, as_a_server_app, honest, strategy  # noqa: F401
from support.problems import cross_entropy

EACH_ONCE = shuffled(users=USERS, expected_size=USERS)
PLACES = {"server": (by_server(), EVERYBODY), "devices": (by_each_device(), EACH_ONCE)}


def device(**options):
    """Nodes that answer with other parts than the honest ones."""

    def answers(node, message):
        user = NODES[node]
        given = {"model": model(), "loss": cross_entropy, "data": rows_of(user)}
        return train_on_device(
            message, **given | {name: make(user) for name, make in options.items()}
        )

    return answers


def with_batch_norm(_user):
    """A table of the same names and shapes, and layers that mix examples behind it."""
    held = model()
    held.add_module("norm", nn.BatchNorm1d(3, affine=False, track_running_stats=False))
    return held


def misspelt_setting(user):
    context = SimpleNamespace(node_config={"partition_id": user, "secret": PATIENT})
    return lambda: rows_of(node_setting(context, "partition-id"))


BROKEN = {
    "BatchNorm": ({"model": with_batch_norm}, "BatchNorm1d at 'norm'"),
    "a mean loss": ({"loss": lambda _: mean_loss}, "a loss with one value per example"),
    "a loader": ({"data": loader}, "found DataLoader"),
    "a function for a loader": ({"data": lambda user: lambda: loader(user)}, "found DataLoader"),
    "a misspelt key": ({"data": misspelt}, "KeyError"),
    "a misspelt setting": ({"data": misspelt_setting}, "'partition-id' in the configuration of"),
    "another model": ({"model": lambda _: nn.Linear(12, 4)}, "the server's model"),
}


def paid_run(place, rounds=3):
    noise, sampler = PLACES[place]
    ledger = MemoryLedger(Budget(epsilon=1e3, delta=1e-3))
    return strategy(method(noise), sampler, rounds=rounds, run_options={"ledger": ledger}), ledger


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", BROKEN)
def test_a_federation_of_broken_devices_ends_before_anything_is_paid(fault, place):
    parts, said = BROKEN[fault]
    broken = device(**parts)
    held, ledger = paid_run(place)
    before = {name: value.clone() for name, value in held.run.params.items()}
    grid = Nodes(broken, tries=broken)
    with pytest.raises(DeviceError) as raised:
        held.start(grid)
    text = str(raised.value)
    assert said in text
    assert "5 of 5 cannot" in text
    assert "No round was paid" in text
    assert PATIENT not in text
    assert ledger.entries == 0
    assert held.run.result().privacy.steps_paid == 0
    assert not grid.sent, "nobody was sent weights"
    assert all(torch.equal(held.run.params[name], value) for name, value in before.items())


def test_the_server_hears_nothing_but_texts_of_ours_and_classes():
    """Whatever a function that reads rows says about them."""
    for problem, text in ((KeyError, "KeyError"), (OSError, ""), (DataError, "")):
        answers = device(data=lambda _, problem=problem: fails_on_rows(problem))
        reply = answers(100, first_message())
        assert set(reply.content) == {"adadps.ready"}
        assert dict(reply.content["adadps.ready"]) == {
            "refusal": text,
            "while-reading": bool(text),
        }


def first_message(**options):
    run = federated(method(), EVERYBODY, **options)
    content = preview_question(run.preview, {})
    return Message(content, 100, MessageType.TRAIN)


def test_a_preview_has_no_weights_and_travels():
    example = {"loss": cross_entropy, "example": rows_of(0)}
    run = federated(method(), EVERYBODY, **example)
    sent = preview_question(run.preview, {"mine": 7})
    assert set(sent) == {"config", "adadps.task", "adadps.preview", "adadps.kind"}
    assert read_preview(sent) == run.preview
    assert sent["config"]["mine"] == 7
    grid = Nodes(honest)
    held = strategy(rounds=1)
    held.start(grid, train_config=ConfigRecord({"mine": 7}))
    assert {message.metadata.dst_node_id for message in grid.previews} == set(NODES)
    assert {message.metadata.message_type for message in grid.previews} == {MessageType.TRAIN}
    assert all(message.content["config"]["mine"] == 7 for message in grid.previews)


def test_a_device_pays_nothing_for_its_dry_run():
    own = MemoryLedger(Budget(epsilon=1e3, delta=1e-3))
    run = federated(method(by_each_device()), EACH_ONCE)
    message = Message(preview_question(run.preview, {}), 100, MessageType.TRAIN)
    reply = device(ledger=lambda _: own)(100, message)
    assert read_readiness(reply).refusal is None
    assert own.entries == 0


def test_one_refusal_ends_the_run_and_names_its_node():
    def tries(node, message):
        return (device(data=misspelt_setting) if node == 103 else honest)(node, message)

    held, ledger = paid_run("server")
    with pytest.raises(DeviceError, match=r"1 of 5 cannot: .*\(node 103\)"):
        held.start(Nodes(honest, tries=tries))
    assert ledger.entries == 0


def test_rows_that_raise_do_not_stop_a_federation():
    """One device whose rows raise even a KeyError: it is absent, and nobody hears of it."""
    spoiled = device(data=lambda _: fails_on_rows(KeyError))

    def tries(node, message):
        return (spoiled if node == 103 else honest)(node, message)

    held, _ = paid_run("server")
    held.start(Nodes(tries, tries=tries))
    assert held.run.taken == 3


SILENT = {
    "nothing": lambda _node, _message: None,
    "an error": lambda _node, message: Message(Error(0, "no answer"), reply_to=message),
    "an older version": lambda _node, message: Message(RecordDict(), reply_to=message),
    "other records": lambda _node, message: Message(
        RecordDict({"adadps.ready": ConfigRecord({"other": 1})}), reply_to=message
    ),
}


@pytest.mark.parametrize("kind", SILENT)
def test_silence_of_all_at_the_dry_run_is_refused_unpaid(kind):
    held, ledger = paid_run("server")
    with pytest.raises(DeviceError, match="found none of 5"):
        held.start(Nodes(honest, tries=SILENT[kind]))
    assert ledger.entries == 0


def test_some_silent_nodes_do_not_stop_it():
    held, _ = paid_run("server")
    grid = Nodes(honest, tries=lambda node, m: honest(node, m) if node == 101 else None)
    held.start(grid)
    assert held.run.taken == 3
    assert len(grid.previews) == USERS, "nobody is waited for twice"


def raised_in_the_app(code, reason):
    return lambda _node, message: Message(Error(code, reason), reply_to=message)


def test_an_app_that_fails_around_our_call_is_told_by_its_class():
    """Flower sends the text of the exception, which may quote rows: it is not shown."""
    raised = raised_in_the_app(
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"<class 'pandas.errors.ParserError'>:<'{PATIENT}'>"
    )
    with pytest.raises(DeviceError, match="ParserError in the ClientApp") as told:
        strategy().start(Nodes(honest, tries=raised))
    assert PATIENT not in str(told.value)
    unloaded = raised_in_the_app(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, PATIENT)
    with pytest.raises(DeviceError, match="cannot be loaded") as told:
        strategy().start(Nodes(honest, tries=unloaded))
    assert PATIENT not in str(told.value)


class Joining(Nodes):
    """Another node comes after the first round."""

    def get_node_ids(self):
        return list(NODES)[: 4 if not self.sent else 5]


def test_a_node_that_comes_later_makes_its_dry_run_first():
    held, _ = paid_run("server")
    grid = Joining(honest)
    held.start(grid)
    assert [m.metadata.dst_node_id for m in grid.previews] == list(NODES)
    assert {m.metadata.dst_node_id for m in grid.sent} == set(NODES)


def test_a_node_that_comes_later_and_refuses_is_logged_and_not_asked(caplog):
    def tries(node, message):
        return (device(data=misspelt_setting) if node == 104 else honest)(node, message)

    held, _ = paid_run("server")
    grid = Joining(honest, tries=tries)
    logging.getLogger("flwr").addHandler(caplog.handler)
    held.start(grid)
    logging.getLogger("flwr").removeHandler(caplog.handler)
    said = {record for record in caplog.records if record.name == "flwr"}
    assert held.run.taken == 3
    assert 104 not in {m.metadata.dst_node_id for m in grid.sent}
    lines = [record.getMessage() for record in said]
    assert len([line for line in lines if "'partition-id' in the configuration" in line]) == 1
    assert len(grid.previews) == USERS


def test_a_node_that_comes_during_the_dry_runs_is_heard_before_the_first_payment():
    """Its rows might have raised what it says: others are ready, so that does not count."""

    class JoiningEarly(Nodes):
        def get_node_ids(self):
            return list(NODES)[: 4 if not self.previews else 5]

    def tries(node, message):
        spoiled = device(data=lambda _: fails_on_rows(KeyError))
        return (spoiled if node == 104 else honest)(node, message)

    held, _ = paid_run("server")
    held.start(JoiningEarly(tries, tries=tries))
    assert held.run.taken == 3
    held, ledger = paid_run("server")
    grid = JoiningEarly(honest, tries=lambda node, message: (
        device(loss=lambda _: mean_loss) if node == 104 else honest)(node, message))  # fmt: skip
    with pytest.raises(DeviceError, match="1 of 5 cannot"):
        held.start(grid)
    assert ledger.entries == 0


def test_a_resumed_run_asks_again_before_it_pays(tmp_path):
    kept = {"checkpoints": Checkpoints(tmp_path, every=1)}
    strategy(method(), rounds=5, run_options=kept).start(Nodes(honest), num_rounds=2)
    held = strategy(method(), rounds=5, run_options=kept)
    broken = device(loss=lambda _: mean_loss)
    with pytest.raises(DeviceError, match="5 of 5 cannot"):
        held.start(Nodes(broken, tries=broken))
    assert held.run.result().privacy.steps_paid == 2


# --- silence in a round ---


def test_all_silent_devices_end_the_run_with_nothing_released():
    """They were ready, and cannot read their rows."""
    unread = device(data=lambda _: fails_on_rows(OSError))
    held, _ = paid_run("server")
    before = {name: value.clone() for name, value in held.run.params.items()}
    with pytest.raises(DeviceError, match="in round 1"):
        held.start(Nodes(unread, tries=unread))
    assert all(torch.equal(held.run.params[name], value) for name, value in before.items())
    assert held.run.result().privacy.steps_paid == 1


def test_an_empty_poisson_cohort_is_no_silence():
    seldom = poisson(users=USERS, expected_size=0.05)
    held = AdaDPSStrategy(federated(method(), seldom, rounds=10))
    grid = Nodes(honest)
    held.start(grid)
    assert len(grid.sent) < 10, "19 of 20 cohorts are empty"
    assert held.run.taken == held.run.result().privacy.steps_paid == 10


def test_devices_that_add_noise_still_answer_noise_for_rows_of_no_use():
    unread = device(data=lambda _: fails_on_rows(OSError))
    held, _ = paid_run("devices")
    held.start(Nodes(unread, tries=unread))
    assert held.run.taken == 3


def test_a_setting_of_a_node_is_there_or_named():
    context = SimpleNamespace(node_config={"partition_id": 3, "folder": PATIENT})
    assert node_setting(context, "folder") == PATIENT
    with pytest.raises(SettingError, match=r"found 'folder', 'partition_id'\. Start") as raised:
        node_setting(context, "partition-id")
    assert PATIENT not in str(raised.value)


def test_a_traceback_is_logged_on_the_device(caplog):
    with caplog.at_level(logging.ERROR, logger="adadps.device"):
        device(data=misspelt)(100, first_message())
    assert "Traceback" in caplog.text
    assert "KeyError: 'partition-id'" in caplog.text
