"""A Kafka topic that is written to exactly once: a sequence is one transaction.

    flights                 the topic; it is created if it is missing
    flights.kohort-sink     partition 0: the owner marker, with the last sequence; partition 1: staged rows

Staged rows lie in a topic beside, and not in an open transaction of each member. A transaction that its coordinator
ends by timeout, or that another producer of its id ends, would be lost after the manifest has counted it.

Publishing is one transaction: the rows, a tombstone for each staged key, and the marker with the new sequence. All
publishers share one transactional id. `InitProducerId` ends the transaction of whoever published before, so the marker
read after it is the last one. Readers with `isolation.level=read_committed` see a sequence once and whole in each
partition; partitions do not become visible at one moment.

A staged table is an Arrow stream cut into pieces, one record each:

    key        the staged key's text form
    value      a piece of the stream
    headers    attempt (16 random bytes), piece (its number), pieces (their count)

Rows count when all pieces of an attempt are there; of several attempts, the one that was whole last. A record without
a value says that the key's rows are published. Both partitions are trimmed from their beginnings by DeleteRecords.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.net.metadata import TopicInfo
from kohort.client.producer.producer import Producer
from kohort.columns.arrow import HEADERS
from kohort.columns.encode import ColumnNames
from kohort.errors import (
    CorruptDataError,
    ErrorCode,
    FencedError,
    InvalidInputError,
    KafkaError,
    NotFoundError,
    RetriableError,
    TimedOutError,
)
from kohort.ids import TopicPartition
from kohort.region.sinks import Keep
from kohort.region.sinks.bound import Bound
from kohort.region.sinks.columns import filled_schema
from kohort.region.sinks.owner_marker import other_name, refusal, schema_of, text_of
from kohort.region.sinks.rows import check_fits, in_order, plain, refusal_of, refuse_nulls, rows_where, shaped
from kohort.region.staged import StagedKey
from kohort.wire.batch import BatchRecord

MARKER: Final = 0
STAGED: Final = 1
APPEARS_S: Final = 30.0
"""How long a topic that was created may take to appear: a cluster's brokers learn of it one after another."""
PIECE_BYTES: Final = 512 * 1024
"""Half of the smallest max.message.bytes that brokers have by default."""
_PROPERTIES: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


COLUMNS: Final = ("key", "value", "headers", "partition", "timestamp")
TRANSACTION_TIMEOUT_MS: Final = 300_000
"""A sequence of 5 GB at 20 MB/s; below the broker's limit, which is 15 minutes (transaction.max.timeout.ms)."""
RECORD_OVERHEAD_BYTES: Final = 256
"""Of a batch with one record: its header, lengths, offsets, and up to ten headers' lengths."""
_NO_LIMIT_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RowRules:
    """The limits of the topic's brokers on a row.

    Attributes:
        schema: the columns of all rows.
        partitions: the number of partitions.
        max_bytes: of a record (max.message.bytes).
        future_ms: how far a timestamp may lie in the future (message.timestamp.after.max.ms).
        keyed: whether a row needs a key, since the topic is compacted.
    """

    schema: pa.Schema
    partitions: int
    max_bytes: int
    future_ms: int
    keyed: bool


