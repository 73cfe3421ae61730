"""How many held-out rows are training rows: only for the person who holds both tables.

The answer is an exact fact about private rows, outside of any epsilon. So it is printed for those
who ask for it, and used for nothing: a metric that left such rows out, or a run that refused them,
would give the answer to everyone who sees the metric or the exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adadps.data.identity import Identities, identities_of_cells, joined, normalised
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.tables import read_chunks, users
from adadps.errors import SettingError
from adadps.estimators.tables.request import TrainingRequest
from adadps.estimators.tables.schema import Schema

FOR_YOU_ALONE = (
    "For your eyes only, not to be published: this is an exact fact about private rows, which "
    "epsilon does not cover. Nothing was trained, written or paid."
)


@declared_read(DeclaredRead.CHECK_OVERLAP)
def overlap_in_words(request: TrainingRequest) -> str:
    """Return how many held-out rows, or rows of the same users, the training table has.

    Rows are the same if their texts are; without texts, if all columns that both tables have are.
    Held-out rows are also looked for among public texts: a model that starts there knows them.
    """
    schema, test, user = request.declared().schema, request.test, request.user
    if test is None:
        raise SettingError(
            "Expected held-out rows for --check-overlap, found none. Add --test FILE."
        )
    if user is None:
        held_out, trained = _identities_of_both(schema, test, request.data)
        what = "stand"
    else:
        held_out, trained = (_identities_of_users(path, user) for path in (test, request.data))
        what = "belong to users who are also"
    found, of = int(held_out.within([trained]).sum()), len(held_out)
    told = [f"{found} of {of} held-out rows {what} in the training table."]
    if request.public is not None:
        seen = row_identities(test, schema.texts, ())
        known = int(seen.within([row_identities(request.public, schema.texts, ())]).sum())
        told.append(f"The texts of {known} of {of} held-out rows stand in the public file.")
    return "\n".join([*told, FOR_YOU_ALONE])


def row_identities(path: Path, texts: Sequence[str], others: Sequence[str]) -> Identities:
    """Return identities of the rows of a table by these columns, whatever the spelling.

    Texts are compared by their letters and digits, and numbers as numbers: 1 and 1.0 are the same.
    """
    found = []
    for chunk in read_chunks(path):
        cells = zip(
            *([normalised(text) for text in chunk.texts(name)] for name in texts),
            *([_as_number(cell) for cell in chunk.texts(name)] for name in others),
            strict=True,
        )
        found.append(identities_of_cells(list(cells)))
    return joined(found)


def shared_columns(one: Path, other: Path) -> list[str]:
    """Return the columns that both tables have."""
    first, second = (next(iter(read_chunks(path))).header for path in (one, other))
    return sorted(set(first) & set(second))


def _identities_of_both(schema: Schema, test: Path, data: Path) -> tuple[Identities, Identities]:
    texts, others = schema.texts, sorted(set(schema.columns) - set(schema.texts))
    if not texts:
        others = shared_columns(test, data)
    return row_identities(test, texts, others), row_identities(data, texts, others)


def _identities_of_users(path: Path, column: str) -> Identities:
    chunks = read_chunks(path)
    return joined([identities_of_cells([(user,) for user in users(one, column)]) for one in chunks])


def _as_number(cell: str) -> str:
    """Write a number in one spelling, and anything else without case and outer blanks.

    >>> _as_number("7.0"), _as_number("7"), _as_number(" Ann ")
    ('7.0', '7.0', 'ann')
    """
    try:
        return repr(float(cell))
    except ValueError:
        return cell.strip().casefold()
