"""Services for tests: several of one kind on one loop that turns, in ZooKeeper or as a group on Kafka."""

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


class CoordinationServices(ABC, Generic[D]):
    """Services of one place, closed at the end.

    Attributes:
        server: where they are looked for.
        open: by the candidate's id.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        self.open: dict[int, D] = {}
        self._every: list[D] = []

    @abstractmethod
    def service(self) -> D:
        """One that is not open."""

    @abstractmethod
    def reaches(self, service: D) -> bool:
        """Whether a service has its server, as far as it knows."""

    @abstractmethod
    def returns(self, number: int) -> Callable[[], object]:
        """Check that a living candidate that is removed from now on returns."""

    @abstractmethod
    async def end_without_leaving(self, number: int) -> None:
        """End like a killed process, without leaving."""

    async def enter(self, me: Candidate) -> D:
        service = self.service()
        await service.open(me, SHARDS)
        self.open[me.id] = service
        self._every.append(service)
        return service

    async def agreed(self, *ids: int) -> None:
        """All services have one map, in which just these have shards, and one of them is the leader."""

        def agree() -> bool:
            maps = {service.placement for service in self.open.values()}
            placement = maps.pop()
            offices = [number for number, service in self.open.items() if service.is_leader]
            if maps or placement is None or offices != [placement.elected]:
                return False
            return set(placement.owners) == set(ids) == {coordinator.id for coordinator in placement.candidates}

        await until(agree, f"one map for {ids}: {[service.placement for service in self.open.values()]}")

    async def turn(self) -> None:
        while True:
            for service in list(self.open.values()):
                service.report_loop_alive()
            await asyncio.sleep(0.05)

    async def begin(self) -> None:
        """Start the parts of the service that the test itself needs."""

    async def end(self) -> None:
        for service in self._every:
            await service.close()


class ZooKeeperServices(CoordinationServices[ZooKeeperCoordination]):
    """Services under a path of their own, and a client that looks at their nodes."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self.root = f"/services-{next(_NUMBERS)}/deep"
        self.look = KazooClient(server)

    def service(self) -> ZooKeeperCoordination:
        return ZooKeeperCoordination(self.server + self.root, SESSION_MS)

    def reaches(self, service: ZooKeeperCoordination) -> bool:
        return service.session.state is SessionState.CONNECTED

    def returns(self, number: int) -> Callable[[], object]:
        path = f"{self.root}{IDS}/{number}"
        made = self.look.exists(path).czxid
        return lambda: (stat := self.look.exists(path)) and stat.czxid > made

    async def end_without_leaving(self, number: int) -> None:
        """Stop the client without leaving: its session goes on."""
        service = self.open.pop(number)
        keeper = service._keeper
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


class GroupServices(CoordinationServices[GroupCoordination]):
    """Services of a group of their own."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self.config = ConnectionConfig(bootstrap_servers=(server,))
        self.group = f"placement-{next(_NUMBERS)}"
        self.heartbeat_ms = HEARTBEAT_MS

    def service(self) -> GroupCoordination:
        return GroupCoordination(self.config, self.group, heartbeat_ms=self.heartbeat_ms)

    def reaches(self, service: GroupCoordination) -> bool:
        return service._last_trouble is None

    def returns(self, number: int) -> Callable[[], object]:
        service = self.open[number]
        before = service._generation
        return lambda: service._generation > before

    async def end_without_leaving(self, number: int) -> None:
        client = self.open.pop(number)._client
        assert client is not None
        await client.close()


AnyServices = ZooKeeperServices | GroupServices
"""Where a case holds for either."""
These = TypeVar("These", bound=AnyServices)


def run(services: These, story: Callable[[These], Awaitable[None]]) -> None:
    async def play() -> None:
        await services.begin()
        turning = asyncio.create_task(services.turn())
        try:
            await story(services)
        finally:
            turning.cancel()
            await services.end()

    asyncio.run(play())
