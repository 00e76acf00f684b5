"""How a broker grows: processor time and memory for each connection, member, group and partition, from few to many.

A row's rate is what one second of the broker's processor time, or one MiB of its memory, is enough for. So each row
should have the rate of the first. Every size has a fresh broker, and at most `AT_ONCE` requests wait at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.coordinator.load import SOFTWARE, host_and_port, prepare_topic
from bench.coordinator.places import Coordinator
from bench.coordinator.wire import Link
from bench.harness import Contender, Figure, NotHere, Options, Parts, RunFailed, Sample, compare
from kohort import Broker
from kohort.broker.serving import new_loop
from kohort.wire import framing
from kohort.wire.discovery import ApiVersionsRequest, CreateTopicsRequest
from kohort.wire.groups import ConsumerGroupHeartbeatRequest
from kohort.wire.offsets import OffsetCommitRequest

AT_ONCE = 10
ASKED, PASSES = 10_000, 5
"""The least requests of each size once everything is there, and how often they are sent. The fastest pass counts."""
POSITIONS = 200_000
"""The positions that each number of partitions commits."""
SETTLE_ROUNDS = 60
"""The most rounds of heartbeats until all members have the newest epoch."""
MEMBERS_OF_A_LINK = 100
"""A broker reads no more from a connection of which 500 requests wait."""
TOPIC_PARTITIONS = 1_000
SPARE_FILES = 500
CONNECTION_SHARE = 0.6
"""The share of its descriptors that a broker leaves for connections (`divide_descriptors` of its listener)."""
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "15000",
    "group.consumer.session.timeout.ms": "45000",
    "max.partitions": "110000",
}
"""The longest interval: members of this benchmark send their heartbeats when it is their turn. The default limit of
partitions counts internal ones too."""
HEARTBEAT, CREATE, COMMIT, VERSIONS = 1, 5, 8, 3


@dataclass(frozen=True, slots=True)
class Grown:
    """One run of one size: the samples of its three figures."""

    came: Sample
    asked: Sample
    memory: Sample


@dataclass(frozen=True, slots=True)
class Line:
    """One thing of which there is more and more.

    Attributes:
        thing: its name.
        sizes: how many, from few to many. Those below `countable` take too little to be measured one by one.
        request: what is asked for once they are there.
        grow: makes them at a broker, and measures.
    """

    thing: str
    sizes: tuple[int, ...]
    countable: int
    request: str
    grow: Callable[[Coordinator, int], Awaitable[Grown]]


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """Three figures for each line: how they come, what they ask for, and their memory."""
    for line in LINES:
        sizes = {max(AT_ONCE, int(size * min(1.0, options.scale))): size >= line.countable for size in line.sizes}
        titles = {
            "came": (f"{line.thing} that come", f"{line.thing}/CPU s"),
            "asked": (f"{line.request} with more {line.thing}", f"{line.request}/CPU s"),
            "memory": (f"memory of {line.thing}", f"{line.thing}/MiB"),
        }
        if not any(options.only in title for title, _ in titles.values()):
            continue
        runs = {size: Parts(partial(_run, line, size)) for size in sizes}
        for part, (title, unit) in titles.items():
            if options.only in title:
                contenders = [
                    Contender(f"{size:,} {line.thing}", runs[size].showing(partial(_part, part)))
                    for size, countable in sizes.items()
                    if countable or part == "asked"
                ]
                yield compare(title, contenders, rounds=options.rounds, unit=unit, console=console)


def _part(name: str, grown: Grown) -> Sample:
    sample: Sample = getattr(grown, name)
    return sample


def _run(line: Line, size: int) -> Grown:
    """Grow a fresh broker to one size.

    Raises:
        NotHere: the system allows too few descriptors.
        RunFailed: a group did not become stable, or a request was refused.
    """
    _raise_file_limit(size if line.thing == "connections" else 0)
    with Broker(config=SETTINGS) as broker, asyncio.Runner(loop_factory=new_loop) as runner:
        place = Coordinator("kohort", broker.bootstrap_servers, broker.kill, broker.restart, lambda: broker.pid)
        return runner.run(_timely(line, place, size))


async def _timely(line: Line, place: Coordinator, size: int) -> Grown:
    return await line.grow(place, size)


def _raise_file_limit(connections: int) -> None:
    """Let this process and its brokers open as many files as so many connections need.

    Raises:
        NotHere: the system does not allow it.
    """
    needed = int((connections + SPARE_FILES) / CONNECTION_SHARE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(needed, hard)))
    except (ValueError, OSError) as error:
        raise NotHere(f"{needed:,} descriptors needed, {hard:,} allowed (ulimit -Hn)") from error


def processor_s(pid: int) -> float:
    """Return the processor seconds of a process's threads, to the nanosecond where the kernel counts so."""
    total = 0
    for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(stat.read_text().split()[0])
    return total / 1e9


