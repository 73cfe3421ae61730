"""The strategy with Flower's own types, on a grid in this process."""

import logging
import math
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'adadps[federated]'")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from adadps import Accountant, Checkpoints, examples, load_result, poisson, shuffled
from adadps.errors import ContractError, SettingError
from adadps.methods.stages import in_shares
from adadps.tensors.sums import RowSparse
from adadps.training.federated import records
from support.federations import EVERYBODY, QUIET, USERS, federated, method, model, play, rows_of
from support.flower_grid import NODES, Nodes, as_a_server_app, honest, strategy  # noqa: F401


def test_the_same_model_as_without_flower():
    held = strategy()
    result = held.start(Nodes(honest))
    wanted, _ = play(federated(method(**QUIET), EVERYBODY, rounds=3))
    found = result.arrays.to_torch_state_dict()
    assert set(found) == {"weight", "bias"}
    for name, value in wanted.params.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-7)
    assert held.run.taken == 3


def test_the_same_ledger_as_without_flower():
    sampler = poisson(users=USERS, expected_size=2)
    held = strategy(method(), sampler)
    result = held.start(Nodes(honest))
    wanted, _ = play(federated(method(), sampler, rounds=3))
    assert held.run.result().privacy == wanted.result().privacy
    said = dict(result.train_metrics_clientapp[3])
    assert said == {"round": 3, "epsilon-at-most": wanted.epsilon(accountant=Accountant.RDP)}
    assert said["epsilon-at-most"] > wanted.epsilon()


def test_a_device_is_sent_what_it_needs_and_sends_its_update_alone():
    grid = Nodes(honest)
    held = strategy(rounds=1)
    held.start(grid, train_config=ConfigRecord({"mine": 7}))
    sent = grid.sent[0].content
    assert set(sent) == {"arrays", "config", "adadps.task", "adadps.scale"}
    assert (sent["config"]["mine"], sent["config"]["server-round"]) == (7, 1)
    assert grid.sent[0].metadata.message_type == MessageType.TRAIN
    reply = honest(100, grid.sent[0]).content
    assert set(reply) == {"adadps.update", "adadps.rows", "adadps.axes"}
    assert len(reply["adadps.rows"]["weight"].numpy()) < 12, "own words alone"


def test_records_keep_an_update():
    params = dict(model().named_parameters())
    update = {
        "weight": RowSparse(torch.tensor([4, 2]), torch.rand(2, 3), (3, 12), axis=1),
        "bias": torch.rand(3),
    }
    again = records.read_answer(records.answer(update), params)
    assert torch.equal(again["weight"].to_dense(), update["weight"].to_dense())
    assert torch.equal(again["bias"], update["bias"])


def spoiled(change):
    """Node 100 answers with records that ``change`` has spoiled; all others are honest."""

    def device(node, message):
        reply = honest(node, message)
        return change(reply, message) if node == 100 else reply

    return device


def _bytes_for_an_array(reply, _message):
    array = Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=b"no numpy file")
    reply.content["adadps.update"]["bias"] = array
    return reply


def _objects(reply, message):
    reply.content["adadps.update"]["bias"] = Array(np.array([1.0 + 2j] * 3))
    return reply


def _of_an_older_round(reply, message):
    old = Message(RecordDict(), 100, MessageType.TRAIN, group_id="another-1")
    return Message(reply.content, reply_to=old)


def _no_axis(reply, _message):
    del reply.content["adadps.axes"]
    return reply


def _unknown(reply, _message):
    reply.content["adadps.update"]["surprise"] = Array(np.zeros(3))
    reply.content["adadps.rows"]["surprise"] = Array(np.zeros(3, np.int64))
    return reply


SPOILED = {
    "no answer": lambda _reply, _message: None,
    "an error": lambda _reply, message: Message(Error(0, "crashed"), reply_to=message),
    "nothing": lambda _reply, message: Message(RecordDict(), reply_to=message),
    "metrics": lambda _reply, message: Message(
        RecordDict({"adadps.update": MetricRecord({"bias": 1.0})}), reply_to=message
    ),
    "bytes": _bytes_for_an_array,
    "complex numbers": _objects,
    "another round": _of_an_older_round,
    "no axis": _no_axis,
    "unknown rows": _unknown,
}


@cache
def without_an_answer():
    """The model of the same federation where one node does not answer."""
    nodes = Nodes(spoiled(SPOILED["no answer"]))
    return strategy(rounds=2).start(nodes).arrays.to_torch_state_dict()