class KafkaTopic(Bound):
    """A topic as a region's sink: consume, transform and produce exactly once, by a whole group.

        sink = KafkaTopic("127.0.0.1:9092", "flights")

    It can be pickled. `Sink` documents its methods' guarantees. Rows have the columns `value` (bytes or strings), and
    optionally `key`, `headers`, `partition` and `timestamp`, as `Producer.send_arrow` takes them. Without `partition` a
    row goes where Kafka's own producers would send it.

    The topic may have records of others. `empty` deletes those too.

    Attributes:
        topic: the topic's name.
    """

    _kept: RowRules | None

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topic: str,
        *,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        **settings: Any,
    ) -> None:
        """Initialise the sink; no connection is opened.

        Args:
            bootstrap_servers: HOST:PORT, several with commas between or as a list. Order is of no matter; else all
                members name the same.
            topic: the topic's name.
            transaction_timeout_ms: a publication that takes longer is begun again.
            **settings: connection settings, with `_` for `.`: security, timeouts.

        Raises:
            InvalidInputError: an argument is invalid; the message says what is valid.
        """
        if not topic or "/" in topic:
            raise InvalidInputError(f"topic is {topic!r}: give the name of one topic")
        given = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        self._servers = ",".join(sorted(server.strip() for server in given if server.strip()))
        if not self._servers:
            raise InvalidInputError("bootstrap_servers is empty: give HOST:PORT of the cluster with the topic")
        self.topic, self._settings = topic, dict(settings)
        self._timeout_ms = transaction_timeout_ms

    def __repr__(self) -> str:
        return f"KafkaTopic({self._servers!r}, {self.topic!r})"

    def _named(self) -> str:
        return f"kafka:{self._servers}/{self.topic}"

    @property
    def _beside(self) -> StagingTopic:
        return StagingTopic(self._servers, self.topic, self._settings)

    def _admin(self) -> Admin:
        return Admin(self._servers, **self._settings)

    # Before the first record.

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create both topics if they are missing."""
        self._bound()
        given = _schema_of_rows(plain(schema))
        with self._admin() as admin:
            topic_id = created(admin, NewTopic(self.topic)).topic_id
            self._beside.create(admin)
        marker = self._beside.marker()
        if marker is None:
            with self._fenced() as writer:
                marker = writer.marker
                if marker is None:
                    marker = SinkMarker(1, self._region, self._bound(), 0, text_of(given), self.place, topic_id)
                    writer.commit(marker)
        self._owned(marker)
        self._kept = None
        check_fits(f"topic {self.topic}", self._rules().schema, filled_schema(given, self._rules().schema))

    def _owned(self, marker: SinkMarker | None, *, named: bool = True) -> SinkMarker:
        """Return the marker, checked to be this region's, and to have this sink's name."""
        if marker is None:
            raise InvalidInputError(f"Topic {self.topic} is not known to region {self._region!r}: call check first")
        self._refuse_owner(marker)
        if named and marker.place != self.place:
            raise other_name(self._region, marker.place, self.place)
        return marker

    def _refuse_owner(self, marker: SinkMarker) -> None:
        mine = self._bound()
        if marker.id != mine:
            remedy = "give each region a topic of its own"
            raise refusal(f"Topic {self.topic}", (marker.region, marker.id), (self._region, mine), remedy)

    def _rules(self) -> RowRules:
        if self._kept is None:
            schema = schema_of(self._owned(self._beside.marker()).schema)
            with self._admin() as admin:
                topic = admin.describe_topics([self.topic]).all()[self.topic]
                resource = ConfigResource(ResourceType.TOPIC, self.topic)
                properties = admin.describe_configs([resource]).all()[resource]
            said = {name: entry.value for name, entry in properties.items()}
            if "timestamp" in schema.names and _number(said, "message.timestamp.before.max.ms") != _NO_LIMIT_MS:
                raise InvalidInputError(
                    f"Topic {self.topic} refuses records that are older than message.timestamp.before.max.ms: rows may "
                    "be published at any later time. Reset that property, or leave the column timestamp out"
                )
            by_broker = said.get("message.timestamp.type") == "LogAppendTime"
            self._kept = RowRules(
                schema,
                len(topic.partitions),
                int(said.get("max.message.bytes") or 1_048_588),
                _NO_LIMIT_MS if by_broker else _number(said, "message.timestamp.after.max.ms"),
                "compact" in str(said.get("cleanup.policy")),
            )
        return self._kept

    def adopt(self) -> str:
        """Write this sink's name into the marker, and return the earlier one."""
        self._bound()
        if self._beside.marker() is None:
            return ""
        with self._fenced() as writer:
            marker = self._owned(writer.marker, named=False)
            writer.commit(msgspec.structs.replace(marker, place=self.place))
        return marker.place

    def _written_name(self) -> str:
        marker = self._beside.marker()
        if marker is None:
            return ""
        self._refuse_owner(marker)
        return marker.place

    # Staging.

    def check_rows(self, table: pa.Table) -> pa.Table:
        """Refuse the first row that the topic's brokers would refuse; return the rows as they are staged."""
        rules = self._rules()
        check_fits(f"topic {self.topic}", rules.schema, filled_schema(plain(table.schema), rules.schema))
        keyed = ["key"] if rules.keyed else []
        if rules.keyed and "key" not in table.column_names:
            raise InvalidInputError(f"Topic {self.topic} is compacted, and rows without a column key have no key")
        refuse_nulls(table, [*keyed, *({"partition", "timestamp"} & set(table.column_names))])
        rows = shaped(table, rules.schema, keyed)
        for reason, column, mask in _refused(rows, rules):
            if found := rows_where(mask):
                raise refusal_of(dict.fromkeys(found, reason), table, column)
        return rows

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Stage a table durably and invisibly; for repeated calls with one key the last counts."""
        self._refuse_others(key)
        rows = self.check_rows(table)
        self._beside.stage(key.text(), pieces_of(rows))

    # Publishing.

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Show the rows of these keys as this sequence, in one transaction."""
        if sequence < 1:
            raise InvalidInputError(f"Sequence {sequence} can't be published: the first is 1")
        names = [key.text() for key in in_order(keys)]
        if self._owned(self._beside.marker()).sequence >= sequence:
            return
        with self._fenced() as writer:
            marker = self._owned(writer.marker)
            if marker.sequence >= sequence:
                return
            with self._beside.staged() as staged:
                if lost := [name for name in names if name not in staged.offsets]:
                    raise CorruptDataError(
                        f"Sequence {sequence} can't be published into topic {self.topic}: of {len(names)} staged "
                        f"pieces {len(lost)} are gone, {lost[0]} among them"
                    )
                tables = (table_of(staged.read(name)) for name in names)
                writer.commit(msgspec.structs.replace(marker, sequence=sequence, emptied=False), tables, names)

    def empty(self, sequence: int, floor: int) -> None:
        """Delete all records of the topic, those of others too, and write the sequence into the marker."""
        self._bound()
        if self._beside.marker() is None:
            return
        with self._fenced() as writer:
            marker = self._owned(writer.marker)
            if marker.sequence > sequence or (marker.sequence == sequence and marker.emptied):
                return
            with self._admin() as admin:
                count = len(admin.describe_topics([self.topic]).all()[self.topic].partitions)
                admin.delete_records({TopicPartition(self.topic, number): -1 for number in range(count)}).all()
            writer.commit(msgspec.structs.replace(marker, sequence=sequence, emptied=True))
        self.sweep(Keep(floor))

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[_Writer]:
        """Become the only publisher of the topic: transactions of others have ended, and can't be committed any more.

        Raises:
            RetriableError: another publisher has taken over meanwhile.
        """
        beside = self._beside
        with contextlib.ExitStack() as stack:
            producer = Producer(
                self._servers,
                transactional_id=f"kohort-sink-{self.topic}",
                transaction_timeout_ms=self._timeout_ms,
                **self._settings,
            )
            stack.callback(_closed, producer)
            try:
                producer.init_transactions()
                yield _Writer(producer, self.topic, beside)
            except FencedError as error:
                raise RetriableError(f"topic {self.topic}: another member publishes: {error.message}") from error

    # Progress and cleanup.

    def published(self) -> int:
        """Return the last sequence that is certainly published; 0: none."""
        self._bound()
        marker = self._beside.marker()
        return 0 if marker is None else self._owned(marker).sequence

    def sweep(self, keep: Keep) -> None:
        """Delete staged rows that will never be published, up to the first that may be, and earlier markers."""
        self._bound()
        marker = self._beside.marker()
        if marker is None:
            return
        self._owned(marker)
        kept = {key.text() for key in keep.keys}

        def needed(name: str, done: bool) -> bool:
            key = StagedKey.parse(name)
            return key is not None and (name in kept or (key.epoch >= keep.floor and not done))

        with self._admin() as admin:
            self._beside.trim(admin, needed)


