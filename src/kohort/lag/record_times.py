"""Timestamps of the oldest unread records, by few and small fetches.

A fetch can name a partition once, and groups stand at different offsets of it. So offsets of one partition go into
different rounds. What a read does not get to, a later one does; `evaluate` bounds the time lag until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kohort.client.net.cluster import Between, BrokerById, Cluster
from kohort.errors import CorruptDataError, ErrorCode, KafkaError, error_for
from kohort.ids import TopicPartition
from kohort.lag.snapshot import NO_RECORD, UNDATED, PartitionBounds, ReadFailure
from kohort.wire.batch import HEADER_SIZE, parse_header
from kohort.wire.data import FetchRequest, FetchResponse
from kohort.wire.records import read_records
from kohort.wire.schema import Buffer

OFFSETS_MAX = 500
"""The most offsets that a read looks up by fetches. 16 MiB of records at most, as each gets `FETCH_BYTES`."""
ROUNDS_MAX = 4
"""The most fetches that a read sends to a broker, one after the other."""
FETCH_BYTES = 32 << 10
"""Enough for a batch of Kafka's default size (16 KiB). A larger first batch is fetched alone."""
ALONE_MAX = 20
"""The most fetches of single partitions in a read, for large batches."""
ALONE_BYTES = 1
"""A broker returns the first batch of the first partition whole, whatever the limit (KIP-74)."""
RESPONSE_BYTES = 16 << 20
BATCH_BYTES_MAX = 16 << 20
"""The most that a batch may decompress to; the records of a larger one are undated."""
HIGHEST_BY_NAME = 12
"""The highest version of Fetch that names topics."""
DELETE_HORIZON = 0x40
"""The attribute of a batch whose base timestamp is not its first record's (KIP-534)."""
_ABORT = b"\0\0\0\0"

FetchedPartition: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData
Offset: TypeAlias = tuple[TopicPartition, int]
Aborted: TypeAlias = Sequence[tuple[int, int]]
"""Producer id and first offset of aborted transactions."""


def first_record_timestamp(records: Buffer, offset: int, aborted: Aborted = ()) -> tuple[int | None, int]:
    """Find the timestamp of the first record at or after an offset in fetched batches.

    Control records and records of aborted transactions are skipped.

    Returns:
        The timestamp, and the offset after the last batch that was looked at. The timestamp is `UNDATED` if the record
        has none, and None if these batches have no such record.
    """
    data = memoryview(records)
    at, reached = 0, offset
    starting, aborting = sorted(aborted, key=lambda entry: entry[1]), set[int]()
    while at + HEADER_SIZE <= len(data):
        header = parse_header(data, at)
        batch = data[at : at + header.size]
        at += header.size
        if at > len(data):
            break  # the last batch of a response may be cut off
        reached = max(reached, header.next_offset)
        while starting and starting[0][1] <= header.last_offset:
            aborting.add(starting.pop(0)[0])
        if header.is_control:
            if header.producer_id in aborting and any(bytes(r.key or b"") == _ABORT for r in read_records(batch)):
                aborting.discard(header.producer_id)
            continue
        if header.last_offset < offset or (header.is_transactional and header.producer_id in aborting):
            continue
        if header.is_log_append_time:
            return _dated(header.max_timestamp), reached
        if header.base_offset >= offset and header.records_count and not header.attributes & DELETE_HORIZON:
            return _dated(header.base_timestamp), reached
        for record in read_records(batch, BATCH_BYTES_MAX):
            if record.offset >= offset:
                return _dated(record.timestamp), reached
    return None, reached


def _dated(timestamp_ms: int) -> int:
    return timestamp_ms if timestamp_ms >= 0 else UNDATED


@dataclass(slots=True)
class _Search:
    """The search for the timestamp of the first record at or after an offset; it may take several fetches."""

    offset: Offset
    at: int
    bounds: PartitionBounds
    is_committed: bool = True

    @property
    def partition(self) -> TopicPartition:
        """The partition in which the record is searched."""
        return self.offset[0]


