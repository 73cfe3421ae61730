"""Federations on Flower 1.41: a strategy for the ServerApp, one call for the ClientApp.

::

    strategy = AdaDPSStrategy(FederatedRun(model, method=method, sampler=sampler, rounds=50))

    @server.main()                                     @client.train()
    def main(grid, context):                           def train(message, context):
        strategy.start(grid)                               return train_on_device(message, ...)

Each user is a SuperNode. Before the first round, every node makes a dry run on synthetic rows; if
one cannot do the task, the run ends before anything is paid. Devices do not evaluate: what they
would report carries no noise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import torch

from adadps.errors import ContractError, DataError, require, require_positive
from adadps.training.federated.dry_runs import Refusal, described, refusing, require_ready
from adadps.training.federated.server import FederatedRun
from adadps.training.stepper import Batch

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy

    from adadps.training.federated.flower_device import node_setting, train_on_device
    from adadps.training.federated.records import (
        preview_question,
        question,
        read_answer,
        read_readiness,
    )
except ModuleNotFoundError as error:
    raise DataError(
        f"Expected the package flwr for federations on Flower, found that {error.name} is not "
        "installed. Install it: pip install 'adadps[federated]'."
    ) from error

__all__ = ["AdaDPSStrategy", "node_setting", "train_on_device"]

LOG = logging.getLogger("flwr")
EPSILON = "epsilon-at-most"
"""A bound that is quick to compute after every round; it is above the epsilon of the result."""
ROUND = "server-round"
"""The key by which Flower's own strategies tell devices the number of the round."""


