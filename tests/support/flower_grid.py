"""A grid of Flower in one process: nodes that answer at once, each with a user's rows."""

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'adadps[federated]'")

from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from adadps.training.federated.flower import AdaDPSStrategy, train_on_device
from adadps.training.federated.records import is_preview
from support.federations import EVERYBODY, QUIET, USERS, federated, method, model, rows_of
from support.problems import cross_entropy

NODES = {100 + user: user for user in range(USERS)}


@pytest.fixture(autouse=True)
def as_a_server_app(monkeypatch):
    """Messages carry the identity of the process that Flower has started."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Nodes(Grid):
    """A grid whose nodes answer at once, by ``device(node, message)``; None is no answer.

    Previews are kept apart from questions, and answered by ``tries``.
    """

    def __init__(self, device, nodes=tuple(NODES), tries=None):
        self.device, self.tries = device, tries or honest
        self.nodes, self.sent, self.previews = list(nodes), [], []

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, **_timeout):
        answers = [self._answer(message) for message in messages]
        return [answer for answer in answers if answer is not None]

    def _answer(self, message):
        is_first = is_preview(message.content)
        (self.previews if is_first else self.sent).append(message)
        answers = self.tries if is_first else self.device
        return answers(message.metadata.dst_node_id, message)

    set_run = run = create_message = push_messages = pull_messages = None


Nodes.__abstractmethods__ = frozenset()


def honest(node, message):
    data = rows_of(NODES[node])
    return train_on_device(message, model=model(), loss=cross_entropy, data=data)


def strategy(
    chosen=None, sampler=EVERYBODY, *, rounds=3, weights=None, run_options=None, **options
):
    run = federated(chosen or method(**QUIET), sampler, rounds=rounds, **(run_options or {}))
    return AdaDPSStrategy(run, **options)
