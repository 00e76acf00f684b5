"""A property of the journal's files that holds after every fault."""

from __future__ import annotations

from typing import Any

from kohort.coordinator.shard import Phase
from kohort.errors import ErrorCode
from simulation.property import Checker


class JournalChecker(Checker):
    """The journal can be read: no death, refusal or loss of power leaves what is taken for damage."""

    def on_refused(self, event: Any, code: ErrorCode, phase: Phase) -> None:
        if phase is Phase.DAMAGED:
            self.fail("the journal is damaged")
