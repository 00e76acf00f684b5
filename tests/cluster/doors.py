"""Doors in ZooKeeper for tests: several of them on one loop that turns, and a client that looks at their nodes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from kazoo.client import KazooClient

from kohort.cluster.doors.placement import Candidate
from kohort.cluster.zookeeper.door import ZooKeeperDoor

SHARDS = 10
SESSION_MS = 2_000
_ROOTS = itertools.count()
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


class Doors:
    """Doors under a path of their own, whose loop turns, and a client that looks at their nodes."""

    def __init__(self, address: str) -> None:
        self.root = f"/doors-{next(_ROOTS)}/deep"
        self.address = address + self.root
        self.open: dict[int, ZooKeeperDoor] = {}
        self.look = KazooClient(address)

    async def enter(self, me: Candidate) -> ZooKeeperDoor:
        door = ZooKeeperDoor(self.address, SESSION_MS)
        await door.open(me, SHARDS)
        self.open[me.id] = door
        return door

    def data(self, path: str) -> bytes:
        found: bytes = self.look.get(self.root + path)[0]
        return found

    def owner(self, path: str) -> int | None:
        stat = self.look.exists(self.root + path)
        return None if stat is None else stat.ephemeralOwner

    async def turn(self) -> None:
        while True:
            for door in list(self.open.values()):
                door.alive()
            await asyncio.sleep(0.05)

    async def agreed(self, *ids: int) -> None:
        """All doors have one map, in which just these have shards, and one of them is in office."""

        def agree() -> bool:
            maps = {door.placement for door in self.open.values()}
            placement = maps.pop()
            offices = [number for number, door in self.open.items() if door.in_office]
            if maps or placement is None or offices != [placement.elected]:
                return False
            return set(placement.owners) == set(ids) == {one.id for one in placement.candidates}

        await until(agree, f"one map for {ids}: {[door.placement for door in self.open.values()]}")

    async def end_without_leaving(self, number: int) -> None:
        """As a process ends that is killed: its session goes on, its client does nothing more."""
        door = self.open.pop(number)
        keeper = door._keeper
        assert keeper is not None
        keeper.cancel()
        await asyncio.wait([keeper])


def run(address: str, story: Callable[[Doors], Awaitable[None]]) -> None:
    async def play() -> None:
        doors = Doors(address)
        await asyncio.to_thread(doors.look.start)
        turning = asyncio.create_task(doors.turn())
        every: list[ZooKeeperDoor] = []
        enter = doors.enter

        async def kept(me: Candidate) -> ZooKeeperDoor:
            every.append(door := await enter(me))
            return door

        doors.enter = kept  # type: ignore[method-assign]
        try:
            await story(doors)
        finally:
            turning.cancel()
            for door in every:
                await door.close()
            await asyncio.to_thread(doors.look.stop)
            await asyncio.to_thread(doors.look.close)

    asyncio.run(play())
