"""A Kafka topic that is written to exactly once: a sequence is one transaction.

    flights                 the topic; it is created if it is missing
    flights.kohort-sink     partition 0: the owner marker, with the last sequence; partition 1: staged rows

Staged rows lie in a topic beside, and not in an open transaction of each member. A transaction that its coordinator
ends by timeout, or that another producer of its id ends, would be lost after the manifest has counted it.

Publishing is one transaction: the rows, a tombstone for each staged key, and the marker with the new sequence. All
publishers share one transactional id. `InitProducerId` ends the transaction of whoever published before, so the marker
read after it is the last one. Readers with `isolation.level=read_committed` see a sequence once and whole in each
partition; partitions do not become visible at one moment.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.client.producer.producer import Producer
from kohort.columns.arrow import HEADERS
from kohort.columns.encode import ColumnNames
from kohort.errors import (
    CorruptDataError,
    FencedError,
    InvalidInputError,
    KafkaError,
    NotFoundError,
    RetriableError,
)
from kohort.ids import TopicPartition
from kohort.io.chance import CHANCE
from kohort.region.sinks import Keep
from kohort.region.sinks.bound import BoundSink
from kohort.region.sinks.columns import fill_null_types, refuse_null_types
from kohort.region.sinks.owner_marker import decode_schema, encode_schema, other_name_error, other_owner_error
from kohort.region.sinks.rows import (
    cast_to_sink_schema,
    check_schema_fits,
    refuse_nulls,
    refused_rows_error,
    row_indices_where,
    sort_staged_keys,
    with_plain_types,
)
from kohort.region.sinks.staging_topic import (
    MARKER,
    STAGED,
    SinkMarker,
    StagingTopic,
    create_topic_if_missing,
    join_pieces,
    split_into_pieces,
)
from kohort.region.staged import StagedKey, check_sequence, missing_rows_text

COLUMNS: Final = ("key", "value", "headers", "partition", "timestamp")
TRANSACTION_TIMEOUT_MS: Final = 300_000
"""A sequence of 5 GB at 20 MB/s; below the broker's limit, which is 15 minutes (transaction.max.timeout.ms)."""
TRANSACTION_TIMEOUT_MAX_MS: Final = 900_000
FENCED_WAIT_S: Final = 10.0
"""How long a publisher leaves the topic to the one that has fenced it, the first time; twice as long each further time,
so that two of them do not fence each other before either is done."""
RECORD_OVERHEAD_BYTES: Final = 256
"""Bytes of a batch with one record, beside the record's data: header, lengths, and ten headers' lengths."""
DEFAULT_MESSAGE_BYTES: Final = 1_048_588
"""The default of max.message.bytes."""
_NO_LIMIT_MS: Final = 2**63 - 1
_BEFORE: Final = ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms")
_AFTER: Final = ("message.timestamp.after.max.ms", "message.timestamp.difference.max.ms")
"""The topic properties that limit future timestamps: the present one, and that of Kafka before 4.0."""
_PER_UNIT: Final = {"s": (1, 1_000), "ms": (1, 1), "us": (1_000, 1), "ns": (1_000_000, 1)}
"""Conversion of Arrow's time units to ms: multiply by the second number, divide by the first."""


@dataclass(frozen=True, slots=True)
class TopicRowLimits:
    """The limits that the topic's configuration sets for a row, as Kafka's brokers check it.

    Attributes:
        schema: the columns of all rows.
        partitions: the topic's number of partitions.
        max_bytes: the largest record (max.message.bytes).
        future_ms: how far a timestamp may lie in the future (message.timestamp.after.max.ms).
        keyed: whether each row needs a key, because the topic is compacted.
    """

    schema: pa.Schema
    partitions: int
    max_bytes: int
    future_ms: int
    keyed: bool


