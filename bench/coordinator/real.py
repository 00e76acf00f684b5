"""Consumers of ours among the light members of a group, in a process of their own."""

from __future__ import annotations

import asyncio
import json
import sys
from types import TracebackType
from typing import Self

from bench.coordinator.book import Book
from bench.coordinator.members import Plan

_PATIENCE_S = 30.0


class RealMember:
    """One of them, as it tells of itself.

    Attributes:
        owned: what it holds.
        downtimes_s: how long it held nothing, each time.
        read_at_s: when it last got a record, 0: never.
        longest_gap_s: between two polls that brought records.
    """

    def __init__(self) -> None:
        self.owned: frozenset[int] = frozenset()
        self.downtimes_s: list[float] = []
        self.read_at_s = self.longest_gap_s = 0.0
        self._stopped_at: float | None = None

    def read(self, at_s: float) -> None:
        """Record that the member got records."""
        if self.read_at_s:
            self.longest_gap_s = max(self.longest_gap_s, at_s - self.read_at_s)
        self.read_at_s = at_s

    def record_ownership(self, book: Book, at_s: float, owned: frozenset[int]) -> None:
        """Record a change of the member's assignment."""
        if not owned:
            self._stopped_at = at_s
        elif self._stopped_at is not None:
            self.downtimes_s.append(at_s - self._stopped_at)
            self._stopped_at = None
        book.release(self, self.owned - owned)
        book.take(self, owned)
        self.owned = owned


class RealMembers:
    """So many members of one group.

        async with RealMembers(plan, "push", group, 10, book) as real:
            real.members

    Args:
        plan: of the light ones; a session is the same.
        protocol: of the group.
        group: its name.
        count: how many.
        book: what each holds is written there.
    """

    def __init__(self, plan: Plan, protocol: str, group: str, count: int, book: Book) -> None:
        servers = ",".join(f"{host}:{port}" for host, port in plan.servers or [plan.address()])
        settings: dict[str, str | int] = {"group_protocol": protocol, "auto_offset_reset": "earliest"}
        if protocol != "consumer":
            settings["session_timeout_ms"] = plan.session_ms
        if protocol == "classic":
            settings["heartbeat_interval_ms"] = plan.heartbeat_ms
            settings["partition_assignment_strategy"] = "range"
        self._command = [servers, group, plan.topic, str(count), json.dumps(settings)]
        self._book = book
        self._reading: asyncio.Task[None] | None = None
        self.members = [RealMember() for _ in range(count)]

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.runners.real_members", *self._command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            number, at_s, owned = json.loads(line)
            if owned is None:
                self.members[number].read(at_s)
            else:
                self.members[number].record_ownership(self._book, at_s, frozenset(owned))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _PATIENCE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        assert self._reading is not None
        await self._reading
