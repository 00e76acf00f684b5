"""The staging topic of a sink's topic: the owner marker in partition 0, staged rows in partition 1.

A staged table is an Arrow stream cut into pieces, one record each:

    key        the staged key's text form
    value      a piece of the stream
    headers    attempt (16 random bytes), piece (its number), pieces (their count)

Rows count when all pieces of an attempt are there; of several attempts, the one that was whole last. A record without
a value says that the key's rows are published. Both partitions are trimmed from their beginnings by DeleteRecords.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.net.metadata import TopicInfo
from kohort.client.producer.producer import Producer
from kohort.errors import (
    CorruptDataError,
    ErrorCode,
    InvalidInputError,
    KafkaError,
    NotFoundError,
    RetriableError,
    TimedOutError,
)
from kohort.ids import TopicPartition
from kohort.region.sinks.owner_marker import UNREADABLE_JSON
from kohort.wire.batch import BatchRecord

MARKER: Final = 0
STAGED: Final = 1
APPEARS_S: Final = 30.0
"""How long a topic that was created may take to appear: a cluster's brokers learn of it one after another."""
PIECE_BYTES: Final = 512 * 1024
"""Half of the smallest max.message.bytes that brokers have by default."""
_READ_ATTEMPTS: Final = 5
_PROPERTIES: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class SinkMarker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The owner marker of a sink's topic: the last record in partition 0 of the staging topic.

    Attributes:
        format: the format's version, 1.
        region: the region's name, for humans.
        id: the region's id, which identifies it.
        sequence: the last published sequence; 0: none.
        schema: the schema of all rows, serialised by Arrow, in base64.
        place: the sink's name when it was first written or adopted; another name is refused.
        topic_id: the id of the topic with the rows: a topic that was created again under that name has none of them.
        emptied: whether the topic was emptied as `sequence`.
    """

    format: int
    region: str
    id: UUID
    sequence: int
    schema: str
    place: str
    topic_id: UUID
    emptied: bool = False


@dataclass(slots=True)
class _Attempt:
    """The records of one attempt to stage a key: how many there must be, and the offsets of those that are there."""

    count: int
    offsets: dict[int, int] = field(default_factory=dict)


class StagingTopic:
    """The staging topic beside a sink's topic: partition 0 has owner markers, partition 1 staged rows."""

    def __init__(self, servers: str, topic: str, settings: Mapping[str, Any]) -> None:
        self.topic, self._target, self._servers, self._settings = (
            self.staging_topic_name(topic),
            topic,
            servers,
            settings,
        )

    @staticmethod
    def staging_topic_name(topic: str) -> str:
        """Return the name of the staging topic for a sink's topic: the same with `.kohort-sink` appended."""
        return f"{topic}.kohort-sink"

    def create_if_missing(self, admin: Admin) -> None:
        """Create the staging topic if it is missing, or check the existing one. Also check the right to delete records.

        Raises:
            InvalidInputError: a topic of that name exists that has other properties than the staging topic needs.
        """
        found = create_topic_if_missing(admin, NewTopic(self.topic, 2, configs=_PROPERTIES))
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        properties = admin.describe_configs([resource]).all()[resource]
        wrong = [f"{name}={value}" for name, value in _PROPERTIES.items() if properties[name].value != value]
        if len(found.partitions) != 2 or wrong:
            raise InvalidInputError(
                f"Topic {self.topic} keeps staged rows, and has {len(found.partitions)} partitions: it needs 2, and "
                f"{', '.join(f'{name}={value}' for name, value in _PROPERTIES.items())}"
            )
        # This deletes nothing, and needs the right that `delete_unneeded_records` needs later.
        admin.delete_records({TopicPartition(self.topic, STAGED): 0}).all()

    # The marker.

    def read_owner_marker(self, *, to_the_end: bool = False) -> SinkMarker | None:
        """Return the last owner marker; None: there is none.

        Args:
            to_the_end: read to the partition's high watermark, and wait for open transactions. Otherwise read to the
                last stable offset.
        """
        with self._reader() as reader:
            found, start = self._last_value(reader, to_the_end)
            for _ in range(_READ_ATTEMPTS):  # a publication and a sweep may have come between the end and the read
                if found is not None or start == (start := self._first_offset(reader, MARKER)):
                    break
                found, start = self._last_value(reader, to_the_end)
        if found is None:
            if start > 0:
                raise RetriableError(f"The owner marker in topic {self.topic} moves on while it is read")
            return None
        try:
            marker = msgspec.json.decode(found, type=SinkMarker)
        except UNREADABLE_JSON as error:
            raise CorruptDataError(f"The owner marker in topic {self.topic} can't be read: {error}") from error
        if marker.format != 1:
            raise InvalidInputError(f"Topic {self.topic} was written by a newer kohort, in format {marker.format}")
        return marker

    def _last_value(self, reader: RangeReader, to_the_end: bool) -> tuple[bytes | None, int]:
        """Return the value of the last record in the marker partition, or None, and the partition's earliest offset."""
        start, found = self._first_offset(reader, MARKER), None
        for record in self._records(reader, MARKER, to_the_end=to_the_end):
            found = None if record.value is None else bytes(record.value)
        return found, start

    def is_same_topic(self, marker: SinkMarker) -> bool:
        """Return whether the sink's topic still has the topic id in the marker: it was not deleted or created again."""
        with self._reader() as reader:
            target = reader.present_topics([self._target]).get(self._target)
        return target is not None and target.topic_id == marker.topic_id

    # Staged rows.

    def stage(self, name: str, pieces: Sequence[bytes]) -> None:
        """Write a table's pieces under a staged key, one record each; they are durable when the call returns."""
        attempt = uuid.uuid4().bytes
        with self._new_producer() as producer:
            sent = [
                producer.send(
                    self.topic,
                    piece,
                    name,
                    partition=STAGED,
                    headers=[("attempt", attempt), ("piece", b"%d" % at), ("pieces", b"%d" % len(pieces))],
                )
                for at, piece in enumerate(pieces)
            ]
            producer.flush()
            for delivery in sent:
                delivery.result()

    @contextmanager
    def index_staged_rows(self) -> Iterator[StagedIndex]:
        """Index the completely staged keys for the block, by reading the whole partition of staged rows.

        The index has only a few numbers for each record.
        """
        with self._reader() as reader:
            attempts: dict[str, dict[bytes, _Attempt]] = {}
            whole: dict[str, list[int]] = {}
            for record in self._records(reader, STAGED, to_the_end=True):
                if record.value is None or record.key is None:
                    continue
                name, said = bytes(record.key).decode(errors="replace"), _piece_headers(record)
                if said is None:
                    continue
                identity, at, count = said
                attempt = attempts.setdefault(name, {}).setdefault(identity, _Attempt(count))
                attempt.offsets[at] = record.offset
                if len(attempt.offsets) == attempt.count:
                    whole[name] = [attempt.offsets[number] for number in sorted(attempt.offsets)]
            yield StagedIndex(reader, TopicPartition(self.topic, STAGED), whole)

    def delete_unneeded_records(self, admin: Admin, needed: Callable[[str, bool], bool]) -> None:
        """Delete staged records before the first that is still needed, and owner markers before the last.

        Args:
            admin: the client that deletes the records.
            needed: returns whether a staged key is still needed, given its text and whether its rows are published.
        """
        seen: list[tuple[int, str]] = []
        done: set[str] = set()
        last_marker = -1
        with self._reader() as reader:
            end = self._stable_end(reader, STAGED)
            for record in self._records(reader, STAGED):
                name = bytes(record.key or b"").decode(errors="replace")
                if record.value is None:
                    done.add(name)
                elif not seen or seen[-1][1] != name:
                    seen.append((record.offset, name))
            for record in self._records(reader, MARKER):
                last_marker = record.offset
        cut = next((offset for offset, name in seen if needed(name, name in done)), end)
        before = {TopicPartition(self.topic, STAGED): cut, TopicPartition(self.topic, MARKER): last_marker}
        admin.delete_records({partition: offset for partition, offset in before.items() if offset > 0}).all()

    def _new_producer(self) -> Producer:
        # Without idempotence: brokers keep an id of each producer for a day, and pieces have numbers of their own.
        return Producer(self._servers, enable_idempotence=False, **self._settings)

    # Reading.

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks of partitions of the sink's topic; they may lie behind open transactions."""
        with self._reader() as reader:
            return {partition: reader.high_watermark(partition) for partition in partitions}

    def _reader(self) -> RangeReader:
        settings = {**self._settings, "isolation_level": "read_committed"}
        return RangeReader(self._servers, fetch_bytes=2 * PIECE_BYTES, **settings)

    def _first_offset(self, reader: RangeReader, number: int) -> int:
        partition = TopicPartition(self.topic, number)
        found = reader.current_offsets({partition: "earliest"})
        return found[partition].offset if partition in found else 0

    def _stable_end(self, reader: RangeReader, number: int) -> int:
        """Return the last stable offset of a partition; 0 if the topic does not exist."""
        partition = TopicPartition(self.topic, number)
        found = reader.current_offsets({partition: "latest"})
        return found[partition].offset if partition in found else 0

    def _records(self, reader: RangeReader, number: int, *, to_the_end: bool = False) -> Iterator[BatchRecord]:
        """Yield a partition's records from its earliest offset, up to the last stable offset or the high watermark."""
        partition = TopicPartition(self.topic, number)
        found = reader.current_offsets({partition: "earliest"})
        if partition not in found:
            if to_the_end:
                raise RetriableError(f"topic {self.topic} is not known to the broker that was asked")
            return
        end = reader.high_watermark(partition) if to_the_end else self._stable_end(reader, number)
        for _, records in reader.read_batches(partition, found[partition].offset, end):
            yield from records