class _Writer:
    """The one publisher of a topic.

    Attributes:
        marker: the last marker; None: no region has checked the topic.
    """

    def __init__(self, producer: Producer, topic: str, beside: StagingTopic) -> None:
        self._producer, self._topic, self._beside = producer, topic, beside
        self.marker = beside.marker(to_the_end=True)

    def commit(self, marker: SinkMarker, tables: Iterable[pa.Table] = (), done: Iterable[str] = ()) -> None:
        """Write rows, tombstones of their staged keys, and the marker, in one transaction; wait until readers see it.

        Kafka's coordinator answers when the commit is decided, and writes it into the partitions afterwards.

        Raises:
            FencedError: another publisher has taken over; nothing is written.
            TimedOutError: the outcome is open: the next publisher's `init_transactions` decides it.
        """
        producer, beside = self._producer, self._beside.topic
        producer.begin_transaction()
        for table in tables:
            names = set(table.column_names)
            columns = ColumnNames(*(name if name in names else None for name in _ARGUMENTS))
            producer.send_arrow(self._topic, table, columns=columns)
        for name in done:
            producer.send(beside, None, name, partition=STAGED)
        producer.send(beside, msgspec.json.encode(marker), self._topic, partition=MARKER)
        producer.commit_transaction()
        self._beside.marker(to_the_end=True)


