"""The server of a federation: it has the weights, the ledger and the noise, and no data.

::

    run = FederatedRun(model, method=method, sampler=poisson(users=400, expected_size=20), rounds=9)
    for batch in run.batches():                          # paid for before anybody is asked
        for node in run.cohort(batch, connected_nodes):
            ...                                          # send run.task, run.scale, the weights
        run.answer(batch, node, update)                  # in any order, late, twice, or never
        run.step(batch)                                  # clip, add, noise: always
    result = run.result()

Whoever answers, or nobody: the round is noised and stays paid for. How many have answered is not
said anywhere, for under Poisson sampling that is a fact about private draws.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Unpack

from torch import nn

from adadps.data.examples import PublicExamples
from adadps.drawing import Batch
from adadps.errors import ContractError, ModelError, OrderError
from adadps.evaluation import Evaluation
from adadps.federated.answers import longest, side_by_side, sound
from adadps.federated.cohorts import Cohorts
from adadps.federated.task import Task, scale_of, task_of
from adadps.gradients.chunked import ChunkedGradients
from adadps.gradients.local import Part, of_updates, table_axis
from adadps.gradients.objective import predict
from adadps.noise import Randomness
from adadps.paid_run import PaidRun
from adadps.result import Measurement
from adadps.run import PaidOptions
from adadps.sampling import Rows, Sampler
from adadps.stages.chain import Chain
from adadps.stages.users import Users
from adadps.stepping import Moving
from adadps.training import require_within_ledger
from adadps.types import Params, Step

NOT_COMPARED = "no user has rows of the public data, with which devices cannot be compared"
WHO_TAKES_PART = "which users take part, and when: noise of devices protects what they hold alone"


@dataclass
class Round:
    """A round that is paid for: the places that were drawn, who was asked, and what came."""

    batch: Batch
    places: Rows
    cohort: tuple[int, ...] | None = None
    answers: dict[int, dict[str, Part] | None] = field(default_factory=dict)


class FederatedRun(PaidRun):
    """A run whose users are devices. ``rounds`` are its steps.

    Options, as of `PrivateRun`: ``budget`` or ``ledger``, beyond which it does not go; ``delta``,
    ``accountant``, ``checkpoints``; ``assumed_public`` and ``tuning_trials``, which are stated.

    The method begins with `train_locally`, clips by user, and says who adds the noise. A plan that
    its budget or ledger has no room for is refused. With ``checkpoints``, the same call again goes
    on where a server has died.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        method: Chain,
        sampler: Sampler,
        rounds: int,
        **options: Unpack[PaidOptions],
    ) -> None:
        self._devices = work = OnDevices(model)
        options["assumed_public"] = (*options.get("assumed_public", ()), *_taken_for_public(method))
        super().__init__(
            work,
            method=method,
            sampler=sampler,
            steps=rounds,
            before_paying=require_within_ledger,
            **options,
        )

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self._devices.model

    @property
    def task(self) -> Task:
        """What every device is asked to do."""
        return self._devices.task

    @property
    def scale(self) -> Params | None:
        """D = 1/A for every parameter, which devices need as well; None without."""
        return self._devices.scale

    @property
    def least_answers(self) -> int:
        """A round with fewer of them would be discarded."""
        return self._devices.least_answers

    @property
    def discarded(self) -> int:
        """Rounds of this process that had too few answers: paid for, and without effect.

        Only where devices add the noise in shares, and then everybody can see it by the weights.
        """
        return self._devices.discarded

    def cohort(self, batch: Batch, nodes: Iterable[int]) -> tuple[int, ...]:
        """Whom to ask, of the nodes that are connected now; drawn once a round."""
        drawn = self._drawn
        if not isinstance(drawn, Round) or drawn.batch != batch or drawn.cohort is not None:
            raise OrderError(
                "Expected one cohort for the round that this run has just begun, found a call for "
                "another round, or a second one. Iterate over `run.batches()`, and ask once."
            )
        drawn.cohort = self._devices.cohorts.members(drawn.places, nodes)
        return drawn.cohort

    def answer(self, batch: Batch, node: int, update: Any) -> None:
        """Take the answer of a node: a tensor, or rows of one (`RowSparse`), for each parameter.

        From one thread at a time, like every call on a run; answers are held until `step`. Dropped
        without a word: what comes after its round, from who was not asked, or as a second answer.
        What is not finite, or has other names or shapes, counts as no answer.
        """
        drawn = self._drawn
        if not isinstance(drawn, Round) or drawn.batch != batch:
            return
        if node in (drawn.cohort or ()) and node not in drawn.answers:
            drawn.answers[node] = self._devices.checked(update)

    def evaluate(self, evaluation: Evaluation) -> list[Measurement]:
        """Measure the current weights on public or held-out data, and remember it."""
        epoch = self._taken * self.sampler.expected_size / self.sampler.examples
        self._stepper.weights.read()
        found = evaluation.measure(
            lambda features: predict(self.model, features, None), self._taken, epoch
        )
        self.history += found
        return found