class StagedIndex:
    """An index of the staged rows in a staging topic, with a reader for them.

    Attributes:
        offsets: the offsets of each staged key's records, in the order in which their values form an Arrow stream.
    """

    def __init__(self, reader: RangeReader, partition: TopicPartition, offsets: Mapping[str, list[int]]) -> None:
        self._reader, self._partition, self.offsets = reader, partition, offsets

    def read_staged_rows(self, name: str) -> list[bytes]:
        """Return the pieces of a staged key in order, and fetch as few other records as possible.

        Raises:
            CorruptDataError: a record is gone.
        """
        wanted = self.offsets[name]
        found: dict[int, bytes] = {}
        for first, end in _runs(sorted(wanted)):
            for _, records in self._reader.read_batches(self._partition, first, end):
                found.update({record.offset: bytes(record.value) for record in records if record.value is not None})
        if missing := [offset for offset in wanted if offset not in found]:
            raise CorruptDataError(f"{self._partition}: the staged record at offset {missing[0]} is gone")
        return [found[offset] for offset in wanted]


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Group ascending offsets into ranges [first, end) of consecutive offsets."""
    first = 0
    for at, offset in enumerate(offsets):
        if at + 1 == len(offsets) or offsets[at + 1] != offset + 1:
            yield offsets[first], offset + 1
            first = at + 1


def create_topic_if_missing(admin: Admin, topic: NewTopic) -> TopicInfo:
    """Return a topic's description; create the topic if it is missing, and wait until a broker describes it.

    Raises:
        TimedOutError: the topic was created and does not appear within 30 s.
    """
    until_s = time.monotonic() + APPEARS_S
    asked = False
    while True:
        try:
            return admin.describe_topics([topic.name]).all()[topic.name]
        except NotFoundError as error:
            if time.monotonic() > until_s:
                raise TimedOutError(f"topic {topic.name} was created and does not appear") from error
        if asked:
            time.sleep(0.05)
            continue
        try:
            admin.create_topics([topic]).all()
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        asked = True


def split_into_pieces(table: pa.Table) -> list[bytes]:
    """Serialise a table as an Arrow stream, cut into pieces of 512 KiB; at least one."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(table)
    data = memoryview(sink.getvalue())
    return [bytes(data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)]


