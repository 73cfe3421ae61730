"""What was measured for a run, kept beside its checkpoints: it is paid for once, and drawn once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from adadps.errors import AdadpsError, ContractError, DataError
from adadps.estimators.tables.schema import Schema
from adadps.estimators.tables.schema_file import schema_of
from adadps.files.strict_json import parse_json
from adadps.files.writing import new_file

LEVELS, FORMAT = "levels.json", 1


@dataclass(frozen=True)
class KeptLevels:
    """A schema that was measured, the run that has paid for it, and where."""

    run: str
    plan: str
    ledger: str
    schema: Schema

    def write(self, file: Path) -> None:
        """Keep it, whole or not at all."""
        held = {"format": FORMAT, "run": self.run, "plan": self.plan, "ledger": self.ledger}
        text = json.dumps({**held, "schema": self.schema.describe()}, indent=1, ensure_ascii=False)
        with new_file(file, overwrite=False) as draft:
            draft.write_text(text + "\n", encoding="utf-8")


def kept_levels(file: Path, *, plan: str, ledger: str) -> KeptLevels | None:
    """What was measured for the run with this plan on this ledger; None before it was."""
    try:
        held = parse_json(file.read_text(encoding="utf-8"))
        found = KeptLevels(held["run"], held["plan"], held["ledger"], schema_of(held["schema"]))
        whole = held["format"] == FORMAT and isinstance(found.run, str)
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError, AdadpsError) as error:
        raise DataError(
            f"Expected what was measured for this run in {file}, found something unreadable. "
            "Restore a copy, or delete the folder to begin anew: what it has paid is lost."
        ) from error
    if not whole or (found.plan, found.ledger) != (plan, ledger):
        raise ContractError(
            f"Expected the plan and the ledger for which {file} was measured, found others. "
            "Resume with the same command, or choose another folder."
        )
    return found
