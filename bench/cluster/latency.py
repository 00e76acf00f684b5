"""The latency of one request that waits for an append: commits, beside a plain produce with acks=all.

Each client sends one request at a time, on its own connection. Under load, other connections send the same requests to
the same partition or group, with pauses.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from bench.cluster.site import Site
from bench.cluster.whereabouts import group_of, topic_of
from bench.coordinator.load import COMMITS, LOOK_S, host_and_port, percentile
from bench.coordinator.members import NOT_YET
from bench.coordinator.places import Coordinator
from bench.coordinator.wire import OWN_CLIENT, Link
from bench.harness import Contender, RunFailed, Sample
from kohort.broker.serving import new_loop
from kohort.wire.batch import BatchRecord, build_batch
from kohort.wire.data import ProduceRequest
from kohort.wire.offsets import OffsetCommitRequest

OTHERS = 8
"""Connections that make the load."""
PAUSE_S = 0.01
"""Between two requests of one of them."""
_UNHURRIED = 200
"""Requests before those that count: a virtual machine compiles, groups are looked for elsewhere."""
_ACKS_ALL = -1
_PRODUCE = 9
_TIMEOUT_MS = 30_000

Ask: TypeAlias = Callable[[Link], Awaitable[int]]
"""Sends one request; gives the error code in its answer."""


def producing(topic: str, size: int = 100, partition: int = 0) -> Ask:
    """A batch of one record, without a producer id."""

    async def ask(link: Link) -> int:
        batch = build_batch([BatchRecord(0, time.time_ns() // 1_000_000, None, b"x" * size)])
        part = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=batch)
        data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
        answer = await link.ask(ProduceRequest(acks=_ACKS_ALL, timeout_ms=_TIMEOUT_MS, topic_data=[data]), _PRODUCE)
        code: int = answer.responses[0].partition_responses[0].error_code
        return code

    return ask


def committing(topic: str, group: str = "") -> Ask:
    """A commit of one partition by a simple consumer, in one group; "": in a new one."""
    group, offset = group or f"bench-{uuid.uuid4().hex[:8]}", 0

    async def ask(link: Link) -> int:
        nonlocal offset
        offset += 1
        part = OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        part_of = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])
        answer = await link.ask(OffsetCommitRequest(group_id=group, topics=[part_of]), COMMITS)
        code: int = answer.topics[0].partitions[0].error_code
        return code

    return ask


async def _checked(ask: Ask, link: Link) -> None:
    if (code := await ask(link)) != 0:
        raise RunFailed(f"refused with {code}")


async def _load(ask: Ask, address: tuple[str, int], asked: list[int]) -> None:
    link = await Link.open(*address, "load", OWN_CLIENT)
    while True:
        await _checked(ask, link)
        asked[0] += 1
        await asyncio.sleep(PAUSE_S)


async def _one_at_a_time(servers: str, ask: Ask, trial: Trial) -> tuple[list[float], int]:
    """The times of one who asks, and how often all have asked."""
    address = host_and_port(servers)
    link = await Link.open(*address, "latency", OWN_CLIENT)
    while await ask(link) in NOT_YET:
        await link.idle(LOOK_S)
    asked = [0]
    load = [asyncio.create_task(_load(ask, address, asked)) for _ in range(trial.others)]
    seen = []
    for number in range(_UNHURRIED + trial.count):
        started = time.perf_counter()
        await _checked(ask, link)
        if number >= _UNHURRIED:
            seen.append(time.perf_counter() - started)
    for task in load:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.gather(*load, return_exceptions=True)
    link.abort()
    return seen, asked[0] + _UNHURRIED + trial.count


@dataclass(frozen=True, slots=True)
class Trial:
    """How often is asked, and what goes on beside it.

    Attributes:
        count: requests that are timed.
        others: connections that do the same meanwhile.
        processes: who takes part, by the name of the fact that tells what a request costs it.
    """

    count: int
    others: int
    processes: dict[str, Coordinator]

    def contender(self, name: str, servers: str, ask: Ask) -> Contender:
        """One who asks; the rate is one over the median."""

        def run() -> Sample:
            used = {process: of.cpu_s() for process, of in self.processes.items()}
            with asyncio.Runner(loop_factory=new_loop) as runner:
                seen, asked = runner.run(_one_at_a_time(servers, ask, self))
            p50, p99 = percentile(seen, 0.5), percentile(seen, 0.99)
            facts = {"p50_ms": round(p50 * 1e3, 2), "p99_ms": round(p99 * 1e3, 2)}
            for process, of in self.processes.items():
                facts[f"{process}, CPU µs each"] = round((of.cpu_s() - used[process]) / asked * 1e6)
            return Sample(1.0, p50, facts)

        return Contender(name, run)


def contenders(site: Site, ours: Coordinator, count: int, others: int) -> list[Contender]:
    """A produce, and a commit at each coordinator.

    Args:
        site: where.
        ours: our coordinator.
        count: requests that are timed.
        others: connections that do the same meanwhile.
    """
    kafka = site.kafkas
    topic, group = asyncio.run(topic_of(site)), asyncio.run(group_of(site))
    trial = Trial(count, others, {"coordinator": ours, "Kafka": kafka})
    return [
        trial.contender("produce, acks=all", kafka.servers, producing(topic)),
        trial.contender("commit, kohort over Kafka", ours.servers, committing(topic)),
        trial.contender("commit, Apache Kafka", kafka.servers, committing(topic, group)),
    ]
