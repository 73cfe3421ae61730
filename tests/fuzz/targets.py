"""What is fuzzed: one function a door through which input comes."""

from __future__ import annotations

import io
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadps import DiskLedger, examples, load_result
from adadps.accounting.epsilon import epsilon_of
from adadps.accounting.events import event_of
from adadps.accounting.ledger.summary import summarise
from adadps.accounting.ledger.summary_table import as_rich
from adadps.data.row_store import RowStore
from adadps.data.tables import Table, read_chunks, read_table, table_writer
from adadps.estimators.tables.frequency_file import frequencies_from_file
from adadps.estimators.tables.saved_model import TableModel, load_model, load_rows
from adadps.estimators.tables.schema import read_schema_file, schema_of
from adadps.estimators.tables.survey import complete
from adadps.estimators.text import BagOfWords
from adadps.report.card import card_of, markdown_of
from adadps.report.card.checking import check
from adadps.report.html.pages import render
from adadps.report.html.reports import page_of_run
from adadps.types import Accountant, Relation
from fuzz import arrays, checkpoints, commands, data_sets, seeds, vectors
from fuzz.law import BreachError, ending_of
from fuzz.mutation import number, odd_value, spoiled, spoiled_json, text

Random = random.Random


def tables(rng: Random, folder: Path) -> None:
    """A spoiled table, through the reader to examples."""
    name, content = rng.choice(("t.csv", "t.tsv", "t.csv.gz", "t")), rng.choice(seeds.tables())
    if rng.random() < 0.4:
        name, content = rng.choice(sorted(seeds.other_tables().items()))
    file = folder / name
    file.write_bytes(spoiled(rng, content, seeds.tables()))
    read = ending_of(lambda: read_table(file))
    if read.value is None:
        return
    written = spoiled_json(rng, rng.choice(seeds.schemas())) if rng.random() < 0.3 else None
    schema = _schema(written, folder, rng)
    known = schema and ending_of(lambda: complete(schema, read_chunks(file, 5))).value
    model = known and ending_of(lambda: TableModel(known, tuple(seeds.WORDS[:4]))).value
    if model:
        with RowStore(folder, width=model.features.width) as store:
            ending_of(lambda: load_rows(file, model, store, named=True, rows_at_once=5))
    out = io.BytesIO()
    with table_writer(out, folder / rng.choice(("o.csv", "o.jsonl")), read.value.header) as writer:
        writer.write(read.value.rows)


def _schema(written: str | None, folder: Path, rng: Random) -> Any:
    """A schema from a file, spoiled if there is one."""
    held: Any = rng.choice(seeds.schemas())
    if written is not None:
        file = folder / "schema.json"
        file.write_bytes(written.encode("utf-8", "surrogatepass"))
        held = ending_of(lambda: read_schema_file(file)).value
    return None if held is None else ending_of(lambda: schema_of(held)).value


def bags(rng: Random, folder: Path) -> None:
    """Odd texts and vocabularies."""
    words = tuple(text(rng) if rng.random() < 0.3 else w for w in rng.sample(seeds.WORDS, 4))
    given: Any = odd_value(rng) if rng.random() < 0.1 else words
    texts: Any = [
        rng.choice((text(rng), " ".join(seeds.WORDS), 7)) for _ in range(rng.randrange(4))
    ]
    bag = ending_of(lambda: BagOfWords(given, rng.random() < 0.5)).value
    if bag is not None:
        rows = ending_of(
            lambda: bag([t for t in texts if rng.random() < 0.5 or isinstance(t, str)])
        )
        if rows.value is not None:
            ending_of(lambda: examples(rows.value, [0] * rows.value.shape[0]))


def results(rng: Random, folder: Path) -> None:
    """A spoiled folder of a result."""
    _write_spoiled(rng, folder, rng.choice(seeds.results()))
    held = ending_of(lambda: load_result(folder)).value
    if held is not None:
        str(held.privacy)
        json.dumps(held.describe(), allow_nan=False).encode()
        ending_of(lambda: held.last("accuracy"))
        if rng.random() < 0.1:  # it takes a tenth of a second and more
            _show(held)
        _require_honest(held)


def _show(held: Any) -> None:
    """Card, check and page of whatever could be read."""
    card = card_of(held.describe())
    json.dumps(card, allow_nan=False).encode()
    check(held.describe())
    if "NOT PRIVATE" in markdown_of(card) and card["private"]:
        raise BreachError("a private card that says it is not")
    if ("NOT PRIVATE" in render(page_of_run(held, "a run"))) is held.privacy.private:
        raise BreachError("a page that says other things than its statement")