class OnDevices:
    """Work that devices do, and that is put together here."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.settings: dict[str, Any] = {}
        self.discarded = 0

    def require_fit(self, method: Chain) -> None:
        """A method for devices, and something to train."""
        self.task = task_of(method)
        self._params = {
            name: parameter.detach()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        if not self._params:
            raise ModelError(
                "Expected a model with trainable parameters, found none. Set requires_grad on the "
                "parameters that should be trained."
            )
        self.scale = scale_of(method, self._params)
        self._longest = longest(self.task, self._params)
        self._axes = {name: table_axis(self.model, name) for name in self._params}

    def begin(
        self,
        method: Chain,
        sampler: Sampler,
        units: Sampler,
        randomness: Randomness,
    ) -> Moving:
        """The weights, and the first draw to come."""
        users = method.release.groups
        assert isinstance(users, Users)  # `task_of` has asked for them
        users.deviation(method.release.noise_multiplier, sampler.expected_size)
        self.least_answers = users.noise.least_answers() if self.task.noise else 0
        self._expected_size, self._randomness = sampler.expected_size, randomness
        self.cohorts = Cohorts(units, randomness.generator)
        self._moving = Moving(
            self.model,
            self._params,
            method=method,
            expected_size=sampler.expected_size,
            randomness=randomness,
        )
        return self._moving

    def draw(self, batch: Batch) -> Round:
        """The places of a round; who takes them is asked when nodes are known."""
        return Round(batch, self.cohorts.next())

    def checked(self, update: Any) -> dict[str, Part] | None:
        """An answer that can be added, or None."""
        return sound(update, self._params, self._longest, self._axes)

    def take(self, drawn: Round, index: int) -> None:
        """Clip, add, noise, move; with too few answers for their noise to be enough, nothing."""
        answers = [update for update in drawn.answers.values() if update is not None]
        if len(answers) < self.least_answers:
            self.discarded += 1
            return
        pieces = ChunkedGradients(
            tuple(partial(of_updates, part) for part in side_by_side(answers))
        )
        step = Step(
            index=index,
            expected_size=self._expected_size,
            noise=self._randomness,
            mean_gradient=_no_public_data,
            late=True,
            answers=len(answers),
        )
        self._moving.move(pieces, (), step)


def _taken_for_public(method: Chain) -> list[str]:
    """What epsilon does not cover, for it happens where the server has no data."""
    if not isinstance(method, Chain):
        return []  # it is refused in a moment
    compared = [NOT_COMPARED] if method.public_rows else []
    return [*compared, *([WHO_TAKES_PART] if task_of(method).noise else [])]


def _no_public_data(_public: PublicExamples) -> NoReturn:
    raise ContractError("Expected a method without public gradients, found one that needs them.")
