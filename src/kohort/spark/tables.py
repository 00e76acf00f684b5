"""Groups, members, offsets, lag, rebalances, topics and commits as tables, by `.option("table", …)`.

A table is looked up whenever Spark reads it; the read joins no group and commits nothing. The rows are the brokers'
answers at that moment, group by group: two groups are not looked up at the same instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kohort.client.admin.admin import Admin
from kohort.client.admin.values import GroupDescription
from kohort.client.consumer.range_reader import RangeReader
from kohort.client.settings import ConnectionConfig
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotFoundError
from kohort.ids import TopicPartition
from kohort.lag import LagReader
from kohort.lag.reading import REBALANCES_ASKED
from kohort.lag.timeline import rebalance_text
from kohort.settings.config import declare_setting, did_you_mean, from_properties
from kohort.spark.java_settings import checked_config, client_settings_from_options
from kohort.spark.option_names import classify_options, refuse_ignored_options
from kohort.spark.options import ClientOptions, kafka_client_settings
from kohort.spark.source.catalog import connect_or_fail
from kohort.spark.source.error_frames import show_reason_first, show_reason_first_each
from kohort.wire.journal import LegacyOffsetCommitKey, OffsetCommitKey, OffsetCommitValue, decode_key, decode_value

GROUPS_A_TASK = 20
"""Groups for each Spark task: a task costs about 20 ms to start, a group a few round trips."""
JOURNAL = "__consumer_offsets"

Row = tuple[Any, ...]
_PLACES = pa.list_(pa.struct([pa.field("topic", pa.string()), pa.field("partition", pa.int32())]))
_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "array<int>": pa.list_(pa.int32()),
    "array<string>": pa.list_(pa.string()),
    "array<struct<topic: string, partition: int>>": _PLACES,
}
_MANY = "array<struct<topic: string, partition: int>>"


@dataclass(frozen=True, slots=True)
class TableOptions(ClientOptions):
    """The options of reading one of kohort's tables of group data, such as `groups` or `lag`."""

    table: str = declare_setting(
        "table",
        "groups",
        choices=("groups", "members", "offsets", "lag", "rebalances", "topics", "commits"),
        why="what is read: groups, their members, offsets, lag and rebalances, topics, or the commits that the brokers "
        "still keep",
    )
    group_id: tuple[str, ...] | None = declare_setting("group.id", None, why="only these groups")
    subscribe: tuple[str, ...] | None = declare_setting("subscribe", None, why="only these topics")

    def kafka_settings(self) -> dict[str, Any]:
        """Return the `kafka.*` options as client settings, without the bootstrap servers."""
        return kafka_client_settings(self.kafka)


def parse_table_options(raw: Mapping[str, str]) -> TableOptions:
    """Parse the options of reading a table.

    Raises:
        InvalidInputError: a misspelt option (naming the one meant), an unknown table, no bootstrap servers.
    """
    given = classify_options(raw, TableOptions)
    if given.unknown:
        raise InvalidInputError(f"unknown option {given.unknown[0]}: a table has no such option")
    options = from_properties(TableOptions, given.own)
    client = client_settings_from_options(given.kafka, ConnectionConfig, "table")
    options.kafka.update(client.taken)
    checked_config(ConnectionConfig, options.bootstrap_servers, options.kafka_settings())
    options.ignored.extend(text for text in (*client.ignored, *given.ignored_options("a table")) if text)
    refuse_ignored_options(options.ignored, options.strict_options)
    if options.table == "topics" and options.group_id is not None:
        raise InvalidInputError("the table topics has nothing of groups: leave the option group.id out")
    if options.table in ("groups", "members", "rebalances") and options.subscribe is not None:
        raise InvalidInputError(f"the table {options.table} can't be chosen by topic: leave the option subscribe out")
    return options


@dataclass(eq=True, repr=True)
class TablePart(InputPartition):
    """The part of a table that one Spark task reads.

    It is some groups, or a range of offsets in one partition of `__consumer_offsets`, or everything.
    """

    groups: tuple[str, ...] = ()
    partition: int = -1
    start: int = 0
    end: int = 0


