"""What models that `fully_shard` has sharded are refused for, in the processes of a `Team`."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from adadps import PrivateRun, adadps, by_user, chain, examples, poisson, privatize
from adadps.engine.losses import cross_entropy
from adadps.methods.stages import clip_adaptively, sgd
from adadps.training.processes import current_group
from support import team_work as work
from support.sharded_work import METHODS, RMS, declare, lstm_problem, run_of
from support.team_work import CLASSES, DENSE, LABELS, ROWS, TOKENS


class Tied(nn.Module):
    """Reads the weights of a layer outside of the layer that was sharded alone."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.inner = nn.Linear(8, 8)

    def forward(self, tokens):
        return torch.tanh(self.inner(self.words(tokens).mean(1))) @ self.words.weight.T


@dataclass
class Hidden:
    """Hides a tensor from torch."""

    tensor: torch.Tensor


class Hiding(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 7)

    def forward(self, x):
        return Hidden(torch.tanh(self.inner(x)))


class OfHidden(nn.Module):
    """Reads what a layer that was sharded alone hides."""

    def __init__(self):
        super().__init__()
        self.hiding, self.head = Hiding(), nn.Linear(7, CLASSES)

    def forward(self, x):
        return self.head(self.hiding(x).tensor)


def refused(how):
    """Ask for something that models in shards cannot do."""
    noise = privatize(clip_norm=0.5, noise_multiplier=1.0)
    if how == "parts alone":
        model, parts, loss, data = lstm_problem()
        current_group()
        from torch.distributed.fsdp import fully_shard

        fully_shard(parts[0])
        PrivateRun(model, loss, examples(*data), method=METHODS["dp_sgd"](noise), batch_size=10,
                   steps=2)  # fmt: skip
    elif how == "mixed precision":
        model, _, loss, data = lstm_problem()
        current_group()
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        PrivateRun(model, loss, examples(*data), method=METHODS["dp_sgd"](noise), batch_size=10,
                   steps=2)  # fmt: skip
    elif how == "read outside":
        model = Tied()
        current_group()
        declare(model, [model.words])
        PrivateRun(model, cross_entropy, examples(TOKENS, LABELS), method=METHODS["dp_sgd"](noise),
                   batch_size=10, steps=2)  # fmt: skip
    elif how == "hidden outputs":
        model = OfHidden()
        current_group()
        declare(model, [model.hiding])
        PrivateRun(model, cross_entropy, examples(DENSE, LABELS), method=METHODS["dp_sgd"](noise),
                   batch_size=10, steps=2)  # fmt: skip
    elif how == "sparse rows":
        model = nn.Linear(work.WORDS, CLASSES)
        current_group()
        declare(model, [])
        PrivateRun(model, cross_entropy, examples(work.COUNTS, LABELS),
                   method=METHODS["dp_sgd"](noise), batch_size=10, steps=2)  # fmt: skip
    elif how == "adaptive clipping":
        run_of("classifier", chain(clip_adaptively(noise), sgd(0.5)), sigma=1.0)
    elif how == "public side information by user":
        clip = privatize(clip_norm=0.5, noise_multiplier=1.0, groups=by_user(most=6))
        run_of(
            "classifier", adadps(RMS, clip, lr=0.1), sampler=poisson(users=17, expected_size=5),
            data=examples(DENSE, LABELS, users=np.arange(ROWS) % 17),
        )  # fmt: skip
    elif how == "debugging":
        run_of("classifier", sigma=1.0, debug=True)
