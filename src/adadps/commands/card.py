"""`adadps card`: what may be said about the privacy of a saved model."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown

from adadps.commands.console import FOUND_WHILE_WORKING, out, print_json, told

if TYPE_CHECKING:
    from adadps.card.checking import Checked, Difference


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
    are what comes out; if not, it names the fields that differ and ends with 1. With --audit the
    outcome is kept in the folder as audit.json, and the card written anew.

    Example: adadps card model --check
    """
    with told():
        from adadps.card import card_of, markdown_of  # noqa: PLC0415
        from adadps.card.audited import attached_audit  # noqa: PLC0415
        from adadps.card.checking import check as checked_anew  # noqa: PLC0415
        from adadps.result import load_result  # noqa: PLC0415

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
        found, beside = checked_anew(described), _differences_in(folder, shown)
        fails = found.agrees is False or bool(beside)
        if as_json:
            print_json({"card": shown, "check": _described(found, beside)})
        else:
            _show(found, beside, fails=fails)
    if fails:
        raise typer.Exit(FOUND_WHILE_WORKING)


def _show(found: Checked, beside: list[Difference] | None, *, fails: bool) -> None:
    """The verdict in one line, then every field that differs."""
    if fails:
        out.print("[bold red]DIFFERS[/]: what is recorded does not fit together.")
        for difference in (*found.differences, *(beside or ())):
            out.print(f"- {difference}", markup=False, highlight=False, soft_wrap=True)
        return
    verdict = "AGREES" if found.agrees else "NOT CHECKED"
    stated = "there is no card.json" if beside is None else "card.json states the same"
    said = found.says.removeprefix("cannot be checked: ")
    out.print(f"{verdict}: {said}; {stated}.", markup=False, highlight=False, soft_wrap=True)


def _described(found: Checked, beside: list[Difference] | None) -> dict[str, Any]:
    differences = [asdict(one) for one in (*found.differences, *(beside or ()))]
    in_folder = None if beside is None else not beside
    return {**found.describe(), "differences": differences, "card_in_folder": in_folder}


def _attach(file: Path, folder: Path, described: dict[str, Any]) -> None:
    """Keep the audit beside the result, and write the card anew."""
    from adadps.card import CARD_JSON, CARD_MARKDOWN, card_of, markdown_of  # noqa: PLC0415
    from adadps.card.audited import AUDIT_FILE, audit_in  # noqa: PLC0415
    from adadps.card.files import json_of  # noqa: PLC0415
    from adadps.writing import new_file  # noqa: PLC0415

    shown = card_of(described, audit_in(file, described))
    texts = {
        AUDIT_FILE: file.read_text(encoding="utf-8"),
        CARD_JSON: json_of(shown),
        CARD_MARKDOWN: markdown_of(shown, folder.resolve().name),
    }
    for name, text in texts.items():
        with new_file(folder / name, overwrite=True) as draft:
            draft.write_text(text, encoding="utf-8")


def _differences_in(folder: Path, shown: dict[str, Any]) -> list[Difference] | None:
    """Which statements of the card in the folder are others; None if there is no card."""
    from adadps.card import CARD_JSON  # noqa: PLC0415
    from adadps.card.checking import Difference, differences_of_cards  # noqa: PLC0415

    file = folder / CARD_JSON
    if not file.exists():
        return None
    try:
        held: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return [Difference(CARD_JSON, "a card in JSON", "something that cannot be read")]
    return [
        replace(
            found,
            field=f"{CARD_JSON}, {found.field}",
            expected=f"{found.expected} (by result.json)",
        )
        for found in differences_of_cards(held, shown)
    ]