class TableReader(DataSourceReader):
    """The reader of `option("table", …)`: groups, members, offsets, lag, rebalances, topics or commits as rows."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    @show_reason_first
    def partitions(self) -> list[InputPartition]:
        """Return the table's tasks: one for some groups each, for each partition of `__consumer_offsets`, or one alone.

        Raises:
            NotFoundError: a group of the option group.id does not exist; the nearest is named.
            TimedOutError: no broker could be reached.
        """
        options = self._options
        with RangeReader(options.bootstrap_servers, **options.kafka_settings()) as reader:
            connect_or_fail(reader)
        if options.table == "topics":
            return [TablePart()]
        with _admin(options) as admin:
            if options.table == "commits":
                return list(_journal_parts(admin))
            names = _groups(admin, options)
        return [TablePart(tuple(names[at : at + GROUPS_A_TASK])) for at in range(0, len(names), GROUPS_A_TASK)]

    @show_reason_first_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task; an empty table has a partition without content."""
        if not isinstance(partition, TablePart):
            return
        table = TABLES[self._options.table]
        for rows in table.rows(self._options, partition):
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, kind.type) for column, kind in zip(columns, table.arrow, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=table.arrow)


@dataclass(frozen=True)
class Table:
    """One table of group data that `option("table", …)` reads.

    Attributes:
        columns: name and Spark type of each column.
        rows: yields the rows of a task, in lists that are not empty.
    """

    columns: tuple[tuple[str, str], ...]
    rows: Callable[[TableOptions, TablePart], Iterator[list[Row]]]

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, kind in self.columns)

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in self.columns])


def group_table_ddl(options: TableOptions) -> str:
    """Return the columns of one of kohort's tables of group data (the option `table`), as Spark's DDL."""
    return TABLES[options.table].ddl


def _admin(options: TableOptions) -> Admin:
    return Admin(options.bootstrap_servers, **options.kafka_settings())


def _groups(admin: Admin, options: TableOptions) -> list[str]:
    there = [group.group_id for group in admin.list_groups()]
    if options.group_id is None:
        return there
    missing = [name for name in options.group_id if name not in there]
    if missing:
        raise NotFoundError(f"there is no group {missing[0]}{did_you_mean(missing[0], there)}")
    return sorted(set(options.group_id))


def _described(admin: Admin, groups: Iterable[str]) -> list[GroupDescription]:
    """Describe groups, leaving out those that were deleted meanwhile.

    Raises:
        KafkaError: a group can't be described.
    """
    found = admin.describe_consumer_groups(list(groups))
    for error in found.errors.values():
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise error
    return [group for _, group in sorted(found.values.items())]


def _group_rows(options: TableOptions, part: TablePart) -> Iterator[list[Row]]:
    with _admin(options) as admin:
        found = _described(admin, part.groups)
    rows: list[Row] = [
        (g.group_id, g.type, g.protocol_type, g.state, g.assignor, g.epoch, len(g.members), g.coordinator)
        for g in found
    ]
    if rows:
        yield rows


def _member_rows(options: TableOptions, part: TablePart) -> Iterator[list[Row]]:
    with _admin(options) as admin:
        found = _described(admin, part.groups)
    rows: list[Row] = [
        (
            group.group_id,
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.host,
            member.rack_id,
            member.epoch,
            member.subscription,
            member.subscription_regex,
            _places(member.assignment),
            _places(member.target_assignment),
        )
        for group in found
        for member in sorted(group.members, key=lambda member: member.member_id)
    ]
    if rows:
        yield rows


def _places(partitions: Iterable[TopicPartition] | None) -> list[dict[str, Any]] | None:
    if partitions is None:
        return None
    return [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(partitions)]


def _wanted(options: TableOptions, topic: str) -> bool:
    return options.subscribe is None or topic in options.subscribe


def _offset_rows(options: TableOptions, part: TablePart) -> Iterator[list[Row]]:
    with _admin(options) as admin:
        for group in part.groups:
            found = admin.list_consumer_group_offsets(group).all()
            rows: list[Row] = [
                (group, tp.topic, tp.partition, commit.offset, commit.leader_epoch, commit.metadata)
                for tp, commit in sorted(found.items())
                if commit is not None and _wanted(options, tp.topic)
            ]
            if rows:
                yield rows