class KafkaTopic(BoundSink):
    """A sink that writes a Kafka topic: each checkpoint of the region is one transaction. The sink can be pickled.

        sink = KafkaTopic("127.0.0.1:9092", "flights")

    `Sink` documents the guarantees of its methods. Rows have the columns `value` (bytes or strings), and optionally
    `key`, `headers`, `partition` and `timestamp`, as `Producer.send_arrow` takes them. Without `partition` a row goes
    where Kafka's own producers would send it.

    Rows are staged in a second topic. Other programs may write to the topic too, but `empty` deletes their records as
    well.

    Attributes:
        topic: the topic's name.
    """

    _kept: TopicRowLimits | None
    _times_fenced = 0

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
            bootstrap_servers: HOST:PORT, several with commas between or as a list. All members must name the same, in
                any order.
            topic: the topic's name.
            transaction_timeout_ms: the timeout of the transaction that publishes; a publication that takes longer is
                aborted and repeated.
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
        if not 1_000 <= transaction_timeout_ms <= TRANSACTION_TIMEOUT_MAX_MS:
            raise InvalidInputError(
                f"transaction_timeout_ms is {transaction_timeout_ms}: give 1000 to {TRANSACTION_TIMEOUT_MAX_MS}, the "
                "brokers' transaction.max.timeout.ms"
            )
        self.topic, self._settings = topic, dict(settings)
        self._timeout_ms = transaction_timeout_ms

    def __repr__(self) -> str:
        return f"KafkaTopic({self._servers!r}, {self.topic!r})"

    def _place_name(self) -> str:
        return f"kafka:{self._servers}/{self.topic}"

    @property
    def _staging_topic(self) -> StagingTopic:
        return StagingTopic(self._servers, self.topic, self._settings)

    @property
    def _transactional_id(self) -> str:
        return f"kohort-sink-{self.topic}"

    def _admin(self) -> Admin:
        return Admin(self._servers, **self._settings)

    # Before the first record.

    def check(self, schema: pa.Schema) -> None:
        """Check that tables of this schema can be staged and published; create both topics if they are missing.

        The first call stores the schema, which holds for all later rows: this sink adds no columns to it.
        """
        self._bound()
        given = _schema_of_rows(with_plain_types(schema))
        with self._admin() as admin:
            try:
                topic_id = create_topic_if_missing(admin, NewTopic(self.topic)).topic_id
                self._staging_topic.create_if_missing(admin)
            except NotFoundError as error:  # a broker that has not heard of a new topic
                raise RetriableError(f"topic {self.topic}: {error.message}") from error
            admin._check_rights(self._transactional_id, [self.topic, self._staging_topic.topic])
        marker = self._staging_topic.read_owner_marker()
        if marker is None:
            refuse_null_types(given)
            with self._alone() as writer:
                marker = writer.marker
                if marker is None:
                    marker = SinkMarker(1, self._region, self._bound(), 0, encode_schema(given), self.place, topic_id)
                    writer.commit(marker)
        self._owned(marker)
        self._kept = None
        kept = self._rules().schema
        check_schema_fits(f"topic {self.topic}", kept, fill_null_types(given, kept))

    def _owned(self, marker: SinkMarker | None, *, named: bool = True) -> SinkMarker:
        """Check that the owner marker names this region, and with `named` this sink's name; return it.

        Raises:
            InvalidInputError: it names another, or is None.
        """
        if marker is None:
            raise InvalidInputError(f"Topic {self.topic} is not known to region {self._region!r}: call check first")
        self._refuse_owner(marker)
        if named and marker.place != self.place:
            raise other_name_error(self._region, marker.place, self.place)
        return marker

    def _refuse_owner(self, marker: SinkMarker) -> None:
        mine = self._bound()
        if marker.id != mine:
            remedy = "give each region a topic of its own"
            raise other_owner_error(f"Topic {self.topic}", (marker.region, marker.id), (self._region, mine), remedy)

    def _rules(self) -> TopicRowLimits:
        kept = self._kept
        if kept is None:
            schema = decode_schema(self._owned(self._staging_topic.read_owner_marker()).schema)
            with self._admin() as admin:
                topic = admin.describe_topics([self.topic]).all()[self.topic]
                resource = ConfigResource(ResourceType.TOPIC, self.topic)
                properties = admin.describe_configs([resource]).all()[resource]
            said = {name: entry.value for name, entry in properties.items()}
            by_broker = said.get("message.timestamp.type") == "LogAppendTime"
            if "timestamp" in schema.names and not by_broker and _shortest(said, _BEFORE) != _NO_LIMIT_MS:
                raise InvalidInputError(
                    f"Topic {self.topic} refuses records that are older than {' or '.join(_BEFORE)}: rows may be "
                    "published at any later time. Reset that property, or leave the column timestamp out"
                )
            kept = self._kept = TopicRowLimits(
                schema,
                len(topic.partitions),
                int(said.get("max.message.bytes") or DEFAULT_MESSAGE_BYTES),
                _NO_LIMIT_MS if by_broker else _shortest(said, _AFTER),
                "compact" in str(said.get("cleanup.policy")),
            )
        return kept

    def adopt(self) -> str:
        """Store this sink's present name in the owner marker. Return the earlier name; empty: there was no marker."""
        self._bound()
        if self._staging_topic.read_owner_marker() is None:
            return ""
        with self._alone() as writer:
            marker = self._owned(writer.marker, named=False)
            writer.commit(msgspec.structs.replace(self._of_the_present(marker), place=self.place))
        return marker.place

    def _of_the_present(self, marker: SinkMarker) -> SinkMarker:
        """Return the owner marker. If the topic was created again since, give the marker the new id and sequence 0."""
        with self._admin() as admin:
            topic_id = create_topic_if_missing(admin, NewTopic(self.topic)).topic_id
        if topic_id == marker.topic_id:
            return marker
        return msgspec.structs.replace(marker, topic_id=topic_id, sequence=0, emptied=False)

    def _refuse_another_topic(self, marker: SinkMarker) -> None:
        """Raise an error if the topic was deleted, or created again since: it then lacks all earlier checkpoints.

        Raises:
            RetriableError: it was. An operator must run `kohort region adopt`.
        """
        if not self._staging_topic.is_same_topic(marker):
            raise RetriableError(
                f"Topic {self.topic} is gone, or is another than the one that region {self._region!r} has written: it "
                f"lacks all sequences up to {marker.sequence}. Stop the region and run `kohort region adopt`"
            )

    def _written_name(self) -> str:
        marker = self._staging_topic.read_owner_marker()
        if marker is None:
            return ""
        self._refuse_owner(marker)
        return marker.place

    # Staging.

    def check_rows(self, table: pa.Table) -> pa.Table:
        """Check each row of a table against the brokers' limits, and return the rows in the sink's schema.

        Raises:
            RowRefusedError: the brokers would refuse a row.
        """
        rules = self._rules()
        check_schema_fits(
            f"topic {self.topic}", rules.schema, fill_null_types(with_plain_types(table.schema), rules.schema)
        )
        keyed = ["key"] if rules.keyed else []
        if rules.keyed and "key" not in table.column_names:
            raise InvalidInputError(f"Topic {self.topic} is compacted, and rows without a column key have no key")
        never_null = [*keyed, *({"partition", "timestamp"} & set(table.column_names))]
        refuse_nulls(table, never_null)
        rows = cast_to_sink_schema(table, rules.schema, never_null)
        refuse_nulls(rows, never_null)  # a dictionary may hold a null
        for reason, column, mask in _refused_rows(rows, rules):
            if found := row_indices_where(mask):
                raise refused_rows_error(dict.fromkeys(found, reason), table, column)
        return rows

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        """Write a table's rows to the staging topic, durably. A repeated call with the same key replaces the rows."""
        self._refuse_others(key)
        rows = self.check_rows(table)
        self._staging_topic.stage(key.file_stem(), split_into_pieces(rows))

    # Publishing.

    def publish(self, sequence: int, keys: Iterable[StagedKey]) -> None:
        """Publish the rows staged under these keys as one sequence (checkpoint), by one Kafka transaction."""
        check_sequence(sequence)
        names = [key.file_stem() for key in sort_staged_keys(keys)]
        if self._last().sequence >= sequence:
            return
        rules = self._rules()
        try:
            with self._fenced(rules.max_bytes) as writer:
                marker = self._owned(writer.marker)
                if marker.sequence >= sequence:
                    return
                self._refuse_another_topic(marker)
                with self._staging_topic.index_staged_rows() as staged:
                    if gone := missing_rows_text({name: name in staged.offsets for name in names}):
                        raise CorruptDataError(
                            f"Sequence {sequence} can't be published into topic {self.topic}: {gone}"
                        )
                    tables = (join_pieces(staged.read_staged_rows(name)) for name in names)
                    writer.commit(msgspec.structs.replace(marker, sequence=sequence, emptied=False), tables, names)
            self._times_fenced = 0
        except FencedError as error:
            if not self._await_other(sequence):
                raise RetriableError(f"topic {self.topic}: another member publishes: {error.message}") from error
        except CorruptDataError:
            if not self._is_published_by_now(sequence):
                raise

    def _is_published_by_now(self, sequence: int) -> bool:
        """Read the owner marker up to the topic's end; return whether the sequence (checkpoint) is published.

        Another member may have fenced this one, published the sequence, and removed its staged rows.
        """
        return self._owned(self._staging_topic.read_owner_marker(to_the_end=True)).sequence >= sequence

    def _await_other(self, sequence: int) -> bool:
        """After another member has fenced this one, wait until it has published the checkpoint; return whether it has.

        The wait has a limit, which doubles after each fencing.
        """
        longest_s = min(FENCED_WAIT_S * 2**self._times_fenced, self._timeout_ms / 1000)
        self._times_fenced = min(self._times_fenced + 1, 16)
        until_s = time.monotonic() + longest_s * CHANCE.uniform(0.5, 1.0)
        while not (done := self._last().sequence >= sequence) and time.monotonic() < until_s:
            time.sleep(0.2)
        return done

    def _last(self) -> SinkMarker:
        return self._owned(self._staging_topic.read_owner_marker())

    def empty(self, sequence: int, floor: int) -> None:
        """Delete all records of the topic, also those of other programs; record this checkpoint in the owner marker.

        Then remove staged rows of epochs before `floor`, the minimum valid epoch; rows of later epochs stay staged.
        """
        self._bound()
        if self._staging_topic.read_owner_marker() is None:
            return
        with self._alone() as writer:
            marker = self._owned(writer.marker)
            if marker.sequence > sequence or (marker.sequence == sequence and marker.emptied):
                return
            self._refuse_another_topic(marker)
            with self._admin() as admin:
                count = len(admin.describe_topics([self.topic]).all()[self.topic].partitions)
                partitions = [TopicPartition(self.topic, number) for number in range(count)]
                # Not -1, the end when a request arrives: a late one would delete rows that were published since.
                ends = self._staging_topic.high_watermarks(partitions)
                writer.commit(marker)  # refused after a takeover, whose rows could be below these ends
                admin.delete_records(ends).all()
            writer.commit(msgspec.structs.replace(marker, sequence=sequence, emptied=True))
        self.sweep(Keep(floor))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[_Writer]:
        """Become the only publisher of the topic for the block, as `_fenced` does.

        Raises:
            RetriableError: another publisher has taken over meanwhile.
        """
        try:
            with self._fenced(0) as writer:
                yield writer
        except FencedError as error:
            raise RetriableError(f"topic {self.topic}: another member publishes: {error.message}") from error

    @contextlib.contextmanager
    def _fenced(self, record_bytes: int) -> Iterator[_Writer]:
        """Become the topic's only publisher for the block: fence all producers with the sink's transactional id.

        Their transactions are committed or aborted by then.

        Args:
            record_bytes: the largest record that will be sent.

        Raises:
            FencedError: another publisher has taken over meanwhile.
        """
        producer = self._new_producer(max(DEFAULT_MESSAGE_BYTES, record_bytes) + RECORD_OVERHEAD_BYTES)
        with contextlib.ExitStack() as stack:
            stack.callback(_closed, producer)
            producer.init_transactions()
            yield _Writer(producer, self.topic, self._staging_topic)

    def _new_producer(self, largest: int) -> Producer:
        return Producer(
            self._servers,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            max_request_size=largest,
            buffer_memory=max(32 << 20, 2 * largest),
            **self._settings,
        )

    # Progress and cleanup.

    def published(self) -> int:
        """Return the last published sequence (checkpoint number); 0: none, or the topic was deleted or replaced."""
        self._bound()
        marker = self._staging_topic.read_owner_marker()
        if marker is None:
            return 0
        sequence = self._owned(marker).sequence
        return sequence if not sequence or self._staging_topic.is_same_topic(marker) else 0

    def sweep(self, keep: Keep) -> None:
        """Delete records from the staging topic, up to the first row that may still be published, and old markers."""
        self._bound()
        marker = self._staging_topic.read_owner_marker()
        if marker is None:
            return
        self._owned(marker)
        kept = {key.file_stem() for key in keep.keys}

        def is_still_needed(name: str, done: bool) -> bool:
            key = StagedKey.parse(name)
            return key is not None and (name in kept or (key.epoch >= keep.floor and not done))

        with self._admin() as admin:
            self._staging_topic.delete_unneeded_records(admin, is_still_needed)


