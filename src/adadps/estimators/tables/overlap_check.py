"""How many held-out rows are training rows: only for the person who holds both tables.

The answer is an exact fact about private rows, outside of any epsilon. So it is printed for those
who ask for it, and used for nothing: a metric that left such rows out, or a run that refused them,
would give the answer to everyone who sees the metric or the exit code.
"""

from __future__ import annotations

from pathlib import Path

from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.identity import Identities
from adadps.errors import SettingError
from adadps.estimators.tables.loading import row_names, shared_columns, user_names
from adadps.estimators.tables.request import Request
from adadps.estimators.tables.schema import Schema

FOR_YOU_ALONE = (
    "For your eyes only, not to be published: this is an exact fact about private rows, which "
    "epsilon does not cover. Nothing was trained, written or paid."
)


@declared_read(DeclaredRead.CHECK_OVERLAP)
def overlap_in_words(request: Request) -> str:
    """The number of held-out rows that the training table has, or whose users it has.

    Rows are the same if their texts, or without texts all columns that both tables have, are.
    """
    schema, test, user = request.declared().schema, request.test, request.user
    if test is None:
        raise SettingError(
            "Expected held-out rows for --check-overlap, found none. Add --test FILE."
        )
    if user is None:
        held_out, trained = _names_of_rows(schema, test, request.data)
        what = "stand"
    else:
        held_out, trained = (user_names(path, user) for path in (test, request.data))
        what = "belong to users who are also"
    found, of = int(held_out.within([trained]).sum()), len(held_out)
    return f"{found} of {of} held-out rows {what} in the training table.\n{FOR_YOU_ALONE}"


def _names_of_rows(schema: Schema, test: Path, data: Path) -> tuple[Identities, Identities]:
    texts, others = schema.texts, sorted(set(schema.columns) - set(schema.texts))
    if not texts:
        others = shared_columns(test, data)
    return row_names(test, texts, others), row_names(data, texts, others)
