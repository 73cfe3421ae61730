"""`adadps data`: data sets known by name, where they are, and how to get them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files as resources
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from adadps.cli.main import command, errors_as_messages, out, print_json, printable, say
from adadps.errors import DataError

app = typer.Typer(
    help="Data sets by name: list them, find them, fetch them.",
    no_args_is_help=True,
    suggest_commands=False,
)

Name = Annotated[str, typer.Argument(help="A name from `adadps data list`.")]


@command(app, "list")
def list_sets(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the data sets and where their files are; files that are found are verified.

    Example: adadps data list
    """
    from adadps_experiments.data.named_sets import NAMED_SETS

    with errors_as_messages():
        facts = [_facts(name) for name in NAMED_SETS]
        if as_json:
            print_json(facts)
        else:
            out.print(_table(facts))


@command(app, "path")
def path_of_set(name: Name) -> None:
    """Print the paths of the files of a data set, one per line, or say where to put them.

    Example: adadps data path imdb
    """
    from adadps_experiments.data.finding import require
    from adadps_experiments.data.named_sets import named_set

    with errors_as_messages():
        known = named_set(name)
        paths = [require(known, file) for file in known.files]
        for path in paths or [_embedded()]:
            typer.echo(printable(str(path)))


@command(app, "fetch")
def fetch_set(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Fetch it again even if it is there.")
    ] = False,
) -> None:
    """Download a data set from its public home, verify it, and put it into the cache.

    Repeat the command to resume an interrupted download.

    Example: adadps data fetch imdb
    """
    from adadps.training.progress import progress_of_bytes
    from adadps_experiments.data.fetching import fetch
    from adadps_experiments.data.named_sets import named_set

    with errors_as_messages(interrupted="downloaded data is saved; repeat the command to resume"):
        known = named_set(name)
        with progress_of_bytes(f"fetching {name}") as moved:
            paths = fetch(known, arrived=moved, say=say, force=force)
        if not paths:
            say(f"'{name}' is part of adadps.")
        for path in paths or [_embedded()]:
            typer.echo(printable(str(path)))


def get_if_absent(names: Iterable[str]) -> None:
    """Fetch the data sets that are not on this machine; if that fails, say where to put the files.

    As for the loaders, a file with other content counts as absent.
    """
    from adadps.training.progress import progress_of_bytes
    from adadps_experiments.data.fetching import fetch
    from adadps_experiments.data.finding import find_genuine, require
    from adadps_experiments.data.named_sets import named_set

    for known in map(named_set, names):
        absent = [file for file in known.files if find_genuine(file) is None]
        if absent:
            try:
                with progress_of_bytes(f"fetching {known.name}") as moved:
                    fetch(known, arrived=moved, say=say)
            except DataError as error:
                say(f"Fetching '{known.name}' failed: {error}")
                require(known, absent[0])


def _facts(name: str) -> dict[str, Any]:
    from adadps_experiments.data.finding import find, find_genuine
    from adadps_experiments.data.named_sets import NAMED_SETS

    known = NAMED_SETS[name]
    files = []
    for file in known.files:
        genuine = find_genuine(file)
        path = genuine or find(file)
        if genuine is not None:
            state = "verified" if file.has_digest else "present, no known digest"
        else:
            state = "absent" if path is None else "other content"
        files.append(_file_facts(file.name, path, state))
    if known.embedded:
        files.append(_file_facts(_embedded().name, _embedded(), "part of adadps"))
    return {
        "name": name,
        "what": known.what,
        "home": known.home,
        "terms": known.terms,
        "files": files,
    }


def _file_facts(name: str, path: Path | None, state: str) -> dict[str, Any]:
    return {
        "name": name,
        "path": None if path is None else printable(str(path)),
        "bytes": None if path is None else path.stat().st_size,
        "state": state,
    }


def _embedded() -> Path:
    return Path(str(resources("adadps.data").joinpath("embedded/debian_packages.csv.xz")))


def _table(facts: list[dict[str, Any]]) -> Table:
    table = Table(title="Data sets", caption="adadps data fetch NAME downloads what is absent")
    for heading in ("name", "what", "where", "size", "terms"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("name", "size"))
    for known in facts:
        held = sum(file["bytes"] or 0 for file in known["files"])
        size = f"{held / 1e6:.1f} MB" if held else "–"
        row = (known["name"], known["what"], _where(known["files"]), size, known["terms"])
        table.add_row(*(escape(cell) for cell in row))
    return table


def _where(files: list[dict[str, Any]]) -> str:
    """Say the state and the folder of the files, once for all that share both."""
    shared: dict[str, list[str]] = {}
    for file in files:
        folder = "" if file["path"] is None else f": {Path(file['path']).parent}"
        shared.setdefault(f"{file['state']}{folder}", []).append(file["name"])
    if len(shared) == 1:
        return next(iter(shared))
    return "\n".join(f"{', '.join(names)} {state}" for state, names in shared.items())