def _require_honest(held: Any) -> None:
    """What is loaded may be anything but a private statement with reasons against it."""
    if held.privacy.private and held.privacy.not_private_because:
        raise BreachError("a result with reasons against privacy was loaded as private")


def _write_spoiled(rng: Random, folder: Path, files: dict[str, bytes]) -> None:
    chosen = rng.choice(sorted(files))
    for name, content in files.items():
        if name == chosen and name.endswith(".json") and rng.random() < 0.7:
            written = spoiled_json(rng, json.loads(content))
            (folder / name).write_bytes(written.encode("utf-8", "surrogatepass"))
        elif name == chosen and name.endswith(".safetensors") and rng.random() < 0.6:
            (folder / name).write_bytes(_spoiled_tensors(rng, content))
        elif name == chosen:
            (folder / name).write_bytes(spoiled(rng, content, tuple(files.values())))
        else:
            (folder / name).write_bytes(content)


def _spoiled_tensors(rng: Random, content: bytes) -> bytes:
    """The header with odd shapes, kinds and places before the same numbers."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for entry in header.values():
        if rng.random() < 0.3 and isinstance(entry, dict) and "dtype" in entry:
            entry["dtype"] = rng.choice(("F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "?"))
    written = spoiled_json(rng, header).encode("utf-8", "surrogatepass")
    claimed = len(written) if rng.random() < 0.9 else rng.choice((0, 1, 2**31, 2**63, 2**64 - 1))
    return claimed.to_bytes(8, "little") + written + content[8 + length :]


def events(rng: Random, folder: Path) -> None:
    """A spoiled event, parsed and priced."""
    written = rng.choice(seeds.event_texts())
    if rng.random() < 0.7:
        written = spoiled_json(rng, json.loads(written))
    else:
        written = spoiled(rng, written.encode()).decode("utf-8", "surrogateescape")
    event = ending_of(lambda: event_of(written)).value
    if event is not None and rng.random() < 0.3:
        _price(event)


def _price(event: Any) -> None:
    def priced() -> float:
        return epsilon_of(
            event, delta=1e-5, accountant=Accountant.RDP, relation=Relation.ADD_OR_REMOVE_ONE
        )

    found = ending_of(priced).value
    if found is not None and not found >= 0:
        raise BreachError(f"epsilon = {found} for {event}")


def ledger_bytes(rng: Random, folder: Path) -> None:
    """A ledger with spoiled bytes."""
    file = folder / "l"
    file.write_bytes(spoiled(rng, rng.choice(seeds.ledgers()), seeds.ledgers()))
    if rng.random() < 0.1:
        (folder / "l-wal").write_bytes(spoiled(rng, b"\x37\x7f\x06\x82" + bytes(60)))
    _use_ledger(rng, file)


def ledger_values(rng: Random, folder: Path) -> None:
    """A ledger that is a sound database with unsound values in it."""
    file = folder / "l"
    file.write_bytes(rng.choice(seeds.ledgers()))
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in triggers.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for _ in range(rng.choice((1, 1, 2, 3))):
            with suppress(sqlite3.Error):
                _spoil_values(rng, connection)
    _use_ledger(rng, file)


def _spoil_values(rng: Random, connection: sqlite3.Connection) -> None:
    table = rng.choice(("terms", "runs", "events", "reservations"))
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    column, value = rng.choice(columns), _sql_value(rng)
    kind = rng.randrange(8)
    if kind == 0:
        connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (rng.randint(1, 3),))
    elif kind == 1:
        marks = ", ".join("?" * len(columns))
        values = [_sql_value(rng) for _ in columns]
        connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)
    elif kind == 2:
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    elif kind == 3:
        wanted = rng.choice(("user_version", "application_id"))
        connection.execute(f"PRAGMA {wanted} = {rng.randint(0, 3)}")
    else:
        where = rng.choice(("", " WHERE rowid = 1"))
        connection.execute(f"UPDATE {table} SET {column} = ?{where}", (value,))


def _sql_value(rng: Random) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        return None
    if kind == 1:
        return rng.choice((0, -1, 1, 2, 3, 99, 2**62))
    if kind == 2:
        return rng.choice((0.0, -1.0, 0.5, 1e308, float("inf"), 2.0))
    if kind == 3:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(9)))
    if kind == 4:
        return text(rng).encode("utf-8", "replace").decode()
    seed = json.loads(
        rng.choice((*seeds.event_texts(), '{"examples": 20}', "[]", '[{"source": 1}]'))
    )
    return spoiled_json(rng, seed).encode("utf-8", "replace").decode()


def _use_ledger(rng: Random, file: Path) -> None:
    """Look at it, open it, charge it."""
    content = file.read_bytes()
    seen = ending_of(lambda: summarise(file, rng.choice((None, 1e-4))))
    if seen.value is not None:
        json.dumps(seen.value, allow_nan=False, ensure_ascii=False).encode()
        as_rich(seen.value)
    if file.read_bytes() != content:
        raise BreachError("looking at a ledger changed it")
    with closing(_Opened(file)) as opened:
        if opened.ledger is None:
            return
        entries = ending_of(lambda: opened.ledger.entries).value
        if rng.random() < 0.6:
            return
        spent = ending_of(lambda: opened.ledger.epsilon(1e-3)).value
        for _ in range(2):
            ending_of(lambda: opened.ledger.open("more", rng.choice([*Relation]), Accountant.RDP))
            ending_of(lambda: opened.ledger.authorise(rng.choice(seeds.EVENTS[2:4]), ahead=2))
        more = ending_of(lambda: opened.ledger.entries).value
        costs = ending_of(lambda: opened.ledger.epsilon(1e-3)).value
        if None not in (entries, more) and more < entries:
            raise BreachError("charges were lost")
        if None not in (spent, costs) and costs < spent:
            raise BreachError(f"epsilon fell from {spent} to {costs} by charging")


class _Opened:
    def __init__(self, file: Path) -> None:
        self.ledger: Any = ending_of(lambda: DiskLedger(file)).value

    def close(self) -> None:
        if self.ledger is not None:
            self.ledger.close()


def models(rng: Random, folder: Path) -> None:
    """A spoiled folder of a classifier."""
    _write_spoiled(rng, folder, rng.choice(seeds.models()))
    held = ending_of(lambda: load_model(folder)).value
    if held is not None:
        rows = [["apple and saw", "a", "3", "b"], [text(rng), "a", number(rng), text(rng)]]
        table = Table(folder, ("text", "label", "id", "kind"), rows, [2, 3])
        ending_of(lambda: held.predictions(table))


def resumed_runs(rng: Random, folder: Path) -> None:
    """A spoiled checkpoint of a run that is to go on."""
    checkpoints.resume(rng, folder, _write_spoiled)


def word_lists(rng: Random, folder: Path) -> None:
    """A spoiled table of word frequencies."""
    file = folder / "words.csv"
    file.write_bytes(spoiled(rng, rng.choice(seeds.word_lists()), seeds.tables()))
    source, because = (text(rng) if rng.random() < 0.2 else "a book" for _ in range(2))
    ending_of(
        lambda: frequencies_from_file(file, seeds.WORDS, source=source, public_because=because)
    )


def vector_files(rng: Random, folder: Path) -> None:
    """A spoiled file of public vectors."""
    vectors.read(rng, folder, _write_spoiled)


@dataclass(frozen=True)
class Target:
    """A door, and its share of all inputs."""

    run: Callable[[Random, Path], None]
    share: float

    @property
    def name(self) -> str:
        """As it is called on the command line."""
        return self.run.__name__


TARGETS = (
    Target(tables, 0.20),
    Target(bags, 0.08),
    Target(arrays.arrays, 0.14),
    Target(results, 0.12),
    Target(events, 0.14),
    Target(ledger_bytes, 0.06),
    Target(ledger_values, 0.06),
    Target(models, 0.05),
    Target(resumed_runs, 0.02),
    Target(word_lists, 0.05),
    Target(vector_files, 0.02),
    Target(data_sets.archives, 0.02),
    Target(data_sets.counts, 0.02),
    Target(data_sets.h5_files, 0.01),
    Target(commands.commands, 0.01),
)


def run_one(target: Target, seed: int, number: int, folder: Path) -> None:
    """Input ``number`` of a target, in a folder of its own."""
    place = folder / f"{target.name}-{number}"
    place.mkdir()
    try:
        target.run(Random(f"{seed} {target.name} {number}"), place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
