"""Processor time of single operations in the calling thread, which a busy machine disturbs less than rates.

`seconds` of each sample is processor time, so a rate is "per second of one core". `python -m bench.against OTHER
processor_time` compares two checkouts.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console

from bench.harness import Contender, Figure, NotHere, Options, Sample, compare
from kohort import Broker, Producer
from kohort.assignors import AssignableTopic, MemberSubscription, Uniform
from kohort.groups.consumer.assignment import compute_target_assignment
from kohort.groups.effects import ComputeAssignment
from kohort.groups.events import Topic
from kohort.groups.records import MemberSaved
from kohort.wire.batch import BatchRecord, build_batch, parse_header
from kohort.wire.records import collect_keys, keep_latest

_MEMBERS, _TOPICS, _PARTITIONS = 100, 1600, 100
"""The shape that franz-go publishes a figure for."""
_VALUE = b"v" * 100
_SENT, _SEND_ROUNDS = 2_000, 60
_BATCHES = 200


def measurements(options: Options, console: Console) -> Iterator[Figure]:
    """One figure for each operation."""
    for title, unit, prepare in _OPERATIONS:
        if options.only in title:
            contenders = [Contender("kohort", prepare())]
            if title in _PEERS:
                contenders.append(Contender("confluent-kafka", _PEERS[title]))
            baseline = contenders[-1].name
            yield compare(title, contenders, rounds=options.rounds, unit=unit, baseline=baseline, console=console)


def _timed(amount: float, run: Callable[[], object]) -> Sample:
    """Run once without the collector, which the broker rarely runs either."""
    gc.collect()
    gc.disable()
    try:
        began = time.thread_time()
        run()
        return Sample(amount, time.thread_time() - began)
    finally:
        gc.enable()


def _wide_group(owned: bool) -> tuple[dict[str, MemberSubscription], dict[str, AssignableTopic]]:
    topics = {f"t{number:04}": AssignableTopic(_PARTITIONS) for number in range(_TOPICS)}
    names = tuple(topics)
    members = {f"m{number:03}": MemberSubscription(names) for number in range(_MEMBERS)}
    if owned:
        before = Uniform().assign(members, topics)
        members = {name: MemberSubscription(names, owned=tuple(before[name]), generation=1) for name in members}
        del members["m001"]
    return members, topics


def _assignment(owned: bool) -> Callable[[], Sample]:
    return partial(_timed, 1, partial(Uniform().assign, *_wide_group(owned)))


def _wide_task() -> Callable[[], Sample]:
    """The coordinator's background task for the same group, with the target that it replaces as the group keeps it."""
    members, infos = _wide_group(owned=True)
    topics = {name: Topic(name, uuid.uuid5(uuid.NAMESPACE_URL, name), info.partitions) for name, info in infos.items()}
    saved = {
        name: MemberSaved("g", name, None, None, "c", "/h", member.topics, None, 45_000, None)
        for name, member in members.items()
    }
    task = ComputeAssignment(
        group_id="g",
        ticket=1,
        epoch=2,
        assignor="uniform",
        members=saved,
        subscribed={name: member.topics for name, member in members.items()},
        current={
            name: frozenset((topics[claim.topic].id, claim.partition) for claim in member.owned)
            for name, member in members.items()
        },
        topics=topics,
        excluded={},
    )
    return partial(_timed, 1, partial(compute_target_assignment, task))


def _send(key: bytes | None) -> Callable[[], Sample]:
    """Send of 100 bytes in the caller's thread: the least of many short rounds, as the sender shares the GIL."""

    def run() -> Sample:
        with Broker() as broker, Producer(broker.bootstrap_servers, linger_ms=1000, batch_size=1 << 20) as producer:
            for number in range(40):
                producer.send("t", b"x", b"%d" % number)
            return _least(producer.send, key, producer.flush)

    return run


def _produce(key: bytes | None) -> Sample:
    """Produce by confluent-kafka, which sends on a thread of its own without the GIL."""
    try:
        from confluent_kafka import Producer as PeerProducer
    except ImportError as error:
        raise NotHere("confluent-kafka is not installed") from error
    with Broker() as broker:
        producer = PeerProducer(
            {"bootstrap.servers": broker.bootstrap_servers, "queue.buffering.max.messages": 100_000}
        )
        producer.produce("t", b"x", b"0")
        return _least(producer.produce, key, producer.flush)


def _least(send: Callable[..., object], key: bytes | None, flush: Callable[[], object]) -> Sample:
    """The least of many short rounds of sends, each after everything was delivered."""
    least = float("inf")
    for _ in range(_SEND_ROUNDS):
        flush()
        began = time.thread_time()
        for _ in range(_SENT):
            send("t", _VALUE, key)
        least = min(least, time.thread_time() - began)
    flush()
    return Sample(_SENT, least)


def _compaction() -> Callable[[], Sample]:
    """Both walks of compaction over commits of 100 positions."""
    rows = [BatchRecord(number, 1000, b"group-topic%4d" % number, b"v" * 24) for number in range(100)]
    batch = build_batch(rows)
    header = parse_header(batch)

    def run() -> None:
        last: dict[bytes, int] = {}
        for _ in range(_BATCHES):
            collect_keys(batch, header, last)
        for _ in range(_BATCHES):
            keep_latest(batch, header, last, drop_tombstones=False)

    return partial(_timed, _BATCHES * len(rows), run)


_PEERS: dict[str, Callable[[], Sample]] = {
    "send 100 B without a key": partial(_produce, None),
    "send 100 B with a key": partial(_produce, b"key-1234"),
}
_OPERATIONS: list[tuple[str, str, Callable[[], Callable[[], Sample]]]] = [
    ("uniform, 100 members x 1,600 topics x 100, first", "assignments/s", partial(_assignment, owned=False)),
    ("uniform, 100 members x 1,600 topics x 100, one leaves", "assignments/s", partial(_assignment, owned=True)),
    ("the same as the coordinator's task", "assignments/s", _wide_task),
    ("send 100 B without a key", "records/s", partial(_send, None)),
    ("send 100 B with a key", "records/s", partial(_send, b"key-1234")),
    ("compaction of committed offsets", "records/s", _compaction),
]
