"""Offsets of push groups to a real ZooKeeper, beside plain multis of 100 (asked: 0.7 times their sets/s, one core)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from kazoo.client import KazooClient
from rich.console import Console

from bench.harness import Contender, Figure, Options, RunFailed, Sample, compare
from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.zookeeper.group_mirror import GroupMirror
from kohort.cluster.zookeeper.nodes import OFFSETS
from kohort.cluster.zookeeper.service import ZooKeeperCoordination
from kohort.groups.effects import DescribePushGroupsReply, MirroredPushGroup
from kohort.groups.records import OffsetCommitted
from kohort.zookeeper import ZooKeeper

_PARTITIONS = 5_000
_LOOKS = 10
_MULTI = 100


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """One figure: each offset moves on between two looks."""
    count = max(200, int(_PARTITIONS * options.scale))
    title = f"{count} offsets to ZooKeeper, {_LOOKS} times"
    if options.only in title:
        with ZooKeeper() as server:
            address = server.address
            contenders = [
                Contender("kazoo, multis of 100", lambda: _plain(address, count)),
                Contender("kohort's mirror", lambda: asyncio.run(_mirrored(address, count))),
            ]
            yield compare(title, contenders, rounds=options.rounds, console=console)


def _plain(address: str, count: int) -> Sample:
    client = KazooClient(address)
    client.start()
    try:
        client.ensure_path("/plain/g/t")
        paths = [f"/plain/g/t/1-{number}" for number in range(count)]
        for path in paths:
            if client.exists(path) is None:
                client.create(path, b"0")
        began, cpu = time.perf_counter(), time.process_time()
        for look in range(1, _LOOKS + 1):
            for at in range(0, count, _MULTI):
                multi = client.transaction()
                for path in paths[at : at + _MULTI]:
                    multi.set_data(path, str(look).encode())
                if any(isinstance(result, Exception) for result in multi.commit()):
                    raise RunFailed("a multi was refused")
        seconds = time.perf_counter() - began
        return Sample(count * _LOOKS, seconds, {"cores": (time.process_time() - cpu) / seconds})
    finally:
        client.stop()
        client.close()


class _Groups:
    """One group in one shard, whose offsets have moved on at each look."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.offset = 0
        self._mine = SimpleNamespace(index=0, is_loaded=True, has_unpublished_push_groups=True)

    def __iter__(self) -> Iterator[Any]:
        return iter([self._mine])

    def shard_index_of(self, _: str) -> int:
        return 0

    def ask_shard(self, _index: int, _event: object, answer: Any) -> None:
        offsets = {
            ("t", partition): OffsetCommitted("g", "t", partition, self.offset, -1, "", 0)
            for partition in range(self.count)
        }
        answer(DescribePushGroupsReply((MirroredPushGroup("g", True, {}, offsets, loaded=True),)))


async def _mirrored(address: str, count: int) -> Sample:
    coordination = ZooKeeperCoordination(f"{address}/mirrored", exclusive=True)

    async def turn() -> None:
        while True:
            coordination.report_loop_alive()
            await asyncio.sleep(0.1)

    turning = asyncio.create_task(turn())
    try:
        await coordination.open(Candidate(1, f"bench-{time.monotonic_ns()}", "127.0.0.1", 9092), 1)
        groups = _Groups(count)
        leaders = SimpleNamespace(leaders=lambda _topic, parts: [(1, 0, [1], [1])] * len(parts))
        topics = SimpleNamespace(by_name={"t": SimpleNamespace(partitions=count)})
        host: Any = SimpleNamespace(groups=groups, endpoints=leaders, topics=topics, token=lambda: 1)
        mirror = GroupMirror(coordination, host)
        await mirror.update_zookeeper()
        began, cpu = time.perf_counter(), time.process_time()
        for look in range(1, _LOOKS + 1):
            groups.offset = look
            await mirror.update_zookeeper()
        seconds = time.perf_counter() - began
        used = time.process_time() - cpu
        node = await coordination.session.read(f"{OFFSETS}/g/t/1-{count - 1}")
        if node is None or int(node.data) != _LOOKS:
            raise RunFailed("the last offsets are not there")
        return Sample(count * _LOOKS, seconds, {"cores": used / seconds})
    finally:
        turning.cancel()
        await coordination.close()
