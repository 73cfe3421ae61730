"""Whose data is protected, where that is not a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OfUsers:
    """The column of users."""

    column: str
    most: int
    """So many rows of a user count at once."""
