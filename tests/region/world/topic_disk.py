"""The sink that ships for a Kafka topic, over a cluster in memory whose coordinator ends transactions bit by bit.

The client's own requests are left out: an error is what a call of the client raises. A transaction that is decided
becomes visible in one partition after the other. One that stays open is aborted by its timeout.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock
from uuid import UUID

import msgspec
import pyarrow as pa
from obstore.exceptions import BaseError

from kohort.errors import ErrorCode, NotFoundError, TimedOutError, error_for
from kohort.ids import TopicPartition
from kohort.region.sinks import kafka_topic
from kohort.region.sinks.kafka_topic import KafkaTopic
from kohort.region.sinks.rows import refused_rows_error
from kohort.region.sinks.staging_topic import MARKER, SinkMarker, StagingTopic
from kohort.region.staged import StagedKey
from kohort.wire.batch import BatchRecord
from tests.region.volume import Died
from tests.region.world.bucket import BucketClient, BusierFaults, StoreFaults
from tests.region.world.clock import Clock, ViolatedError
from tests.region.world.disk import Disk, Record, WorldSink, are_equal, records_of
from tests.region.world.late_publisher import NO_ORDERS, LatePublisher, orders
from tests.region.world.names import REGION, REGION_ID
from tests.region.world.object_disk import Takes

ROWS: Final = pa.schema([("value", pa.binary()), ("partition", pa.int32())])
PARTITIONS: Final = 4
TIMEOUT_MS: Final = 4_000
"""A transaction that is open for so long is aborted; some publishers are held for longer."""
MARKERS_MS: Final = 400
"""The marker of a decided transaction reaches the next partition after so long at the most."""
WAITS_MS: Final = 2_000
"""A read waits so long for the end of an open transaction."""
DECISIVE: Final = ("init_transactions", "add_partitions", "end_transaction", "delete_records")
"""Requests that meet more faults than others."""


@dataclass(eq=False)
class Open:
    """A transaction.

    Attributes:
        epoch: its producer's.
        parts: where it begins in each partition in which it has records.
        commits: whether it is committed; None: that is not decided yet.
        marked: the partitions that have its marker.
        sequence: that which it says, once it is decided.
    """

    epoch: int
    parts: dict[TopicPartition, int] = field(default_factory=dict)
    commits: bool | None = None
    marked: set[TopicPartition] = field(default_factory=set)
    sequence: int = 0


@dataclass(eq=False)
class Entry:
    """A record in a partition, of a transaction or of none."""

    record: BatchRecord
    within: Open | None


@dataclass(eq=False)
class Partition:
    """A partition's records from where it begins; markers of transactions take an offset too."""

    begin: int = 0
    end: int = 0
    entries: list[Entry] = field(default_factory=list)


