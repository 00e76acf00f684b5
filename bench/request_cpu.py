"""Processor time that a coordinator takes for one request: commits, heartbeats and fetches of offsets, over sockets.

`python -m bench request_cpu` asks our broker and Apache Kafka. `python -m bench.against OTHER --only "CPU of"` compares
two checkouts. The load is this process: members of groups on connections of their own repeat requests that were encoded
before, and answers are compared as bytes. A rate is "per second of one core" of the coordinator's whole process. Among
the facts, `loop_us` is the time of its main thread for one request, which is the event loop of ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from rich.console import Console

from bench.coordinator.load import COMMITS, KINDS, Load, arguments, host_and_port, make_load
from bench.coordinator.members import HEARTBEAT, ClassicMember, ConsumerMember, Member
from bench.coordinator.places import Coordinator, coordinators
from bench.coordinator.wire import Repeating
from bench.harness import Contender, Figure, Options, Sample, compare
from kohort.broker.serving import new_loop
from kohort.wire import framing
from kohort.wire.groups import ConsumerGroupHeartbeatRequest, HeartbeatRequest
from kohort.wire.message import Message
from kohort.wire.offsets import OffsetCommitRequest, OffsetFetchRequest

MEMBERS: Final = 16
"""Members, each alone in its group and with a connection of its own."""
MEASURED_S: Final = 2.0
PARTITIONS: Final = 100


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each request, of our broker and Apache Kafka."""
    for title in REQUESTS:
        if options.only in title:
            with coordinators() as places:
                yield request_figure(title, places, options, console)


def request_figure(title: str, places: list[Coordinator], options: Options, console: Console) -> Figure:
    """Compare the processor time of one request at these coordinators; all members stay in their groups meanwhile."""
    seconds = MEASURED_S * options.scale
    loads: list[RequestLoad] = []
    with asyncio.Runner(loop_factory=new_loop) as runner:
        try:
            for place in places:
                loads.append(RequestLoad(title, place))
                runner.run(loads[-1].open())
            return compare(
                title,
                [Contender(load.place.name, partial(_run, runner, load, seconds), load.place.warm_s) for load in loads],
                rounds=options.rounds,
                unit="requests/core s",
                baseline=places[-1].name,
                console=console,
            )
        finally:
            for load in loads:
                runner.run(load.close())


MakeRequest: TypeAlias = Callable[[Member], tuple[Message, int]]

# -- Requests, each of a member that is alone in its group


def _commit(positions: int, member: Member) -> tuple[Message, int]:
    make = OffsetCommitRequest.OffsetCommitRequestPartition
    parts = [
        make(partition_index=number, committed_offset=number, committed_metadata="") for number in range(positions)
    ]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=member.plan.topic, partitions=parts)
    request = OffsetCommitRequest(
        group_id=member.group, member_id=member.member_id, generation_id_or_member_epoch=member.epoch, topics=[topic]
    )
    return request, COMMITS


def _fetch(positions: int, member: Member) -> tuple[Message, int]:
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = group.OffsetFetchRequestTopics(name=member.plan.topic, partition_indexes=list(range(positions)))
    return OffsetFetchRequest(groups=[group(group_id=member.group, topics=[topic])]), COMMITS


def _classic_heartbeat(member: Member) -> tuple[Message, int]:
    beat = HeartbeatRequest(group_id=member.group, generation_id=member.epoch, member_id=member.member_id)
    return beat, HEARTBEAT


def _consumer_heartbeat(member: Member) -> tuple[Message, int]:
    request = ConsumerGroupHeartbeatRequest(
        group_id=member.group, member_id=member.member_id, member_epoch=member.epoch
    )
    return request, 1


REQUESTS: Final[dict[str, tuple[type[Member], tuple[MakeRequest, ...]]]] = {
    "CPU of a commit of 1 position": (ClassicMember, (partial(_commit, 1),)),
    "CPU of a commit of 10 positions": (ClassicMember, (partial(_commit, 10),)),
    "CPU of a commit of 100 positions": (ClassicMember, (partial(_commit, 100),)),
    "CPU of a KIP-848 heartbeat": (ConsumerMember, (_consumer_heartbeat,)),
    "CPU of a classic heartbeat": (ClassicMember, (_classic_heartbeat,)),
    "CPU of a fetch of 10 offsets": (ClassicMember, (partial(_commit, 10), partial(_fetch, 10))),
}
"""By title: the members, and the requests of one; the last of them is measured."""


# -- The load


def _run(runner: asyncio.Runner, load: RequestLoad, seconds: float) -> Sample:
    return runner.run(load.measure(seconds))


class RequestLoad:
    """Members at one coordinator that repeat one request.

    Attributes:
        place: the coordinator.
    """

    def __init__(self, title: str, place: Coordinator) -> None:
        self.place = place
        self._kind, self._requests = REQUESTS[title]
        self._load: Load | None = None
        self._links: list[Repeating] = []
        self._jobs: list[Callable[[float], Awaitable[None]]] = []

    async def open(self) -> None:
        """Let the members join, and each send its requests until the answers stay the same."""
        protocol = next(name for name, kind in KINDS.items() if kind is self._kind)
        words = f"--bootstrap-server {self.place.servers} --protocol {protocol} --client unnamed"
        words += f" --members {MEMBERS} --groups {MEMBERS} --partitions {PARTITIONS}"
        self._load = await make_load(arguments().parse_args(words.split()))
        await self._load.until_stable()
        loop, address = asyncio.get_running_loop(), host_and_port(self.place.servers)
        for member in self._load.members():
            _, link = await loop.create_connection(Repeating, *address)
            self._links.append(link)
            for make_request in self._requests:
                message, version = make_request(member)
                frame = framing.encode_request(message, version, 0, "bench")
                answer = await link.settle(frame)
            self._jobs.append(partial(link.repeat, frame, answer))

    async def measure(self, seconds: float) -> Sample:
        """Repeat the request for some time."""
        place, answered = self.place, self._answered()
        began, process, main, own = time.monotonic(), _process_s(place), _main_thread_s(place), time.process_time()
        await asyncio.gather(*(job(seconds) for job in self._jobs))
        took = time.monotonic() - began
        process, main = _process_s(place) - process, _main_thread_s(place) - main
        done = self._answered() - answered
        facts = {
            "us": 1e6 * process / done,
            "loop_us": 1e6 * main / done,
            "load_us": 1e6 * (time.process_time() - own) / done,
            "requests_s": done / took,
        }
        return Sample(done, process, {name: round(value, 1) for name, value in facts.items()})

    def _answered(self) -> int:
        return sum(link.answers for link in self._links)

    async def close(self) -> None:
        """Let the members go, and delete their topic."""
        for link in self._links:
            link.abort()
        if self._load is not None:
            await self._load.close()
            await self._load.drop_topic(self.place.servers)


def _process_s(place: Coordinator) -> float:
    """Return the processor time of the coordinator's process by Linux's clock for it, which counts nanoseconds."""
    return time.clock_gettime(~place.pid() << 3 | 2)


def _main_thread_s(place: Coordinator) -> float:
    pid = place.pid()
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
