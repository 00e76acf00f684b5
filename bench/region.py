"""A region's price: a topic into Parquet files with and without sequences; the commit point; standing still."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from uuid import UUID

from rich.console import Console

from bench.harness import Contender, Figure, Options, Sample, compare
from bench.peers import Place, brokers, drop_topic, filled_topic, new_topic, runner
from kohort.client.group.member import GroupMember
from kohort.region.control_plane.events import MemberOffsets
from kohort.region.messages import Identity
from kohort.region.records import Contribution, Manifest, Position
from kohort.region.region_log import RegionLogView, RegionLogWriter

_RECORDS, _SIZE, _COMMITS, _MEMBERS = 8_000_000, 100, 30, 10
_TOPIC_ID = UUID(int=1)


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """For each broker: throughput, beside a region without sequences; commits a second; who stands still how long."""
    with brokers() as places:
        for place in places:
            title = f"a topic of {_SIZE} B into Parquet files, from {place.name}"
            if options.only in title:
                topic = filled_topic(place, options.records(_RECORDS), _SIZE)
                yield compare(title, _writers(place, topic, options), rounds=options.rounds, console=console)
                drop_topic(place, topic)
            title = f"the commit point, {place.name}"
            if options.only in title:
                contenders = [Contender(f"{count} members", partial(_commits, place, count)) for count in (1, _MEMBERS)]
                yield compare(title, contenders, rounds=options.rounds, unit="commits/s", console=console)
            title = f"the slowest of ten members stands still, {place.name}"
            if options.only in title:
                topic = filled_topic(place, options.records(_RECORDS), _SIZE, partitions=_MEMBERS)
                contenders = [
                    Contender(how, partial(runner, "region_downtime", [how, place.servers, topic], 1))
                    for how in ("checkpoint", "reset")
                ]
                yield compare(title, contenders, rounds=options.rounds, unit="1/s", console=console)
                drop_topic(place, topic)


def _writers(place: Place, topic: str, options: Options) -> list[Contender]:
    count = options.records(_RECORDS)
    names = {
        "never": "a region without sequences",
        "5s": "a sequence every 5 s",
        "1s": "a sequence every second",
        "plain": "a consumer that writes files, at least once",
    }
    return [
        Contender(name, partial(runner, "region", [how, place.servers, topic, str(count)], count))
        for how, name in names.items()
    ]


def _commits(place: Place, count: int) -> Sample:
    """Manifest, contributions and offsets of so many members, each with a partition."""
    topic, name = new_topic(place, count), f"bench-{uuid.uuid4().hex[:12]}"
    with ExitStack() as stack:
        members = [stack.enter_context(GroupMember(place.servers, name, topics=[topic])) for _ in range(count)]
        _settle(members)
        home = RegionLogView(name, place.servers, {})
        stack.callback(home.close)
        pen, known = home.take_over("127.0.0.1", 1)
        stack.callback(pen.close)
        assert isinstance(pen, RegionLogWriter)
        offsets = [_offsets(member, name, number) for number, member in enumerate(members)]
        began_s = time.perf_counter()
        for sequence in range(1, _COMMITS + 1):
            given = tuple(_contribution(name, sequence, member_offsets) for member_offsets in offsets)
            names = tuple(member_offsets.member for member_offsets in offsets)
            closed = Manifest(name, known.region_id, sequence, 1, 1, 0, names, names, ())
            refused = pen.commit(closed, given, tuple(offsets))
            if refused:
                raise RuntimeError(refused)
        took_s = time.perf_counter() - began_s
    drop_topic(place, topic)
    return Sample(_COMMITS, took_s, {"ms each": took_s * 1000 / _COMMITS})


def _settle(members: list[GroupMember]) -> None:
    """Until each has one partition."""
    while not all(len(member.assignment().partitions) == 1 and member.revocation() is None for member in members):
        for member in members:
            member.wait_change(20)
            member.release()


def _offsets(member: GroupMember, group: str, number: int) -> MemberOffsets:
    who = member.group_metadata()
    identity = Identity(who.member_id, who.generation_id, who.group_instance_id)
    positions = [Position(group, at.topic, _TOPIC_ID, at.partition, 1, 0) for at in member.assignment().partitions]
    return MemberOffsets(f"m{number}", group, identity, tuple(positions))


def _contribution(region: str, sequence: int, member_offsets: MemberOffsets) -> Contribution:
    who = member_offsets.identity
    return Contribution(
        region,
        sequence,
        1,
        1,
        member_offsets.member,
        (),
        member_offsets.group,
        who.member_id,
        who.generation,
        None,
        (),
        (),
        b"",
    )