@pytest.mark.parametrize("fault", SPOILED)
def test_a_round_goes_on_without_a_broken_answer(fault):
    held, wanted = strategy(rounds=2), without_an_answer()
    found = held.start(Nodes(spoiled(SPOILED[fault]))).arrays.to_torch_state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert held.run.taken == 2


def test_two_answers_of_a_node_count_once():
    class Twice(Nodes):
        def send_and_receive(self, messages, **_timeout):
            return [reply for reply in super().send_and_receive(messages) for _ in range(2)]

    found = strategy().start(Twice(honest)).arrays.to_torch_state_dict()
    wanted = strategy().start(Nodes(honest)).arrays.to_torch_state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_a_cohort_of_nobody_is_noised_and_paid():
    held = strategy(method(), rounds=2, least_nodes=0)
    before = {name: value.clone() for name, value in held.run.params.items()}
    held.start(Nodes(honest, nodes=()))
    assert held.run.result().privacy.steps_paid == 2
    assert all(not torch.equal(before[name], value) for name, value in held.run.params.items())


@pytest.mark.parametrize("nodes", [(), range(USERS + 1)], ids=["none", "too many"])
def test_it_waits_for_the_right_number_of_nodes_and_then_ends(nodes):
    held = strategy(patience=0.01)
    with pytest.raises(ContractError, match="between 1 and 5 connected nodes"):
        held.start(Nodes(honest, nodes=nodes))
    assert held.run.result().privacy.steps_paid == 0, "nobody was asked, nothing is paid"


def test_a_question_lives_as_long_as_its_answer_is_waited_for():
    """Else a database would keep updates that came too late, as they are."""
    grid = Nodes(honest)
    strategy(rounds=1, answer_within=7.0).start(grid)
    strategy(rounds=1).start(grid, timeout=9.0)
    lives = [message.metadata.ttl for message in grid.sent]
    assert lives == [7.0] * USERS + [9.0] * USERS


def test_a_second_answer_after_an_unreadable_one_does_not_count():
    class Again(Nodes):
        def send_and_receive(self, messages, **_timeout):
            messages = list(messages)
            rounds = [m for m in messages if _is(100, m) and not records.is_preview(m.content)]
            return [
                *(_bytes_for_an_array(honest(100, message), message) for message in rounds),
                *super().send_and_receive(messages),
            ]

    found = strategy().start(Again(honest)).arrays.to_torch_state_dict()
    silent = Nodes(spoiled(SPOILED["no answer"]))
    wanted = strategy().start(silent).arrays.to_torch_state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def _is(node, message):
    return message.metadata.dst_node_id == node


def test_nodes_may_come_later():
    class Later(Nodes):
        calls = 0

        def get_node_ids(self):
            self.calls += 1
            return list(NODES) if self.calls > 2 else []

    held = strategy(rounds=1)
    held._patience = 60.0
    held.start(Later(honest))
    assert held.run.taken == 1


def test_nobody_evaluates_on_devices():
    held = strategy()
    assert held.configure_evaluate(1, None, None, None) == []
    assert held.aggregate_evaluate(1, []) is None


def test_a_resumed_run_counts_on(tmp_path):
    """The strategy sends the resumed weights, takes what is left, and counts as the run counts."""
    kept = {"checkpoints": Checkpoints(tmp_path, every=1)}
    strategy(rounds=5, run_options=kept).start(Nodes(honest), num_rounds=2)
    seen = []
    held = strategy(rounds=5, run_options=kept)
    again = held.start(Nodes(honest), evaluate_fn=lambda index, _arrays: seen.append(index))
    assert seen == [2, 3, 4, 5]
    wanted = strategy(rounds=5).start(Nodes(honest)).arrays.to_torch_state_dict()
    found = again.arrays.to_torch_state_dict()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)
    finished = strategy(rounds=5, run_options=kept).start(Nodes(honest))
    assert torch.equal(finished.arrays.to_torch_state_dict()["bias"], found["bias"])


