"""`adadps card`: what may be said about the privacy of a saved model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown

from adadps.commands.console import FOUND_WHILE_WORKING, out, print_json, say, told

if TYPE_CHECKING:
    from adadps.card.checking import Checked


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

    With --check it ends with 1 if the stored epsilon, or the card in the folder, is not what comes
    out. With --audit the outcome is kept in the folder as audit.json, and the card written anew.

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
        found = checked_anew(described) if check else None
        same = _is_that_in(folder, shown) if check else None
        if as_json:
            extra = {"check": {**found.describe(), "card_in_folder": same}} if found else {}
            print_json({"card": shown, **extra} if found else shown)
        else:
            out.print(Markdown(markdown_of(shown)))
            if found:
                _say(found, same)
    if found and (found.agrees is False or same is False):
        raise typer.Exit(FOUND_WHILE_WORKING)


def _say(found: Checked, same: bool | None) -> None:
    in_folder = {None: "there is none", True: "states the same", False: "DIFFERS"}
    say(f"Check: {found.says}.\nCard in the folder: {in_folder[same]}.")


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
        CARD_MARKDOWN: markdown_of(shown),
    }
    for name, text in texts.items():
        with new_file(folder / name, overwrite=True) as draft:
            draft.write_text(text, encoding="utf-8")


def _is_that_in(folder: Path, shown: dict[str, Any]) -> bool | None:
    """Does the card in the folder state the same? None if there is none."""
    from adadps.card import CARD_JSON  # noqa: PLC0415
    from adadps.card.checking import states_the_same  # noqa: PLC0415

    file = folder / CARD_JSON
    if not file.exists():
        return None
    try:
        held: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return states_the_same(held, shown)
