"""Time of a round of simulated clients: AdaDPS with privacy beside plain FedAvg, in one run.

    python experiments/scripts/federated_round.py --clients 1000 \\
        --json docs/results/federated/round.json

Synthetic posts of 30 words by Zipf's law, 10,000 words, 500 classes, 100 posts per client, batches
of 100 on the devices. The methods take turns round by round, and the median time of each is
reported, so that ratios come from one run.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from sklearn.preprocessing import normalize

from adadps import PrivateRun, by_user, examples, losses, poisson, privatize, side, sparse_linear
from adadps.methods.stages import Chain, average, chain, sgd, train_locally

WORDS, CLASSES, LENGTH = 10_000, 500, 30


def made_up(clients: int, posts: int) -> tuple[object, side.Frequencies]:
    """Draw posts of users; return them with the word frequencies they were drawn from."""
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(1, WORDS + 1)
    shares /= shares.sum()
    rows = np.repeat(np.arange(clients * posts), LENGTH)
    columns = rng.choice(WORDS, size=len(rows), p=shares)
    counts = sparse.csr_matrix(
        (np.ones(len(rows), np.float32), (rows, columns)), shape=(clients * posts, WORDS)
    )
    data = examples(
        normalize(counts),
        rng.integers(CLASSES, size=clients * posts),
        users=np.repeat(np.arange(clients), posts),
    )
    known = side.given_frequencies(shares, source="Zipf's law", public_because="made up")
    return data, known


def methods(known: side.Frequencies) -> dict[str, Chain]:
    """Return the same local training without privacy, with it, and with side information."""
    users = by_user(most=1000)
    private = privatize(clip_norm=1.0, noise_multiplier=1.0, groups=users)
    frequent = side.frequency(known, floor=0.01, power=0.5)
    plain = train_locally(lr=0.5, batch_size=100)
    return {
        "FedAvg, no privacy": chain(plain, average(groups=users), sgd(1.0)),
        "DP-FedAvg": chain(plain, private, sgd(1.0)),
        "AdaDPS": chain(train_locally(lr=0.5, batch_size=100, side=frequent), private, sgd(1.0)),
    }


def main() -> None:
    """Run all methods in turns, and print milliseconds per client."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--posts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    data, known = made_up(given.clients, given.posts)
    cohorts = poisson(users=given.clients, expected_size=given.clients)
    runs = {}
    for name, method in methods(known).items():
        model = sparse_linear(WORDS, CLASSES, bias=False)
        torch.nn.init.zeros_(model.weight)
        run = PrivateRun(model, losses.cross_entropy, data, method=method, sampler=cohorts,
                         steps=given.rounds + 1)  # fmt: skip
        runs[name] = (run, run.batches(), [])
    for turn in range(given.rounds + 1):
        for run, batches, times in runs.values():
            batch = next(batches)
            start = time.perf_counter()
            run.step(batch)
            if turn:  # the first one compiles
                times.append(time.perf_counter() - start)
    found = {
        name: 1000 * statistics.median(times) / given.clients
        for name, (_, _, times) in runs.items()
    }
    first = found["FedAvg, no privacy"]
    report = {
        "clients": given.clients,
        "posts_a_client": given.posts,
        "weights": WORDS * CLASSES,
        "milliseconds_a_client": {name: round(value, 2) for name, value in found.items()},
        "times_fedavg": {name: round(value / first, 3) for name, value in found.items()},
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(report, indent=2))
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