def test_the_log_says_nothing_about_answers(caplog):
    """With everybody and with nobody, the same lines."""
    logged = []
    for nodes in (tuple(NODES), ()):
        caplog.clear()
        held = strategy(method(), poisson(users=USERS, expected_size=2), least_nodes=0)
        with caplog.at_level(logging.INFO, logger="flwr"):
            logging.getLogger("flwr").addHandler(caplog.handler)
            held.start(Nodes(honest, nodes=nodes))
            logging.getLogger("flwr").removeHandler(caplog.handler)
        lines = [record.getMessage() for record in caplog.records]
        logged.append([line for line in lines if "finished in" not in line])
    assert len(logged[0]) > 10
    assert [line for line in logged[0] if "Array" not in line] == [
        line for line in logged[1] if "Array" not in line
    ]


def test_a_round_waits_for_as_many_nodes_as_its_noise_needs(caplog):
    chosen, sampler = method(in_shares(minimum=4)), shuffled(users=USERS, expected_size=USERS)
    with pytest.raises(ContractError, match="between 4 and 5 connected nodes"):
        strategy(chosen, sampler, patience=0.01).start(Nodes(honest, nodes=[100]))
    with pytest.raises(SettingError, match="least_nodes between 4 and"):
        strategy(chosen, sampler, least_nodes=1)
    held = strategy(chosen, sampler, rounds=1)
    logging.getLogger("flwr").addHandler(caplog.handler)
    held.start(Nodes(lambda node, message: honest(node, message) if node < 102 else None))
    logging.getLogger("flwr").removeHandler(caplog.handler)
    assert held.run.discarded == 1
    assert "too few answers" in caplog.text


def test_rounds_that_were_taken_are_kept_when_nodes_leave(tmp_path):
    class Leaving(Nodes):
        def get_node_ids(self):
            return list(NODES) if len(self.sent) < 3 * USERS else []

    kept = {"checkpoints": Checkpoints(tmp_path, every=10)}
    held = strategy(rounds=40, run_options=kept, patience=0.01)
    with pytest.raises(ContractError, match="connected nodes"):
        held.start(Leaving(honest))
    assert held.run.taken == 3
    assert strategy(rounds=40, run_options=kept).run.taken == 3


@pytest.mark.parametrize("wrong", [0.0, -5.0, math.inf, math.nan])
def test_senseless_times_are_refused(wrong):
    """Flower would make twelve hours of none."""
    with pytest.raises(SettingError, match="answer_within"):
        strategy(answer_within=wrong)
    with pytest.raises(SettingError, match="timeout"):
        strategy().start(Nodes(honest), timeout=wrong)


def test_other_weights_than_those_of_the_run_are_refused():
    """They would not be trained, and epsilon would be spent on others."""
    held = strategy(rounds=1)
    others = ArrayRecord({name: value + 1 for name, value in model().state_dict().items()})
    with pytest.raises(SettingError, match="the model with these weights"):
        held.start(Nodes(honest), initial_arrays=others)
    assert held.run.result().privacy.steps_paid == 0
    held.start(Nodes(honest), initial_arrays=held.arrays())
    assert held.run.taken == 1


def test_wrong_numbers_of_nodes_are_refused():
    with pytest.raises(SettingError, match="least_nodes between 0 and the 5"):
        strategy(least_nodes=6)


def test_infinite_clip_norms_travel():
    params = dict(model().named_parameters())
    held = strategy(method(clip_norm=math.inf, noise_multiplier=0.0))
    sent = records.question(model(), held.run.task, None, {})
    task, scale = records.read_question(sent, model())
    assert (task, scale) == (held.run.task, None)
    assert set(sent["arrays"]) == set(params)


def test_the_blocks_of_the_guide_run(tmp_path, monkeypatch):
    """A server and a device as the page has them, on the grid of these tests."""
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "federated.md"
    server, client = re.findall(r"^```py\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.M)
    given = {"new_model": model, "method": method(), "sampler": EVERYBODY}
    given["made_up_rows"] = examples(np.zeros((1, 12), np.float32), [0])
    server = server.replace("rounds=50", "rounds=2").replace("/srv/fed", str(tmp_path))
    on_server, on_device = dict(given), {"new_model": model, "my_own_rows": rows_of(1)}
    exec(compile(server, "server_app.py", "exec"), on_server)
    exec(compile(client, "client_app.py", "exec"), on_device)
    on_server["main"](Nodes(lambda _node, message: on_device["train"](message, None)), None)
    assert load_result("model").privacy.steps == 2


def test_without_flower_the_extra_is_named():
    """In a process that finds no flwr, the room opens, and the module says what to install."""
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "import adadps.training.federated\n"
        "try:\n    import adadps.training.federated.flower\n"
        "except adadps.AdadpsError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'adadps[federated]'" in done.stdout
