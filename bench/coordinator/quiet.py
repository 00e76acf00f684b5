"""The cost of quiet members of any protocol for their servers: processor time, while nobody comes or goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bench.coordinator import load
from bench.coordinator.load import Load
from bench.coordinator.places import Coordinator
from bench.coordinator.real import RealMembers
from bench.coordinator.wire import Link
from bench.harness import RunFailed, Sample
from kohort.broker.server.listener import raise_open_file_limit
from kohort.broker.serving import new_loop
from kohort.wire.push import ClusterMetadataRequest, ClusterMetadataResponse, with_length_prefix

_SETTLE_S = 4.0


@dataclass(frozen=True, slots=True)
class Quiet:
    """Members that only stay in their groups.

    Attributes:
        protocol: of their groups.
        members: in all, a group at each coordinator.
        session_ms: of each member, which is heard three times in it.
        seconds: the measured time.
        topics_at: where topics are created, "": at the coordinator.
        real: the number of kohort's own consumers among the members of each group.
    """

    protocol: str
    members: int
    session_ms: int
    seconds: float
    topics_at: str = ""
    real: int = 0

    def cost(self, places: Sequence[Coordinator], besides: Callable[[], float] | None = None) -> Sample:
        """The cores that coordinators take, each for an equal part of the members.

        Args:
            places: the coordinators.
            besides: the processor seconds of Kafka, where it works for them.

        Raises:
            RunFailed: the groups never became stable.
        """
        raise_open_file_limit()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            try:
                return runner.run(self._cost(places, besides))
            except TimeoutError as error:
                raise RunFailed(str(error)) from error

    async def _cost(self, places: Sequence[Coordinator], besides: Callable[[], float] | None) -> Sample:
        async with AsyncExitStack() as stack:
            running = []
            for place in places:
                group_load = await self._load(place, self.members // len(places), alone=len(places) == 1)
                running.append(group_load)
                stack.push_async_callback(group_load.drop_topic, self.topics_at or place.servers)
                stack.push_async_callback(group_load.close)
                (group,) = group_load.groups
                real = RealMembers(group_load.plan, self.protocol, group, self.real, group_load.books[group])
                await stack.enter_async_context(real)
            for group_load in running:
                await group_load.until_stable()
            await asyncio.sleep(_SETTLE_S)
            return await self._watched(places, running, besides)

    async def _load(self, place: Coordinator, members: int, *, alone: bool) -> Load:
        """Members in a group that is this coordinator's; they set out when this returns."""
        said = f"--bootstrap-server {place.servers} --topics-at {self.topics_at or place.servers} --client kohort"
        said += f" --protocol {self.protocol} --session-ms {self.session_ms} --heartbeat-ms {self.session_ms // 3}"
        options = load.arguments().parse_args([*said.split(), "--members", "0", "--partitions", str(members)])
        run = load.new_run()
        while not alone and not await has(place, load.group_name(run, 0)):
            run = load.new_run()
        running = await load.make_load(options, run=run)
        (group,) = running.groups
        for _ in range(members - self.real):
            running.add(group)
        return running

    async def _watched(
        self, places: Sequence[Coordinator], running: list[Load], besides: Callable[[], float] | None
    ) -> Sample:
        members = [member for group_load in running for member in group_load.members()]
        for member in members:
            member.heard.pings = 0
            member.heard.errors.clear()
        began, used, others = time.monotonic(), [place.cpu_s() for place in places], besides() if besides else 0.0
        beats = await asyncio.gather(*(group_load.heartbeats(self.seconds) for group_load in running))
        took = time.monotonic() - began
        each_used = [place.cpu_s() - before for place, before in zip(places, used, strict=True)]
        facts = {
            "µs a member and second": round(sum(each_used) / took / self.members * 1e6, 1),
            "heard/s": round(sum(beat["heartbeats_s"] for beat in beats) + sum(m.heard.pings for m in members) / took),
            "heartbeat p99_ms": max(beat["p99_ms"] for beat in beats),
            "errors": sum(sum(group_load.errors().values()) for group_load in running),
        }
        if besides is not None:
            facts["kafka's cores"] = round((besides() - others) / took, 3)
        for number, used_s in enumerate(each_used if len(places) > 1 else [], start=1):
            facts[f"cores of {number}"] = round(used_s / took, 3)
        return Sample(max(sum(each_used), 1e-3), took, facts)


async def has(place: Coordinator, group: str) -> bool:
    """Whether a group is this coordinator's: the push protocol's question is answered for groups of any protocol."""
    asked = with_length_prefix(ClusterMetadataRequest(group).encode_frame())
    while True:
        link = await Link.open(*load.host_and_port(place.servers), "bench")
        found = ClusterMetadataResponse.decode(await link.repeat(asked))
        link.abort()
        if found.error_code == 0:
            break
        await asyncio.sleep(load.LOOK_S)
    address = next(f"{broker.host}:{broker.port}" for broker in found.brokers if broker.id == found.coordinator_id)
    return address == place.servers
