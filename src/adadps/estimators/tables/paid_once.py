"""What a run measures before its first step is paid for once, and kept in the run's folder.

The same run never measures twice: resumed, it reads the file. If it was stopped after the payment
and before the file was written, it pays again, and both payments are on its ledger.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadps.accounting.epsilon import grouping_of, units_of
from adadps.accounting.ledger import DiskLedger, Ledger
from adadps.accounting.noisy_counts.price import Charged, Paid, pay
from adadps.errors import AdadpsError, ContractError, DataError
from adadps.estimators.planner.plan import PlannedRun
from adadps.estimators.tables.run_folder import TableRunFolder
from adadps.files import new_file, parse_json
from adadps.training.describe import plan_of

FORMAT = 1
Content = Mapping[str, Any]
"""What was measured, ready for JSON."""


@dataclass(frozen=True)
class PaidFirst:
    """What a run has paid before its first step, and the ledger that holds it."""

    paid: Paid
    ledger: Ledger


@dataclass(frozen=True)
class MeasuredFile:
    """What was measured, the run that has paid for it, and the plan and ledger of that run."""

    run: str
    plan: str
    ledger: str
    content: Content

    def write(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        held = {"format": FORMAT, "run": self.run, "plan": self.plan, "ledger": self.ledger}
        text = json.dumps({**held, **self.content}, indent=1, ensure_ascii=False)
        with new_file(file, overwrite=False) as draft:
            draft.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(
        cls, file: Path, *, plan: str, ledger: str, check: Callable[[Content], object]
    ) -> MeasuredFile | None:
        """Return what a run with this plan has measured on this ledger, None if nothing."""
        try:
            held = parse_json(file.read_text(encoding="utf-8"))
            own = ("format", "run", "plan", "ledger")
            content = {name: value for name, value in held.items() if name not in own}
            found = cls(held["run"], held["plan"], held["ledger"], content)
            check(content)
            whole = held["format"] == FORMAT and isinstance(found.run, str)
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError, AttributeError, AdadpsError) as error:
            raise DataError(
                f"Expected what was measured for this run in {file}, found something unreadable. "
                "Restore a copy, or delete the folder to start again: what it has paid is lost."
            ) from error
        if not whole or (found.plan, found.ledger) != (plan, ledger):
            raise ContractError(
                f"Expected the plan and the ledger for which {file} was measured, found others. "
                "Resume with the same command, or choose another folder."
            )
        return found


def measured_once(
    folder: TableRunFolder,
    price: Charged,
    plan: PlannedRun,
    ledger: DiskLedger,
    *,
    measure: Callable[[], Content],
    check: Callable[[Content], object],
) -> MeasuredFile:
    """Pay and ``measure``, or return what this run has measured before, if ``check`` accepts it."""
    settings, chain, file = plan.settings, plan.chain, folder.measured
    run = plan_of(chain, settings.sampler, settings.steps, price.accountant, price.events)
    hashed = run.plan_hash(price.relation, price.accountant)
    held = MeasuredFile.read(file, plan=hashed, ledger=ledger.identity, check=check)
    if held is not None:
        return held
    if folder.latest() is not None:
        raise DataError(
            f"Expected what was measured for the run in {folder.path}, found none. Restore "
            f"{file}, or choose another folder to start again."
        )
    units = units_of(chain, settings.sampler)
    name = secrets.token_hex(8)
    folder.begin_payment(name)
    name = pay(
        ledger,
        price,
        run,
        step=units.step_event(settings.noise_multiplier, 1, price.accountant, grouping_of(chain)),
        charged_steps=units.charged_steps(settings.steps),
        own=folder.ledger is None,
        name=name,
    )
    held = MeasuredFile(name, hashed, ledger.identity, measure())
    held.write(file)
    return held
