"""What the server makes of dry runs: it begins only where devices can do the task."""

from __future__ import annotations

from collections.abc import Mapping

from adadps.errors import DeviceError
from adadps.training.federated.dry_runs import Refusal

LONGEST, MOST = 600, 5
"""Characters of a refusal, and different refusals, that are shown."""


def refusing(answers: Mapping[int, Refusal | None]) -> dict[int, Refusal]:
    """The refusals that count.

    Those that rows might have to do with count only where nobody is ready: then the run would end
    at its first round, with nothing to show for it.
    """
    ready = any(answer is None for answer in answers.values())
    return {
        node: answer
        for node, answer in answers.items()
        if answer is not None and not (ready and answer.while_reading)
    }


def require_ready(answers: Mapping[int, Refusal | None], *, asked: int | None = None) -> None:
    """Refuse to begin where devices refuse, or where all that were ``asked`` are silent.

    >>> require_ready({1: None, 2: None})
    >>> require_ready({7: Refusal("Expected a key, found none."), 8: None})
    Traceback (most recent call last):
    adadps.errors.DeviceError: Expected devices that can do the task, found that 1 of 2 cannot: \
Expected a key, found none. (node 7). No round was paid. Fix the app or the configuration of \
these nodes, whose own logs have the tracebacks, and start again.
    """
    found, count = refusing(answers), max(len(answers), asked or 0)
    if found:
        raise DeviceError(
            f"Expected devices that can do the task, found that {len(found)} of {count} cannot: "
            f"{described(found)}. No round was paid. Fix the app or the configuration of these "
            "nodes, whose own logs have the tracebacks, and start again."
        )
    if count and not answers:
        raise DeviceError(
            f"Expected an answer to the dry run from at least one device, found none of {count}. "
            "No round was paid. Look at the log of a device, and that it has the same version of "
            "adadps; or give devices more time."
        )


def described(refusals: Mapping[int, Refusal]) -> str:
    """Every different text once, with some of the nodes that have sent it.

    A text comes from a device that may be anybody's: it is cut, and shown on one line.
    """
    nodes: dict[str, list[int]] = {}
    for node, refusal in sorted(refusals.items()):
        nodes.setdefault(_on_one_line(refusal.text), []).append(node)
    shown = [f"{text} ({_some(sent_by)})" for text, sent_by in list(nodes.items())[:MOST]]
    more = len(nodes) - len(shown)
    return "; ".join([*shown, *([f"and {more} other texts"] if more else [])])


def _on_one_line(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def _some(nodes: list[int]) -> str:
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    named = ", ".join(str(node) for node in nodes[:3])
    return f"{len(nodes)} nodes: {named}{', ...' if len(nodes) > 3 else ''}"
