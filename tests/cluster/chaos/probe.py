"""A coordinator that stands still is asked for a group's offsets, and answers when it wakes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from kohort.errors import ErrorCode
from kohort.wire.offsets import OffsetFetchRequest, OffsetFetchResponse
from tests.broker.raw import TIMEOUT_S, RawClient

CONNECT_S = 1.0
"""Four groups are asked for one after the other, while what else befalls goes on."""
VERSION = 9
"""The newest that names topics."""


class Known(Protocol):
    """A group of which it is known what was acknowledged."""

    group: str
    acknowledged: dict[str, int]
    newest_ns: dict[str, int]

    def look(self) -> None:
        """Find out the newest."""


class Asked:
    """One request: sent just before the coordinator wakes, so that it finds it before anything else.

    Attributes:
        of: the group.
        had: it had the group before.
        slept_ns: since when the coordinator stood still.
        sent_ns: when it was asked.
        served_elsewhere: another coordinator acknowledged a commit of the group that was sent after it had stopped.
        floor: by partition, what had been acknowledged by anybody before it was asked.
        offsets: what it answered; None: nothing that counts.
        error: the code that it answered; None: it closed the connection.
        said: its log since it woke.
    """

    def __init__(self, of: Known) -> None:
        self.of = of
        self.slept_ns = self.sent_ns = 0
        self.had = self.served_elsewhere = False
        self.floor: dict[str, int] = {}
        self.offsets: dict[str, int] | None = None
        self.error: ErrorCode | None = None
        self.said: Callable[[], str] = str
        self._connection: RawClient | None = None

    def __str__(self) -> str:
        answer = "no answer" if self.error is None else self.error.name
        had, elsewhere = "had it" * self.had, "others have served it since" * self.served_elsewhere
        return ", ".join(filter(None, (f"{self.of.group}: {answer}", had, elsewhere)))

    def connect(self, address: str) -> None:
        """While it still answers."""
        try:
            self._connection = RawClient(address, "kohort-probe", timeout_s=CONNECT_S)
            self._ask()
            self.had = self._connection.receive().groups[0].error_code == ErrorCode.NONE
            self._connection.sock.settimeout(TIMEOUT_S)
        except OSError:  # it is not there, or waits for a Kafka that stands still: nothing is known of it
            if self._connection is not None:
                self._connection.close()
            self._connection = None
        self.slept_ns = time.monotonic_ns()

    def _ask(self) -> None:
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.of.group, topics=None)
        if self._connection is not None:
            self._connection.send(OffsetFetchRequest(groups=[group]), VERSION)

    def send(self) -> None:
        """Ask."""
        self.of.look()
        self.floor = dict(self.of.acknowledged)
        self.served_elsewhere = any(sent_ns > self.slept_ns for sent_ns in self.of.newest_ns.values())
        self.sent_ns = time.monotonic_ns()
        self._ask()

    def receive(self) -> None:
        """Take the answer, or the end of the connection."""
        if self._connection is None:
            return
        try:
            self.take(self._connection.receive())
        except (ConnectionResetError, TimeoutError):
            pass
        finally:
            self._connection.close()

    def take(self, answer: OffsetFetchResponse) -> None:
        """Record the content of an answer."""
        (group,) = answer.groups
        self.error = ErrorCode(group.error_code)
        if self.error is ErrorCode.NONE:
            self.offsets = {
                f"{topic.name}/{partition.partition_index}": partition.committed_offset
                for topic in group.topics
                for partition in topic.partitions
            }