class Cluster:
    """Topics, and the coordinator of the one transactional id.

    Attributes:
        epoch: of the producer that was initialised last; requests of others are refused.
        decided: called with a transaction whose commit is decided.
        changed: called when records were deleted.
        deletions: how often records of a topic were deleted, by its name.
        sequence: the last one that a transaction has said.
    """

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self.clock, self.chance = clock, chance
        self.topics: dict[str, list[Partition]] = {}
        self.deletions: Counter[str] = Counter()
        self.epoch = self.sequence = 0
        self.open: Open | None = None
        self.ending: Open | None = None
        self.decided: Callable[[Open], None] = lambda transaction: None
        self.changed: Callable[[], None] = lambda: None

    def copied(self) -> Cluster:
        """Return a backup; of a transaction that is open in it nothing is ever visible."""
        cluster = Cluster(self.clock, self.chance)
        cluster.topics, cluster.open, cluster.ending = copy.deepcopy((self.topics, self.open, self.ending))
        cluster.epoch, cluster.sequence = self.epoch, self.sequence
        cluster.settle()
        return cluster

    def delete(self, paths: Sequence[str]) -> None:
        """Nothing: a request that removes several things removes them from all partitions or from none."""

    def create(self, name: str, count: int) -> None:
        if name in self.topics:
            raise error_for(ErrorCode.TOPIC_ALREADY_EXISTS, name)
        self.topics[name] = [Partition() for _ in range(count)]

    def at(self, where: TopicPartition) -> Partition:
        if where.topic not in self.topics:
            raise NotFoundError(f"topic {where.topic}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.topics[where.topic][where.partition]

    def append(self, where: TopicPartition, record: BatchRecord, within: Open | None = None) -> None:
        if within is not None:
            self.check(within)
        partition = self.at(where)
        partition.entries.append(Entry(record._replace(offset=partition.end), within))
        partition.end += 1
        if within is not None:
            within.parts.setdefault(where, partition.end - 1)

    def stable(self, where: TopicPartition) -> int:
        """Return the last stable offset."""
        unmarked = [within for within in (self.ending, self.open) if within is not None and where not in within.marked]
        return min((within.parts[where] for within in unmarked if where in within.parts), default=self.at(where).end)

    def visible(self, where: TopicPartition, begin: int = 0, end: int = 2**62) -> list[Entry]:
        """Return what readers of committed records find in [begin, end)."""
        end = min(end, self.stable(where))
        found = [entry for entry in self.at(where).entries if begin <= entry.record.offset < end]
        return [entry for entry in found if entry.within is None or entry.within.commits]

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        for where, offset in before.items():
            partition = self.at(where)
            partition.begin = max(partition.begin, partition.end if offset < 0 else min(offset, partition.end))
            left = [entry for entry in partition.entries if entry.record.offset >= partition.begin]
            self.deletions[where.topic] += len(left) < len(partition.entries)
            partition.entries = left
        self.changed()

    # -- the coordinator

    def init(self) -> int:
        """End the transaction of the producer before, and refuse that producer from now on; return the epoch."""
        self.settle()
        self.epoch += 1
        return self.epoch

    def settle(self) -> None:
        """End what is open or decided, in all partitions."""
        if self.open is not None:
            self._decide(self.open, commits=False)
        while self.ending is not None:
            self._mark(self.ending)

    def begin(self, transaction: Open) -> None:
        self._check_epoch(transaction)
        self.open = transaction
        self.clock.after(TIMEOUT_MS, lambda: self._time_out(transaction))

    def _time_out(self, transaction: Open) -> None:
        if self.open is transaction:
            self.clock.log("a transaction of a topic's publisher is aborted, since it is open for too long")
            self.epoch += 1
            self._decide(transaction, commits=False)

    def end_in_time(self) -> None:
        """Do at once what comes with time, for a process that can't wait now: a timeout, and all markers."""
        if self.open is not None:
            self._time_out(self.open)
        self.settle()

    def end(self, transaction: Open) -> None:
        """Commit a transaction: it is decided, and becomes visible later."""
        self.check(transaction)
        self._decide(transaction, commits=True)

    def check(self, transaction: Open) -> None:
        self._check_epoch(transaction)
        if self.open is not transaction:
            raise error_for(ErrorCode.INVALID_TXN_STATE, "a transaction that has ended")

    def _check_epoch(self, transaction: Open) -> None:
        if transaction.epoch != self.epoch:
            raise error_for(ErrorCode.PRODUCER_FENCED, f"epoch {transaction.epoch} is over")

    def _decide(self, transaction: Open, *, commits: bool) -> None:
        while self.ending is not None:
            self._mark(self.ending)
        self.open, self.ending = None, transaction
        transaction.commits = commits
        if commits:
            self.decided(transaction)
        self._mark_later(transaction)

    def _mark_later(self, transaction: Open) -> None:
        def mark() -> None:
            if self.ending is transaction:
                self._mark(transaction)
                self._mark_later(transaction)

        self.clock.after(self.chance.randint(1, MARKERS_MS), mark)

    def _mark(self, transaction: Open) -> None:
        """Write the marker into one more partition."""
        left = [where for where in transaction.parts if where not in transaction.marked]
        if left:
            where = self.chance.choice(left)
            self.at(where).end += 1
            transaction.marked.add(where)
        if len(left) < 2:
            self.ending = None


class TopicClient(BucketClient):
    """A cluster as one process's client asks it."""

    cluster: Cluster

    def __init__(self, cluster: Cluster, faults: StoreFaults | None, decisive: StoreFaults | None = None) -> None:
        super().__init__(cluster, faults)  # type: ignore[arg-type]
        self.cluster, self._usual, self._decisive = cluster, faults, decisive

    def ask(self, name: str, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        self._faults = self._decisive if name in DECISIVE else self._usual
        try:
            return self._ask(name, "", effect, writes=writes)
        except BaseError as error:
            raise TimedOutError(f"{name}: {error}") from None

    def wait(self, wait_ms: int) -> bool:
        """Let time pass, if this process may wait now."""
        if not self.may_wait() or not self.cluster.clock.may_hold():
            return False
        self.cluster.clock.run(self.cluster.clock.now_ms + wait_ms)
        if self.calls.dead:
            raise Died
        return True


class WorldTopicProducer:
    """A producer, with a transactional id or without."""

    def __init__(self, client: TopicClient) -> None:
        self._client, self._cluster = client, client.cluster
        self._epoch = -1
        self._transaction: Open | None = None

    def __enter__(self) -> WorldTopicProducer:
        return self

    def __exit__(self, *given: object) -> None:
        self.close()

    def init_transactions(self) -> None:
        def begin() -> None:
            self._epoch = self._cluster.init()

        self._client.ask("init_transactions", begin, writes=True)

    def begin_transaction(self) -> None:
        self._transaction = Open(self._epoch)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: str | None = None,
        *,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> Any:
        """Send a record; the error of its request comes with the next call."""
        name = None if key is None else key.encode()
        record, where = BatchRecord(0, 0, name, value, tuple(headers)), TopicPartition(topic, partition)
        within = self._transaction
        if within is not None and not within.parts:
            self._client.ask("add_partitions", lambda: self._cluster.begin(within), writes=True)
        self._client.ask("produce", lambda: self._cluster.append(where, record, within), writes=True)
        return SimpleNamespace(result=lambda: None)

    def send_arrow(self, topic: str, table: pa.Table, *, columns: Any) -> None:
        del columns
        for value, partition in zip(table["value"].to_pylist(), table["partition"].to_pylist(), strict=True):
            self.send(topic, value, partition=partition)

    def commit_transaction(self) -> None:
        transaction, self._transaction = self._transaction, None
        assert transaction is not None
        self._client.ask("end_transaction", lambda: self._cluster.end(transaction), writes=True)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self, timeout_ms: float | None = None) -> None:
        """Leave what is open open, as a client does that was not closed by its process."""
        del timeout_ms


class WorldTopicReader:
    """A reader of committed records."""

    def __init__(self, client: TopicClient) -> None:
        self._client, self._cluster = client, client.cluster

    def __enter__(self) -> WorldTopicReader:
        return self

    def __exit__(self, *given: object) -> None:
        """Nothing is held."""

    def present_topics(self, topics: Sequence[str]) -> dict[str, Any]:
        return self._client.ask("metadata", lambda: {name: topic_of(self._cluster, name) for name in topics})

    def current_offsets(self, wanted: Mapping[TopicPartition, str]) -> dict[TopicPartition, Any]:
        def found() -> dict[TopicPartition, Any]:
            cluster, there = self._cluster, [where for where in wanted if where.topic in self._cluster.topics]
            return {
                where: SimpleNamespace(
                    offset=cluster.at(where).begin if wanted[where] == "earliest" else cluster.stable(where)
                )
                for where in there
            }

        return self._client.ask("list_offsets", found)

    def high_watermark(self, where: TopicPartition) -> int:
        return self._client.ask("list_offsets", lambda: self._cluster.at(where).end)

    def read_batches(self, where: TopicPartition, start: int, end: int) -> Iterator[tuple[None, list[BatchRecord]]]:
        """Yield records up to an offset; wait for transactions that are open before it."""
        if start >= end:
            return
        for _ in range(WAITS_MS // 100):
            self._client.ask("fetch", lambda: None)
            if self._cluster.stable(where) >= end:
                break
            if not self._client.wait(100):
                self._cluster.end_in_time()
        if self._cluster.stable(where) < end:
            raise TimedOutError(f"{where}: a transaction is open before {end}")
        yield None, [entry.record for entry in self._cluster.visible(where, start, end)]


class WorldTopicAdmin:
    """The client's administration."""

    def __init__(self, client: TopicClient) -> None:
        self._client, self._cluster = client, client.cluster

    def __enter__(self) -> WorldTopicAdmin:
        return self

    def __exit__(self, *given: object) -> None:
        """Nothing is held."""

    def _done(self, name: str, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        return SimpleNamespace(all=lambda: self._client.ask(name, effect, writes=writes))

    def describe_topics(self, topics: Sequence[str]) -> Any:
        return self._done("metadata", lambda: {name: topic_of(self._cluster, name) for name in topics})

    def create_topics(self, topics: Sequence[Any]) -> Any:
        def create() -> None:
            for topic in topics:
                self._cluster.create(topic.name, 2 if topic.name.endswith(".kohort-sink") else PARTITIONS)

        return self._done("create_topics", create, writes=True)

    def describe_configs(self, resources: Sequence[Any]) -> Any:
        said = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        values = {name: SimpleNamespace(value=value) for name, value in said.items()}
        return self._done("describe_configs", lambda: dict.fromkeys(resources, values))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> Any:
        return self._done("delete_records", lambda: self._cluster.delete_records(before), writes=True)

    def _check_rights(self, transactional_id: str, topics: Sequence[str]) -> None:
        del transactional_id, topics


def topic_of(cluster: Cluster, name: str) -> Any:
    """Return what metadata says of a topic."""
    if name not in cluster.topics:
        raise NotFoundError(f"topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return SimpleNamespace(topic_id=UUID(int=1), partitions=range(len(cluster.topics[name])))


class WorldStagingTopic(StagingTopic):
    """The staging topic, as one process asks for it."""

    def __init__(self, topic: str, client: TopicClient) -> None:
        super().__init__("", topic, {})
        self._client = client

    def _reader(self) -> Any:
        return WorldTopicReader(self._client)

    def _new_producer(self) -> Any:
        return WorldTopicProducer(self._client)


class TopicSink(WorldSink, KafkaTopic):
    """The topic as one process sees it."""

    def __init__(self, disk: TopicDisk, client: TopicClient) -> None:
        super().__init__("world:9092", disk.topic, transaction_timeout_ms=TIMEOUT_MS)
        self.disk, self.client, self.calls = disk, client, client.calls

    @property
    def _staging_topic(self) -> StagingTopic:
        return WorldStagingTopic(self.topic, self.client)

    def _admin(self) -> Any:
        return WorldTopicAdmin(self.client)

    def _new_producer(self, largest: int) -> Any:
        del largest
        return WorldTopicProducer(self.client)

    def check(self, schema: pa.Schema) -> None:
        del schema
        KafkaTopic.check(self, ROWS)

    def check_rows(self, table: pa.Table) -> pa.Table:
        if table.column_names == ROWS.names:
            return KafkaTopic.check_rows(self, table)
        bad = [row for row, record in enumerate(records_of(table)) if not self.disk.takes(record)]
        if bad:
            raise refused_rows_error(dict.fromkeys(bad[: 1 + bad[0] % 3], "bad"), table, "offset")
        return KafkaTopic.check_rows(self, rows_of(table))

    def stage(self, key: StagedKey, table: pa.Table) -> None:
        super().stage(key, rows_of(table) if "offset" in table.column_names else ROWS.empty_table())

    def publish(self, sequence: int, keys: Any) -> None:
        disk = self.disk
        assert isinstance(disk, TopicDisk)
        named = list(keys)
        disk.ordered = orders(sequence, named)
        disk.publishers.append(self.client)
        try:
            super().publish(sequence, named)
        finally:
            disk.publishers.pop()


def rows_of(table: pa.Table) -> pa.Table:
    """Return the rows of a topic for the records of which rows were made."""
    records = records_of(table)
    values = [b"%d %d\n" % record for record in records]
    return pa.table([pa.array(values, pa.binary()), pa.array([part for part, _ in records], pa.int32())], schema=ROWS)


def halves_of(rows: pa.Table) -> list[bytes]:
    """Return staged rows in two pieces, in place of an Arrow stream."""
    values = rows["value"].to_pylist()
    return [b"".join(values[::2]), b"".join(values[1::2])]


def whole_of(pieces: Sequence[bytes]) -> pa.Table:
    """Return the rows in pieces."""
    lines = b"".join(pieces).splitlines(keepends=True)
    numbers = pa.array([int(line.split()[0]) for line in lines], pa.int32())
    return pa.table([pa.array(lines, pa.binary()), numbers], schema=ROWS)


class TopicDisk(Disk):
    """A topic in a cluster, and what has to be in it.

    Attributes:
        cluster: the cluster.
        ordered: what somebody was told to publish last.
        publishers: the clients that publish now, the innermost last.
    """

    def __init__(self, path: str, takes: Takes, faults: StoreFaults) -> None:
        super().__init__(path, takes)
        self.faults, self.topic = faults, path.strip("/")
        self.ordered = NO_ORDERS
        self.publishers: list[TopicClient] = []
        self._skipped_s = 0.0
        self.decisive = BusierFaults(faults, f"coordinator of {path}")
        self._use(Cluster(faults._clock, random.Random(f"{faults._chance.random()}: coordinator of {path}")))

    def _use(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._found: dict[Open, Counter[Record]] = {}
        self._read: dict[TopicPartition, int] = {}
        self._read_at = -1
        cluster.changed, cluster.decided = self.check, self._decided
        self.place = TopicSink(self, TopicClient(cluster, None)).place

    @contextlib.contextmanager
    def in_virtual_time(self) -> Iterator[None]:
        """Have publishers wait for one another in virtual time, and leave out the encoding of staged rows."""
        clock = self.cluster.clock
        virtual = SimpleNamespace(
            monotonic=lambda: clock.now_ms / 1000 + self._skipped_s, time=lambda: 10**9 + clock.now_ms / 1000,
            sleep=self._sleep,
        )  # fmt: skip
        with (
            mock.patch.object(kafka_topic, "time", virtual),
            mock.patch.object(kafka_topic, "CHANCE", random.Random(7)),
            mock.patch.object(kafka_topic, "split_into_pieces", halves_of),
            mock.patch.object(kafka_topic, "join_pieces", whole_of),
        ):
            yield

    def _sleep(self, sleep_s: float) -> None:
        if not self.publishers or not self.publishers[-1].wait(int(sleep_s * 1000)):
            self._skipped_s += 10 * sleep_s

    def open_sink(self, may_wait: Callable[[], bool] | None = None) -> TopicSink:
        given = (None, None) if may_wait is None else (self.faults, self.decisive)
        client = TopicClient(self.cluster, *given)
        if may_wait is not None:
            client.may_wait = may_wait
        return TopicSink(self, client).bind(REGION, REGION_ID)

    def besides(self, clock: Clock, seed: int, era: Callable[[], object]) -> list[Any]:
        """Return another publisher, which comes late."""
        return [LatePublisher(clock, self, seed, era)]

    def backup(self) -> Cluster:
        """Return a copy of the cluster."""
        return self.cluster.copied()

    def restore(self, backup: Cluster) -> None:
        """Be as when the copy was made."""
        self.cluster.changed, self.cluster.decided = lambda: None, lambda transaction: None
        self._use(backup.copied())
        self.ordered = NO_ORDERS

    def settle(self) -> None:
        """End all transactions, as time does."""
        self.cluster.end_in_time()

    def lose_power(self, chance: random.Random) -> None:
        """The cluster is elsewhere: nothing is lost."""

    def _parts(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(len(self.cluster.topics.get(self.topic, ())))]

    def _expected(self) -> dict[int, Counter[Record]]:
        return {**self.void, **self.wanted}

    def _rows(self) -> dict[Open, Counter[Record]]:
        """Return the rows that are committed and not deleted, by their transactions.

        Entries that were read before are read again only if some were deleted.
        """
        deletions = self.cluster.deletions[self.topic]
        if self._read_at != deletions:
            self._found, self._read, self._read_at = {}, {}, deletions
        for where in self._parts():
            entries = self.cluster.at(where).entries
            for entry in itertools.islice(entries, self._read.get(where, 0), None):
                if entry.within is not None:
                    self._found.setdefault(entry.within, Counter())[_record_in(entry, where)] += 1
            self._read[where] = len(entries)
        return {transaction: rows for transaction, rows in self._found.items() if transaction.commits}

    def _decided(self, transaction: Open) -> None:
        """A transaction has the rows of the sequence in its marker, all of them, and no other has had them.

        Raises:
            ViolatedError: it has others.
        """
        where = TopicPartition(StagingTopic.staging_topic_name(self.topic), MARKER)
        said = [entry.record.value for entry in self.cluster.at(where).entries if entry.within is transaction]
        if not said or said[-1] is None:
            raise ViolatedError(f"a transaction in {self.place} says no sequence")
        marker = msgspec.json.decode(said[-1], type=SinkMarker)
        rows = self._rows().get(transaction, Counter())
        before, transaction.sequence = self.cluster.sequence, marker.sequence
        self.cluster.sequence = marker.sequence
        if marker.emptied or (marker.sequence == before and not rows):
            wanted: Counter[Record] | None = Counter()
        else:
            wanted = self._expected().get(marker.sequence)
        if wanted is None or not are_equal(rows, wanted):
            raise ViolatedError(f"sequence {marker.sequence} in {self.place}, after {before}: {rows}, not {wanted}")
        if rows and marker.sequence <= before:
            raise ViolatedError(f"sequence {marker.sequence} is in {self.place} after {before}")

    def shown(self) -> set[int]:
        """Return the sequences whose rows are there."""
        return {transaction.sequence for transaction in self._rows()}

    def check(self) -> None:
        """Each sequence that is there is there as a whole, unless it is void.

        Raises:
            ViolatedError: it is not.
        """
        shown: set[int] = set()
        for transaction, rows in self._rows().items():
            number = transaction.sequence
            if number in self.wanted and not are_equal(rows, self.wanted[number]):
                raise ViolatedError(f"sequence {number} in {self.place} lacks {self.wanted[number] - rows}")
            if number not in self._expected():
                raise ViolatedError(f"sequence {number} is in {self.place} and not complete")
            if number in shown:
                raise ViolatedError(f"sequence {number} is in {self.place} twice")
            shown.add(number)


def _record_in(entry: Entry, where: TopicPartition) -> Record:
    assert entry.record.value is not None
    partition, offset = map(int, entry.record.value.split())
    if partition != where.partition:
        raise ViolatedError(f"{entry.record.value!r} is in {where}")
    return partition, offset