@dataclass(slots=True)
class Meter:
    """The processor time and the memory of a broker, since they were looked at last."""

    place: Coordinator
    spent_s: float = 0.0
    memory_mib: float = 0.0

    def __post_init__(self) -> None:
        self.spent_s, self.memory_mib = processor_s(self.place.pid()), self.place.memory_mib()

    def spent(self, amount: float) -> Sample:
        """Return the processor time since the last look."""
        now_s = processor_s(self.place.pid())
        sample = Sample(amount, max(now_s - self.spent_s, 1e-6))
        self.spent_s = now_s
        return sample

    def grown(self, amount: float) -> Sample:
        """Return the memory since the beginning, in place of seconds."""
        return Sample(amount, max(self.place.memory_mib() - self.memory_mib, 0.01))


async def _in_turn(tasks: Sequence[Callable[[], Awaitable[Any]]], at_once: int = AT_ONCE) -> None:
    """Run tasks, so many at a time."""
    waiting = iter(tasks)

    async def work() -> None:
        for task in waiting:
            await task()

    await asyncio.gather(*(work() for _ in range(at_once)))


def _hello() -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name=SOFTWARE["java"], client_software_version="1")


# -- Connections


async def connections(place: Coordinator, size: int) -> Grown:
    """Open connections, each with its first request; then let all of them ask in turn."""
    host, port = host_and_port(place.servers)
    (await Link.open(host, port, "first")).abort()
    links: list[Link] = []

    async def come() -> None:
        link = await Link.open(host, port, "growth")
        await link.ask(_hello(), VERSIONS)
        links.append(link)

    meter = Meter(place)
    await _in_turn([come] * size)
    came, memory = meter.spent(size), meter.grown(size)
    frame = framing.encode_request(_hello(), VERSIONS, 0, "growth")
    asked = await _asked(meter, [partial(_repeated, link, frame) for link in links])
    for link in links:
        link.abort()
    return Grown(came, asked, memory)


async def _asked(meter: Meter, requests: Sequence[Callable[[], Awaitable[None]]]) -> Sample:
    """Send all requests at least once in each pass; return the pass that took least."""
    turns = list(itertools.islice(itertools.cycle(requests), max(ASKED, len(requests))))
    found = []
    for _ in range(PASSES):
        await _in_turn(turns)
        found.append(meter.spent(len(turns)))
    return min(found, key=lambda sample: sample.seconds)


async def _repeated(link: Link, frame: bytes) -> None:
    await link.repeat(frame)


# -- Members and groups


@dataclass(slots=True)
class Joined:
    """A member without a task of its own, which reports what it is given at its next turn."""

    group: str
    topic: tuple[str, uuid.UUID]
    link: Link
    epoch: int = 0
    owned: list[int] = field(default_factory=list)
    member_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    changed: bool = False

    def heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        """Return the next heartbeat; a full one at first, and with the partitions after a change."""
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=self.epoch)
        if self.epoch == 0:
            request.rebalance_timeout_ms = 60_000
            request.subscribed_topic_names = [self.topic[0]]
        if self.epoch == 0 or self.changed:
            held = ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=self.topic[1], partitions=self.owned)
            request.topic_partitions = [held] if self.owned else []
        return request

    async def send(self) -> None:
        """Send a heartbeat, and take over what the answer gives.

        Raises:
            RunFailed: it was refused.
        """
        answer = await self.link.ask(self.heartbeat(), HEARTBEAT)
        if answer.error_code:
            raise RunFailed(f"a heartbeat was refused: {answer.error_code} {answer.error_message}")
        self.changed = answer.assignment is not None or answer.member_epoch != self.epoch
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = [number for topic in answer.assignment.topic_partitions for number in topic.partitions]


