"""The death of a large group's coordinator: partitions' downtime, and the time until all members are connected again.

A partition's downtime begins when its member releases it (a Stop, or the end of its lease) and ends at its next start.
A killed broker also stops a partition while it serves no data. Members without data keep the lease that ours keep. Ten
are consumers of ours, which read what is sent to their partitions at an even pace.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from bench.cluster.site import Site, described
from bench.cluster.takeover import until_spread
from bench.coordinator import load
from bench.coordinator.book import Book
from bench.coordinator.load import LOOK_S, Load, host_and_port
from bench.coordinator.places import SETTINGS, Coordinator
from bench.coordinator.quiet import has
from bench.coordinator.real import RealMembers
from bench.coordinator.wire import Link
from bench.harness import RunFailed, Sample
from kohort import Broker
from kohort.broker.server.listener import raise_open_file_limit
from kohort.broker.serving import new_loop
from kohort.wire.data import ListOffsetsRequest

REAL = 10
PAUSE_S = 0.02
"""From one record of a partition to the next."""
_BEFORE_S = 5.0
"""The members' pings have spread over their intervals by then."""
_AFTER_S = 2.0

Interval = tuple[float, float]


class Standing(Book):
    """Which partitions nobody worked on, and when.

    Attributes:
        gaps: by partition, each from when to when.
    """

    def __init__(self) -> None:
        super().__init__()
        self._free: dict[int, float] = {}
        self.gaps: dict[int, list[Interval]] = {}

    def take(self, member: Any, partitions: frozenset[int]) -> None:
        super().take(member, partitions)
        now = time.monotonic()
        for partition in partitions:
            since = self._free.pop(partition, None)
            if since is not None:
                self.gaps.setdefault(partition, []).append((since, now))

    def release(self, member: Any, partitions: frozenset[int]) -> None:
        super().release(member, partitions)
        now = time.monotonic()
        for partition in partitions - self.holders.keys():
            self._free.setdefault(partition, now)

    def downtime(self, partition: int, unread: list[Interval]) -> float:
        """The longest time for which it could not be read, in seconds; `unread`: when nothing could."""
        longest, start, end = 0.0, 0.0, 0.0
        for since, until in sorted([*self.gaps.get(partition, []), *unread]):
            if since > end:
                start = since
            end = max(end, until)
            longest = max(longest, end - start)
        return longest


