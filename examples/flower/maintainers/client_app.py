"""A device: it trains on its own packages and sends a clipped update."""

from flwr.clientapp import ClientApp

from adadps.engine.losses import cross_entropy
from adadps.training.federated.flower import node_setting, train_on_device
from maintainers.task import new_model, rows_of

app = ClientApp()


@app.train()
def train(message, context):
    """Answer one message: first a dry run on synthetic rows, then one round after the other."""
    return train_on_device(
        message,
        model=new_model(),
        loss=cross_entropy,
        data=lambda: rows_of(node_setting(context, "partition-id")),
    )