@dataclass(slots=True)
class RecordTimes:
    """A cache of the timestamps of groups' oldest unread records, which lasts over several reads.

    Attributes:
        found: The timestamp in ms by partition and offset; `NO_RECORD` if there was no record up to the log's end,
            `UNDATED` if the record has none.
        reached: The offset up to which batches were searched without a record, by partition and offset.
        refused: Topics whose records the user may not read, with the error; fetched again after `retry_refused_topics`.
    """

    found: dict[Offset, int] = field(default_factory=dict)
    reached: dict[Offset, int] = field(default_factory=dict)
    refused: dict[str, ReadFailure] = field(default_factory=dict)
    _next: int = 0

    async def look_up_timestamps(
        self, cluster: Cluster, wanted: Mapping[Offset, PartitionBounds], limit: int, timeout_ms: float
    ) -> tuple[dict[Offset, int], list[ReadFailure]]:
        """Return the timestamps of the first records at or after these offsets, from the cache or by a few fetches.

        Args:
            cluster: The cluster.
            wanted: The offsets, each before the end of its partition, with the partition's bounds.
            limit: The most offsets to look up by fetches; others are left to a later call.
            timeout_ms: The limit of each fetch.

        Returns:
            The timestamp for each offset for which it is known, and the fetches that failed.
        """
        self._keep(wanted)
        searches = [
            _Search((tp, at), max(at, self.reached.get((tp, at), at)), bounds)
            for (tp, at), bounds in wanted.items()
            if (tp, at) not in self.found and tp.topic not in self.refused
        ]
        searches = [search for search in searches if not self._is_at_end(search)]
        chosen = self._chosen(searches, limit)
        failures: list[ReadFailure] = []
        for _ in range(ROUNDS_MAX):
            chosen = [search for search in chosen if search.partition.topic not in self.refused]
            now, later = _first_of_each(chosen)
            if not now:
                break
            again = await self._fetched(cluster, now, timeout_ms, failures)
            chosen = [*again, *later]
        times = {offset: self.found[offset] for offset in wanted if offset in self.found}
        return times, [*failures, *self.refused.values()]

    def retry_refused_topics(self) -> None:
        """Let the next call fetch again from topics whose records the user was not allowed to read."""
        self.refused.clear()

    def _keep(self, wanted: Mapping[Offset, PartitionBounds]) -> None:
        """Drop cache entries of offsets that are not wanted any more.

        Also drop `NO_RECORD` entries of partitions that have grown since.
        """
        self.found = {
            offset: time
            for offset, time in self.found.items()
            if offset in wanted and (time != NO_RECORD or self.reached.get(offset, 0) >= wanted[offset].log_end)
        }
        self.reached = {offset: at for offset, at in self.reached.items() if offset in wanted}

    def _chosen(self, searches: list[_Search], limit: int) -> list[_Search]:
        """Return at most `limit` of the searches. The choice rotates, so that later calls get to all of them."""
        if len(searches) <= limit:
            return searches
        first = self._next % len(searches)
        self._next = first + limit
        return [*searches[first:], *searches[:first]][:limit]

    def _is_at_end(self, search: _Search) -> bool:
        """Return whether a search has reached the log's end without a record; if so, record `NO_RECORD`.

        Offsets from the last stable offset on belong to open transactions. They are searched read_uncommitted, since
        these records are unread too.
        """
        bounds = search.bounds
        if search.at >= bounds.log_end:
            self.reached[search.offset] = search.at
            self.found[search.offset] = NO_RECORD
            return True
        search.is_committed = search.at < bounds.last_stable
        return False

    async def _fetched(
        self, cluster: Cluster, searches: list[_Search], timeout_ms: float, failures: list[ReadFailure]
    ) -> list[_Search]:
        """Send the searches' fetches to all leaders at once; return the searches that need another fetch."""
        by_node: dict[tuple[int, bool], list[_Search]] = {}
        for search in searches:
            node = cluster.metadata.leader(search.partition)
            if node >= 0:
                by_node.setdefault((node, search.is_committed), []).append(search)
        tasks = [
            cluster.runtime.spawn(self._from(cluster, node, kind, theirs, timeout_ms))
            for (node, kind), theirs in by_node.items()
        ]
        again: list[_Search] = []
        for task in tasks:
            going_on, failed = await task
            again += going_on
            failures += failed
        return again

    async def _from(
        self, cluster: Cluster, node: int, is_committed: bool, searches: list[_Search], timeout_ms: float
    ) -> tuple[list[_Search], list[ReadFailure]]:
        by_partition = {search.partition: search for search in searches}
        again, empty = [], []
        try:
            answers = await _fetch(cluster, node, searches, is_committed, timeout_ms)
            for tp, part in answers.items():
                search = by_partition.get(tp)
                if search is None or self._refuses(search, part):
                    continue
                if part.records is None or not len(part.records):
                    empty.append(search)
                elif not self._use_answer(search, part):
                    again.append(search)
            for search in empty[:ALONE_MAX]:
                alone = await _fetch(cluster, node, [search], is_committed, timeout_ms, ALONE_BYTES)
                for part in alone.values():
                    if not self._refuses(search, part) and part.records is not None and len(part.records):
                        again += [] if self._use_answer(search, part) else [search]
        except KafkaError as error:
            return again, [ReadFailure.of(f"records from broker {node}", error)]
        return again, []

    def _refuses(self, search: _Search, part: FetchedPartition) -> bool:
        """Return whether the answer has an error for the partition; remember topics without read permission."""
        code = ErrorCode.of(part.error_code)
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            topic = search.partition.topic
            self.refused[topic] = ReadFailure.of(f"records of {topic}", error_for(code, f"records of {topic}"))
        return code is not ErrorCode.NONE

    def _use_answer(self, search: _Search, part: FetchedPartition) -> bool:
        """Search the fetched batches; return whether the search has ended, with a record or at the log's end."""
        aborted = [(txn.producer_id, txn.first_offset) for txn in part.aborted_transactions or ()]
        try:
            time, reached = first_record_timestamp(part.records or b"", max(search.offset[1], search.at), aborted)
        except CorruptDataError:
            time, reached = UNDATED, search.at
        if time is not None:
            self.found[search.offset] = time
            return True
        search.at = self.reached[search.offset] = max(reached, search.at)
        return self._is_at_end(search)


