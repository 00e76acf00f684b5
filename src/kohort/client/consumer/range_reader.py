"""Reader of offset ranges without a group: large fetches, one prefetched, bounded memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from uuid import UUID

from kohort.client.consumer.fetching import FETCH_LANE, MOVED, REPLICA_LEASE_MS, FetchEntry, fetch_request
from kohort.client.consumer.positions import CONFIRM_MS
from kohort.client.consumer.subscription import FetchPosition
from kohort.client.lookups import LookupMethods
from kohort.client.net.cluster import BrokerById
from kohort.client.net.health import check_reachable
from kohort.client.net.metadata import TopicInfo
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.net.topic_existence import present_topics
from kohort.client.offsets import EARLIEST, LATEST, OffsetAndTimestamp, list_offsets, topic_names
from kohort.client.settings import ConsumerConfig, client_config
from kohort.columns import COLUMNS, DecodeOptions, RecordSet, damage_error, decode_all, extent
from kohort.columns.shapes import DECODED_BYTES
from kohort.errors import (
    CorruptDataError,
    ErrorCode,
    KafkaError,
    NotFoundError,
    OffsetError,
    TimedOutError,
    error_for,
)
from kohort.ids import TopicPartition
from kohort.io.closing import ClosedOnExit
from kohort.settings.arguments import check_call_arguments, checks_arguments
from kohort.wire.batch import HEADER_SIZE, BatchHeader, BatchRecord, has_valid_crc, parse_header
from kohort.wire.discovery import MetadataRequest
from kohort.wire.records import read_records

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("kohort.client")

When: TypeAlias = Literal["earliest", "latest"] | int
_NAMED_TIMES = {"earliest": EARLIEST, "latest": LATEST}
_Losses: TypeAlias = Literal["all", "truncated", "nothing"]
_ALL: Final = "all"
_TRUNCATED: Final = "truncated"
_NOTHING: Final = "nothing"
"""Which lost records are an error: all, those that the log was truncated before, or none."""
_ABORT = b"\0\0\0\0"
"""The key of a control record that ends a transaction without its records: version 0, type 0."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The record set that one fetch returned, not decoded.

    `next_offset` is where the next fetch begins; -1: the set has no records.
    """

    records: memoryview
    aborted: list[tuple[int, int]]
    start: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class _ReadTarget:
    """The partition to read, with the topic id that it must have (None: any topic of that name)."""

    partition: TopicPartition
    topic_id: UUID | None


@checks_arguments
class RangeReader(LookupMethods, ClosedOnExit):
    """A reader of offsets [start, end) of partitions as Arrow batches.

        with RangeReader("127.0.0.1:9092", columns=("key", "value", "offset")) as reader:
            for batch in reader.read(TopicPartition("flights", 0), 0, 100_000):
                ...

    The connections are kept between reads. Memory holds at most three fetch responses of `fetch_bytes`. One thread may
    use it at a time.
    """

    @check_call_arguments
    def __init__(
        self,
        bootstrap_servers: str | list[str],
        *,
        columns: Sequence[str] | None = None,
        fetch_bytes: int = 8 * 1024 * 1024,
        **settings: Any,
    ) -> None:
        """Make a reader, which connects with the first call.

        Args:
            bootstrap_servers: HOST:PORT, several with commas between or as a list.
            columns: Out of key, value, topic, partition, offset, timestamp, timestampType, headers; None: all.
            fetch_bytes: Bytes per fetch of one partition.
            **settings: Settings of `ConsumerConfig` (isolation_level, check_crcs, security …), by either kind of name.
        """
        config = client_config(ConsumerConfig, bootstrap_servers, settings)
        super().__init__(ThreadClient(config), config)
        self._options = DecodeOptions(
            columns=COLUMNS if columns is None else tuple(columns),
            read_committed=self.config.isolation_level == "read_committed",
            check_crcs=self.config.check_crcs,
            max_bytes=min(DECODED_BYTES, self.config.max_decompressed_batch_bytes),
            max_batch_bytes=self.config.max_decompressed_batch_bytes,
        )
        self._fetch_bytes = fetch_bytes
        self._nearer: dict[TopicPartition, tuple[int, float]] = {}  # replicas that leaders have named, and until when
        self._silent: set[TopicPartition] = set()  # partitions whose broker has not answered: another may lead by now

    def read(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        fail_on_data_loss: bool = True,
        topic_id: UUID | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches with the records of [start, end), in order, each from at most one fetch response.

        Offsets without a record (compacted, control, aborted records) are skipped.

        Args:
            partition: The partition.
            start: The first offset.
            end: The offset after the last one. If it lies after the partition's end, `read` waits for data until
                `default_api_timeout_ms` has passed without any.
            fail_on_data_loss: If False, pass over what is gone, with a warning: continue at the first available offset
                when retention has removed a part, and end when the log was truncated before the position. If it was
                truncated within the range, end after `default_api_timeout_ms` without data.
            topic_id: The id of the topic that the offsets belong to: another topic of the same name is not read. None:
                the topic that has the name at the time.

        Raises:
            NotFoundError: The topic of `topic_id` was deleted or recreated.
            OffsetError: A part of the range is no longer available; names offsets.
            TimedOutError: No data for `default_api_timeout_ms`.
            CorruptDataError: A batch is damaged; names its offset.
        """
        if start >= end:
            return
        of = _ReadTarget(partition, topic_id)
        position = start
        lost: _Losses = _ALL if fail_on_data_loss else _NOTHING
        ahead = self._client.submit(self._fetch(of, position, end, lost))
        try:
            while position < end:
                answer = ahead.result()
                position = answer.next_offset
                if position < end:
                    ahead = self._client.submit(self._fetch(of, position, end, lost))
                yield from self._decode(partition, answer, end)
        finally:
            ahead.cancel()

    def _decode(self, partition: TopicPartition, answer: _Answer, end: int) -> Iterator[pa.RecordBatch]:
        given = RecordSet(partition.topic, partition.partition, answer.records, answer.start, end, answer.aborted)
        for decoded in decode_all([given], self._options):
            if decoded.num_rows:
                yield decoded.to_arrow()
            damage = decoded.ranges[0].damage
            if damage is not None and damage.offset < end:
                raise damage_error(given, damage, self._options)

    def read_batches(
        self, partition: TopicPartition, start: int, end: int
    ) -> Iterator[tuple[BatchHeader, list[BatchRecord]]]:
        """Yield the header and records of each batch in [start, end); headers name the producer.

        `read` yields columns instead, without headers.

        Control batches and batches of aborted transactions are left out, as are records before `start`. Records that
        retention has removed are skipped.

        Raises:
            OffsetError: The log was truncated before the position.
            TimedOutError: No data for `default_api_timeout_ms`, for example since a transaction stays open.
            CorruptDataError: A batch is damaged.
        """
        of = _ReadTarget(partition, None)
        while start < end:
            answer = self._client.call(self._fetch(of, start, end, _TRUNCATED))
            aborting: set[int] = set()
            aborted = sorted(answer.aborted, key=lambda entry: entry[1])
            at, stop = 0, len(answer.records)
            while at + HEADER_SIZE <= stop:
                header = parse_header(answer.records, at)
                batch = answer.records[at : at + header.size]
                at += header.size
                if at > stop:
                    break  # the last batch of a response may be cut off
                if not has_valid_crc(batch, header):
                    raise CorruptDataError(f"{partition}: the checksum of the batch at {header.base_offset} is wrong")
                while aborted and aborted[0][1] <= header.last_offset:
                    aborting.add(aborted.pop(0)[0])
                if header.is_control:
                    if any(bytes(record.key or b"") == _ABORT for record in read_records(batch)):
                        aborting.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborting):
                    yield header, [record for record in read_records(batch) if start <= record.offset < end]
            start = answer.next_offset

    def high_watermark(self, partition: TopicPartition) -> int:
        """Return the partition's high watermark: its end offset, after records of open transactions too."""
        return self._client.call(list_offsets(self._client.cluster, {partition: LATEST}))[partition].offset

    async def _fetch(self, of: _ReadTarget, offset: int, end: int, lost: _Losses) -> _Answer:
        cluster, partition = self._client.cluster, of.partition
        limit_ms = self.config.default_api_timeout_ms
        deadline = cluster.runtime.now_ms + limit_ms
        doubted_ms: float | None = None
        while True:
            answer = await cluster.retry_call(partial(self._attempt, of, offset), f"fetch of {partition}", limit_ms)
            if answer is None:
                now_ms = cluster.runtime.now_ms
                doubted_ms = now_ms if doubted_ms is None else doubted_ms
                if now_ms - doubted_ms < CONFIRM_MS:
                    await cluster.runtime.sleep(self.config.retry_backoff_ms)
                    await self._refresh(of)
                    continue
                resumed = await self._resume(of, offset, end, lost)
                if resumed >= end:
                    return _Answer(memoryview(b""), [], resumed, resumed)
                if resumed > offset:
                    offset = resumed
                    continue
                await cluster.runtime.sleep(self.config.retry_backoff_ms)
            elif answer.next_offset > offset:
                return answer
            if cluster.runtime.now_ms >= deadline:
                self._nearer.pop(partition, None)
                if lost == _NOTHING and await self._is_cut_off(of, offset, end):
                    return _Answer(memoryview(b""), [], end, end)
                raise TimedOutError(
                    f"{partition}: no data at offset {offset} (of a range up to {end}) for {limit_ms} ms"
                )

    async def _attempt(self, of: _ReadTarget, offset: int) -> _Answer | None:
        """Send one Fetch from this offset, and return the record set; None if the offset is out of range."""
        cluster, partition = self._client.cluster, of.partition
        if partition in self._silent:
            await self._refresh(of)
            self._silent.discard(partition)
        leader = await self._leader(of)
        node = self._nearer_replica(partition, leader)
        request = fetch_request(
            cluster, self.config, [FetchEntry(partition, FetchPosition(offset), self._fetch_bytes)], self._fetch_bytes
        )
        timeout_ms = self.config.request_timeout_ms + self.config.fetch_max_wait_ms
        try:
            answer = await cluster.send(request, BrokerById(node), timeout_ms=timeout_ms, channel=FETCH_LANE)
            if answer.error_code or not answer.responses:
                raise error_for(answer.error_code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} can't be read")
        except KafkaError:
            self._nearer.pop(partition, None)
            self._silent.add(partition)
            raise
        part = answer.responses[0].partitions[0]
        code = ErrorCode.of(part.error_code)
        if part.preferred_read_replica >= 0:
            self._nearer[partition] = part.preferred_read_replica, cluster.runtime.now_ms + REPLICA_LEASE_MS
        elif code is not ErrorCode.NONE:
            self._nearer.pop(partition, None)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and node != leader:  # a replica may lag: only the leader knows
            await cluster.runtime.sleep(self.config.retry_backoff_ms)
            return _Answer(memoryview(b""), [], offset, -1)
        if code in MOVED:
            await self._refresh(of)
        elif of.topic_id is not None and answer.responses[0].topic_id != of.topic_id:
            await self._refuse_another(of, node)  # the fetch went by name
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        if code is not ErrorCode.NONE:
            raise error_for(code, f"{partition} can't be read: {part.damage or code.text}")
        records = part.records if part.records is not None else memoryview(b"")
        aborted = [(txn.producer_id, txn.first_offset) for txn in part.aborted_transactions or ()]
        return _Answer(records, aborted, offset, extent(records).next_offset)

    def _nearer_replica(self, partition: TopicPartition, leader: int) -> int:
        """Return the broker to fetch from: the replica that the leader has named, instead of sending records.

        A leader names one to clients with `client.rack`, and goes on naming it. Source: KIP-392.
        """
        node, until_ms = self._nearer.get(partition, (leader, 0.0))
        cluster = self._client.cluster
        return node if cluster.runtime.now_ms < until_ms and node in cluster.metadata.brokers else leader

    async def _leader(self, of: _ReadTarget) -> int:
        cluster, partition = self._client.cluster, of.partition
        if of.topic_id is None:
            return await cluster.leader(partition)
        if cluster.metadata.topic_id(partition.topic) != of.topic_id or cluster.metadata.leader(partition) < 0:
            await self._refuse_another(of)
        node = cluster.metadata.leader(partition)
        if node < 0:
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader of {partition} is known")
        return node

    async def _refresh(self, of: _ReadTarget) -> None:
        if of.topic_id is None:
            await self._client.cluster.describe_topics([of.partition.topic])
        else:
            await self._refuse_another(of)

    async def _refuse_another(self, of: _ReadTarget, node: int | None = None) -> None:
        """Raise NotFoundError if the topic was deleted or recreated: its name no longer has the topic id that is read.

        Args:
            of: The partition to read, with the topic id.
            node: The broker that answered a fetch by name: it is asked first. None: only current metadata is asked for.

        Raises:
            NotFoundError: The name belongs to another topic, or to none, or the topic lacks the partition.
        """
        topic = of.partition.topic
        if node is not None:
            named = MetadataRequest.MetadataRequestTopic(name=topic)
            request = MetadataRequest(topics=[named], allow_auto_topic_creation=False)
            responding = (await self._client.cluster.send(request, BrokerById(node))).topics
            if any(assignable_topic.topic_id == of.topic_id for assignable_topic in responding):
                return
        current = (await present_topics(self._client.cluster, [topic])).get(topic)
        if current is None:
            raise NotFoundError(f"topic {topic} (id {of.topic_id}) was deleted")
        if current.topic_id != of.topic_id:
            raise NotFoundError(
                f"topic {topic} was deleted and made again: its id was {of.topic_id} and is {current.topic_id} now"
            )
        if of.partition.partition not in current.partitions:
            raise NotFoundError(f"{of.partition} does not exist")

    async def _resume(self, of: _ReadTarget, offset: int, end: int, lost: _Losses) -> int:
        """Return the offset to continue from after OFFSET_OUT_OF_RANGE, at most `end`.

        Raises:
            OffsetError: Records are lost, and that is an error.
        """
        cluster, partition = self._client.cluster, of.partition
        gone = of.topic_id is not None
        first, last = [
            (await list_offsets(cluster, {partition: which}, skip_missing_partitions=gone)).get(partition)
            for which in (EARLIEST, LATEST)
        ]
        if gone:
            await self._refuse_another(of)
        if first is None or last is None:
            raise NotFoundError(f"{partition} does not exist")
        holds = f"the partition holds {first.offset} to {last.offset}"
        text = f"{partition}: offsets {offset} to {end} were asked for, {holds}"
        if lost == _ALL or (lost == _TRUNCATED and offset > last.offset):
            raise OffsetError(text, partition=partition)
        resumed = end if offset > last.offset else min(end, max(first.offset, offset))
        if resumed > offset:
            log.warning("records lost: %s; continuing at offset %d", text, resumed)
        return resumed

    async def _is_cut_off(self, of: _ReadTarget, offset: int, end: int) -> bool:
        """Return whether the partition now ends at or before `offset`: the rest of the range was truncated."""
        found = await list_offsets(
            self._client.cluster, {of.partition: LATEST}, skip_missing_partitions=of.topic_id is not None
        )
        if of.topic_id is not None:
            await self._refuse_another(of)
        last = found.get(of.partition)
        if last is None or last.offset > offset:
            return False
        text = f"{of.partition}: offsets {offset} to {end} were asked for, the partition ends at {last.offset}"
        log.warning("records lost: %s; continuing at offset %d", text, end)
        return True

    def check_reachable(self, timeout_ms: float) -> None:
        """Connect to a broker within a time limit.

        Raises:
            TimedOutError: No broker could be connected; names addresses and causes.
            KafkaError: A login was refused, or another error that a retry does not cure; raised at once.
        """
        self._client.call(check_reachable(self._client.cluster, timeout_ms))

    def present_topics(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """Return those topics that exist, with their ids and partitions, by a metadata request and not from a cache.

        Raises:
            KafkaError: A topic is not visible for another reason than that it does not exist.
        """
        return self._client.call(present_topics(self._client.cluster, topics))

    def current_offsets(self, wanted: Mapping[TopicPartition, When]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Look up the first offset at or after a time, or the first or end offset, of all partitions that exist.

        Args:
            wanted: Milliseconds since the epoch, "earliest", or "latest" (as `end_offsets` means it), by partition.

        Returns:
            The offsets; `offset` is -1 if no record is at or after the time. Partitions that do not exist are left out;
            the call does not wait for them to appear.
        """
        committed = self.config.isolation_level == "read_committed"
        times = {tp: when if isinstance(when, int) else _NAMED_TIMES[when] for tp, when in wanted.items()}
        return self._client.call(
            list_offsets(self._client.cluster, times, read_committed=committed, skip_missing_partitions=True)
        )

    def topics(self, timeout_ms: float | None = None) -> list[str]:
        """Return all topics, sorted; internal ones left out."""
        return self._client.call(topic_names(self._client.cluster, timeout_ms))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
