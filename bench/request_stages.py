"""Where the time of one group request goes in the broker, stage by stage, from its bytes to the answer's.

`python -m bench.request_stages commit 10` runs a broker in this process and thread. It sends bursts over loopback
sockets, as `bench.request_cpu` does from another process. Functions on the way are wrapped by a clock. A stage has the
time of its functions without that of other stages, and less what the clock takes. The figures are of the round with the
least time. `--whole` wraps nothing: the time of a request, with what its client's two system calls take.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import socket
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from kohort.broker import dispatch, routes
from kohort.broker.framing import Frames
from kohort.broker.run import BrokerServer
from kohort.broker.server import connection, requests
from kohort.broker.serving import YOUNG_OBJECTS, new_loop
from kohort.broker.shards import GroupShards
from kohort.broker.transport import PlainTransport
from kohort.consumer_protocol import ConsumerProtocolSubscription, write_subscription
from kohort.coordinator import shard
from kohort.groups.machine import GroupMachine
from kohort.journal import local
from kohort.log.partition import PartitionLog
from kohort.log.segment import SegmentFile
from kohort.wire import framing
from kohort.wire.discovery import CreateTopicsRequest
from kohort.wire.groups import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from kohort.wire.message import Message
from kohort.wire.offsets import OffsetCommitRequest

LINKS: Final = 4
"""Connections, each with a group of its own."""
IN_FLIGHT: Final = 8
"""Requests of one burst, as in `bench.request_cpu`."""
TOPIC: Final = "stages"
PARTITIONS: Final = 100
SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0"}


class Stages:
    """The exclusive times of wrapped functions."""

    def __init__(self) -> None:
        self._inner = [0.0]
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that counts its time to a stage."""
        clock, inner, seconds, calls = time.perf_counter, self._inner, self.seconds, self.calls
        seconds[name], calls[name] = 0.0, 0

        @wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            began = clock()
            inner.append(0.0)
            try:
                return function(*args, **named)
            finally:
                took = clock() - began
                seconds[name] += took - inner.pop()
                inner[-1] += took
                calls[name] += 1

        return run

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        """Wrap a function of a module or a method of a class."""
        setattr(owner, attribute, self.timed(name, getattr(owner, attribute)))

    def clear(self) -> None:
        """Begin again."""
        for name in self.seconds:
            self.seconds[name], self.calls[name] = 0.0, 0

    def wrap_all(self) -> None:
        """Wrap the functions on the way of a group request. A broker that is made later uses them."""
        receive = PlainTransport.__init__

        def made(transport: Any, *args: Any) -> None:
            receive(transport, *args)
            transport.receive_into = self.timed("system call: receive", transport.receive_into)

        PlainTransport.__init__ = made  # type: ignore[method-assign,assignment]
        self.wrap(PlainTransport, "send", "system call: send")
        self.wrap(connection.Connection, "_on_readable", "connection: a read, and the loop over its frames")
        self.wrap(connection.Connection, "flush", "connection: flush")
        self.wrap(Frames, "split_frames", "framing")
        self.wrap(dispatch.Dispatcher, "dispatch", "dispatch")
        self.wrap(dispatch, "decode_request_header", "header")
        for key, route in routes.ROUTES.items():
            decode, handler = self.timed("decode", route.decode), self.timed("handler", route.handler)
            routes.ROUTES[key] = dataclasses.replace(route, decode=decode, handler=handler)
        self.wrap(GroupShards, "ask", "ask of the shard")
        self.wrap(shard.Shard, "_run", "shard: a turn")
        self.wrap(shard.Shard, "_release", "shard: answers")
        self.wrap(shard.Appends, "_send", "append: collect records")
        self.wrap(GroupMachine, "step", "machine: a step")
        self.wrap(requests.Request, "send", "request: latency, place in the order")
        self.wrap(local.LogJournal, "append", "journal: append")
        self.wrap(local, "encode_append", "journal: records to a batch")
        self.wrap(PartitionLog, "append", "log: append")
        self.wrap(SegmentFile, "append", "log: segment, system call")


class Link:
    """A blocking client on the broker's own loop."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)

    async def receive(self, frames: int) -> bytes:
        """Return so many frames."""
        got = bytearray()
        while True:
            await asyncio.sleep(0)
            try:
                got += self.sock.recv(1 << 16)
            except BlockingIOError:
                continue
            at = count = 0
            while at + 4 <= len(got):
                at += 4 + int.from_bytes(got[at : at + 4], "big")
                count += 1
            if count == frames and at == len(got):
                return bytes(got)

    async def ask(self, message: Message, version: int) -> Any:
        """Send a request and return the response."""
        self.sock.send(framing.encode_request(message, version, 1, "stages"))
        frame = (await self.receive(1))[4:]
        return framing.decode_response(framing.APIS[message.API_KEY].response, version, frame)[1]


async def commit(positions: int, group: str, _: Link) -> tuple[Message, int]:
    """Return a commit of a group without members."""
    make = OffsetCommitRequest.OffsetCommitRequestPartition
    parts = [
        make(partition_index=number, committed_offset=number, committed_metadata="") for number in range(positions)
    ]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=TOPIC, partitions=parts)
    return OffsetCommitRequest(group_id=group, topics=[topic]), 8


async def classic(_: int, group: str, link: Link) -> tuple[Message, int]:
    """Return a heartbeat of a classic group's only member."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(
        name="range", metadata=write_subscription(ConsumerProtocolSubscription(0, (TOPIC,)))
    )
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=45_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    joined = await link.ask(join, 3)
    sync = SyncGroupRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
    await link.ask(sync, 3)
    beat = HeartbeatRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
    return beat, 4


