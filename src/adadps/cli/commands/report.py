"""`adadps report`: one HTML page about saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adadps.cli.main import errors_as_messages, out, print_json, say


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of saved models.")],
    out_file: Annotated[Path, typer.Option("--out", help="New HTML file.")],
    title: Annotated[
        str | None, typer.Option(help="Heading of the page. Default: the names of the folders.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out if it exists.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the file, its title and its models as JSON.")
    ] = False,
) -> None:
    """Write one HTML page about one run, or about several runs side by side.

    The page is self-contained: it loads nothing from elsewhere. If runs differ in epsilon or delta,
    the page shows a warning.

    Example: adadps report model-a model-b --out comparison.html
    """
    with errors_as_messages():
        from adadps.report.card.audits import attached_audit
        from adadps.report.html import report_of_comparison, report_of_run
        from adadps.report.html.comparison import differences
        from adadps.report.saved_result import load_result

        names = _names(folders)
        places = dict(zip(names, folders, strict=True))
        results = {name: load_result(place) for name, place in places.items()}
        audits = {
            name: found
            for name, place in places.items()
            if (found := attached_audit(place, results[name].describe()))
        }
        apart: list[str] = []
        if len(results) == 1:
            ((name, result),) = results.items()
            heading, audit = title or name, audits.get(name)
            report_of_run(result, out_file, title=heading, audit=audit, overwrite=force)
        else:
            heading = title or f"Comparison of {len(results)} runs"
            apart = differences(results)
            for difference in apart:
                say(difference)
            report_of_comparison(results, out_file, title=heading, audits=audits, overwrite=force)
        if as_json:
            print_json(
                {
                    "report": str(out_file),
                    "title": heading,
                    "models": {name: str(place) for name, place in places.items()},
                    "audited": sorted(audits),
                    "warnings": apart,
                }
            )
            return
        out.print(f"Report: {out_file}", markup=False, highlight=False, soft_wrap=True)


def _names(folders: list[Path]) -> list[str]:
    """Return the names of the folders, or their paths where two have the same name."""
    short = [folder.resolve().name for folder in folders]
    if len(set(short)) == len(short):
        return short
    whole = [str(folder) for folder in folders]
    if len(set(whole)) == len(whole):
        return whole
    return [f"{number}: {name}" for number, name in enumerate(whole, 1)]