async def _grow_members(place: Coordinator, size: int, groups: int) -> Grown:
    """Let members join, send heartbeats until no answer changes anything, then send more of them."""
    host, port = host_and_port(place.servers)
    name = f"growth-{uuid.uuid4().hex[:8]}"
    topic = (name, await prepare_topic((host, port), (host, port), name, max(1, size // groups)))
    links = [await Link.open(host, port, "growth") for _ in range(max(AT_ONCE, size // MEMBERS_OF_A_LINK))]
    members = [Joined(f"{name}-{number % groups}", topic, links[number % len(links)]) for number in range(size)]
    meter = Meter(place)
    for _ in range(SETTLE_ROUNDS):
        await _in_turn([member.send for member in members], size)  # a join waits for the target, so all come at once
        if not any(member.changed for member in members) and sum(len(member.owned) for member in members) >= size:
            break
        await asyncio.sleep(0.05)
    else:
        raise RunFailed(f"{size} members in {groups} groups were not stable after {SETTLE_ROUNDS} heartbeats each")
    came, memory = meter.spent(size), meter.grown(size)
    frames = [
        partial(_repeated, member.link, framing.encode_request(member.heartbeat(), HEARTBEAT, 0, "growth"))
        for member in members
    ]
    asked = await _asked(meter, frames)
    for link in links:
        link.abort()
    return Grown(came, asked, memory)


async def members_of_one_group(place: Coordinator, size: int) -> Grown:
    """Grow one group."""
    return await _grow_members(place, size, 1)


async def groups_of_one_member(place: Coordinator, size: int) -> Grown:
    """Grow the number of groups, each with one member."""
    return await _grow_members(place, size, size)


# -- Partitions


async def partitions(place: Coordinator, size: int) -> Grown:
    """Create topics, then commit positions of all their partitions.

    Raises:
        RunFailed: a topic was not created, or a commit was refused.
    """
    host, port = host_and_port(place.servers)
    link = await Link.open(host, port, "growth")
    await link.ask(_hello(), VERSIONS)
    each = min(size, TOPIC_PARTITIONS)
    names = [f"growth-{number:04}" for number in range(size // each)]
    meter = Meter(place)
    for name in names:
        wanted = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=each, replication_factor=1)
        created = await link.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=60_000), CREATE)
        if created.topics[0].error_code:
            raise RunFailed(f"{name} was not created: {created.topics[0].error_message}")
    came, memory = meter.spent(size), meter.grown(size)
    commits = [framing.encode_request(_commit(name, each), COMMIT, 0, "growth") for name in names]
    first = await link.ask(_commit(names[0], each), COMMIT)
    if first.topics[0].partitions[0].error_code:
        raise RunFailed(f"a commit was refused: {first.topics[0].partitions[0].error_code}")
    meter.spent(0)
    turns = list(itertools.islice(itertools.cycle(commits), max(POSITIONS, size) // each))
    for frame in turns:
        await link.repeat(frame)
    asked = meter.spent(len(turns) * each)
    link.abort()
    return Grown(came, asked, memory)


def _commit(topic: str, size: int) -> OffsetCommitRequest:
    offsets = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=number, committed_offset=number, committed_metadata=""
        )
        for number in range(size)
    ]
    held = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=offsets)
    return OffsetCommitRequest(group_id="growth", topics=[held])


LINES = (
    Line("connections", (100, 1_000, 10_000, 20_000), 1_000, "requests", connections),
    Line("members of a group", (100, 1_000, 10_000), 1_000, "heartbeats", members_of_one_group),
    Line("groups", (10, 100, 1_000, 10_000), 1_000, "heartbeats", groups_of_one_member),
    Line("partitions", (10, 1_000, 10_000, 100_000), 1_000, "positions", partitions),
)