def join_pieces(pieces: Sequence[bytes]) -> pa.Table:
    """Deserialise the table from the pieces of an Arrow stream.

    Raises:
        CorruptDataError: they are no such stream.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(b"".join(pieces))) as stream:
            table = stream.read_all()
        for column in table.columns:  # offsets beyond a buffer would let later steps read other memory
            for chunk in column.chunks:
                kind = _with_bytes(chunk.type)
                (chunk if kind == chunk.type else chunk.view(kind)).validate(full=True)
    except (ValueError, pa.ArrowException, OSError) as error:
        raise CorruptDataError(f"Staged rows can't be read: {error}") from error
    return table


def _with_bytes(kind: Any) -> Any:
    """Return a type with bytes in place of text, for which any bytes are valid.

    Spark's strings may have any bytes, for example those of a Kafka record that is cast to STRING. They are published
    as they are.
    """
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_bytes(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_bytes(field.type)) for field in kind])
    return kind


def _piece_headers(record: BatchRecord) -> tuple[bytes, int, int] | None:
    """Return attempt id, piece number and piece count from a record's headers; None: one is missing or invalid."""
    said = {name: bytes(value or b"") for name, value in record.headers}
    try:
        at, count = int(said["piece"]), int(said["pieces"])
    except (KeyError, ValueError):
        return None
    return (said.get("attempt", b""), at, count) if 0 <= at < count else None
