"""The server: it has the weights, the ledger and the noise, and only held-out packages."""

from collections import Counter

import torch
from flwr.serverapp import ServerApp

import adadps
from adadps.methods.stages import by_user, chain, momentum, privatize, sgd, train_locally
from adadps.training.federated import FederatedRun
from adadps.training.federated.flower import AdaDPSStrategy
from maintainers.task import held_out_rows, made_up_rows, new_model, public_frequencies

app = ServerApp()


def new_run(config):
    """Return the run: its method and its price, all of it public."""
    privacy = privatize(
        clip_norm=config["clip-norm"],
        noise_multiplier=config["noise-multiplier"],
        groups=by_user(most=200),
    )
    local = train_locally(lr=0.5, batch_size=20, side=public_frequencies())
    torch.manual_seed(0)  # the first weights are public
    return FederatedRun(
        new_model(),
        method=chain(local, privacy, momentum(0.9), sgd(1.0)),
        sampler=adadps.poisson(users=config["users"], expected_size=config["cohort"]),
        rounds=config["rounds"],
        loss=adadps.losses.cross_entropy,  # of the devices: checked before anything is paid
        example=made_up_rows(),
        checkpoints=adadps.Checkpoints(config["checkpoints"], every=1)
        if config["checkpoints"]
        else None,
    )


@app.main()
def main(grid, context):
    """Train, measure, and print what it cost."""
    config = context.run_config
    run = new_run(config)
    strategy = AdaDPSStrategy(
        run, least_nodes=config["least-nodes"], answer_within=config["answer-within"]
    )
    strategy.start(grid)
    rows, labels = held_out_rows()
    found = run.evaluate(
        adadps.on_held_out("packages of other sources", rows, labels, accuracy=adadps.accuracy)
    )
    result = run.result()
    guess = max(Counter(labels).values()) / len(labels)
    print(result.privacy)
    print(f"accuracy on {found[0].data}: {found[0].value:.3f} (most frequent section: {guess:.3f})")
    if config["out"]:
        result.save(config["out"])