def _lag_rows(options: TableOptions, part: TablePart) -> Iterator[list[Row]]:
    with LagReader(options.bootstrap_servers, **options.kafka_settings()) as reader:
        for name in part.groups:
            report = reader.read([name])
            error = report.errors.get(name)
            if error is not None and error.code is not ErrorCode.GROUP_ID_NOT_FOUND:  # not one that ended meanwhile
                raise error
            group = report.groups.get(name)
            rows: list[Row] = []
            for lag in () if group is None else group.partitions:
                if _wanted(options, lag.partition.topic):
                    owner = lag.owner
                    names = (owner.member_id, owner.client_id, owner.host) if owner is not None else (None, None, None)
                    place = (lag.partition.topic, lag.partition.partition, lag.committed, lag.log_start, lag.log_end)
                    facts = (lag.metadata, lag.error, lag.lost_offsets, lag.position)
                    rows.append((name, *place, lag.lag, lag.time_lag_ms, *names, *facts))
            if rows:
                yield rows


def _rebalance_rows(options: TableOptions, part: TablePart) -> Iterator[list[Row]]:
    with LagReader(options.bootstrap_servers, **options.kafka_settings()) as reader:
        reader.rebalances = REBALANCES_ASKED
        report = reader.read(part.groups)
    for name, error in report.errors.items():
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise KafkaError(f"group {name!r}: {error}")
    rows: list[Row] = [
        (
            name,
            _moment(found.began_ms),
            _moment(found.ended_ms),
            found.generation,
            found.members,
            found.downtime_ms,
            list(dict.fromkeys(cause.reason for cause in found.causes)),
            rebalance_text(found),
        )
        for name, group in sorted(report.groups.items())
        for found in group.description.rebalances or ()
    ]
    if rows:
        yield rows


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def _topic_rows(options: TableOptions, part: TablePart) -> Iterator[list[Row]]:
    del part
    with _admin(options) as admin:
        infos = [info for info in admin.list_topics(internal=True) if _wanted(options, info.name)]
        if options.subscribe is not None and (missing := set(options.subscribe) - {info.name for info in infos}):
            name = min(missing)
            there = [info.name for info in admin.list_topics()]
            raise NotFoundError(f"there is no topic {name}{did_you_mean(name, there)}")
        every = [TopicPartition(info.name, number) for info in infos for number in info.partitions]
        starts = admin.list_offsets(dict.fromkeys(every, "earliest")).values
        ends = admin.list_offsets(dict.fromkeys(every, "latest")).values
    rows: list[Row] = []
    for info in infos:
        for number, place in sorted(info.partitions.items()):
            tp = TopicPartition(info.name, number)
            start, end = starts.get(tp), ends.get(tp)
            known = (start.offset if start is not None else None, end.offset if end is not None else None)
            where = (place.leader, list(place.replicas), list(place.isr))
            rows.append((info.name, str(info.topic_id), info.internal, number, *where, *known))
    if rows:
        yield rows


def _journal_parts(admin: Admin) -> Iterator[TablePart]:
    """Yield a task for each partition of `__consumer_offsets` that has records, up to its present end offset."""
    info = admin.describe_topics([JOURNAL]).values.get(JOURNAL)
    every = [TopicPartition(JOURNAL, number) for number in info.partitions] if info is not None else []
    starts, ends = (admin.list_offsets(dict.fromkeys(every, at)).all() for at in ("earliest", "latest"))
    for tp in sorted(every):
        if starts[tp].offset < ends[tp].offset:
            yield TablePart((), tp.partition, starts[tp].offset, ends[tp].offset)


