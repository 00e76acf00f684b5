"""Reads ranges of offsets without a group: big fetches, one ahead, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kohort.calls import checked, checked_call
from kohort.client.consumer.fetch_request import FETCH_LANE, MOVED, FetchEntry, fetch_request
from kohort.client.consumer.subscription import Position
from kohort.client.lookups import Lookups
from kohort.client.net.cluster import Cluster, Node
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.settings import ConsumerConfig, client_config
from kohort.client.topic_offsets import beginning_offsets, end_offsets, topic_names
from kohort.columns import COLUMNS, DecodeOptions, RecordSet, damage_error, decode_all, extent
from kohort.errors import ErrorCode, OffsetError, TimedOutError, error_for
from kohort.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class _Answer:
    """One fetch's record set, and where the next one begins (-1: nothing came)."""

    records: memoryview
    aborted: list[tuple[int, int]]
    start: int
    next_offset: int


@checked
class RangeReader(Lookups):
    """Fetches offsets [start, end) of partitions as Arrow batches.

        with RangeReader("127.0.0.1:9092", columns=("key", "value", "offset")) as reader:
            for batch in reader.read(TopicPartition("flights", 0), 0, 100_000):
                ...

    Keeps its connections between reads. Holds at most three fetch answers of `fetch_bytes`. One thread may use it at a
    time.
    """

    @checked_call
    def __init__(
        self,
        bootstrap_servers: str | list[str],
        *,
        columns: Sequence[str] | None = None,
        fetch_bytes: int = 8 * 1024 * 1024,
        **settings: Any,
    ) -> None:
        """Connects with the first call.

        Args:
            bootstrap_servers: HOST:PORT, several with commas between or as a list.
            columns: Out of key, value, topic, partition, offset, timestamp, timestampType, headers; None: all.
            fetch_bytes: Asked for at once from one partition.
            **settings: Of `ConsumerConfig` (isolation_level, check_crcs, security …), by either kind of name.
        """
        config = client_config(ConsumerConfig, bootstrap_servers, settings)
        super().__init__(ThreadClient(config), config)
        self._options = DecodeOptions(
            columns=COLUMNS if columns is None else tuple(columns),
            read_committed=self.config.isolation_level == "read_committed",
            check_crcs=self.config.check_crcs,
        )
        self._fetch_bytes = fetch_bytes

    def read(
        self, partition: TopicPartition, start: int, end: int, *, fail_on_data_loss: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Batches with the records of [start, end), in order, one fetch answer or less each.

        Offsets without a record (compacted, control, aborted records) are passed over.

        Args:
            partition: Which.
            start: The first offset.
            end: The offset after the last one; when it lies after the partition's end, `read` waits for data until
                `default_api_timeout_ms` has passed without any.
            fail_on_data_loss: False goes on at the first offset there is when retention has removed a part.

        Raises:
            OffsetError: a part of the range is gone; names offsets.
            TimedOutError: no data for `default_api_timeout_ms`.
            CorruptDataError: a damaged batch; names its offset.
        """
        if start >= end:
            return
        cluster = self._client.cluster
        position = start
        ahead = self._client.submit(self._fetch(cluster, partition, position, end, fail_on_data_loss))
        try:
            while position < end:
                answer = ahead.result()
                position = answer.next_offset
                if position < end:
                    ahead = self._client.submit(self._fetch(cluster, partition, position, end, fail_on_data_loss))
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
                raise damage_error(given, damage)

    async def _fetch(self, cluster: Cluster, partition: TopicPartition, offset: int, end: int, fail: bool) -> _Answer:
        limit_ms = self.config.default_api_timeout_ms
        deadline = cluster.runtime.now_ms + limit_ms
        while True:
            answer = await cluster.retrying(
                partial(self._attempt, cluster, partition, offset), f"fetch of {partition}", limit_ms
            )
            if answer is None:
                offset = await self._resume(cluster, partition, offset, end, fail)
                if offset >= end:
                    return _Answer(memoryview(b""), [], offset, offset)
            elif answer.next_offset > offset:
                return answer
            elif cluster.runtime.now_ms >= deadline:
                raise TimedOutError(
                    f"{partition}: no data at offset {offset} (of a range up to {end}) for {limit_ms} ms"
                )

    async def _attempt(self, cluster: Cluster, partition: TopicPartition, offset: int) -> _Answer | None:
        """One fetch; None when the offset is out of range."""
        node = await cluster.leader(partition)
        request = fetch_request(
            cluster, self.config, [FetchEntry(partition, Position(offset), self._fetch_bytes)], self._fetch_bytes
        )
        timeout_ms = self.config.request_timeout_ms + self.config.fetch_max_wait_ms
        answer = await cluster.send(request, Node(node), timeout_ms=timeout_ms, lane=FETCH_LANE)
        if answer.error_code or not answer.responses:
            raise error_for(answer.error_code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} can't be read")
        part = answer.responses[0].partitions[0]
        code = ErrorCode.of(part.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        if code is not ErrorCode.NONE:
            if code in MOVED:
                await cluster.describe_topics([partition.topic])
            raise error_for(code, f"{partition} can't be read: {part.damage or code.text}")
        records = part.records if part.records is not None else memoryview(b"")
        aborted = [(txn.producer_id, txn.first_offset) for txn in part.aborted_transactions or ()]
        return _Answer(records, aborted, offset, extent(records).next_offset)

    async def _resume(self, cluster: Cluster, partition: TopicPartition, offset: int, end: int, fail: bool) -> int:
        first = (await beginning_offsets(cluster, [partition]))[partition]
        last = (await end_offsets(cluster, [partition]))[partition]
        if fail or offset > last:
            raise OffsetError(
                f"{partition}: offsets {offset} to {end} were asked for, the partition holds {first} to {last}"
            )
        return max(first, offset)

    def topics(self, timeout_ms: float | None = None) -> list[str]:
        """All topics, sorted; internal ones left out."""
        return self._client.call(topic_names(self._client.cluster, timeout_ms))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