_ARGUMENTS: Final = ("key", "value", "partition", "timestamp", "headers")
"""The columns in the order of `ColumnNames`."""


def _closed(producer: Producer) -> None:
    """Close a producer whose last transaction is committed or given up: the next publisher ends it for certain."""
    with contextlib.suppress(KafkaError, OSError):
        producer.close(timeout_ms=1_000)


def _number(properties: dict[str, str | None], name: str) -> int:
    """Return a property of a topic in milliseconds; without it there is no limit."""
    return int(properties.get(name) or _NO_LIMIT_MS)


def _schema_of_rows(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the rows with the types that records have.

    Raises:
        InvalidInputError: a column can't be part of a record.
    """
    if others := [name for name in schema.names if name not in COLUMNS]:
        raise InvalidInputError(
            f"A record has no {', '.join(others)}: rows of a KafkaTopic have the columns {', '.join(COLUMNS)}"
        )
    if "value" not in schema.names:
        raise InvalidInputError("Rows of a KafkaTopic need a column value, of bytes or strings")
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise InvalidInputError(f"Columns are there twice: {', '.join(twice)}")
    return pa.schema([field.with_type(_record_type(field)) for field in schema])


def _record_type(field: Any) -> Any:
    kind = field.type
    match field.name:
        case "key" | "value" if pa.types.is_null(kind):
            return pa.binary()
        case "key" | "value" if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return kind
        case "headers" if pa.types.is_list(kind) or pa.types.is_null(kind):
            return HEADERS
        case "partition" if pa.types.is_integer(kind):
            return kind
        case "timestamp" if pa.types.is_timestamp(kind):
            return kind
    raise InvalidInputError(
        f"Column {field.name} is of type {kind}: key and value are bytes or strings, headers a list of "
        "struct<key: string, value: binary>, partition a whole number, timestamp a timestamp"
    )


def _refused(rows: Any, rules: RowRules) -> Iterator[tuple[str, str, Any]]:
    """Yield a reason, a column, and the mask of the rows that the brokers would refuse for it."""
    if "partition" in rows.column_names:
        partition: Any = rows.column("partition")
        outside = pc.or_(pc.less(partition, _int(0)), pc.greater_equal(partition, _int(rules.partitions)))
        yield f"No such partition: the topic has {rules.partitions}", "partition", outside
    if "timestamp" in rows.column_names:
        column = rows.column("timestamp")
        times: Any = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        yield "The timestamp is before 1970", "timestamp", pc.less(times, _int(0))
        if rules.future_ms != _NO_LIMIT_MS:
            latest = int(time.time() * 1000) + rules.future_ms
            late = f"The timestamp is over {rules.future_ms} ms ahead (message.timestamp.after.max.ms)"
            yield late, "timestamp", pc.greater(times, _int(latest))
    if "headers" in rows.column_names:
        lists = rows.column("headers").combine_chunks()
        bare = pc.is_null(pc.struct_field(pc.list_flatten(lists), "key"))
        at = pc.list_parent_indices(lists).filter(bare)
        yield "A header has no key", "headers", pc.is_in(pa.array(range(len(lists)), at.type), at)
    size = _int(RECORD_OVERHEAD_BYTES)
    for name in {"key", "value"} & set(rows.column_names):
        size = pc.add(size, pc.fill_null(pc.binary_length(rows.column(name)).cast(pa.int64()), 0))
    if "headers" in rows.column_names:
        size = pc.add(size, _header_bytes(rows.column("headers").combine_chunks()))
    yield (
        f"A record has more than {rules.max_bytes} bytes (max.message.bytes)",
        "value",
        pc.greater(size, _int(rules.max_bytes)),
    )


def _int(number: int) -> Any:
    return pa.scalar(number, pa.int64())


def _header_bytes(lists: Any) -> Any:
    """Return the bytes of each row's headers."""
    entries = pc.list_flatten(lists)
    lengths = _int(16)
    for name in ("key", "value"):
        lengths = pc.add(lengths, pc.fill_null(pc.binary_length(pc.struct_field(entries, name)).cast(pa.int64()), 0))
    sums = (
        pa.table({"row": pc.list_parent_indices(lists), "bytes": lengths}).group_by("row").aggregate([("bytes", "sum")])
    )
    found = dict(zip(sums.column("row").to_pylist(), sums.column("bytes_sum").to_pylist(), strict=True))
    return pa.array([found.get(row, 0) for row in range(len(lists))], pa.int64())


class SinkMarker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the owner marker.

    Attributes:
        format: the format's version, 1.
        region: the region's name, for humans.
        id: the region's id, which identifies it.
        sequence: the last one published; 0: none.
        schema: the schema of all rows, serialised by Arrow, in base64.
        place: the name by which the region knows the sink.
        topic_id: of the topic with the rows: another topic of that name has none of them.
        emptied: whether the topic was emptied as this sequence.
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
    """The pieces of one attempt at staging a key."""

    count: int
    offsets: dict[int, int] = field(default_factory=dict)


class StagingTopic:
    """The topic beside one sink's topic."""

    def __init__(self, servers: str, topic: str, settings: Mapping[str, Any]) -> None:
        self.topic, self._target, self._servers, self._settings = self.name_of(topic), topic, servers, settings

    @staticmethod
    def name_of(topic: str) -> str:
        """Return the name of the topic beside."""
        return f"{topic}.kohort-sink"

    def create(self, admin: Admin) -> None:
        """Create the topic if it is missing.

        Raises:
            InvalidInputError: another topic has its name, or it has other properties than it needs.
        """
        found = created(admin, NewTopic(self.topic, 2, configs=_PROPERTIES))
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        properties = admin.describe_configs([resource]).all()[resource]
        wrong = [f"{name}={value}" for name, value in _PROPERTIES.items() if properties[name].value != value]
        if len(found.partitions) != 2 or wrong:
            raise InvalidInputError(
                f"Topic {self.topic} keeps staged rows, and has {len(found.partitions)} partitions: it needs 2, and "
                f"{', '.join(f'{name}={value}' for name, value in _PROPERTIES.items())}"
            )

    # The marker.

    def marker(self, *, to_the_end: bool = False) -> SinkMarker | None:
        """Return the last marker; None: there is none. Its sequence is 0 if the topic was deleted and created again.

        Args:
            to_the_end: wait for open transactions; otherwise read up to the first of them.
        """
        found: bytes | None = None
        with self._reader() as reader:
            for record in self._records(reader, MARKER, to_the_end=to_the_end):
                found = record.value if record.value is None else bytes(record.value)
            target = reader.present_topics([self._target]).get(self._target)
        if found is None:
            return None
        try:
            marker = msgspec.json.decode(found, type=SinkMarker)
        except msgspec.DecodeError as error:
            raise CorruptDataError(f"The owner marker in topic {self.topic} can't be read: {error}") from error
        if marker.format != 1:
            raise InvalidInputError(f"Topic {self.topic} was written by a newer kohort, in format {marker.format}")
        if target is not None and target.topic_id == marker.topic_id:
            return marker
        topic_id = marker.topic_id if target is None else target.topic_id
        return msgspec.structs.replace(marker, topic_id=topic_id, sequence=0, emptied=False)

    # Staged rows.

    def stage(self, name: str, pieces: Sequence[bytes]) -> None:
        """Write all pieces of a key; durable when it returns."""
        attempt = uuid.uuid4().bytes
        with Producer(self._servers, **self._settings) as producer:
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
    def staged(self) -> Iterator[StagedPieces]:
        """Index the keys that are staged, in memory of a few numbers for each piece."""
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
            yield StagedPieces(reader, TopicPartition(self.topic, STAGED), whole)

    def trim(self, admin: Admin, needed: Callable[[str, bool], bool]) -> None:
        """Delete staged records before the first that is needed, and markers before the last.

        Args:
            admin: deletes the records.
            needed: called with a key, and whether its rows are published.
        """
        seen: list[tuple[int, str]] = []
        done: set[str] = set()
        last_marker = -1
        with self._reader() as reader:
            end = self._end(reader, STAGED)
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

    # Reading.

    def _reader(self) -> RangeReader:
        return RangeReader(self._servers, **{**self._settings, "isolation_level": "read_committed"})

    def _end(self, reader: RangeReader, number: int) -> int:
        """Return the last stable offset; 0 if the topic does not exist."""
        partition = TopicPartition(self.topic, number)
        found = reader.present_offsets({partition: "latest"})
        return found[partition].offset if partition in found else 0

    def _records(self, reader: RangeReader, number: int, *, to_the_end: bool = False) -> Iterator[BatchRecord]:
        """Yield the records of a partition, up to the last stable offset or to its end."""
        partition = TopicPartition(self.topic, number)
        found = reader.present_offsets({partition: "earliest"})
        if partition not in found:
            return
        end = reader.high_watermark(partition) if to_the_end else self._end(reader, number)
        for _, records in reader.read_batches(partition, found[partition].offset, end):
            yield from records


class StagedPieces:
    """The staged tables of a topic, by their keys.

    Attributes:
        offsets: the offsets of each key's pieces, in order.
    """

    def __init__(self, reader: RangeReader, partition: TopicPartition, offsets: Mapping[str, list[int]]) -> None:
        self._reader, self._partition, self.offsets = reader, partition, offsets

    def read(self, name: str) -> list[bytes]:
        """Read the pieces of a key."""
        wanted = self.offsets[name]
        found = {
            record.offset: bytes(record.value)
            for _, records in self._reader.read_batches(self._partition, min(wanted), max(wanted) + 1)
            for record in records
            if record.value is not None and record.offset in set(wanted)
        }
        if missing := [offset for offset in wanted if offset not in found]:
            raise CorruptDataError(f"{self._partition}: the staged record at offset {missing[0]} is gone")
        return [found[offset] for offset in wanted]


def created(admin: Admin, topic: NewTopic) -> TopicInfo:
    """Return a topic, created if it is missing. Brokers show a new one after a moment.

    Raises:
        TimedOutError: it was created and does not appear.
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


def pieces_of(table: pa.Table) -> list[bytes]:
    """Return a table as pieces of an Arrow stream: at least one."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(table)
    data = memoryview(sink.getvalue())
    return [bytes(data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)]


def table_of(pieces: Sequence[bytes]) -> pa.Table:
    """Return the table in the pieces of an Arrow stream.

    Raises:
        CorruptDataError: they are no such stream.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(b"".join(pieces))) as stream:
            return stream.read_all()
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError(f"Staged rows can't be read: {error}") from error


def _piece_headers(record: BatchRecord) -> tuple[bytes, int, int] | None:
    """Return attempt, number and count of a piece; None: it is no piece of ours."""
    said = {name: bytes(value or b"") for name, value in record.headers}
    try:
        at, count = int(said["piece"]), int(said["pieces"])
    except (KeyError, ValueError):
        return None
    return (said.get("attempt", b""), at, count) if 0 <= at < count else None
