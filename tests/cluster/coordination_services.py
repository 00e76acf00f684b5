"""Doors for tests: several of one kind on one loop that turns, in ZooKeeper or as a group on Kafka."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from kazoo.client import KazooClient

from kohort.client.settings import ConnectionConfig
from kohort.cluster.coordination.group_service import HEARTBEAT_MS, GroupCoordination
from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.zookeeper.nodes import IDS
from kohort.cluster.zookeeper.service import ZooKeeperCoordination
from kohort.cluster.zookeeper.session import SessionState

SHARDS = 10
SESSION_MS = 2_000
_NUMBERS = itertools.count()
_INCARNATIONS = itertools.count()


def candidate(number: int, port: int | None = None) -> Candidate:
    return Candidate(number, f"process-{next(_INCARNATIONS):04}", "127.0.0.1", port or 9000 + number, "a-rack")


async def until(condition: Callable[[], object], what: str) -> None:
    """Looks again every 20 ms; fails after 30 s."""
    for _ in range(1500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"did not happen: {what}")


D = TypeVar("D", ZooKeeperCoordination, GroupCoordination)


class Doors(ABC, Generic[D]):
    """Doors of one place, closed at the end.

    Attributes:
        server: where they are looked for.
        open: by the candidate's id.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        self.open: dict[int, D] = {}
        self._every: list[D] = []

    @abstractmethod
    def door(self) -> D:
        """One that is not open."""

    @abstractmethod
    def reaches(self, door: D) -> bool:
        """Whether a door has its server, as far as it knows."""

    @abstractmethod
    def comes_back(self, number: int) -> Callable[[], object]:
        """Check that a living candidate that is removed from now on returns."""

    @abstractmethod
    async def end_without_leaving(self, number: int) -> None:
        """End like a killed process, without leaving."""

    async def enter(self, me: Candidate) -> D:
        door = self.door()
        await door.open(me, SHARDS)
        self.open[me.id] = door
        self._every.append(door)
        return door

    async def agreed(self, *ids: int) -> None:
        """All doors have one map, in which just these have shards, and one of them is in office."""

        def agree() -> bool:
            maps = {door.placement for door in self.open.values()}
            placement = maps.pop()
            offices = [number for number, door in self.open.items() if door.is_leader]
            if maps or placement is None or offices != [placement.elected]:
                return False
            return set(placement.owners) == set(ids) == {coordinator.id for coordinator in placement.candidates}

        await until(agree, f"one map for {ids}: {[door.placement for door in self.open.values()]}")

    async def turn(self) -> None:
        while True:
            for door in list(self.open.values()):
                door.alive()
            await asyncio.sleep(0.05)

    async def begin(self) -> None:
        """Start the parts of the service that the test itself needs."""

    async def end(self) -> None:
        for door in self._every:
            await door.close()


class ZooKeeperDoors(Doors[ZooKeeperCoordination]):
    """Doors under a path of their own, and a client that looks at their nodes."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self.root = f"/doors-{next(_NUMBERS)}/deep"
        self.look = KazooClient(server)

    def door(self) -> ZooKeeperCoordination:
        return ZooKeeperCoordination(self.server + self.root, SESSION_MS)

    def reaches(self, door: ZooKeeperCoordination) -> bool:
        return door.session.state is SessionState.CONNECTED

    def comes_back(self, number: int) -> Callable[[], object]:
        path = f"{self.root}{IDS}/{number}"
        made = self.look.exists(path).czxid
        return lambda: (stat := self.look.exists(path)) and stat.czxid > made

    async def end_without_leaving(self, number: int) -> None:
        """Stop the client without leaving: its session goes on."""
        door = self.open.pop(number)
        keeper = door._keeper
        assert keeper is not None
        keeper.cancel()
        await asyncio.wait([keeper])

    def data(self, path: str) -> bytes:
        found: bytes = self.look.get(self.root + path)[0]
        return found

    def owner(self, path: str) -> int | None:
        stat = self.look.exists(self.root + path)
        return None if stat is None else stat.ephemeralOwner

    async def begin(self) -> None:
        await asyncio.to_thread(self.look.start)

    async def end(self) -> None:
        await super().end()
        await asyncio.to_thread(self.look.stop)
        await asyncio.to_thread(self.look.close)


class GroupDoors(Doors[GroupCoordination]):
    """Doors of a group of their own."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self.config = ConnectionConfig(bootstrap_servers=(server,))
        self.group = f"placement-{next(_NUMBERS)}"
        self.heartbeat_ms = HEARTBEAT_MS

    def door(self) -> GroupCoordination:
        return GroupCoordination(self.config, self.group, heartbeat_ms=self.heartbeat_ms)

    def reaches(self, door: GroupCoordination) -> bool:
        return door._last_trouble is None

    def comes_back(self, number: int) -> Callable[[], object]:
        door = self.open[number]
        before = door._generation
        return lambda: door._generation > before

    async def end_without_leaving(self, number: int) -> None:
        client = self.open.pop(number)._client
        assert client is not None
        await client.close()


AnyDoors = ZooKeeperDoors | GroupDoors
"""Where a case holds for either."""
These = TypeVar("These", bound=AnyDoors)


def run(doors: These, story: Callable[[These], Awaitable[None]]) -> None:
    async def play() -> None:
        await doors.begin()
        turning = asyncio.create_task(doors.turn())
        try:
            await story(doors)
        finally:
            turning.cancel()
            await doors.end()

    asyncio.run(play())
