"""Reads ranges of offsets without a group: big fetches, one ahead, bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias
from uuid import UUID

from kohort.client.consumer.fetching import FETCH_LANE, MOVED, FetchEntry, fetch_request
from kohort.client.consumer.positions import CONFIRM_MS
from kohort.client.consumer.subscription import Position
from kohort.client.lookups import Lookups
from kohort.client.net.cluster import Node
from kohort.client.net.health import reach
from kohort.client.net.metadata import TopicInfo
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.net.topic_existence import present_topics
from kohort.client.offsets import EARLIEST, LATEST, OffsetAndTimestamp, list_offsets, topic_names
from kohort.client.settings import ConsumerConfig, client_config
from kohort.columns import COLUMNS, DecodeOptions, RecordSet, damage_error, decode_all, extent
from kohort.errors import ErrorCode, NotFoundError, OffsetError, TimedOutError, error_for
from kohort.ids import TopicPartition
from kohort.settings.arguments import checked, checked_call
from kohort.wire.discovery import MetadataRequest

if TYPE_CHECKING:
    import pyarrow as pa

When: TypeAlias = Literal["earliest", "latest"] | int
_NAMED_TIMES = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class _Answer:
    """One fetch's record set, and where the next one begins (-1: nothing came)."""

    records: memoryview
    aborted: list[tuple[int, int]]
    start: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class _Source:
    """What is read: a partition, and which topic of that name (None: whichever)."""

    partition: TopicPartition
    topic_id: UUID | None


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
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        fail_on_data_loss: bool = True,
        topic_id: UUID | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Batches with the records of [start, end), in order, one fetch answer or less each.

        Offsets without a record (compacted, control, aborted records) are passed over.

        Args:
            partition: Which.
            start: The first offset.
            end: The offset after the last one; when it lies after the partition's end, `read` waits for data until
                `default_api_timeout_ms` has passed without any.
            fail_on_data_loss: False goes on at the first offset there is when retention has removed a part.
            topic_id: The topic that the offsets belong to: nothing is read of another one of the same name. None: the
                one that has the name at the time.

        Raises:
            NotFoundError: the topic of `topic_id` was deleted, or made again.
            OffsetError: a part of the range is gone; names offsets.
            TimedOutError: no data for `default_api_timeout_ms`.
            CorruptDataError: a damaged batch; names its offset.
        """
        if start >= end:
            return
        of = _Source(partition, topic_id)
        position = start
        ahead = self._client.submit(self._fetch(of, position, end, fail_on_data_loss))
        try:
            while position < end:
                answer = ahead.result()
                position = answer.next_offset
                if position < end:
                    ahead = self._client.submit(self._fetch(of, position, end, fail_on_data_loss))
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

    async def _fetch(self, of: _Source, offset: int, end: int, fail: bool) -> _Answer:
        cluster, partition = self._client.cluster, of.partition
        limit_ms = self.config.default_api_timeout_ms
        deadline = cluster.runtime.now_ms + limit_ms
        doubted_ms: float | None = None
        while True:
            answer = await cluster.retrying(partial(self._attempt, of, offset), f"fetch of {partition}", limit_ms)
            if answer is None:
                now_ms = cluster.runtime.now_ms
                doubted_ms = now_ms if doubted_ms is None else doubted_ms
                if now_ms - doubted_ms < CONFIRM_MS:
                    await cluster.runtime.sleep(self.config.retry_backoff_ms)
                    await self._look_again(of)
                    continue
                offset = await self._resume(of, offset, end, fail)
                if offset >= end:
                    return _Answer(memoryview(b""), [], offset, offset)
            elif answer.next_offset > offset:
                return answer
            elif cluster.runtime.now_ms >= deadline:
                raise TimedOutError(
                    f"{partition}: no data at offset {offset} (of a range up to {end}) for {limit_ms} ms"
                )

    async def _attempt(self, of: _Source, offset: int) -> _Answer | None:
        """One fetch; None when the offset is out of range."""
        cluster, partition = self._client.cluster, of.partition
        node = await self._leader(of)
        request = fetch_request(
            cluster, self.config, [FetchEntry(partition, Position(offset), self._fetch_bytes)], self._fetch_bytes
        )
        timeout_ms = self.config.request_timeout_ms + self.config.fetch_max_wait_ms
        answer = await cluster.send(request, Node(node), timeout_ms=timeout_ms, lane=FETCH_LANE)
        if answer.error_code or not answer.responses:
            raise error_for(answer.error_code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} can't be read")
        part = answer.responses[0].partitions[0]
        code = ErrorCode.of(part.error_code)
        if code in MOVED:
            await self._look_again(of)
        elif of.topic_id is not None and answer.responses[0].topic_id != of.topic_id:
            await self._refuse_another(of, node)  # the fetch went by name
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        if code is not ErrorCode.NONE:
            raise error_for(code, f"{partition} can't be read: {part.damage or code.text}")
        records = part.records if part.records is not None else memoryview(b"")
        aborted = [(txn.producer_id, txn.first_offset) for txn in part.aborted_transactions or ()]
        return _Answer(records, aborted, offset, extent(records).next_offset)

    async def _leader(self, of: _Source) -> int:
        cluster, partition = self._client.cluster, of.partition
        if of.topic_id is None:
            return await cluster.leader(partition)
        if cluster.metadata.topic_id(partition.topic) != of.topic_id or cluster.metadata.leader(partition) < 0:
            await self._refuse_another(of)
        node = cluster.metadata.leader(partition)
        if node < 0:
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader of {partition} is known")
        return node

    async def _look_again(self, of: _Source) -> None:
        if of.topic_id is None:
            await self._client.cluster.describe_topics([of.partition.topic])
        else:
            await self._refuse_another(of)

    async def _refuse_another(self, of: _Source, node: int | None = None) -> None:
        """Ask whose the name is now.

        Args:
            of: What is read.
            node: The broker that a fetch by name went to, which knows what it gave; None: any.

        Raises:
            NotFoundError: another topic's, or no one's.
        """
        topic = of.partition.topic
        if node is not None:
            asked = MetadataRequest.MetadataRequestTopic(name=topic)
            request = MetadataRequest(topics=[asked], allow_auto_topic_creation=False)
            told = (await self._client.cluster.send(request, Node(node))).topics
            if any(one.topic_id == of.topic_id for one in told):
                return
        found = (await present_topics(self._client.cluster, [topic])).get(topic)
        if found is None:
            raise NotFoundError(f"topic {topic} (id {of.topic_id}) was deleted")
        if found.topic_id != of.topic_id:
            raise NotFoundError(
                f"topic {topic} was deleted and made again: its id was {of.topic_id} and is {found.topic_id} now"
            )
        if of.partition.partition not in found.partitions:
            raise NotFoundError(f"{of.partition} does not exist")

    async def _resume(self, of: _Source, offset: int, end: int, fail: bool) -> int:
        cluster, partition = self._client.cluster, of.partition
        gone = of.topic_id is not None
        first, last = [
            (await list_offsets(cluster, {partition: which}, pass_over_gone=gone)).get(partition)
            for which in (EARLIEST, LATEST)
        ]
        if gone:
            await self._refuse_another(of)
        if first is None or last is None:
            raise NotFoundError(f"{partition} does not exist")
        if fail or offset > last.offset:
            raise OffsetError(
                f"{partition}: offsets {offset} to {end} were asked for, the partition holds "
                f"{first.offset} to {last.offset}",
                partition=partition,
            )
        return max(first.offset, offset)

    def reach(self, timeout_ms: float) -> None:
        """Have a connection to a broker, in bounded time.

        Raises:
            TimedOutError: none could be had; names addresses and causes.
            KafkaError: a login was refused, or another thing that trying again does not cure; at once.
        """
        self._client.call(reach(self._client.cluster, timeout_ms))

    def present_topics(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """Those of the topics that exist, asked now, with their ids and partitions; at once, also of those deleted.

        Raises:
            KafkaError: a topic can't be seen for another reason than that it does not exist.
        """
        return self._client.call(present_topics(self._client.cluster, topics))

    def present_offsets(self, wanted: Mapping[TopicPartition, When]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by time of those partitions that exist.

        Args:
            wanted: Milliseconds since the epoch, "earliest", or "latest" (as `end_offsets` means it), by partition.

        Returns:
            What was found; `offset` is -1 where no record is at or after the time. Partitions that do not exist are
            left out, at once.
        """
        committed = self.config.isolation_level == "read_committed"
        times = {tp: when if isinstance(when, int) else _NAMED_TIMES[when] for tp, when in wanted.items()}
        return self._client.call(
            list_offsets(self._client.cluster, times, read_committed=committed, pass_over_gone=True)
        )

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
