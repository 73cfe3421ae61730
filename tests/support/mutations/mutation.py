"""What a mutation is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    file: str
    before: str
    after: str
    guard: str