def _commit_rows(options: TableOptions, part: TablePart) -> Iterator[list[Row]]:
    columns = ("key", "value", "offset", "timestamp")
    place = TopicPartition(JOURNAL, part.partition)
    with RangeReader(options.bootstrap_servers, columns=columns, **options.kafka_settings()) as reader:
        for batch in reader.read(place, part.start, part.end, fail_on_data_loss=False):
            stamps = batch.column("timestamp").cast(pa.timestamp("us", "UTC"))
            found = zip(batch.column("key"), batch.column("value"), batch.column("offset"), stamps, strict=True)
            rows = [
                row
                for key, value, offset, stamp in found
                if (row := _commit(options, key.as_py(), value.as_py(), stamp, (part.partition, offset.as_py())))
            ]
            if rows:
                yield rows


def _commit(
    options: TableOptions, key: bytes | None, value: bytes | None, stamp: Any, at: tuple[int, int]
) -> Row | None:
    """Convert an offset commit in `__consumer_offsets` to a row; a tombstone gives the row of a deleted offset.

    None for other records, and for groups and topics that the options leave out.
    """
    found = decode_key(key) if key is not None else None
    if not isinstance(found, OffsetCommitKey | LegacyOffsetCommitKey) or not _wanted(options, found.topic):
        return None
    if options.group_id is not None and found.group not in options.group_id:
        return None
    place = (found.group, found.topic, found.partition)
    if value is None:
        return (*place, None, None, None, stamp.as_py(), True, *at)
    commit = decode_value(OffsetCommitKey, value)
    assert isinstance(commit, OffsetCommitValue)
    made = pa.scalar(commit.commit_timestamp * 1000, pa.timestamp("us", "UTC")).as_py()
    return (*place, commit.offset, commit.leader_epoch, commit.metadata, made, False, *at)


_PLACE = (("group", "string"), ("topic", "string"), ("partition", "int"))
TABLES: Mapping[str, Table] = {
    "groups": Table(
        (
            ("group", "string"),
            ("type", "string"),
            ("protocolType", "string"),
            ("state", "string"),
            ("assignor", "string"),
            ("epoch", "int"),
            ("members", "int"),
            ("coordinator", "int"),
        ),
        _group_rows,
    ),
    "members": Table(
        (
            ("group", "string"),
            ("memberId", "string"),
            ("instanceId", "string"),
            ("clientId", "string"),
            ("host", "string"),
            ("rack", "string"),
            ("epoch", "int"),
            ("topics", "array<string>"),
            ("pattern", "string"),
            ("partitions", _MANY),
            ("target", _MANY),
        ),
        _member_rows,
    ),
    "offsets": Table(
        (*_PLACE, ("offset", "bigint"), ("leaderEpoch", "int"), ("metadata", "string")),
        _offset_rows,
    ),
    "lag": Table(
        (
            *_PLACE,
            ("committed", "bigint"),
            ("logStart", "bigint"),
            ("logEnd", "bigint"),
            ("lag", "bigint"),
            ("timeLagMs", "bigint"),
            ("memberId", "string"),
            ("clientId", "string"),
            ("host", "string"),
            ("metadata", "string"),
            ("error", "string"),
            ("lost", "bigint"),
            ("status", "string"),
        ),
        _lag_rows,
    ),
    "rebalances": Table(
        (
            ("group", "string"),
            ("began", "timestamp_ltz"),
            ("ended", "timestamp_ltz"),
            ("generation", "int"),
            ("members", "int"),
            ("downtimeMs", "bigint"),
            ("reasons", "array<string>"),
            ("why", "string"),
        ),
        _rebalance_rows,
    ),
    "topics": Table(
        (
            ("topic", "string"),
            ("topicId", "string"),
            ("internal", "boolean"),
            ("partition", "int"),
            ("leader", "int"),
            ("replicas", "array<int>"),
            ("inSync", "array<int>"),
            ("logStart", "bigint"),
            ("logEnd", "bigint"),
        ),
        _topic_rows,
    ),
    "commits": Table(
        (
            *_PLACE,
            ("offset", "bigint"),
            ("leaderEpoch", "int"),
            ("metadata", "string"),
            ("committedAt", "timestamp_ltz"),
            ("deleted", "boolean"),
            ("journalPartition", "int"),
            ("journalOffset", "bigint"),
        ),
        _commit_rows,
    ),
}