def _first_of_each(searches: Iterable[_Search]) -> tuple[list[_Search], list[_Search]]:
    """Return one search of each partition, for the next fetch, and all others, since a fetch names a partition once."""
    now: dict[TopicPartition, _Search] = {}
    later = [search for search in searches if now.setdefault(search.partition, search) is not search]
    return list(now.values()), later


async def _fetch(
    cluster: Cluster,
    node: int,
    searches: Sequence[_Search],
    is_committed: bool,
    timeout_ms: float,
    max_bytes: int = FETCH_BYTES,
) -> dict[TopicPartition, FetchedPartition]:
    """Send one Fetch request that does not wait for records, and return the answer by partition.

    The request's version is one that names topics instead of ids, as every broker knows.
    """
    topics: dict[str, FetchRequest.FetchTopic] = {}
    for search in searches:
        name = search.partition.topic
        topic = topics.setdefault(name, FetchRequest.FetchTopic(topic=name))
        topic.partitions.append(
            FetchRequest.FetchPartition(
                partition=search.partition.partition, fetch_offset=search.at, partition_max_bytes=max_bytes
            )
        )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=RESPONSE_BYTES,
        isolation_level=int(is_committed),
        topics=list(topics.values()),
    )
    answer = await cluster.send(Between(request, highest=HIGHEST_BY_NAME), BrokerById(node), timeout_ms=timeout_ms)
    if answer.error_code:
        raise error_for(answer.error_code, f"records from broker {node}")
    return {
        TopicPartition(topic.topic, part.partition_index): part
        for topic in answer.responses
        for part in topic.partitions
    }