class _Writer:
    """The transactional producer of the member that publishes, after it has fenced all others, and the owner marker.

    Attributes:
        marker: the marker, read after the fencing; None: no region has checked the topic.
    """

    def __init__(self, producer: Producer, topic: str, staging_topic: StagingTopic) -> None:
        self._producer, self._topic, self._staging_topic = producer, topic, staging_topic
        self.marker = staging_topic.read_owner_marker(to_the_end=True)

    def commit(self, marker: SinkMarker, tables: Iterable[pa.Table] = (), done: Iterable[str] = ()) -> None:
        """Commit one transaction: rows to the topic, tombstones for their staged keys, and the owner marker.

        Wait until read_committed consumers see the marker: Kafka's coordinator answers when the commit is decided, and
        writes it into the partitions afterwards. Partitions of the topic may follow a moment later.

        Args:
            marker: the new owner marker.
            tables: the rows to publish.
            done: the staged keys of these rows.

        Raises:
            FencedError: another publisher has taken over; nothing is written.
            TimedOutError: the outcome is open: the next publisher's `init_transactions` decides it.
        """
        producer, staging = self._producer, self._staging_topic.topic
        producer.begin_transaction()
        for table in tables:
            names = set(table.column_names)
            columns = ColumnNames(*(name if name in names else None for name in _ARGUMENTS))
            producer.send_arrow(self._topic, table, columns=columns)
        for name in done:
            producer.send(staging, None, name, partition=STAGED)
        producer.send(staging, msgspec.json.encode(marker), self._topic, partition=MARKER)
        producer.commit_transaction()
        self._staging_topic.read_owner_marker(to_the_end=True)


