"""Users for a simulation, from anything that yields them one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from adadps.data.examples import Examples
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.row_store import RowStore
from adadps.errors import DataError


@contextmanager
def simulated_users(
    users: Iterable[tuple[Any, Any]], *, width: int, folder: Path | None = None
) -> Iterator[Examples]:
    """Yield examples of all ``users``, each given as one pair of features and targets.

    The rows are written to disk in ``folder`` as they come, so that hundreds of thousands of users
    need no more memory than one. They are deleted when the block ends. Users without rows are
    skipped; under Poisson sampling, the number of users declared to the sampler may include them.

    >>> from adadps.training.federated import simulated_users
    >>> ann = sparse.csr_matrix([[1.0, 0.0], [0.5, 0.5]]), [0, 1]
    >>> bob = sparse.csr_matrix([[0.0, 1.0]]), [1]
    >>> with simulated_users([ann, bob], width=2) as data:
    ...     len(data), data.users.tolist()
    (3, [0, 0, 1])
    """
    with RowStore(folder, width=width) as store:
        for number, (features, targets) in enumerate(users):
            _append(store, number, features, targets)
        if not len(store):
            raise DataError("Expected at least one row of at least one user, found none.")
        yield store.examples(None)


@declared_read(DeclaredRead.FORM)
def _append(store: RowStore, number: int, features: Any, targets: Any) -> None:
    rows = sparse.csr_matrix(features, dtype=np.float32)
    if not rows.shape[0]:
        return
    if not np.isfinite(rows.data).all():
        raise DataError(
            f"Expected finite features, found others for user {number} of the iterator. "
            "Leave the row out, or fill it with a public constant."
        )
    store.append(rows, np.asarray(targets), np.full(rows.shape[0], number))
