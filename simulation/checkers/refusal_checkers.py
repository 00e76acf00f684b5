"""Checkers of requests that a shard cannot serve: their error codes, and that no fault looks like a damaged journal."""

from __future__ import annotations

from typing import Any

from kohort.coordinator.shard import Phase
from kohort.errors import ErrorCode
from simulation.checkers.property import Checker

PASSES = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""Error codes after which clients ask the same coordinator again."""


class RefusalChecker(Checker):
    """Clients are sent to look for another coordinator when one has taken over, and only then."""

    def on_refused(self, event: Any, code: ErrorCode, phase: Phase) -> None:
        if code is not ErrorCode.NOT_COORDINATOR and phase is Phase.FENCED:
            self.fail(f"another coordinator has taken over, and {type(event).__name__} is told {code.name}")
        elif code not in PASSES and phase in (Phase.LOADING, Phase.FAILED):
            self.fail(f"{type(event).__name__} is told {code.name} while the shard is {phase.name}")


class JournalChecker(Checker):
    """The journal stays readable: no crash, failed write or power loss leaves bytes that count as damage."""

    def on_refused(self, event: Any, code: ErrorCode, phase: Phase) -> None:
        if phase is Phase.DAMAGED:
            self.fail("the journal is damaged")
