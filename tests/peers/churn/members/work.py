"""The common part of every Python member: its orders, its log, and records that are processed but not yet committed.

A log is one JSON object a line, written with one call, so that a kill loses no line and tears none. `t` is the
machine's monotonic clock in ns, which all members of a run share. The Go and Java members write the same lines:

========== ================================================================================================
assigned   `partitions` were added; stamped when the client says so
revoked    `partitions` were given up in order; stamped at the end of the callback, after its commit
lapsed     the client says that others may have what is held: nothing is begun of it before something is handed out
           again (kohort)
lost       `partitions` were taken away; the member has learned it now
records    records of `partition` with these `offsets` and `values` were processed
committing a commit with the number `id` of `offsets` (the next to process) is about to be asked for
committed  it was acknowledged
refused    it was not; `error` says why
closing    the member will process and commit nothing more
closed     the client has closed
========== ================================================================================================
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

Partition = tuple[str, int]
COMMIT_EVERY_S = 0.25
POLL_S = 0.2
RECORDS = 50
METADATA_MS = 3_000
"""How soon a leader sees that a topic has grown."""
RECONNECT_MS = 1_000
"""As Java's: a client that waits longer to connect again than its session lasts is evicted after an outage."""


class Orders:
    """The command line's orders, as `name=value` words.

    Attributes:
        stopping: is set when the driver says stop, or is gone.
    """

    def __init__(self) -> None:
        self._given = dict(word.split("=", 1) for word in sys.argv[1:])
        self.stopping = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def __getitem__(self, name: str) -> str:
        return self._given[name]

    @property
    def instance(self) -> str | None:
        """The group instance id of a static member."""
        return self["instance"] or None

    def number(self, name: str) -> int:
        return int(self._given[name])

    @property
    def topics(self) -> list[str]:
        return self["topics"].split(",")

    def _listen(self) -> None:
        os.read(sys.stdin.fileno(), 1)
        self.stopping.set()


class Work:
    """Processed records and the commits of them, all told to the log."""

    def __init__(self, orders: Orders) -> None:
        self._log = os.open(orders["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._commits = 0
        self._due = 0.0
        self.pending: dict[Partition, int] = {}

    def say(self, event: str, **facts: Any) -> None:
        """Appends one line."""
        line = json.dumps({"t": time.monotonic_ns(), "e": event, **facts}, separators=(",", ":"))
        os.write(self._log, line.encode() + b"\n")

    def process(self, partition: Partition, offsets: Sequence[int], values: Iterable[bytes]) -> None:
        """Record that these records are processed, in this order."""
        self.say("records", partition=_name(partition), offsets=list(offsets), values=[int(value) for value in values])
        self.pending[partition] = offsets[-1] + 1

    def assigned(self, partitions: Iterable[Partition]) -> None:
        self.say("assigned", partitions=_names(partitions))

    def gone(self, event: str, partitions: Iterable[Partition]) -> None:
        """`revoked` or `lost`: nothing more of these is committed."""
        given_up = list(partitions)
        for partition in given_up:
            self.pending.pop(partition, None)
        self.say(event, partitions=_names(given_up))

    @property
    def due(self) -> bool:
        """Whether it is time for a commit."""
        return bool(self.pending) and time.monotonic() >= self._due

    def asking(self) -> tuple[int, dict[Partition, int]]:
        """A commit begins: its number and offsets."""
        self._commits += 1
        self._due = time.monotonic() + COMMIT_EVERY_S
        offsets = dict(self.pending)
        self.say("committing", id=self._commits, offsets={_name(part): offset for part, offset in offsets.items()})
        return self._commits, offsets

    def answered(self, number: int, offsets: Mapping[Partition, int], error: object = None) -> None:
        """A commit ended; what was refused stays to be committed for as long as its partition is held."""
        if error is not None:
            self.say("refused", id=number, error=f"{type(error).__name__}: {error}"[:200])
            return
        self.say("committed", id=number)
        for partition, offset in offsets.items():
            if self.pending.get(partition) == offset:
                self.pending.pop(partition, None)

    def commit(self, commit: Callable[[dict[Partition, int]], None]) -> None:
        """Commits everything that is pending; `commit` raises when it is refused."""
        if not self.pending:
            return
        number, offsets = self.asking()
        try:
            commit(offsets)
        except Exception as error:  # noqa: BLE001 - whatever the client raises is a refusal, and goes to the log
            self.answered(number, offsets, error)
        else:
            self.answered(number, offsets)

    async def commit_async(self, commit: Callable[[dict[Partition, int]], Awaitable[None]]) -> None:
        """Commit like `commit`, without waiting."""
        if not self.pending:
            return
        number, offsets = self.asking()
        try:
            await commit(offsets)
        except Exception as error:  # noqa: BLE001 - as above
            self.answered(number, offsets, error)
        else:
            self.answered(number, offsets)


def _name(partition: Partition) -> str:
    return f"{partition[0]}/{partition[1]}"


def _names(partitions: Iterable[Partition]) -> list[str]:
    return [_name(partition) for partition in partitions]