class AdaDPSStrategy(Strategy):  # type: ignore[misc]
    """Runs a `FederatedRun` on Flower.

    A round waits until at least ``least_nodes`` are connected (default: as many as the noise needs,
    and at least one), and at most as many as there are declared users; a killed node stays listed
    for a while. After waiting ``patience`` seconds, the run ends with an error and can be resumed.
    Devices must answer within ``answer_within`` seconds, after which a message expires; their
    clocks must agree with the server's.

    Before the first payment, every connected node makes a dry run on synthetic rows. The run ends
    with a `DeviceError` if a node refuses or none answers. Nodes that join later make their dry run
    before the next round; those that refuse are logged and not asked.
    """

    def __init__(
        self,
        run: FederatedRun,
        *,
        least_nodes: int | None = None,
        answer_within: float = 600.0,
        patience: float = 600.0,
    ) -> None:
        most, needed = run.sampler.examples, run.least_answers
        least = max(1, needed) if least_nodes is None else least_nodes
        require(
            needed <= least <= most,
            f"least_nodes between {needed} and the {most} declared users",
            least,
            "A round begins when this many are connected.",
        )
        self.run = run
        self._least, self._patience = least, patience
        self._within = require_positive("answer_within", answer_within)
        self._rounds = run.batches()
        self._batch: Batch | None = None
        self._previewed: set[int] = set()
        self._refusing: set[int] = set()
        self._has_paid = False

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all remaining rounds, or ``num_rounds`` of them.

        The weights are those of the run, which may have been resumed; other ``initial_arrays`` are
        refused. ``evaluate_fn`` receives the number of the round as the run counts it, and must
        read only public or held-out data.
        """
        before, left = self.run.taken, self.run.steps - self.run.taken
        if timeout is not None:
            self._within = require_positive("timeout", timeout)
        self._require_own(initial_arrays)

        def evaluate(taken: int, arrays: ArrayRecord) -> MetricRecord | None:
            return evaluate_fn(before + taken, arrays) if evaluate_fn else None

        result = super().start(
            grid,
            self.arrays(),
            num_rounds=left if num_rounds is None else min(num_rounds, left),
            timeout=self._within,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=evaluate if evaluate_fn else None,
        )
        self.run.keep()
        result.arrays = self.arrays()
        return result

    def arrays(self) -> ArrayRecord:
        """Return the model's state with all its noise."""
        _ = self.run.params  # draws the noise that is due
        return ArrayRecord(self.run.model.state_dict())

    def configure_train(
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        """Wait for nodes and dry runs, pay, draw a cohort, and return one message per member.

        A message expires when the server stops waiting for its answer, so that no update remains
        after that.
        """
        nodes = self._ready(grid, config)
        self._has_paid = True
        batch = self._batch = next(self._rounds)
        cohort = self.run.cohort(batch, nodes)
        _ = self.run.params
        config[ROUND] = batch.index
        content = question(self.run.model, self.run.task, self.run.scale, config)
        group, kind, lives = _group(batch), MessageType.TRAIN, self._within
        return [Message(content, node, kind, ttl=lives, group_id=group) for node in cohort]

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Collect the answers and take the noised step; refuse if every device is silent."""
        batch, self._batch = self._batch, None
        if batch is None:
            raise ContractError(
                "Expected a round that has begun, found none. Call `configure_train` first."
            )
        params = self.run.params
        for reply in replies:
            if reply.metadata.group_id == _group(batch):
                readable = reply.has_content()
                update = read_answer(reply.content, params) if readable else None
                self.run.answer(batch, reply.metadata.src_node_id, update)
        discarded = self.run.discarded
        self.run.step(batch)
        if self.run.discarded > discarded:  # everyone can see it in the weights
            LOG.warning("Round %d had too few answers for its noise and is discarded.", batch.index)
        spent = self.run.epsilon_at_most()
        said = MetricRecord({"round": batch.index, EPSILON: spent})
        return self.arrays(), said

    def configure_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> Iterable[Message]:
        """Ask no device: its loss or accuracy is a fact about its data that carries no noise."""
        return []

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],  # noqa: ARG002
    ) -> MetricRecord | None:
        """Return nothing: no device was asked."""
        return None

    def summary(self) -> None:
        """Log what is declared, and what it will cost."""
        run = self.run
        planned = "infinite" if run.not_private_because else f"{run.epsilon(run.steps):.4g}"
        LOG.info("\t├── Method: %s", run.method)
        LOG.info("\t├── Sampling: %s", run.sampler.describe())
        LOG.info("\t├── Rounds taken: %d of %d", run.taken, run.steps)
        LOG.info(
            "\t└── Epsilon after all rounds: %s by %s (delta %g); %s, below, is a quicker bound",
            planned,
            run.accountant.value.upper(),
            run.delta,
            EPSILON,
        )

    def _require_own(self, arrays: ArrayRecord | None) -> None:
        """Refuse weights that would not be trained."""
        if arrays is None:
            return
        own, given = self.run.model.state_dict(), arrays.to_torch_state_dict()
        same = own.keys() == given.keys() and all(
            torch.equal(given[name], value.cpu()) for name, value in own.items()
        )
        if not same and self.run.taken:
            LOG.info("The weights are those of the resumed run: initial_arrays are ignored.")
            return
        require(
            same,
            "no initial_arrays other than the weights of the run",
            "others, which would not be trained",
            "Give `FederatedRun` the model with these weights.",
        )

    def _ready(self, grid: Grid, config: ConfigRecord) -> list[int]:
        """Return the connected nodes that have not refused the task, each after its dry run."""
        while True:
            nodes = self._connected(grid)
            new = [node for node in nodes if node not in self._previewed]
            if not new:
                return nodes
            self._preview(grid, new, config)

    def _preview(self, grid: Grid, nodes: list[int], config: ConfigRecord) -> None:
        """Ask nodes for their dry run, once, whether or not they answer."""
        content = preview_question(self.run.preview, {**config, ROUND: 0})
        kind, lives = MessageType.TRAIN, self._within
        asked = [Message(content, node, kind, ttl=lives) for node in nodes]
        answers: dict[int, Refusal | None] = dict.fromkeys(self._previewed - self._refusing)
        for reply in grid.send_and_receive(asked, timeout=self._within):
            node, found = reply.metadata.src_node_id, read_readiness(reply)
            if node in nodes and found is not None:
                answers[node] = found.refusal
        if not self._has_paid:
            require_ready(answers, asked=len(self._previewed | set(nodes)))
        elif refusals := refusing(answers):
            LOG.warning("Nodes that cannot do the task are not asked: %s", described(refusals))
            self._refusing |= refusals.keys()
        self._previewed |= set(nodes)

    def _connected(self, grid: Grid) -> list[int]:
        """Return the connected nodes once there are neither too few nor too many."""
        until = time.monotonic() + self._patience
        while True:
            nodes = [node for node in grid.get_node_ids() if node not in self._refusing]
            if self._least <= len(nodes) <= self.run.sampler.examples:
                return nodes
            if time.monotonic() >= until:
                self.run.keep()
                raise ContractError(
                    f"Expected between {self._least} and {self.run.sampler.examples} connected "
                    f"nodes, found {len(nodes)} for {self._patience:g} seconds. Connect more, or "
                    "declare more users in a new run; no node was asked, and no further round paid."
                )
            time.sleep(min(1.0, self._patience))


def _group(batch: Batch) -> str:
    return f"{batch.run}-{batch.life}-{batch.index}"
