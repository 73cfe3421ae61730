"""Users from an iterator: the same training as from a table, with their rows on disk."""

import numpy as np
import pytest
import torch
from scipy import sparse

from adadps import PrivateRun
from adadps.errors import DataError
from adadps.training.federated import simulated_users
from support.federations import (
    EVERYBODY,
    LABELS,
    OWNERS,
    QUIET,
    USERS,
    WIDTH,
    WORDS,
    all_rows,
    method,
)
from support.federations import model as new_model
from support.problems import cross_entropy


def one_after_the_other():
    for user in range(USERS):
        own = np.flatnonzero(user == OWNERS)
        yield WORDS[own], LABELS[own]


def trained_on(data):
    run = PrivateRun(
        new_model(),
        cross_entropy,
        data,
        method=method(**QUIET),
        sampler=EVERYBODY,
        steps=3,
    )
    for batch in run.batches():
        run.step(batch)
    return run.params


def test_the_same_model_as_from_a_table(tmp_path):
    with simulated_users(one_after_the_other(), width=WIDTH, folder=tmp_path) as users:
        assert torch.equal(users.users, all_rows().users)
        found = trained_on(users)
    for name, value in trained_on(all_rows()).items():
        torch.testing.assert_close(found[name], value)
    assert list(tmp_path.iterdir()) == [], "nothing is left on disk"


def test_users_are_read_one_after_the_other(tmp_path):
    """Nobody asks for the second before the first is written."""
    alive = []

    def watched():
        for user in range(50):
            alive.append(user)
            yield sparse.csr_matrix(np.eye(1, WIDTH, user % WIDTH)), [user % 3]
            assert alive == [user], "only one at a time"
            alive.pop()

    with simulated_users(watched(), width=WIDTH, folder=tmp_path) as users:
        assert len(users) == 50
        assert users.users.tolist() == list(range(50))


def test_users_without_rows_keep_their_number():
    nobody = sparse.csr_matrix((0, WIDTH)), np.zeros(0, np.int64)
    ann, bob = ((WORDS[row : row + 1], LABELS[row : row + 1]) for row in (0, 1))
    with simulated_users([ann, nobody, bob], width=WIDTH) as users:
        assert users.users.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "at least one row"),
        ([(np.full((1, WIDTH), np.nan), [0])], "finite features, found others for user 0"),
        ([(np.ones((1, WIDTH)), [0]), (np.ones((1, WIDTH + 1)), [0])], "rows of 12 features"),
        ([(np.ones((2, WIDTH)), [0])], "with a target each"),
    ],
)
def test_bad_users_are_refused(given, said):
    with pytest.raises(DataError, match=said), simulated_users(given, width=WIDTH):
        pass