@dataclass(frozen=True, slots=True)
class Takeover:
    """One takeover of a group.

    Attributes:
        members: of the group, ten of them consumers of ours.
        session_ms: of each.
    """

    members: int
    session_ms: int

    def at_broker(self) -> Sample:
        """An embedded broker is killed and started again on its data."""
        with Broker(config=SETTINGS) as broker:
            place = Coordinator("", broker.bootstrap_servers, broker.kill, broker.restart, lambda: broker.pid)
            return self._run(lambda: self._at_broker(place))

    def at_coordinators(self, site: Site) -> Sample:
        """Of two coordinators over Kafka that is killed which has the group."""
        settings = site.settings()
        with ExitStack() as stack:
            running = [stack.enter_context(site.start(settings)) for _ in range(2)]
            until_spread(running)
            places = [
                Coordinator(coordinator.address, coordinator.address, coordinator.kill, lambda: None, lambda: 0)
                for coordinator in running
            ]
            return self._run(lambda: self._at_coordinators(site, places))

    @staticmethod
    def _run(measure: Callable[[], Any]) -> Sample:
        raise_open_file_limit()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            try:
                sample: Sample = runner.run(measure())
            except TimeoutError as error:
                raise RunFailed(str(error)) from error
            return sample

    async def _at_broker(self, place: Coordinator) -> Sample:
        async with self._group([place.servers], place.servers) as (running, real):
            killed = time.monotonic()
            await asyncio.to_thread(place.kill)
            starting = asyncio.create_task(asyncio.to_thread(place.start))
            await _until_read(place.servers, running.plan.topic)
            away = (killed, time.monotonic())
            await starting
            return await self._watched(running, real, killed, [away])

    async def _at_coordinators(self, site: Site, places: list[Coordinator]) -> Sample:
        async with self._group([place.servers for place in places], site.kafka.bootstrap_servers) as (running, real):
            (group,) = running.groups
            victim, survivor = places if await has(places[0], group) else reversed(places)
            killed = time.monotonic()
            await asyncio.to_thread(victim.kill)
            sample = await self._watched(running, real, killed, [])
            shards = (await described(survivor.servers)).shards
            sample.facts["load_ms"] = max(shard.load_ms for shard in shards)
            return sample

    @asynccontextmanager
    async def _group(self, servers: list[str], data: str) -> AsyncIterator[tuple[Load, RealMembers]]:
        """A group that works: all of it is held, and its consumers read."""
        said = f"--bootstrap-server {servers[0]} --topics-at {data} --client kohort --protocol push --members 0"
        said += f" --session-ms {self.session_ms} --partitions {self.members}"
        running = await load.make_load(load.arguments().parse_args(said.split()))
        running.plan = replace(running.plan, servers=tuple(map(host_and_port, servers)), leased=True)
        (group,) = running.groups
        book = running.books[group] = Standing()
        for _ in range(self.members - REAL):
            running.add(group)
        try:
            async with RealMembers(running.plan, "push", group, REAL, book) as real:
                await running.until_reached(
                    lambda: all(consumer.owned for consumer in real.members) and running.stable()
                )
                async with _sent(
                    data, running.plan.topic, [part for consumer in real.members for part in consumer.owned]
                ):
                    await running.until_reached(lambda: all(consumer.read_at_s for consumer in real.members))
                    await asyncio.sleep(_BEFORE_S)
                    book.gaps.clear()
                    for member in running.members():
                        member.heard.errors.clear()
                        member.stable = False
                    for consumer in real.members:
                        consumer.longest_gap_s = 0.0
                    yield running, real
        finally:
            await running.close()
            with suppress(ConnectionError):
                await running.drop_topic(data)

    async def _watched(self, running: Load, real: RealMembers, killed: float, unread: list[Interval]) -> Sample:
        """Return the members' observations since the kill."""
        await running.until_stable()
        connected = time.monotonic() - killed
        await running.until_reached(lambda: all(consumer.read_at_s > killed + _AFTER_S for consumer in real.members))
        (book,) = running.books.values()
        assert isinstance(book, Standing)
        still = [book.downtime(partition, unread) for partition in range(self.members)]
        errors = running.errors()
        facts = {
            "stood still, median ms": round(statistics.median(still) * 1e3, 1),
            "worst ms": round(max(still) * 1e3, 1),
            "between records, worst ms": round(max(consumer.longest_gap_s for consumer in real.members) * 1e3, 1),
            "all connected, s": round(connected, 3),
            "leases over": errors.get("lease over", 0),
            "overlaps": running.overlaps(),
        }
        if unread:
            facts["no data, ms"] = round((unread[0][1] - unread[0][0]) * 1e3, 1)
        return Sample(1.0, max(*still, 1e-3), facts)


@asynccontextmanager
async def _sent(servers: str, topic: str, partitions: list[int]) -> AsyncIterator[None]:
    """Records go to these partitions meanwhile."""
    command = [servers, topic, json.dumps(partitions), str(PAUSE_S)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.runners.steady", *command), stdin=asyncio.subprocess.PIPE
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def _until_read(address: str, topic: str) -> None:
    """Return once a broker serves a topic's data."""
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])])
    while True:
        with suppress(OSError):
            link = await Link.open(*host_and_port(address), "bench")
            answer = await link.ask(request, 6)
            link.abort()
            if answer.topics[0].partitions[0].error_code == 0:
                return
        await asyncio.sleep(LOOK_S)