_ARGUMENTS: Final = ("key", "value", "partition", "timestamp", "headers")
"""The columns in the order of `ColumnNames`."""


def _closed(producer: Producer) -> None:
    """Close a producer, whose open transaction, if any, is ended by the next publisher's `init_transactions`."""
    with contextlib.suppress(KafkaError, OSError):
        producer.close(timeout_ms=1_000)


def _shortest(properties: Mapping[str, str | None], names: Iterable[str]) -> int:
    """Return the smallest of these properties of a topic, in ms; a missing property counts as unlimited."""
    return min(int(properties.get(name) or _NO_LIMIT_MS) for name in names)


def _schema_of_rows(schema: pa.Schema) -> pa.Schema:
    """Check that the columns are those of records; return the schema with the types in which they are stored.

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
        case _ if pa.types.is_null(kind):
            return kind
        case "key" | "value" if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return kind
        case "headers" if pa.types.is_list(kind):
            return HEADERS
        case "partition" if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
            return kind
        case "timestamp" if pa.types.is_timestamp(kind):
            return kind
    raise InvalidInputError(
        f"Column {field.name} is of type {kind}: key and value are bytes or strings, headers a list of "
        "struct<key: string, value: binary>, partition a whole number, timestamp a timestamp"
    )


def _refused_rows(rows: Any, rules: TopicRowLimits) -> Iterator[tuple[str, str, Any]]:
    """Yield, for each check by the brokers: the reason of a refusal, the column, and a mask of the refused rows."""
    if "partition" in rows.column_names:
        partition: Any = rows.column("partition")
        outside = pc.or_(pc.less(partition, _int(0)), pc.greater_equal(partition, _int(rules.partitions)))
        yield f"No such partition: the topic has {rules.partitions}", "partition", outside
    if "timestamp" in rows.column_names:
        column = rows.column("timestamp")
        times: Any = column.cast(pa.int64())
        yield "The timestamp is before 1970", "timestamp", pc.less(times, _int(0))
        limited = rules.future_ms != _NO_LIMIT_MS
        latest = min(int(time.time() * 1000) + rules.future_ms, _NO_LIMIT_MS) if limited else _NO_LIMIT_MS
        times_of, per = _PER_UNIT[column.type.unit]
        late = f"The timestamp is over {rules.future_ms} ms ahead ({' or '.join(_AFTER)})"
        yield late, "timestamp", pc.greater(times, _int(min(latest * times_of // per, 2**63 - 1)))
    if "headers" in rows.column_names:
        lists = _packed(rows.column("headers"))
        bare = pc.is_null(pc.struct_field(pc.list_flatten(lists), "key"))
        at = pc.list_parent_indices(lists).filter(bare)
        yield "A header has no key", "headers", pc.is_in(pa.array(range(len(lists)), at.type), at)
    size = _int(RECORD_OVERHEAD_BYTES)
    for name in {"key", "value"} & set(rows.column_names):
        size = pc.add(size, pc.fill_null(pc.binary_length(rows.column(name)).cast(pa.int64()), 0))
    if "headers" in rows.column_names:
        size = pc.add(size, _header_bytes(_packed(rows.column("headers"))))
    yield (
        f"A record has more than {rules.max_bytes} bytes (max.message.bytes)",
        "value",
        pc.greater(size, _int(rules.max_bytes)),
    )


def _packed(column: Any) -> Any:
    """Return a column of lists as one array, in which a null list has no entries behind it."""
    lists = column.combine_chunks()
    return lists.take(pa.array(range(len(lists)), pa.int64())) if lists.null_count else lists


def _int(number: int) -> Any:
    return pa.scalar(number, pa.int64())


def _header_bytes(lists: Any) -> Any:
    """Return for each row the size of its headers in bytes."""
    entries = pc.list_flatten(lists)
    lengths = _int(16)
    for name in ("key", "value"):
        lengths = pc.add(lengths, pc.fill_null(pc.binary_length(pc.struct_field(entries, name)).cast(pa.int64()), 0))
    sums = (
        pa.table({"row": pc.list_parent_indices(lists), "bytes": lengths}).group_by("row").aggregate([("bytes", "sum")])
    )
    found = dict(zip(sums.column("row").to_pylist(), sums.column("bytes_sum").to_pylist(), strict=True))
    return pa.array([found.get(row, 0) for row in range(len(lists))], pa.int64())
