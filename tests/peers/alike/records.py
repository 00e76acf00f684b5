"""Records that cannot be read or written: Produce, Fetch, ListOffsets, DeleteRecords, OffsetForLeaderEpoch."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from kohort.wire.batch import BatchRecord, build_batch, iter_headers
from kohort.wire.data import (
    DeleteRecordsRequest,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from kohort.wire.records import read_records
from tests.peers.alike.harness import Side, scenario
from tests.peers.alike.transactions import add_partitions, added, begun, ended
from tests.support.hostile_batches import BASE_MS, HOSTILE, bomb

UNDECOMPRESSED = (
    "codec 7", "codec 5", "damaged gzip", "no gzip at all", "cut gzip", "damaged snappy", "snappy that claims 2 GiB",
    "damaged lz4", "cut zstd", "linked lz4 blocks", "a wrong lz4 descriptor checksum", "bytes after zstd",
)  # fmt: skip


def batch(*values: bytes, **facts: Any) -> bytes:
    return build_batch([BatchRecord(0, 1_700_000_000_000 + n, None, value) for n, value in enumerate(values)], **facts)


def producing(side: Side, version: int, parts: list[tuple[str, int, Any]], **fields: Any) -> ProduceRequest:
    topics: dict[str, list[Any]] = {}
    for topic, index, records in parts:
        topics.setdefault(topic, []).append(ProduceRequest.PartitionProduceData(index=index, records=records))
    make = ProduceRequest.TopicProduceData
    data = [
        make(name=name, topic_id=side.id_of(name), partition_data=found)
        if version >= 13
        else make(name=name, partition_data=found)
        for name, found in topics.items()
    ]
    return ProduceRequest(topic_data=data, **{"acks": -1, "timeout_ms": 10_000, **fields})


def plain(answer: Any) -> None:
    """Without words, which records are meant, and times."""
    for topic in answer.responses:
        for part in topic.partition_responses:
            part.error_message = None
            part.record_errors = []
            part.log_append_time_ms = -1
            if part.error_code:
                part.log_start_offset = -1


@scenario(ProduceRequest)
def produces(side: Side, version: int) -> None:
    topic, missing = side.topic(), side.name("missing")
    name = side.name("tx")
    producer, epoch = begun(side, name)
    good = batch(b"a", b"b")
    broken = bytearray(good)
    broken[-1] ^= 1
    numbered = {"producer_id": 7_000_000 + version, "producer_epoch": 0}
    transactional = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": 0, "transactional": True}
    cases: list[tuple[list[tuple[str, int, Any]], dict[str, Any]]] = [
        ([(topic, 0, good)], {}),
        ([(topic, 0, good)], {"acks": 1}),
        ([(topic, 0, good), (topic, 1, good)], {}),
        ([(topic, 0, good)], {"acks": 5}),
        ([(topic, 7, good)], {}),
        ([(topic, 0, bytes(broken))], {}),
        ([(topic, 0, batch(b"x", base_sequence=0, **numbered))], {}),
        ([(topic, 0, batch(b"x", base_sequence=0, **numbered))], {}),
        ([(topic, 0, batch(b"x", base_sequence=5, **numbered))], {}),
        ([(topic, 0, batch(b"x", **{**numbered, "producer_epoch": 3, "base_sequence": 1}))], {}),
        ([(topic, 0, batch(b"x", **{**numbered, "producer_epoch": 3, "base_sequence": 0}))], {}),
        ([(topic, 0, batch(b"x", base_sequence=1, **numbered))], {}),
        ([(topic, 0, batch(b"x", **transactional))], {}),
        ([(topic, 0, batch(b"x", **transactional))], {"transactional_id": ""}),
        ([(topic, 0, batch(b"x", **transactional))], {"transactional_id": side.name("none")}),
        ([(topic, 0, batch(b"x", **{**transactional, "producer_epoch": epoch + 1}))], {"transactional_id": name}),
        ([(topic, 0, batch(b"x", **transactional))], {"transactional_id": name}),
        ([], {}),
    ]
    if version < 13:
        cases += [([(missing, 0, good)], {}), ([("", 0, good)], {}), ([("__consumer_offsets", 0, good)], {})]
    for parts, fields in cases:
        side.ask(producing(side, version, parts, **fields), version, keep=plain)
    side.ask(listing_offsets({topic: [(0, -1), (1, -1)]}), 7)
    with side.on_purpose("Several batches for a partition are taken"):
        side.ask(producing(side, version, [(topic, 0, good + good)]), version, keep=plain)
    with side.on_purpose("A transactional request takes transactional batches"):
        side.ask(producing(side, version, [(topic, 0, good)], transactional_id=name), version, keep=plain)


@scenario(11)
def produces_what_no_reader_can_read(side: Side, version: int) -> None:
    topic = side.topic("hostile")
    batches = dict(HOSTILE)
    with side.on_purpose("Records that can't be decompressed are invalid"):
        for name in (*UNDECOMPRESSED, "a length of six bytes", "compressed, with an offset delta out of order"):
            side.ask(producing(side, version, [(topic, 0, batches.pop(name))]), version, keep=plain)
    with side.on_purpose("A batch that only some readers can read is refused"):
        for name in ("a key length below -1", "bytes after gzip", "bytes after lz4"):
            side.ask(producing(side, version, [(topic, 0, batches.pop(name))]), version, keep=plain)
    with side.on_purpose("Log append time is the broker's"):
        for name in ("log append time", "magic 0", "magic 1"):
            side.ask(producing(side, version, [(topic, 0, batches.pop(name))]), version, keep=plain)
    with side.on_purpose("Decompressed bytes are bounded"):
        side.ask(producing(side, version, [(topic, 0, bomb("zstd", 130 << 20))]), version, keep=plain)
    fresh = side.topic("read")
    for records in batches.values():
        side.ask(producing(side, version, [(fresh, 0, records)]), version, keep=plain)
    side.ask(listing_offsets({fresh: [(0, -1), (0, BASE_MS), (0, BASE_MS + 1)]}), 7, keep=by_offset)


@scenario(13)
def produces_by_unknown_id(side: Side, version: int) -> None:
    part = ProduceRequest.PartitionProduceData(index=0, records=batch(b"a"))
    for number in (0, 9):
        data = ProduceRequest.TopicProduceData(topic_id=uuid.UUID(int=number), partition_data=[part])
        side.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), version, keep=plain)


@scenario(11)
def produces_that_a_topic_refuses(side: Side, version: int) -> None:
    compacted = side.topic("compacted", cleanup_policy="compact")
    small = side.topic("small", max_message_bytes="100")
    strict = side.topic("strict", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    appended = side.topic("appended", message_timestamp_type="LogAppendTime")
    for topic in (compacted, small, strict, appended):
        side.ask(producing(side, version, [(topic, 0, batch(b"x" * 200, b"y"))]), version, keep=plain)


@scenario(11)
def produces_times_at_the_limits(side: Side, version: int) -> None:
    """Which times a topic takes: -1 is none; any in the middle of a batch counts."""
    now = int(time.time() * 1000)
    topics = (
        side.topic("any"),
        side.topic("strict", message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000"),
        side.topic("old", message_timestamp_before_max_ms=str(now)),
    )
    for stamps in ([-1], [-2], [0], [1], [-(2**63)], [2**63 - 1], [now], [now, -1, now], [now, 5, now], [now, -5, now]):
        records = [BatchRecord(0, stamp, None, b"v") for stamp in stamps]
        for topic in topics:
            side.ask(producing(side, version, [(topic, 0, build_batch(records))]), version, keep=plain)


def listing_offsets(wanted: dict[str, list[tuple[int, int]]], **fields: Any) -> ListOffsetsRequest:
    make = ListOffsetsRequest.ListOffsetsPartition
    epoch = fields.pop("epoch", -1)
    topics = [
        ListOffsetsRequest.ListOffsetsTopic(
            name=name,
            partitions=[make(partition_index=index, timestamp=at, current_leader_epoch=epoch) for index, at in parts],
        )
        for name, parts in wanted.items()
    ]
    return ListOffsetsRequest(replica_id=-1, topics=topics, **fields)


@scenario(ListOffsetsRequest)
def lists_offsets(side: Side, version: int) -> None:
    topic, empty = side.topic(), side.topic("empty")
    side.produce(topic, 0, b"a", b"b", b"c")
    side.produce(topic, 0, b"d")
    for at in (-1, -2, -3, -4, -5, -6, -7, 0, 999_999, 1_000_000, 1_000_001, 1_000_002, 2_000_000):
        side.ask(listing_offsets({topic: [(0, at)], empty: [(0, at)]}), version)
    side.ask(listing_offsets({topic: [(7, -1)], side.name("missing"): [(0, -1)]}), version)
    side.ask(listing_offsets({topic: [(0, -1), (0, -2)]}), version, keep=by_offset)
    for epoch in (0, 1, 7):
        side.ask(listing_offsets({topic: [(0, -1)]}, epoch=epoch), version)
    side.ask(listing_offsets({topic: [(0, -1)]}, isolation_level=1), version)
    side.ask(listing_offsets({}), version)


def by_offset(answer: Any) -> None:
    for topic in answer.topics:
        topic.partitions.sort(key=lambda part: part.offset)


@scenario(DeleteRecordsRequest)
def deletes_records(side: Side, version: int) -> None:
    topic, compacted = side.topic(), side.topic("compacted", cleanup_policy="compact")
    side.produce(topic, 0, b"a", b"b", b"c")
    make, part = DeleteRecordsRequest.DeleteRecordsTopic, DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition

    def deleting(name: str, index: int, offset: int) -> DeleteRecordsRequest:
        found = [part(partition_index=index, offset=offset)]
        return DeleteRecordsRequest(topics=[make(name=name, partitions=found)], timeout_ms=10_000)

    for name, index, offset in (
        (topic, 0, 1),
        (topic, 0, 1),
        (topic, 0, 0),
        (topic, 0, -5),
        (topic, 0, 9),
        (topic, 0, -1),
        (topic, 1, 0),
        (topic, 7, 0),
        (side.name("missing"), 0, 0),
        (compacted, 0, 0),
        ("__consumer_offsets", 0, 0),
    ):
        side.ask(deleting(name, index, offset), version)
        side.ask(listing_offsets({topic: [(0, -2)]}), 7)
    side.ask(DeleteRecordsRequest(), version)


@scenario(OffsetForLeaderEpochRequest)
def leader_epochs(side: Side, version: int) -> None:
    topic, empty = side.topic(), side.topic("empty")
    side.produce(topic, 0, b"a", b"b", b"c")
    make, part = OffsetForLeaderEpochRequest.OffsetForLeaderTopic, OffsetForLeaderEpochRequest.OffsetForLeaderPartition
    for name, index, current, epoch in (
        (topic, 0, -1, 0),
        (topic, 0, 0, 0),
        (topic, 0, 5, 0),
        (topic, 0, -1, -1),
        (topic, 0, -1, 7),
        (topic, 7, -1, 0),
        (empty, 0, -1, 0),
        (side.name("missing"), 0, -1, 0),
    ):
        asked = [part(partition=index, current_leader_epoch=current, leader_epoch=epoch)]
        side.ask(OffsetForLeaderEpochRequest(replica_id=-2, topics=[make(topic=name, partitions=asked)]), version)


@scenario(FetchRequest)
def fetches(side: Side, version: int) -> None:
    topic = side.topic()
    side.produce(topic, 0, b"a", b"b", b"c")
    by_id = version >= 13
    make, part = FetchRequest.FetchTopic, FetchRequest.FetchPartition

    def fetching(name: str, index: int, offset: int, **fields: Any) -> FetchRequest:
        topic_id = side.id_of(name) if by_id and name == topic else uuid.UUID(int=9)
        epoch = fields.pop("epoch", -1)
        wanted = [part(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch)]
        asked = make(topic_id=topic_id, partitions=wanted) if by_id else make(topic=name, partitions=wanted)
        return FetchRequest(topics=[asked], **{"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, **fields})

    for request in (
        fetching(topic, 0, 0),
        fetching(topic, 0, 1),
        fetching(topic, 0, 3),
        fetching(topic, 0, 4),
        fetching(topic, 0, -1),
        fetching(topic, 1, 0),
        fetching(topic, 7, 0),
        fetching(side.name("missing"), 0, 0),
        fetching(topic, 0, 0, epoch=0),
        fetching(topic, 0, 0, epoch=5),
        fetching(topic, 0, 0, isolation_level=1),
        fetching(topic, 0, 0, max_bytes=1),
        fetching(topic, 0, 0, max_bytes=0),
        fetching(topic, 0, 0, session_id=12345, session_epoch=1),
        fetching(topic, 0, 0, session_id=12345, session_epoch=0),
        fetching(topic, 0, 0, session_id=0, session_epoch=5),
        fetching(topic, 0, 0, session_id=0, session_epoch=-1),
        FetchRequest(max_wait_ms=0, min_bytes=0),
    ):
        side.ask(request, version, keep=without_session)


@scenario(*range(4, 19))
def fetches_of_aborted_transactions(side: Side, version: int) -> None:
    """Two producers' transactions within one range: both are named. Old records and new markers share a segment."""
    topic = side.topic(segment_ms=str(2**62))
    make, part = FetchRequest.FetchTopic, FetchRequest.FetchPartition
    wanted = [part(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    asked = make(topic_id=side.id_of(topic), topic=topic, partitions=wanted)

    def fetching() -> FetchRequest:
        return FetchRequest(topics=[asked], max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=1)

    def stable(offset: int) -> Callable[[Any], bool]:
        return lambda answer: bool(answer.responses and answer.responses[0].partitions[0].last_stable_offset == offset)

    for number, word in enumerate(("one", "two", "three"), 1):
        name = side.name(word)
        producer, epoch = begun(side, name)
        facts = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": 0}
        side.until(lambda: add_partitions(name, producer, epoch, {topic: [0]}), 3, added)  # noqa: B023
        side.produce(topic, 0, b"a", transactional=name, **facts)
        ended(side, name, (producer, epoch), 4, committed=word == "three")
        # Kafka answers EndTxn before it has written the marker.
        side.until(fetching, version, stable(2 * number), keep=without_records)


def without_records(answer: Any) -> None:
    """Markers have times."""
    without_session(answer)
    for topic in answer.responses:
        for part in topic.partitions:
            part.records = b""


@scenario(9)
def produces_to_topics_with_a_codec(side: Side, version: int) -> None:
    for wanted in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"):
        topic = side.topic(wanted, partitions=1, compression_type=wanted)
        for sent in ("none", "gzip", "zstd"):
            data = batch(b"x" * 5_000, b"y", compression=sent)
            side.ask(producing(side, version, [(topic, 0, data)]), version, keep=plain)
        part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        asked = FetchRequest.FetchTopic(topic=topic, partitions=[part])
        fetch = FetchRequest(topics=[asked], max_wait_ms=0, min_bytes=0, max_bytes=1 << 20)
        side.ask(fetch, 12, keep=codecs_and_records)


def codecs_and_records(answer: Any) -> None:
    """Two compressors make other bytes of the same."""
    without_session(answer)
    data = bytes(answer.responses[0].partitions[0].records)
    found = [(header.compression, read_records(data[at:])) for at, header in iter_headers(data)]
    answer.responses[0].partitions[0].records = repr(found).encode()


def without_session(answer: Any) -> None:
    answer.session_id = min(answer.session_id, 1)
