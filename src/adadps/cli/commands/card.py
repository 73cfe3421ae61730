"""`adadps card`: what may be said about the privacy of a saved model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown

from adadps.cli.commands.console import FAILURE, errors_as_messages, out, print_json

if TYPE_CHECKING:
    from adadps.report.card.checking import Checked
    from adadps.report.card.comparing import Difference


def card(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compute epsilon anew from the recorded mechanism.")
    ] = False,
    audit: Annotated[
        Path | None,
        typer.Option(help="Output of `adadps audit ... --json` on the same claim: attach it."),
    ] = None,
) -> None:
    """Show the privacy card of a saved model, made anew from its result.

    With --check it says instead, in one line, whether the stored epsilon and the card in the folder
    are what comes out; if not, it names the fields that differ. It ends with 0 only if all agrees.
    With --audit the outcome is kept in the folder as audit.json, and the card written anew.

    Example: adadps card model --check
    """
    with errors_as_messages():
        from adadps.report.card import card_of, markdown_of
        from adadps.report.card.audited import attached_audit
        from adadps.report.card.checking import check as checked_anew
        from adadps.report.card.comparing import differences_in, name_on
        from adadps.report.result import load_result

        described = load_result(folder).describe()
        if audit is not None:
            _attach(audit, folder, described)
        shown = card_of(described, attached_audit(folder, described))
        if not check:
            if as_json:
                print_json(shown)
            else:
                out.print(Markdown(markdown_of(shown, folder.resolve().name)))
            return
        found, beside = checked_anew(described), differences_in(folder, shown)
        if as_json:
            print_json({"card": shown, "check": _described(found, beside)})
        else:
            _show(found, beside, None if beside else name_on(folder))
    if beside or not found.agrees:
        raise typer.Exit(FAILURE)


def _show(found: Checked, beside: list[Difference], other_name: str | None) -> None:
    """The verdict in one line, then every field that differs."""
    if found.agrees is False or beside:
        out.print("[bold red]DIFFERS[/]: what is recorded does not fit together.")
        for difference in (*found.differences, *beside):
            out.print(f"- {difference}", markup=False, highlight=False, soft_wrap=True)
        return
    verdict = "AGREES" if found.agrees else "NOT CHECKED"
    said = found.says.removeprefix("cannot be checked: ")
    name = "" if other_name is None else f" (card.md calls the model {other_name!r})"
    stated = f"card.json and card.md state the same{name}"
    out.print(f"{verdict}: {said}; {stated}.", markup=False, highlight=False, soft_wrap=True)


def _described(found: Checked, beside: list[Difference]) -> dict[str, Any]:
    differences = [asdict(one) for one in (*found.differences, *beside)]
    return {**found.describe(), "differences": differences, "card_in_folder": not beside}


def _attach(file: Path, folder: Path, described: dict[str, Any]) -> None:
    """Keep the audit beside the result, and write the card anew."""
    from adadps.files.writing import new_file
    from adadps.report.card import CARD_JSON, CARD_MARKDOWN, card_of, markdown_of
    from adadps.report.card.audited import AUDIT_FILE, audit_in
    from adadps.report.card.files import json_of

    shown = card_of(described, audit_in(file, described))
    texts = {
        AUDIT_FILE: file.read_text(encoding="utf-8"),
        CARD_JSON: json_of(shown),
        CARD_MARKDOWN: markdown_of(shown, folder.resolve().name),
    }
    for name, text in texts.items():
        with new_file(folder / name, overwrite=True) as draft:
            draft.write_text(text, encoding="utf-8")
