"""Offsets that nobody replaces soon: a group without members, of which one thread is the only writer.

Members of a group commit again a moment after a take-over, and would hide what was lost in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from kohort import Admin, TopicPartition
from kohort.errors import KafkaError

PARTITIONS = 40
"""Written in turn: each keeps its offset for so many writes."""
PAUSE_S = 0.03
ANSWER_MS = 3_000
"""A coordinator that stands still for longer is left: nothing else than a request says that it does."""
PATIENCE_S = 60.0


class Ledger(threading.Thread):
    """Writes numbers that only grow.

    Attributes:
        group: its name.
        acknowledged: by partition, the newest number that was acknowledged.
        newest_ns: by partition, when that was sent.
        tried: by partition, the newest number that was sent.
    """

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.group, self.topic = f"group-{topic}", topic
        self.acknowledged: dict[str, int] = {}
        self.newest_ns: dict[str, int] = {}
        self.tried: dict[str, int] = {}
        self.error: BaseException | None = None
        self._servers = servers
        self._writing = threading.Lock()
        self._ending = threading.Event()

    def look(self) -> None:
        """All is known as it happens."""

    def run(self) -> None:
        try:
            with Admin(self._servers, request_timeout_ms=ANSWER_MS) as admin:
                number = 0
                while not self._ending.wait(PAUSE_S):
                    number += 1
                    with self._writing:
                        self._write(admin, number)
        except BaseException as error:  # noqa: BLE001 - the run raises it
            self.error = error

    def _write(self, admin: Admin, number: int) -> None:
        at = TopicPartition(self.topic, number % PARTITIONS)
        name, sent_ns = f"{self.topic}/{at.partition}", time.monotonic_ns()
        self.tried[name] = number
        try:
            admin.alter_consumer_group_offsets(self.group, {at: number}).all()
        except KafkaError:
            return
        self.acknowledged[name], self.newest_ns[name] = number, sent_ns

    def wrong(self) -> Iterator[str]:
        """Return the differences between the topic now and what was acknowledged."""
        if self.error is not None:
            raise self.error
        with self._writing:
            found = self._read()
            for name, tried in self.tried.items():
                floor = self.acknowledged.get(name, 0)
                if not floor <= found.get(name, 0) <= tried:
                    yield f"{name} is {found.get(name)}; {floor} was acknowledged, {tried} was tried last"

    def _read(self) -> dict[str, int]:
        bound_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                with Admin(self._servers, request_timeout_ms=ANSWER_MS) as admin:
                    found = admin.list_consumer_group_offsets(self.group).all()
            except KafkaError:
                if time.monotonic() > bound_s:
                    raise
                continue
            return {f"{at.topic}/{at.partition}": value.offset for at, value in found.items() if value is not None}

    def end(self) -> None:
        """Write nothing more; may be called again."""
        self._ending.set()
        self.join()
