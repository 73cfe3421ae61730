"""What an interrupted run on a table has left: what is kept and paid for, and how to resume."""

from __future__ import annotations

from adadps.errors import AdadpsError
from adadps.estimators.tables.run_folder import TableRunFolder


def left_in_words(folder: TableRunFolder, command: str) -> str:
    """Return what an interrupted run has left, and the ``command`` that resumes it."""
    try:
        held = folder.latest() if folder.path.exists() else None
        paid = folder.charges()
    except AdadpsError as error:  # another process is writing there, or a file is damaged
        return f"no model was written; {folder.path} cannot be read ({error})"
    if not paid:
        return f"no model was written, and nothing was spent. To start again:\n{command}"
    ledger = folder.ledger or folder.own_ledger
    if held is not None:
        return (
            f"no model was written; {held.taken} of {held.planned} steps are kept in "
            f"{folder.path}, and {paid} steps stay paid for. To resume:\n{command}"
        )
    if folder.measured.exists():
        return (
            f"no model was written; what was measured first is paid for and kept in "
            f"{folder.measured}, and no step is. To resume:\n{command}"
        )
    if folder.begun.exists():
        return (
            f"no model was written; what was to be measured first is lost, and stays paid for in "
            f"{ledger}. To start again, and to pay for it again:\n{command}"
        )
    return (
        f"no model was written; no step is kept, and {paid} steps stay paid for in {ledger}. To "
        f"start again:\n{command}"
    )
