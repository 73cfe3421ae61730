"""What stages that read side information or public data have in common: an event, a provenance."""

from __future__ import annotations

from dataclasses import dataclass

from dp_accounting import DpEvent, NoOpDpEvent

from adadps.data.examples import PublicExamples
from adadps.data.provenance import Provenance
from adadps.methods.side.source import SideSource


@dataclass(frozen=True)
class ReadsSide:
    """A stage that reads side information; event and provenance are those of its source."""

    side: SideSource

    @property
    def event(self) -> DpEvent:
        """What the side information cost."""
        return self.side.event

    @property
    def provenance(self) -> Provenance:
        """Where the side information comes from."""
        return self.side.provenance


@dataclass(frozen=True)
class ReadsPublic:
    """A stage that reads public examples, which costs nothing."""

    public: PublicExamples

    @property
    def event(self) -> DpEvent:
        """Nothing is charged for public data."""
        return NoOpDpEvent()

    @property
    def provenance(self) -> Provenance:
        """Where the public examples come from."""
        return self.public.provenance
