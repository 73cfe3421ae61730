"""Memory and time of a simulation with many users, who arrive one after the other.

    python experiments/scripts/many_users.py --users 300000 \\
        --json docs/results/federated/many_users.json

Users write 1 to 5 synthetic posts of 30 words by Zipf's law; 10,000 words, 500 classes. Posts are
stored on disk as they arrive; then come rounds of 1,000 users with side information and user-level
noise.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from adadps import PrivateRun, by_user, losses, poisson, privatize, side, sparse_linear
from adadps.methods.stages import chain, sgd, train_locally
from adadps.training.federated import simulated_users

WORDS, CLASSES, LENGTH, COHORT = 10_000, 500, 30, 1000
SHARES = 1 / np.arange(1, WORDS + 1)
SHARES /= SHARES.sum()


def made_up(users: int) -> Iterator[tuple[sparse.csr_matrix, Any]]:
    """Yield one user after the other; words are drawn for a thousand users at once."""
    rng = np.random.default_rng(0)
    for first in range(0, users, 1000):
        posts = rng.integers(1, 6, size=min(1000, users - first))
        words = iter(rng.choice(WORDS, size=(posts.sum(), LENGTH), p=SHARES))
        for count in posts.tolist():
            columns = np.concatenate([next(words) for _ in range(count)])
            places = (np.repeat(np.arange(count), LENGTH), columns)
            values = np.full(len(columns), 1 / LENGTH, np.float32)
            rows = sparse.csr_matrix((values, places), shape=(count, WORDS))
            yield rows, rng.integers(CLASSES, size=count)


def peak() -> int:
    """Return the peak resident memory in megabytes."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    """Store the users, train, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    known = side.given_frequencies(SHARES, source="Zipf's law", public_because="made up")
    frequent = side.frequency(known, floor=0.01, power=0.5)
    method = chain(
        train_locally(lr=0.5, batch_size=100, side=frequent),
        privatize(clip_norm=1.0, noise_multiplier=1.0, groups=by_user(most=100)),
        sgd(1.0),
    )
    before, start = peak(), time.perf_counter()
    with simulated_users(made_up(given.users), width=WORDS) as data:
        stored = time.perf_counter() - start
        model = sparse_linear(WORDS, CLASSES, bias=False)
        run = PrivateRun(
            model,
            losses.cross_entropy,
            data,
            method=method,
            sampler=poisson(users=given.users, expected_size=COHORT),
            steps=given.rounds,
        )
        times = []
        for batch in run.batches():
            start = time.perf_counter()
            run.step(batch)
            times.append(time.perf_counter() - start)
        report = {
            "users": given.users,
            "rows": len(data),
            "weights": WORDS * CLASSES,
            "cohort": COHORT,
            "seconds_to_store": round(stored, 1),
            "seconds_a_round": [round(one, 2) for one in times],
            "peak_memory_mb": peak(),
            "of_which_before_any_user": before,
            "threads": torch.get_num_threads(),
        }
    print(json.dumps(report, indent=2))
    if given.json:
        given.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
