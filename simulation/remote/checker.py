"""What a coordinator may still say that was overtaken."""

from __future__ import annotations

from typing import Any

from kohort.cluster.kafka_journal import KafkaJournal
from kohort.coordinator.appends import READING
from simulation.property import Checker


class OvertakenChecker(Checker):
    """A coordinator that was overtaken answers nothing that the other has changed.

    What came after that and is read, it does not answer; anything else only as long as the successor's sessions are
    longer for it.
    """

    def on_overtaken(self, event: Any, value: Any, came_ms: int, since_ms: int) -> None:
        late_ms = self.world.now_ms - since_ms
        if late_ms > KafkaJournal.proof_ms:
            self.fail(f"overtaken {late_ms} ms ago, and answers {event} with {value}")
        if type(event) in READING and came_ms > since_ms:
            self.fail(f"overtaken {late_ms} ms ago, and reads {event} as {value}, which came {came_ms - since_ms} ms after")