async def consumer(_: int, group: str, link: Link) -> tuple[Message, int]:
    """Return a heartbeat of a KIP-848 group's only member, which has its partitions."""
    beat = ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=str(uuid.uuid4()), rebalance_timeout_ms=60_000, subscribed_topic_names=[TOPIC]
    )
    beat.topic_partitions = []
    answer = await link.ask(beat, 1)
    while answer.assignment is None or not answer.assignment.topic_partitions:
        await asyncio.sleep(0.05)
        later = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=beat.member_id, member_epoch=answer.member_epoch
        )
        answer = await link.ask(later, 1)
    make = ConsumerGroupHeartbeatRequest.TopicPartitions
    owned = [
        make(topic_id=part.topic_id, partitions=list(part.partitions)) for part in answer.assignment.topic_partitions
    ]
    held = ConsumerGroupHeartbeatRequest(group_id=group, member_id=beat.member_id, member_epoch=answer.member_epoch)
    held.topic_partitions = owned
    answer = await link.ask(held, 1)
    return (
        ConsumerGroupHeartbeatRequest(group_id=group, member_id=beat.member_id, member_epoch=answer.member_epoch),
        1,
    )


KINDS: Final = {"commit": commit, "classic": classic, "consumer": consumer}


async def measure(kind: str, positions: int, bursts: int, rounds: int, stages: Stages) -> list[dict[str, float]]:
    """Return the rounds: microseconds of a request by stage, and of all (`whole`)."""
    loop, found = asyncio.get_running_loop(), []
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as data:
        broker = BrokerServer(loop, Path(data), "127.0.0.1:0", SETTINGS)
        await broker.start_accepting()
        links = [Link(broker.address) for _ in range(LINKS)]
        topic = CreateTopicsRequest.CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
        await links[0].ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
        sent = []
        for number, link in enumerate(links):
            message, version = await KINDS[kind](positions, f"group-{number}", link)
            frame = framing.encode_request(message, version, 1, "stages")
            for _ in range(4):  # answers settle, and what is prepared for repeated requests is prepared
                link.sock.send(frame * IN_FLIGHT)
                settled = await link.receive(IN_FLIGHT)
            sent.append((link, frame * IN_FLIGHT, len(settled)))
        gc.set_threshold(YOUNG_OBJECTS)
        gc.collect()
        gc.freeze()
        for _ in range(rounds):
            stages.clear()
            began = time.thread_time()
            for _ in range(bursts):
                await _burst(sent)
            took = time.thread_time() - began
            count = bursts * LINKS * IN_FLIGHT
            of_round = {name: 1e6 * seconds / count for name, seconds in stages.seconds.items() if stages.calls[name]}
            of_round |= {f"{name}/calls": calls / count for name, calls in stages.calls.items()}
            found.append(of_round | {"whole": 1e6 * took / count})
        for link in links:
            link.sock.close()
        await broker.close()
    return found


async def _burst(sent: list[tuple[Link, bytes, int]]) -> None:
    for link, burst, _ in sent:
        link.sock.send(burst)
    missing = {link: size for link, _, size in sent}
    while missing:
        await asyncio.sleep(0)
        for link, size in list(missing.items()):
            try:
                size -= len(link.sock.recv(1 << 16))
            except BlockingIOError:
                continue
            missing[link] = size
            if size <= 0:
                del missing[link]


def _length(of_round: dict[str, float]) -> float:
    """Return how long a round took by its stages, in which other processes count; of all if nothing is wrapped."""
    return sum(us for name, us in of_round.items() if f"{name}/calls" in of_round) or of_round["whole"]


def _clock_us(stages: Stages) -> float:
    """Return what one wrapped call counts to its own stage, in microseconds."""
    nothing = stages.timed("nothing", lambda: None)
    least = 1.0
    for _ in range(20):
        stages.clear()
        for _ in range(2_000):
            nothing()
        least = min(least, stages.seconds["nothing"] / 2_000)
    return 1e6 * least


def main() -> None:
    """Print the stages of one request."""
    parser = argparse.ArgumentParser(prog="python -m bench.request_stages", description=__doc__)
    parser.add_argument("kind", choices=tuple(KINDS))
    parser.add_argument("positions", type=int, nargs="?", default=1, help="of a commit")
    parser.add_argument("--bursts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--whole", action="store_true", help="wrap nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    stages = Stages()
    if not options.whole:
        stages.wrap_all()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        rounds = runner.run(measure(options.kind, options.positions, options.bursts, options.rounds, stages))
    least = min(rounds, key=_length)
    clock_us = _clock_us(Stages())
    shown = {
        name: round(us - least[f"{name}/calls"] * clock_us, 2) for name, us in least.items() if f"{name}/calls" in least
    }
    result = {"stages": shown, "whole": round(least["whole"], 1)}
    if options.json:
        print(json.dumps(result))
        return
    table = Table("stage", "µs for each request", "calls")
    for name, us in sorted(shown.items(), key=lambda found: -found[1]):
        table.add_row(name, f"{us:.2f}", f"{least[f'{name}/calls']:.2f}")
    table.add_row("sum of the stages", f"{sum(shown.values()):.1f}", "")
    table.add_row(
        "whole, with the client's system calls" + (" and the clock" if shown else ""), f"{result['whole']}", ""
    )
    Console().print(table)


if __name__ == "__main__":
    main()
