"""`adadps card`: show or check the privacy card of a saved model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown

from adadps.cli.main import FAILURE, errors_as_messages, out, print_json

if TYPE_CHECKING:
    from adadps.report.card.checking import Checked, Difference


def card(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Recompute epsilon from the recorded mechanism.")
    ] = False,
    audit: Annotated[
        Path | None,
        typer.Option(help="Attach this output of `adadps audit ... --json` on the same claim."),
    ] = None,
) -> None:
    """Show the privacy card of a saved model, rebuilt from its result.

    With --check, print one line instead: do the stored epsilon and the card in the folder agree
    with what is recomputed? If not, name the fields that differ. The exit code is 0 only if
    everything agrees. With --audit, store the outcome in the folder as audit.json and rewrite the
    card.

    Example: adadps card model --check
    """
    with errors_as_messages():
        from adadps.report.card import card_of, markdown_of
        from adadps.report.card.audits import attached_audit
        from adadps.report.card.checking import check as recompute
        from adadps.report.card.checking import differences_in, name_on
        from adadps.report.saved_result import load_result

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
        found, in_folder = recompute(described), differences_in(folder, shown)
        if as_json:
            print_json({"card": shown, "check": _described(found, in_folder)})
        else:
            _show(found, in_folder, None if in_folder else name_on(folder))
    if in_folder or not found.agrees:
        raise typer.Exit(FAILURE)


def _show(found: Checked, in_folder: list[Difference], other_name: str | None) -> None:
    """Print the verdict in one line, then every field that differs."""
    if found.agrees is False or in_folder:
        out.print("[bold red]DIFFERS[/]: the recorded facts contradict each other.")
        for difference in (*found.differences, *in_folder):
            out.print(f"- {difference}", markup=False, highlight=False, soft_wrap=True)
        return
    verdict = "AGREES" if found.agrees else "NOT CHECKED"
    reason = found.says.removeprefix("cannot be checked: ")
    name = "" if other_name is None else f" (card.md calls the model {other_name!r})"
    stated = f"card.json and card.md state the same{name}"
    out.print(f"{verdict}: {reason}; {stated}.", markup=False, highlight=False, soft_wrap=True)


def _described(found: Checked, in_folder: list[Difference]) -> dict[str, Any]:
    differences = [asdict(one) for one in (*found.differences, *in_folder)]
    return {**found.describe(), "differences": differences, "card_in_folder": not in_folder}


def _attach(file: Path, folder: Path, described: dict[str, Any]) -> None:
    """Store the audit beside the result, and rewrite the card."""
    from adadps.files import new_file
    from adadps.report.card import CARD_JSON, CARD_MARKDOWN, card_of, markdown_of
    from adadps.report.card.audits import AUDIT_FILE, audit_in
    from adadps.report.card.rendering import json_of

    shown = card_of(described, audit_in(file, described))
    texts = {
        AUDIT_FILE: file.read_text(encoding="utf-8"),
        CARD_JSON: json_of(shown),
        CARD_MARKDOWN: markdown_of(shown, folder.resolve().name),
    }
    for name, text in texts.items():
        with new_file(folder / name, overwrite=True) as draft:
            draft.write_text(text, encoding="utf-8")
